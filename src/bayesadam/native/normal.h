// Standard normals, as bayesadam/noise.py defines them: Philox4x32-7 and the Box-Muller transform, equal to the
// Python code's up to rounding.
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __AVX512F__
#include <immintrin.h>
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
    const float turns = std::rint(x * 0.63661977236758134f);
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

inline float angle(uint32_t word) { return static_cast<float>(word) * static_cast<float>(2.0 * M_PI * 0x1p-32); }

constexpr int WIDTH = 16;  // lanes that are computed together, whole vectors also at the end of a tile

// The keys of all rounds, made once for a tile.
struct Rounds {
#ifdef __AVX512F__
    __m512i low[7], high[7];
#else
    uint32_t low[7], high[7];
#endif
    explicit Rounds(const Key& key) {
        uint32_t k0 = key.low, k1 = key.high;
        for (int round = 0; round < 7; round++) {
#ifdef __AVX512F__
            low[round] = _mm512_set1_epi64(k0);
            high[round] = _mm512_set1_epi64(k1);
#else
            low[round] = k0;
            high[round] = k1;
#endif
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
    }
};

// The four words of each of WIDTH counters.
#ifdef __AVX512F__
inline void philox(uint32_t first, const Key& key, const Rounds& rounds, uint32_t words[4][WIDTH]) {
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
    const __m512i eight = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    __m512i a0 = _mm512_add_epi64(eight, _mm512_set1_epi64(first)), b0 = _mm512_add_epi64(a0, _mm512_set1_epi64(8));
    __m512i a1 = _mm512_set1_epi64(key.index), a2 = _mm512_set1_epi64(key.step), a3 = _mm512_set1_epi64(key.number);
    __m512i b1 = a1, b2 = a2, b3 = a3;
#pragma GCC unroll 7
    for (int round = 0; round < 7; round++) {  // the words are in 64 bits, of which only the lower halves are used
        const __m512i ap = _mm512_mul_epu32(a0, m0), aq = _mm512_mul_epu32(a2, m1);
        const __m512i bp = _mm512_mul_epu32(b0, m0), bq = _mm512_mul_epu32(b2, m1);
        a0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(aq, 32), a1, rounds.low[round], 0x96);
        b0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(bq, 32), b1, rounds.low[round], 0x96);
        a2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(ap, 32), a3, rounds.high[round], 0x96);
        b2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(bp, 32), b3, rounds.high[round], 0x96);
        a1 = aq, b1 = bq, a3 = ap, b3 = bp;
    }
    const __m512i low = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i made[2][4] = {{a0, a1, a2, a3}, {b0, b1, b2, b3}};
    for (int k = 0; k < 4; k++)  // a whole vector at once, as it is read again
        _mm512_store_si512(words[k], _mm512_permutex2var_epi32(made[0][k], low, made[1][k]));
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
        const float r0 = sign * std::sqrt(-2.0f * natural_log(uniform(words[0][i])));
        const float r1 = sign * std::sqrt(-2.0f * natural_log(uniform(words[2][i])));
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
