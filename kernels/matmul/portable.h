// The portable product: private to kernels/matmul.
#ifndef KOINE_KERNELS_MATMUL_PORTABLE_H_
#define KOINE_KERNELS_MATMUL_PORTABLE_H_

#include <cstdint>

#include "kernels/tensor/dtype.h"

namespace koine::kernels {

// The portable layout: W element (n, k) lies at ((n / width) * in + k) * width + n % width, where `width` is the
// panel's number of columns.
inline constexpr int64_t kPanel = 64;      // as wide as oneDNN's blocks
inline constexpr int64_t kThinPanel = 16;  // one AVX-512 register: low ranks are not padded to more
inline constexpr int64_t kThin = 32;       // matrices with so few rows or columns have thin panels

struct Panels {
  const void* data = nullptr;
  int64_t in = 0;
  int64_t out = 0;
  int64_t width = 0;                   // kPanel or kThinPanel
  Precision stored = Precision::kF32;  // kPanel: always f32
};

// y[rows, out] = x[rows, in] * W^T + bias. Every sum over k has the same order whatever the rows and threads: a row's
// bits depend on nothing else. Sums are f32.
void PortableMatmul(const float* x, int64_t rows, const Panels& w, const float* bias, float* y, int threads);

// y[rows, b.out] += scale * b(a(x)), row by row with the same bits as any other number of rows. Between the two
// products nothing leaves the processor's nearest cache.
struct LowRankPanels {
  const float* x = nullptr;  // [rows, a.in]
  int64_t rows = 0;
  Panels a, b;  // thin; a.out = b.in <= kThin
  float scale = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
};
// All of `count` updates, which do not overlap in y, with one OpenMP region at most.
void PortableLowRank(const LowRankPanels* updates, int64_t count, int threads);

}  // namespace koine::kernels

#endif  // KOINE_KERNELS_MATMUL_PORTABLE_H_
