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

inline float natural_log(float u) {  // of normal numbers; the polynomial is that of Cephes
    uint32_t bits;
    std::memcpy(&bits, &u, 4);
    const int32_t exponent = static_cast<int32_t>(bits - 0x3f3504f3u) >> 23;
    const uint32_t scaled = bits - (static_cast<uint32_t>(exponent) << 23);
    float x;
    std::memcpy(&x, &scaled, 4);
    x -= 1.0f;
    const float e = static_cast<float>(exponent), z = x * x;
    float p = 7.0376836292e-2f;
    p = fused(p, x, -1.1514610310e-1f);
    p = fused(p, x, 1.1676998740e-1f);
    p = fused(p, x, -1.2420140846e-1f);
    p = fused(p, x, 1.4249322787e-1f);
    p = fused(p, x, -1.6668057665e-1f);
    p = fused(p, x, 2.0000714765e-1f);
    p = fused(p, x, -2.4999993993e-1f);
    p = fused(p, x, 3.3333331174e-1f);
    float y = fused(e, -2.12194440e-4f, x * z * p);
    y = fused(-0.5f, z, y);
    return fused(e, 0.693359375f, x + y);
}

inline void sine_and_cosine(float x, float& sine, float& cosine) {  // for 0 <= x <= 2 pi
    const float turns = __builtin_rintf(x * 0.63661977236758134f);
    const int32_t quadrant = static_cast<int32_t>(turns);
    float r = fused(turns, -1.5703125f, x);
    r = fused(turns, -4.837512969970703125e-4f, r);
    r = fused(turns, -7.54978995489188216e-8f, r);
    const float z = r * r;
    const float p = fused(fused(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f);
    const float q = fused(fused(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f);
    const float s = fused(p * z, r, r), c = fused(q * z, z, fused(-0.5f, z, 1.0f));
    const bool odd = quadrant & 1;
    const float first = odd ? c : s, second = odd ? s : c;
    sine = quadrant & 2 ? -first : first;
    cosine = (quadrant + 1) & 2 ? -second : second;
}

inline float uniform(uint32_t word) { return fused(static_cast<float>(word), 0x1p-32f, 0x1p-33f); }

inline float angle(uint32_t word) { return static_cast<float>(word) * static_cast<float>(6.283185307179586 * 0x1p-32); }

constexpr int WIDTH = 16;  // lanes that are computed together, whole vectors also at the end of a tile

#ifdef __AVX512F__
// Eight numbers of 64 bits in one register.
typedef uint64_t Word __attribute__((vector_size(64)));

inline Word times(Word a, Word b) {  // of the lower halves; compilers would multiply all 64 bits, which is slower
    Word product;
    asm("vpmuludq %2, %1, %0" : "=v"(product) : "v"(a), "v"(b));
    return product;
}
#else
typedef uint32_t Word;
#endif

// The keys of all rounds, made once for a tile.
struct Rounds {
    Word low[7], high[7];
    explicit Rounds(const Key& key) {
        uint32_t k0 = key.low, k1 = key.high;
        for (int round = 0; round < 7; round++) {
            low[round] = Word{} + k0;
            high[round] = Word{} + k1;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
    }
};

// The four words of each of WIDTH counters.
#ifdef __AVX512F__
inline void philox(uint32_t first, const Key& key, const Rounds& rounds, uint32_t words[4][WIDTH]) {
    const Word even = {0, 2, 4, 6, 8, 10, 12, 14}, zero = {};
    const Word m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u, low = zero + 0xFFFFFFFFu;
    Word a0 = even + first, b0 = a0 + 1u;  // the counters with even and with odd numbers
    Word a1 = zero + key.index, a2 = zero + key.step, a3 = zero + key.number;
    Word b1 = a1, b2 = a2, b3 = a3;
#pragma GCC unroll 7
    for (int round = 0; round < 7; round++) {  // the words are in 64 bits, of which only the lower halves are used
        const Word ap = times(a0, m0), aq = times(a2, m1), bp = times(b0, m0), bq = times(b2, m1);
        a0 = (aq >> 32) ^ a1 ^ rounds.low[round];
        b0 = (bq >> 32) ^ b1 ^ rounds.low[round];
        a2 = (ap >> 32) ^ a3 ^ rounds.high[round];
        b2 = (bp >> 32) ^ b3 ^ rounds.high[round];
        a1 = aq, b1 = bq, a3 = ap, b3 = bp;
    }
    const Word made[4] = {(a0 & low) | b0 << 32, (a1 & low) | b1 << 32, (a2 & low) | b2 << 32, (a3 & low) | b3 << 32};
    std::memcpy(words, made, sizeof(made));
}
#else
inline void philox(uint32_t first, const Key& key, const Rounds& rounds, uint32_t words[4][WIDTH]) {
#pragma omp simd
    for (int i = 0; i < WIDTH; i++) {
        uint32_t c0 = first + static_cast<uint32_t>(i), c1 = key.index, c2 = key.step, c3 = key.number;
        for (int round = 0; round < 7; round++) {
            const uint64_t p = static_cast<uint64_t>(c0) * 0xD2511F53u, q = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
            c0 = static_cast<uint32_t>(q >> 32) ^ c1 ^ rounds.low[round];
            c2 = static_cast<uint32_t>(p >> 32) ^ c3 ^ rounds.high[round];
            c1 = static_cast<uint32_t>(q);
            c3 = static_cast<uint32_t>(p);
        }
        words[0][i] = c0;
        words[1][i] = c1;
        words[2][i] = c2;
        words[3][i] = c3;
    }
}
#endif

// The normals of WIDTH counters, output k at out + k * stride.
inline void fill_lanes(
    float* out, int64_t stride, uint32_t first, const Key& key, const Rounds& rounds, float sign
) {
    alignas(64) uint32_t words[4][WIDTH];
    philox(first, key, rounds, words);
#pragma omp simd
    for (int i = 0; i < WIDTH; i++) {
        const float r0 = sign * __builtin_sqrtf(-2.0f * natural_log(uniform(words[0][i])));
        const float r1 = sign * __builtin_sqrtf(-2.0f * natural_log(uniform(words[2][i])));
        float s, c;
        sine_and_cosine(angle(words[1][i]), s, c);
        out[i] = c * r0;
        out[stride + i] = s * r0;
        sine_and_cosine(angle(words[3][i]), s, c);
        out[2 * stride + i] = c * r1;
        out[3 * stride + i] = s * r1;
    }
}

// The 4 * lanes normals of one tile: element j has output j / lanes of counter j % lanes.
// It is never inlined, so that all kernels use the same code and get the same numbers.
__attribute__((noinline)) void fill_tile(float* out, uint32_t tile, int64_t lanes, const Key& key, float sign) {
    const Rounds rounds(key);
    const uint32_t first = tile * static_cast<uint32_t>(LANES);
    int64_t lane = 0;
    for (; lane + WIDTH <= lanes; lane += WIDTH)
        fill_lanes(out + lane, lanes, first + static_cast<uint32_t>(lane), key, rounds, sign);
    if (lane < lanes) {
        alignas(64) float made[4 * WIDTH];
        fill_lanes(made, WIDTH, first + static_cast<uint32_t>(lane), key, rounds, sign);
        for (int k = 0; k < 4; k++)
            std::memcpy(out + k * lanes + lane, made + k * WIDTH, (lanes - lane) * sizeof(float));
    }
}

}  // namespace
