// Weights theta = around * mean + softplus(rho) * eps with the sums that divergences need, in one pass over memory, and
// all gradients, in another. `around` is 1, or 0 for the deviations from the means. If the address of eps is 0, the
// standard deviations take its place, so that theta are variances, and these alone are stored. A row of a table is one
// tensor: its number of elements, and the addresses of float32 numbers.
#include "normal.h"

namespace {

constexpr int64_t CHUNK = 512;  // elements whose sums are in float32, short enough for narrow vectors, too
constexpr float SMALL = -15.0f;  // below it the logarithm of softplus(rho) is rho, to rounding

inline float exponential(float x) {  // for x <= 0; the polynomial is that of Cephes
    const float bounded = x > -87.0f ? x : -87.0f, n = __builtin_rintf(bounded * 1.44269504088896341f);
    const float r = fused(n, 2.12194440e-4f, fused(n, -0.693359375f, bounded));
    float p = 1.9875691500e-4f;
    p = fused(p, r, 1.3981999507e-3f);
    p = fused(p, r, 8.3334519073e-3f);
    p = fused(p, r, 4.1665795894e-2f);
    p = fused(p, r, 1.6666665459e-1f);
    p = fused(p, r, 5.0000001201e-1f);
    const float y = fused(p * r, r, r) + 1.0f;
    const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return x < -87.0f ? 0.0f : y * power;
}

inline float softplus(float rho) {
    const float e = exponential(rho > 0.0f ? -rho : rho), u = 1.0f + e;
    const float lost = e - (u - 1.0f);  // what the addition has rounded off: all of a small e
    const float value = (rho > 0.0f ? rho : 0.0f) + (natural_log(u) + lost);
    return rho == rho ? value : rho;
}

}  // namespace

// Columns: mean, rho, eps, and where std and theta go, the same place if eps is 0. Sums of (mean - center)^2, std^2 and
// log(std) over all tensors.
extern "C" void sample(int64_t count, const int64_t* rows, float center, float around, double* sums, int threads) {
    constexpr int64_t COLUMNS = 6;
    int64_t chunks = 0;
    for (int64_t i = 0; i < count; i++) chunks += (rows[i * COLUMNS] + CHUNK - 1) / CHUNK;
    float* const parts = new float[3 * chunks];  // added up in a fixed order, independent of the threads
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int64_t before = 0;
        for (int64_t i = 0; i < count; i++) {
            const int64_t* row = rows + i * COLUMNS;
            const float *mean = reinterpret_cast<float*>(row[1]), *rho = reinterpret_cast<float*>(row[2]);
            const bool square = row[3] == 0;
            const float* eps = square ? rho : reinterpret_cast<float*>(row[3]);  // to be loaded in either case
            float *std = reinterpret_cast<float*>(row[4]), *theta = reinterpret_cast<float*>(row[5]);
            const int64_t size = row[0], own = (size + CHUNK - 1) / CHUNK;
#pragma omp for schedule(static) nowait
            for (int64_t c = 0; c < own; c++) {
                const int64_t start = c * CHUNK, stop = start + CHUNK < size ? start + CHUNK : size;
                float squares = 0.0f, variances = 0.0f, logs = 0.0f;
#pragma omp simd reduction(+ : squares, variances, logs)
                for (int64_t j = start; j < stop; j++) {
                    const float s = softplus(rho[j]), shift = mean[j] - center;
                    std[j] = s;
                    theta[j] = fused(s, square ? s : eps[j], around * mean[j]);
                    squares = fused(shift, shift, squares);
                    variances = fused(s, s, variances);
                    logs += rho[j] < SMALL ? rho[j] : natural_log(s);
                }
                float* part = parts + 3 * (before + c);
                part[0] = squares, part[1] = variances, part[2] = logs;
            }
            before += own;
        }
    }
    for (int k = 0; k < 3; k++) sums[k] = 0.0;
    for (int64_t c = 0; c < chunks; c++)
        for (int k = 0; k < 3; k++) sums[k] += parts[3 * c + k];
    delete[] parts;
}

// Columns: mean, rho, eps, std, the gradient of theta, and where those of mean and rho go. `slopes` are the
// derivatives with respect to the three sums.
extern "C" void sample_backward(int64_t count, const int64_t* rows, float center, float around, const double* slopes,
                                int threads) {
    constexpr int64_t COLUMNS = 8;
    const float of_square = 2.0 * slopes[0], of_variance = 2.0 * slopes[1], of_log = slopes[2];
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < count; i++) {
        const int64_t* row = rows + i * COLUMNS;
        const float *mean = reinterpret_cast<float*>(row[1]), *rho = reinterpret_cast<float*>(row[2]);
        const bool square = row[3] == 0;
        const float *std = reinterpret_cast<float*>(row[4]), *eps = square ? std : reinterpret_cast<float*>(row[3]);
        const float* grad = reinterpret_cast<float*>(row[5]);
        float *of_mean = reinterpret_cast<float*>(row[6]), *of_rho = reinterpret_cast<float*>(row[7]);
        const int64_t size = row[0];
#pragma omp for schedule(static) nowait
        for (int64_t start = 0; start < size; start += CHUNK) {
            const int64_t stop = start + CHUNK < size ? start + CHUNK : size;
#pragma omp simd
            for (int64_t j = start; j < stop; j++) {
                const float e = exponential(rho[j] > 0.0f ? -rho[j] : rho[j]);
                const float slope = (rho[j] > 0.0f ? 1.0f : e) / (1.0f + e);
                const float s = square ? __builtin_sqrtf(std[j]) : std[j];
                const float of_std = fused(grad[j], square ? 2.0f * s : eps[j], of_variance * s);
                of_mean[j] = fused(of_square, mean[j] - center, around * grad[j]);
                of_rho[j] = fused(slope, of_std, of_log * (rho[j] < SMALL ? 1.0f : slope / s));
            }
        }
    }
}
