// Several runs of draws at once. A row of the table is one run: first element, number of elements, lanes of a tile, the
// key's five words, and the address of the result. Threads share the tiles of all runs.
#include "normal.h"

extern "C" void normals(int64_t count, const int64_t* rows, int threads) {
    constexpr int64_t COLUMNS = 9;
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) total += tiles_of(rows[i * COLUMNS], rows[i * COLUMNS + 1]);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const Share share(total);
        alignas(64) float buffer[TILE];
        int64_t before = 0;
        for (int64_t i = 0; i < count; i++) {
            const int64_t* row = rows + i * COLUMNS;
            float* out = reinterpret_cast<float*>(row[8]);
            const int64_t first = row[0], stop = row[0] + row[1], lanes = row[2], start = first / TILE;
            const Key key{static_cast<uint32_t>(row[3]), static_cast<uint32_t>(row[4]), static_cast<uint32_t>(row[5]),
                          static_cast<uint32_t>(row[6]), static_cast<uint32_t>(row[7])};
            const int64_t tiles = tiles_of(first, row[1]);
            for (int64_t t = share.from(before); t < share.to(before, tiles); t++) {
                const int64_t lo = (start + t) * TILE, hi = lo + 4 * lanes;
                const int64_t begin = lo > first ? lo : first, end = hi < stop ? hi : stop;
                const bool whole = begin == lo && end == hi;
                fill_tile(whole ? out + (lo - first) : buffer, static_cast<uint32_t>(start + t), lanes, key, 1.0f);
                if (!whole) std::memcpy(out + (begin - first), buffer + (begin - lo), (end - begin) * sizeof(float));
            }
            before += tiles;
        }
    }
}
