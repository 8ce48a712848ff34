#include "kernels/matmul/portable.h"

#include <algorithm>

// SSE4, AVX2 and AVX-512 are enough here: processors with more run oneDNN's kernels.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul/portable.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace koine::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Rows held in registers at once: 6 x 16 columns are 12 AVX2 registers of sums, and 6 independent chains of
// multiply-adds, of which a core has 8 in flight (2 units, 4 cycles).
constexpr int kTileRows = 6;

// Rows [0, kRows) of 16 output columns. kRows changes which rows share a pass over the weights, not any row's sums.
template <int kRows>
HWY_INLINE void Tile(const float* x, int64_t in, const float* panel, int64_t width, float* out /* [kRows][16] */) {
  const hn::CappedTag<float, 16> d;
  constexpr int kMaxVectors = 16;  // 16 columns of one lane on the scalar target
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int vectors = 16 / lanes;
  hn::Vec<decltype(d)> sums[kRows][kMaxVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < vectors; ++v) sums[r][v] = hn::Zero(d);
  }
  for (int64_t k = 0; k < in; ++k) {
    const float* weights = panel + k * width;
    for (int v = 0; v < vectors; ++v) {
      const auto w = hn::LoadU(d, weights + v * lanes);
      for (int r = 0; r < kRows; ++r) sums[r][v] = hn::MulAdd(hn::Set(d, x[r * in + k]), w, sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < vectors; ++v) hn::StoreU(sums[r][v], d, out + r * 16 + v * lanes);
  }
}

// The last, smaller tile.
template <int kRows>
void Rest(int64_t height, const float* x, int64_t in, const float* panel, int64_t width, float* out) {
  if (height == kRows) return Tile<kRows>(x, in, panel, width, out);
  if constexpr (kRows > 1) Rest<kRows - 1>(height, x, in, panel, width, out);
}

// Columns [first_column, first_column + width) of all rows.
void Panel(const float* x, int64_t rows, int64_t in, int64_t out, int64_t width, const float* packed, const float* bias,
           float* y, int64_t first_column) {
  const float* panel = packed + first_column * in;
  const int64_t columns = std::min(width, out - first_column);
  float tile[kTileRows * 16];
  for (int64_t c = 0; c < columns; c += 16) {
    const int64_t used = std::min<int64_t>(16, columns - c);
    for (int64_t r = 0; r < rows; r += kTileRows) {
      const int64_t height = std::min<int64_t>(kTileRows, rows - r);
      Rest<kTileRows>(height, x + r * in, in, panel + c, width, tile);
      for (int64_t i = 0; i < height; ++i) {
        float* row = y + (r + i) * out + first_column + c;
        for (int64_t j = 0; j < used; ++j) {
          row[j] = tile[i * 16 + j] + (bias != nullptr ? bias[first_column + c + j] : 0.0F);
        }
      }
    }
  }
}

}  // namespace koine::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace koine::kernels {

HWY_EXPORT(Panel);

void PortableMatmul(const float* x, int64_t rows, int64_t in, int64_t out, int64_t width, const float* packed,
                    const float* bias, float* y, int threads) {
  const int64_t panels = (out + width - 1) / width;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t p = 0; p < panels; ++p) {
    HWY_DYNAMIC_DISPATCH(Panel)(x, rows, in, out, width, packed, bias, y, p * width);
  }
}

}  // namespace koine::kernels
#endif  // HWY_ONCE
