// Standard normals, as bayesadam/noise.py defines them: Philox4x32-7 and the Box-Muller transform, equal to the
// Python code's up to rounding. Kernels include no <cmath> or <immintrin.h>, which take longer to compile than the rest:
// compilers have these functions built in.
#include <cstdint>
#include <cstring>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

constexpr int64_t LANES = 1024;
constexpr int64_t TILE = 4 * LANES;

struct Key {
    uint32_t low, high, step, number, index;  // number: of the sample, with the stream in its highest bits
};

// Tiles that the elements first ... first + size of a draw lie in.
inline int64_t tiles_of(int64_t first, int64_t size) {
    return size == 0 ? 0 : (first + size - 1) / TILE - first / TILE + 1;
}

// The part of this thread of the tiles of several runs, which are numbered consecutively.
struct Share {
    int64_t lo, hi;
    explicit Share(int64_t total) {
#ifdef _OPENMP
        const int64_t number = omp_get_thread_num(), count = omp_get_num_threads();
#else
        const int64_t number = 0, count = 1;
#endif
        lo = total * number / count;
        hi = total * (number + 1) / count;
    }
    int64_t from(int64_t before) const { return lo > before ? lo - before : 0; }
    int64_t to(int64_t before, int64_t tiles) const {
        return hi - before < tiles ? hi - before : tiles;
    }
};

