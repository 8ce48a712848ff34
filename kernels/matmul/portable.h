// The portable product: private to kernels/matmul.
#ifndef KOINE_KERNELS_MATMUL_PORTABLE_H_
#define KOINE_KERNELS_MATMUL_PORTABLE_H_

#include <cstdint>

namespace koine::kernels {

// Columns of one panel of the portable layout: W element (n, k) lies at ((n / 64) * in + k) * 64 + n % 64.
inline constexpr int64_t kPanel = 64;

// y[rows, out] = x[rows, in] * W^T + bias, every sum over k in rising order: a row's bits depend on nothing else.
void PortableMatmul(const float* x, int64_t rows, int64_t in, int64_t out, const float* packed, const float* bias,
                    float* y, int threads);

}  // namespace koine::kernels

#endif  // KOINE_KERNELS_MATMUL_PORTABLE_H_
