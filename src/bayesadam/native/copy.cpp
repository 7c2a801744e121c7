// Copies of several vectors in one call. A row has the addresses of the copy and of the original, and the bytes.
#include <cstdint>
#include <cstring>

extern "C" void copy(int64_t count, const int64_t* rows, int threads) {
    constexpr int64_t CHUNK = 1 << 16;
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < count; i++) {
        char* const to = reinterpret_cast<char*>(rows[3 * i]);
        const char* const from = reinterpret_cast<const char*>(rows[3 * i + 1]);
        const int64_t size = rows[3 * i + 2];
#pragma omp for schedule(static) nowait
        for (int64_t start = 0; start < size; start += CHUNK)
            std::memcpy(to + start, from + start, size - start < CHUNK ? size - start : CHUNK);
    }
}