// a * b + c, with one rounding where the processor can. The compiler does not contract on its own, so that a formula
// gives the same number in every kernel.
template <typename T>
inline T fused(T a, T b, T c) {
    return a * b + c;
}
#if defined(__FMA__) || defined(__AVX512F__) || defined(__ARM_FEATURE_FMA)
template <>
inline float fused<float>(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
template <>
inline double fused<double>(double a, double b, double c) {
    return __builtin_fma(a, b, c);
}
#endif

inline float natural_log(float u) {  // of normal numbers
    uint32_t bits;
    std::memcpy(&bits, &u, 4);
    const int32_t exponent = static_cast<int32_t>(bits - 0x3f3504f3u) >> 23;
    const uint32_t scaled = bits - (static_cast<uint32_t>(exponent) << 23);
    float x;
    std::memcpy(&x, &scaled, 4);
    x -= 1.0f;
    float p = 8.7223075330e-2f;  // the minimax polynomial of log(1 + x) / x for sqrt(1/2) <= 1 + x <= sqrt(2)
    p = fused(p, x, -1.4366818965e-1f);
    p = fused(p, x, 1.4952273667e-1f);
    p = fused(p, x, -1.6562396288e-1f);
    p = fused(p, x, 1.9956833124e-1f);
    p = fused(p, x, -2.5002074242e-1f);
    p = fused(p, x, 3.3334186673e-1f);
    p = fused(p, x, -4.9999988079e-1f);
    p = fused(p, x, 1.0f);
    return fused(static_cast<float>(exponent), 0.693147182f, x * p);
}

inline float with_sign(float x, uint32_t word) {  // x, negated if the highest bit of the word is set
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    bits ^= word & 0x80000000u;
    std::memcpy(&x, &bits, 4);
    return x;
}

// Sine and cosine of 2 pi word / 2^32, times the root of 2. They are the sum and the difference of those of x, the
// distance from the middle of the quarter of the circle, which is mirrored in odd quarters.
inline void sine_and_cosine(uint32_t word, float& sine, float& cosine) {
    const uint32_t is_odd = word << 1;
    const float centred = static_cast<float>(static_cast<int32_t>(word << 2 ^ 0x80000000u)) * 0x1p-31f;
    const float x = with_sign(centred, is_odd), z = x * x;  // in units of pi / 4
    const float p = fused(fused(fused(-3.59504520e-5f, z, 2.49000103e-3f), z, -8.07454363e-2f), z, 7.85398185e-1f);
    const float q = fused(fused(fused(-3.18880513e-4f, z, 1.58499144e-2f), z, -3.08424264e-1f), z, 1.0f);
    sine = with_sign(fused(p, x, q), word);
    cosine = with_sign(fused(-p, x, q), word ^ is_odd);
}

inline float uniform(uint32_t word) { return fused(static_cast<float>(word), 0x1p-32f, 0x1p-33f); }

constexpr int WIDTH = 16;  // lanes that are computed together, whole vectors also at the end of a tile
constexpr uint32_t M0 = 0xD2511F53u, M1 = 0xCD9E8D57u;

inline uint32_t high_half(uint64_t product) { return static_cast<uint32_t>(product >> 32); }

#if defined(__AVX512F__) || defined(__AVX2__)
// Numbers of 64 bits in one register, of which multiplications use the lower halves.
#ifdef __AVX512F__
typedef uint64_t Word __attribute__((vector_size(64), may_alias));
constexpr Word PAIRS = {0, 1, 4, 5, 8, 9, 12, 13};
#else
typedef uint64_t Word __attribute__((vector_size(32), may_alias));
constexpr Word PAIRS = {0, 1, 4, 5};
#endif

inline Word times(Word a, Word b) {  // compilers would multiply all 64 bits, which is slower
    Word product;
    asm("vpmuludq %2, %1, %0" : "=v"(product) : "v"(a), "v"(b));
    return product;
}

inline void store_halves(uint32_t* out, Word a, Word b) {  // the lower ones: two of a, two of b, and so on
    asm("vshufps $0x88, %2, %1, %0" : "=v"(*reinterpret_cast<Word*>(out)) : "v"(a), "v"(b));
}
#else
typedef uint32_t Word;
#endif

// What all counters of a tile share: their words after two rounds, but for what depends on the first word, and the keys.
struct Rounds {
    Word start[4], low[7], high[7];
    explicit Rounds(const Key& key) {
        uint32_t k0 = key.low, k1 = key.high;
        for (int round = 0; round < 7; round++) {
            low[round] = Word{} + k0;
            high[round] = Word{} + k1;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        const uint64_t q = static_cast<uint64_t>(key.step) * M1;
        const uint64_t p = static_cast<uint64_t>(high_half(q) ^ key.index ^ key.low) * M0;
        start[0] = high[0] ^ key.number;
        start[1] = low[1] ^ static_cast<uint32_t>(q);
        start[2] = high[1] ^ high_half(p);
        start[3] = Word{} + static_cast<uint32_t>(p);
    }
};

// The four words of each of WIDTH counters.
inline void philox(uint32_t first, const Rounds& rounds, uint32_t words[4][WIDTH]) {
#if defined(__AVX512F__) || defined(__AVX2__)
    const Word m0 = Word{} + M0, m1 = Word{} + M1;
    constexpr int STEP = sizeof(Word) / 4;
#pragma GCC unroll 2
    for (int i = 0; i < WIDTH; i += STEP) {
        const Word counters = PAIRS + (first + static_cast<uint32_t>(i));
        const Word ap0 = times(counters, m0), bp0 = times(counters + 2u, m0);
        const Word aq1 = times(ap0 >> 32 ^ rounds.start[0], m1), bq1 = times(bp0 >> 32 ^ rounds.start[0], m1);
        Word a0 = aq1 >> 32 ^ rounds.start[1], a1 = aq1, a2 = ap0 ^ rounds.start[2], a3 = rounds.start[3];
        Word b0 = bq1 >> 32 ^ rounds.start[1], b1 = bq1, b2 = bp0 ^ rounds.start[2], b3 = rounds.start[3];
#pragma GCC unroll 5
        for (int round = 2; round < 7; round++) {
            const Word ap = times(a0, m0), aq = times(a2, m1), bp = times(b0, m0), bq = times(b2, m1);
            a0 = aq >> 32 ^ a1 ^ rounds.low[round];
            b0 = bq >> 32 ^ b1 ^ rounds.low[round];
            a2 = ap >> 32 ^ a3 ^ rounds.high[round];
            b2 = bp >> 32 ^ b3 ^ rounds.high[round];
            a1 = aq, b1 = bq, a3 = ap, b3 = bp;
        }
        store_halves(words[0] + i, a0, b0);
        store_halves(words[1] + i, a1, b1);
        store_halves(words[2] + i, a2, b2);
        store_halves(words[3] + i, a3, b3);
    }
#else
#pragma omp simd
    for (int i = 0; i < WIDTH; i++) {
        const uint64_t p0 = static_cast<uint64_t>(first + static_cast<uint32_t>(i)) * M0;
        const uint64_t q1 = static_cast<uint64_t>(high_half(p0) ^ rounds.start[0]) * M1;
        uint32_t c0 = high_half(q1) ^ rounds.start[1], c1 = static_cast<uint32_t>(q1);
        uint32_t c2 = static_cast<uint32_t>(p0) ^ rounds.start[2], c3 = rounds.start[3];
        for (int round = 2; round < 7; round++) {
            const uint64_t p = static_cast<uint64_t>(c0) * M0, q = static_cast<uint64_t>(c2) * M1;
            c0 = high_half(q) ^ c1 ^ rounds.low[round];
            c2 = high_half(p) ^ c3 ^ rounds.high[round];
            c1 = static_cast<uint32_t>(q);
            c3 = static_cast<uint32_t>(p);
        }
        words[0][i] = c0, words[1][i] = c1, words[2][i] = c2, words[3][i] = c3;
    }
#endif
}

// The normals of WIDTH counters, output k at out + k * stride.
inline void fill_lanes(float* out, int64_t stride, uint32_t first, const Rounds& rounds, float sign) {
    alignas(64) uint32_t words[4][WIDTH];
    philox(first, rounds, words);
#pragma omp simd
    for (int i = 0; i < WIDTH; i++) {
        const float r0 = sign * __builtin_sqrtf(-natural_log(uniform(words[0][i])));
        const float r1 = sign * __builtin_sqrtf(-natural_log(uniform(words[2][i])));
        float s, c;
        sine_and_cosine(words[1][i], s, c);
        out[i] = c * r0;
        out[stride + i] = s * r0;
        sine_and_cosine(words[3][i], s, c);
        out[2 * stride + i] = c * r1;
        out[3 * stride + i] = s * r1;
    }
}

// The 4 * lanes normals of one tile: element j has output j / lanes of counter j % lanes.
// It is never inlined, so that all kernels use the same code and get the same numbers.
__attribute__((noinline)) void fill_tile(float* out, uint32_t tile, int64_t lanes, const Key& key, float sign) {
    const Rounds rounds(key);
    const uint32_t first = tile * static_cast<uint32_t>(LANES);
    alignas(64) float end[4 * WIDTH];
    for (int64_t lane = 0; lane < lanes; lane += WIDTH) {
        const bool is_end = lane + WIDTH > lanes;
        const uint32_t counter = first + static_cast<uint32_t>(lane);
        fill_lanes(is_end ? end : out + lane, is_end ? WIDTH : lanes, counter, rounds, sign);
        if (!is_end) continue;
        for (int k = 0; k < 4; k++)
            std::memcpy(out + k * lanes + lane, end + k * WIDTH, (lanes - lane) * sizeof(float));
    }
}

}  // namespace
