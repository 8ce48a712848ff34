#include "kernels/matmul/portable.h"

#include <algorithm>

// SSE4, AVX2 and AVX-512 are enough here: processors with more run oneDNN's kernels.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul/portable.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace koine::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));
constexpr int kVectors = 16 / kLanes;  // of 16 columns

// Rows held in registers at once, and the chains of multiply-adds into which a sum is cut. A core has 8 multiply-adds
// in flight (2 units, 4 cycles). Wide panels serve processors without AVX-512: 6 x 16 columns are 12 AVX2 registers of
// sums. Thin panels serve adapters, of which a batch of many languages has a row or two for each: these need chains of
// their own, 6 x 4 of the 32 AVX-512 registers; elsewhere there are 16 registers of half or a quarter of the width.
constexpr int kWideRows = 6;
constexpr int kThinRows = kVectors == 1 ? 6 : 3;
constexpr int kThinChains = kVectors == 1 ? 4 : kVectors == 2 ? 2 : 1;

// Bytes by which weights are fetched ahead: what a core can wait for at once. Adapters of many languages come from
// memory at every step, in pieces too short for the processor's own prefetching, which stops at pages of 4 KiB.
constexpr size_t kAhead = 4096;

HWY_INLINE hn::Vec<F32> Load(const float* from) { return hn::LoadU(F32(), from); }
HWY_INLINE hn::Vec<F32> Load(const uint16_t* from) {
  const hn::RebindToUnsigned<F32> u32;
  const hn::Rebind<uint16_t, F32> u16;
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(u32, hn::LoadU(u16, from))));
}

