// The portable product: private to kernels/matmul.
#ifndef KOINE_KERNELS_MATMUL_PORTABLE_H_
#define KOINE_KERNELS_MATMUL_PORTABLE_H_

#include <cstdint>

namespace koine::kernels {

// The portable layout: W element (n, k) lies at ((n / width) * in + k) * width + n % width, where `width` is the
// panel's number of columns, a multiple of 16.
inline constexpr int64_t kPanel = 64;      // as wide as oneDNN's blocks
inline constexpr int64_t kThinPanel = 16;  // one AVX-512 register: low ranks are not padded to more

// y[rows, out] = x[rows, in] * W^T + bias, every sum over k in rising order: a row's bits depend on nothing else.
void PortableMatmul(const float* x, int64_t rows, int64_t in, int64_t out, int64_t width, const float* packed,
                    const float* bias, float* y, int threads);

}  // namespace koine::kernels

#endif  // KOINE_KERNELS_MATMUL_PORTABLE_H_
