// Whether all elements of float vectors, and their squares, are finite.
#include <cstdint>

// The number of the first vector with a sum of squares that is infinite or NaN, or -1; all addresses, then all lengths.
extern "C" int64_t first_bad(int64_t count, const int64_t* table, int threads) {
    constexpr int64_t CHUNK = 4096;
    int64_t found = count;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) reduction(min : found)
    for (int64_t i = 0; i < count; i++) {
        const float* const values = reinterpret_cast<const float*>(table[i]);
        const int64_t size = table[count + i];
        for (int64_t start = 0; start < size; start += CHUNK) {
            const int64_t stop = size - start < CHUNK ? size : start + CHUNK;
            float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
            for (int64_t j = start; j < stop; j++) sum += values[j] * values[j];
            if (!__builtin_isfinite(sum) && i < found) found = i;
        }
    }
    return found == count ? -1 : found;
}