// Rows [0, kRows) of 16 output columns: out = sums, or out += factor * sums. kRows changes which rows share a pass over
// the weights, not any row's sums: term k belongs to chain k % kChains, chains are added in pairs.
template <int kRows, int kChains, bool kAdd, typename T>
HWY_INLINE void Tile(const float* x, int64_t x_stride, int64_t in, const T* panel, int64_t width, float factor,
                     float* out, int64_t out_stride) {
  static_assert(kChains == 1 || kChains == 2 || kChains == 4);
  const F32 d;
  hn::Vec<F32> sums[kChains][kRows][kVectors];
  for (int c = 0; c < kChains; ++c) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sums[c][r][v] = hn::Zero(d);
    }
  }
  int64_t k = 0;
  for (; k + kChains <= in; k += kChains) {
    for (int c = 0; c < kChains; ++c) {
      const T* weights = panel + (k + c) * width;
      hwy::Prefetch(weights + kAhead / sizeof(T));
      for (int v = 0; v < kVectors; ++v) {
        const auto w = Load(weights + v * kLanes);
        for (int r = 0; r < kRows; ++r) {
          sums[c][r][v] = hn::MulAdd(hn::Set(d, x[r * x_stride + k + c]), w, sums[c][r][v]);
        }
      }
    }
  }
  for (int c = 0; c < kChains - 1; ++c) {
    if (k + c >= in) break;
    for (int v = 0; v < kVectors; ++v) {
      const auto w = Load(panel + (k + c) * width + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        sums[c][r][v] = hn::MulAdd(hn::Set(d, x[r * x_stride + k + c]), w, sums[c][r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      for (int step = 1; step < kChains; step *= 2) {
        for (int c = 0; c < kChains; c += 2 * step) sums[c][r][v] = hn::Add(sums[c][r][v], sums[c + step][r][v]);
      }
      float* to = out + r * out_stride + v * kLanes;
      hn::StoreU(kAdd ? hn::MulAdd(hn::Set(d, factor), sums[0][r][v], hn::LoadU(d, to)) : sums[0][r][v], d, to);
    }
  }
}

// A tile of `height` <= kRows rows.
template <int kRows, int kChains, bool kAdd, typename T>
HWY_INLINE void TileOf(int64_t height, const float* x, int64_t x_stride, int64_t in, const T* panel, int64_t width,
                       float factor, float* out, int64_t out_stride) {
  if (height == kRows) {
    return Tile<kRows, kChains, kAdd>(x, x_stride, in, panel, width, factor, out, out_stride);
  }
  if constexpr (kRows > 1) {
    TileOf<kRows - 1, kChains, kAdd>(height, x, x_stride, in, panel, width, factor, out, out_stride);
  }
}

// Columns [first_column, first_column + w.width) of all rows.
template <int kRows, int kChains, typename T>
void Panel(const float* x, int64_t rows, const Panels& w, const float* bias, float* y, int64_t first_column) {
  const T* panel = static_cast<const T*>(w.data) + first_column * w.in;
  const int64_t columns = std::min(w.width, w.out - first_column);
  float tile[kRows * 16];
  for (int64_t c = 0; c < columns; c += 16) {
    const int64_t used = std::min<int64_t>(16, columns - c);
    for (int64_t r = 0; r < rows; r += kRows) {
      const int64_t height = std::min<int64_t>(kRows, rows - r);
      TileOf<kRows, kChains, false>(height, x + r * w.in, w.in, w.in, panel + c, w.width, 0, tile, 16);
      for (int64_t i = 0; i < height; ++i) {
        float* row = y + (r + i) * w.out + first_column + c;
        for (int64_t j = 0; j < used; ++j) {
          row[j] = tile[i * 16 + j] + (bias != nullptr ? bias[first_column + c + j] : 0.0F);
        }
      }
    }
  }
}

void AnyPanel(const float* x, int64_t rows, const Panels& w, const float* bias, float* y, int64_t first_column) {
  if (w.width == kPanel) {
    Panel<kWideRows, 1, float>(x, rows, w, bias, y, first_column);
  } else if (w.stored == Precision::kF32) {
    Panel<kThinRows, kThinChains, float>(x, rows, w, bias, y, first_column);
  } else {
    Panel<kThinRows, kThinChains, uint16_t>(x, rows, w, bias, y, first_column);
  }
}

template <typename T>
void LowRankRows(const LowRankPanels& u, int64_t first_row, int64_t height) {
  const float* x = u.x + first_row * u.a.in;
  float* y = u.y + first_row * u.y_stride;
  float low[kThinRows * kThin];
  for (int64_t c = 0; c < u.a.out; c += kThinPanel) {
    TileOf<kThinRows, kThinChains, false>(height, x, u.a.in, u.a.in, static_cast<const T*>(u.a.data) + c * u.a.in,
                                          kThinPanel, 0, low + c, kThin);
  }
  const T* b = static_cast<const T*>(u.b.data);
  const int64_t whole = u.b.out / kThinPanel * kThinPanel;
  for (int64_t c = 0; c < whole; c += kThinPanel) {
    TileOf<kThinRows, kThinChains, true>(height, low, kThin, u.b.in, b + c * u.b.in, kThinPanel, u.scale, y + c,
                                         u.y_stride);
  }
  if (whole == u.b.out) return;
  float tile[kThinRows * 16];
  TileOf<kThinRows, kThinChains, false>(height, low, kThin, u.b.in, b + whole * u.b.in, kThinPanel, 0, tile, 16);
  for (int64_t r = 0; r < height; ++r) {
    for (int64_t c = whole; c < u.b.out; ++c) y[r * u.y_stride + c] += u.scale * tile[r * 16 + c - whole];
  }
}

// The `part`-th of `parts` equal shares of all updates' tiles.
void LowRankShare(const LowRankPanels* updates, int64_t count, int64_t part, int64_t parts) {
  const auto tiles = [](const LowRankPanels& u) { return (u.rows + kThinRows - 1) / kThinRows; };
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += tiles(updates[i]);
  int64_t first = 0;
  for (int64_t i = 0; i < count; ++i) {
    const LowRankPanels& u = updates[i];
    const int64_t end = std::min(total * (part + 1) / parts - first, tiles(u));
    for (int64_t tile = std::max<int64_t>(total * part / parts - first, 0); tile < end; ++tile) {
      const int64_t row = tile * kThinRows;
      const int64_t height = std::min<int64_t>(kThinRows, u.rows - row);
      u.a.stored == Precision::kF32 ? LowRankRows<float>(u, row, height) : LowRankRows<uint16_t>(u, row, height);
    }
    first += tiles(u);
  }
}

}  // namespace koine::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace koine::kernels {

HWY_EXPORT(AnyPanel);
HWY_EXPORT(LowRankShare);

void PortableMatmul(const float* x, int64_t rows, const Panels& w, const float* bias, float* y, int threads) {
  const int64_t panels = (w.out + w.width - 1) / w.width;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t p = 0; p < panels; ++p) {
    HWY_DYNAMIC_DISPATCH(AnyPanel)(x, rows, w, bias, y, p * w.width);
  }
}

void PortableLowRank(const LowRankPanels* updates, int64_t count, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int part = 0; part < threads; ++part) HWY_DYNAMIC_DISPATCH(LowRankShare)(updates, count, part, threads);
}

}  // namespace koine::kernels
#endif  // HWY_ONCE
