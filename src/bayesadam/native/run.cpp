// A pass over the weights. bayesadam/core/cpp.py replaces the parts between /* and */.
#include "normal.h"

namespace {

struct bfloat16 {
    uint16_t bits;
    bfloat16() = default;
    explicit bfloat16(float value) {
        uint32_t wide;
        std::memcpy(&wide, &value, 4);
        const uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
        bits = static_cast<uint16_t>(value != value ? 0x7fc0u : rounded);
    }
    explicit bfloat16(double value) : bfloat16(static_cast<float>(value)) {}
    operator float() const {
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &wide, 4);
        return value;
    }
};

}  // namespace

// The runs of elements, the numbers of their groups, and the words that name the noise; see core/cpp.py.
extern "C" void run(int64_t count, const int64_t* runs, const double* numbers, const int64_t* word, int threads) {
    constexpr int64_t NUMBERS = /*NUMBERS*/, COLUMNS = /*COLUMNS*/;
    const uint32_t step = static_cast<uint32_t>(word[0]), number_ = static_cast<uint32_t>(word[1]),
                   next_step = static_cast<uint32_t>(word[2]), next_number = static_cast<uint32_t>(word[3]);
    (void)step, (void)number_, (void)next_step, (void)next_number;
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) total += tiles_of(runs[i * COLUMNS], runs[i * COLUMNS + 1]);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const Share share(total);
        /*BUFFERS*/
        int64_t before = 0;
        for (int64_t i = 0; i < count; i++) {
            const int64_t* const run = runs + i * COLUMNS;
            const int64_t first = run[0], stop = run[0] + run[1], lanes = run[2], start = first / TILE;
            const int64_t tiles = tiles_of(first, run[1]);
            const int64_t from = share.from(before), to = share.to(before, tiles);
            before += tiles;
            if (from >= to) continue;
            const uint32_t index = static_cast<uint32_t>(run[3]), low = static_cast<uint32_t>(run[5]),
                           high = static_cast<uint32_t>(run[6]);
            const double* const number = numbers + run[4] * NUMBERS;
            (void)index, (void)low, (void)high;
            /*HEADER*/
            /*POINTERS*/
            for (int64_t t = from; t < to; t++) {
                const uint32_t tile = static_cast<uint32_t>(start + t);
                const int64_t lo = (start + t) * TILE, hi = lo + 4 * lanes;
                const int64_t begin = lo > first ? lo : first, end = hi < stop ? hi : stop;
                (void)tile;
                /*NOISE*/
#pragma omp simd
                for (int64_t j = begin; j < end; j++) {
                    /*BODY*/
                }
            }
        }
    }
}
