#include "kernels/ops/ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/ops/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/ops.cc"
// Compiles this file once per instruction set.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/ops/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace koine::kernels {
namespace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace vm = vector_math::HWY_NAMESPACE;
using vm::F32;
using vm::kLanes;
using vm::V32;

// How one vector's worth of columns is reached: all lanes, or the first n of the last vector.
struct Whole {
  HWY_INLINE V32 Load(const float* p) const { return hn::LoadU(F32(), p); }
  HWY_INLINE void Store(V32 v, float* p) const { hn::StoreU(v, F32(), p); }
};
struct First {
  int64_t n;
  HWY_INLINE V32 Load(const float* p) const { return vm::LoadFirst(p, n); }
  HWY_INLINE void Store(V32 v, float* p) const { vm::StoreFirst(v, p, n); }
};

// Calls body(access, column) for every vector of columns of a row.
template <class Body>
HWY_INLINE void ForColumns(int64_t width, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) body(Whole(), i);
  if (i < width) body(First{width - i}, i);
}

struct Relu {
  // Keeps NaN, which Max would not on every processor.
  HWY_INLINE V32 operator()(V32 x) const { return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(F32())), x); }
};
struct Gelu {
  HWY_INLINE V32 operator()(V32 x) const {
    const F32 d;
    const V32 half = hn::Mul(x, hn::Set(d, 0.5F));
    return hn::MulAdd(half, vm::Erf(hn::Mul(x, hn::Set(d, 0.707106781F))), half);
  }
};
// x * sigmoid(2 y) = 0.5 x (1 + tanh(y)), without the cancellation.
struct GeluTanh {
  HWY_INLINE V32 operator()(V32 x) const {
    const F32 d;
    const V32 x3 = hn::Mul(hn::Mul(x, x), x);
    const V32 y = hn::Mul(hn::MulAdd(x3, hn::Set(d, 0.044715F), x), hn::Set(d, -2 * 0.797884561F));  // sqrt(2 / pi)
    return hn::Div(x, hn::Add(vm::Exp(y), hn::Set(d, 1.0F)));
  }
};
struct Silu {
  HWY_INLINE V32 operator()(V32 x) const { return hn::Div(x, hn::Add(vm::Exp(hn::Neg(x)), hn::Set(F32(), 1.0F))); }
};

template <class Act>
HWY_INLINE void ActivateRows(const Act& act, float* x, int64_t x_stride, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    float* row = x + r * x_stride;
    ForColumns(width, [&](auto access, int64_t i) HWY_ATTR { access.Store(act(access.Load(row + i)), row + i); });
  }
}

void ActivateImpl(Activation activation, float* x, int64_t x_stride, int64_t rows, int64_t width) {
  switch (activation) {
    case Activation::kRelu:
      return ActivateRows(Relu(), x, x_stride, rows, width);
    case Activation::kGelu:
      return ActivateRows(Gelu(), x, x_stride, rows, width);
    case Activation::kGeluTanh:
      return ActivateRows(GeluTanh(), x, x_stride, rows, width);
    case Activation::kSilu:
      return ActivateRows(Silu(), x, x_stride, rows, width);
  }
}

template <class Act>
HWY_INLINE void GateRows(const Act& act, const float* gate, int64_t gate_stride, const float* up, int64_t up_stride,
                         int64_t rows, int64_t width, float* y, int64_t y_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* g = gate + r * gate_stride;
    const float* u = up + r * up_stride;
    float* out = y + r * y_stride;
    ForColumns(width, [&](auto access, int64_t i)
                          HWY_ATTR { access.Store(hn::Mul(act(access.Load(g + i)), access.Load(u + i)), out + i); });
  }
}

void ActivateGatedImpl(Activation activation, const float* gate, int64_t gate_stride, const float* up,
                       int64_t up_stride, int64_t rows, int64_t width, float* y, int64_t y_stride) {
  switch (activation) {
    case Activation::kRelu:
      return GateRows(Relu(), gate, gate_stride, up, up_stride, rows, width, y, y_stride);
    case Activation::kGelu:
      return GateRows(Gelu(), gate, gate_stride, up, up_stride, rows, width, y, y_stride);
    case Activation::kGeluTanh:
      return GateRows(GeluTanh(), gate, gate_stride, up, up_stride, rows, width, y, y_stride);
    case Activation::kSilu:
      return GateRows(Silu(), gate, gate_stride, up, up_stride, rows, width, y, y_stride);
  }
}

// Sums of one row. f32 squares overflow from 1.8e19 on; such rows (broken or hostile weights) are summed in double.
HWY_INLINE double SumSquares(const float* x, int64_t width, float mean) {
  const V32 m = hn::Set(F32(), mean);
  const float sum = vm::ReduceSum(x, width, [&](V32 acc, V32 v) HWY_ATTR {
    const V32 centred = hn::Sub(v, m);
    return hn::MulAdd(centred, centred, acc);
  });
  if (std::isfinite(sum)) return static_cast<double>(sum);
  double wide = 0;
  for (int64_t i = 0; i < width; ++i) {
    const double centred = static_cast<double>(x[i]) - static_cast<double>(mean);
    wide += centred * centred;
  }
  return wide;
}

HWY_INLINE double Sum(const float* x, int64_t width) {
  const float sum = vm::ReduceSum(x, width, [](V32 acc, V32 v) HWY_ATTR { return hn::Add(acc, v); });
  if (std::isfinite(sum)) return static_cast<double>(sum);
  double wide = 0;
  for (int64_t i = 0; i < width; ++i) wide += static_cast<double>(x[i]);
  return wide;
}

void NormalizeImpl(NormType type, float eps, const float* weight, const float* bias, const float* x, int64_t x_stride,
                   int64_t rows, int64_t width, float* y, int64_t y_stride) {
  if (width <= 0) return;
  const F32 d;
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = x + r * x_stride;
    float* out = y + r * y_stride;
    const bool centre = type == NormType::kLayerNorm;
    const double n = static_cast<double>(width);
    const float mean = centre ? static_cast<float>(Sum(in, width) / n) : 0.0F;
    const double variance = SumSquares(in, width, mean) / n;
    const V32 m = hn::Set(d, mean);
    const V32 inverse = hn::Set(d, static_cast<float>(1.0 / std::sqrt(variance + static_cast<double>(eps))));
    if (centre && bias != nullptr) {
      ForColumns(width, [&](auto access, int64_t i) HWY_ATTR {
        const V32 v = hn::Mul(hn::Sub(access.Load(in + i), m), inverse);
        access.Store(hn::MulAdd(v, access.Load(weight + i), access.Load(bias + i)), out + i);
      });
    } else {
      ForColumns(width, [&](auto access, int64_t i) HWY_ATTR {
        const V32 v = hn::Mul(hn::Sub(access.Load(in + i), m), inverse);
        access.Store(hn::Mul(v, access.Load(weight + i)), out + i);
      });
    }
  }
}

void AddInPlaceImpl(float* x, int64_t x_stride, const float* y, int64_t y_stride, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    float* to = x + r * x_stride;
    const float* from = y + r * y_stride;
    ForColumns(width, [&](auto access, int64_t i)
                          HWY_ATTR { access.Store(hn::Add(access.Load(to + i), access.Load(from + i)), to + i); });
  }
}

void AddScaledImpl(float* x, int64_t x_stride, float factor, const float* y, int64_t y_stride, int64_t rows,
                   int64_t width) {
  const V32 f = hn::Set(F32(), factor);
  for (int64_t r = 0; r < rows; ++r) {
    float* to = x + r * x_stride;
    const float* from = y + r * y_stride;
    ForColumns(width, [&](auto access, int64_t i) HWY_ATTR {
      access.Store(hn::MulAdd(f, access.Load(from + i), access.Load(to + i)), to + i);
    });
  }
}

void AddScaledByImpl(float* x, int64_t x_stride, const float* factors, const float* y, int64_t y_stride, int64_t rows,
                     int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    float* to = x + r * x_stride;
    const float* from = y + r * y_stride;
    ForColumns(width, [&](auto access, int64_t i) HWY_ATTR {
      access.Store(hn::MulAdd(access.Load(factors + i), access.Load(from + i), access.Load(to + i)), to + i);
    });
  }
}

void ScaleAndAddImpl(float* row, float scale, const float* position, int64_t width) {
  const V32 s = hn::Set(F32(), scale);
  ForColumns(width, [&](auto access, int64_t i) HWY_ATTR {
    access.Store(hn::MulAdd(s, access.Load(row + i), access.Load(position + i)), row + i);
  });
}

void MeanPoolImpl(const float* x, int64_t x_stride, int64_t rows, int64_t width, bool l2_normalize, float* out) {
  const F32 d;
  const V32 inverse = hn::Set(d, rows > 0 ? 1.0F / static_cast<float>(rows) : 0.0F);
  ForColumns(width, [&](auto access, int64_t i) HWY_ATTR {
    V32 sum = hn::Zero(d);
    for (int64_t r = 0; r < rows; ++r) sum = hn::Add(sum, access.Load(x + r * x_stride + i));
    access.Store(hn::Mul(sum, inverse), out + i);
  });
  if (!l2_normalize) return;
  const double norm = std::sqrt(SumSquares(out, width, 0.0F));
  const V32 divisor = hn::Set(d, static_cast<float>(std::max(norm, 1e-12)));
  ForColumns(width,
             [&](auto access, int64_t i) HWY_ATTR { access.Store(hn::Div(access.Load(out + i), divisor), out + i); });
}

void ConvertToBFloat16Impl(const float* x, int64_t x_stride, int64_t rows, int64_t width, uint16_t* y,
                           int64_t y_stride) {
  const hn::RebindToUnsigned<F32> du;
  const hn::RebindToSigned<F32> di;
  const hn::Rebind<uint16_t, F32> du16;
  const auto one = hn::Set(du, 1U);
  const auto half = hn::Set(du, 0x7fffU);
  const auto quiet = hn::Set(du, 0x40U);
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = x + r * x_stride;
    uint16_t* out = y + r * y_stride;
    ForColumns(width, [&](auto access, int64_t i) HWY_ATTR {
      const V32 v = access.Load(in + i);
      const auto bits = hn::BitCast(du, v);
      const auto top = hn::ShiftRight<16>(bits);
      const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(half, hn::And(top, one))));
      const auto nan = hn::RebindMask(du, hn::IsNaN(v));
      // Below 2^16, so that the saturating conversion from i32 is exact.
      const auto narrow = hn::DemoteTo(du16, hn::BitCast(di, hn::IfThenElse(nan, hn::Or(top, quiet), rounded)));
      if constexpr (std::is_same_v<decltype(access), Whole>) {
        hn::StoreU(narrow, du16, out + i);
      } else {
        HWY_ALIGN uint16_t buffer[kLanes];
        hn::Store(narrow, du16, buffer);
        for (int64_t j = 0; j < access.n; ++j) out[i + j] = buffer[j];
      }
    });
  }
}

float LogSumExpImpl(const float* x, int64_t width) {
  const F32 d;
  const V32 lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  constexpr int64_t kUnroll = 4;  // independent maxima; max is exact, so their order does not matter
  V32 best[kUnroll] = {lowest, lowest, lowest, lowest};
  int64_t i = 0;
  for (; i + kUnroll * kLanes <= width; i += kUnroll * kLanes) {
    for (int64_t v = 0; v < kUnroll; ++v) best[v] = hn::Max(best[v], hn::LoadU(d, x + i + v * kLanes));
  }
  for (; i + kLanes <= width; i += kLanes) best[0] = hn::Max(best[0], hn::LoadU(d, x + i));
  if (i < width) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(width - i));
    best[0] = hn::Max(best[0], hn::IfThenElse(mask, vm::LoadFirst(x + i, width - i), lowest));
  }
  const float max = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(best[0], best[1]), hn::Max(best[2], best[3]))));
  if (max == -std::numeric_limits<float>::infinity()) return max;

  // f32 sums of chunks, added up in double: each f32 partial sum has at most kChunk / kSumLanes = 32 terms, so its
  // relative error stays below 32 * 2^-24 = 1.9e-6 in the worst case, and near 3e-7 in practice.
  constexpr int64_t kChunk = 1024;
  const V32 m = hn::Set(d, max);
  double total = 0;
  for (int64_t begin = 0; begin < width; begin += kChunk) {
    total +=
        static_cast<double>(vm::ReduceSum(x + begin, std::min(kChunk, width - begin), [&](V32 acc, V32 v) HWY_ATTR {
          return hn::Add(acc, vm::Exp(hn::Sub(v, m)));
        }));
  }
  return static_cast<float>(static_cast<double>(max) + std::log(total));
}

// Order of results: falling values, then rising ids.
struct Better {
  bool operator()(const Scored& a, const Scored& b) const {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
  }
};

// A heap of the best k so far, the worst of them on top. Elements arrive in rising order of id, so one that only
// equals the worst kept value never enters: nearly all vectors are dismissed by one comparison with it.
void TopKImpl(const float* x, int64_t width, int64_t k, std::vector<Scored>* out) {
  const F32 d;
  float threshold = -std::numeric_limits<float>::infinity();
  const auto offer = [&](int64_t i) {
    const float value = x[i];
    if (!(value > threshold)) return;  // false for NaN
    if (static_cast<int64_t>(out->size()) == k) {
      std::pop_heap(out->begin(), out->end(), Better());
      out->back() = {static_cast<int32_t>(i), value};
    } else {
      out->push_back({static_cast<int32_t>(i), value});
    }
    std::push_heap(out->begin(), out->end(), Better());
    if (static_cast<int64_t>(out->size()) == k) threshold = out->front().value;
  };
  constexpr int64_t kUnroll = 4;
  constexpr int64_t kStep = kUnroll * kLanes;
  int64_t i = 0;
  for (; i + kStep <= width; i += kStep) {
    const V32 t = hn::Set(d, threshold);
    const auto any =
        hn::Or(hn::Or(hn::Gt(hn::LoadU(d, x + i), t), hn::Gt(hn::LoadU(d, x + i + kLanes), t)),
               hn::Or(hn::Gt(hn::LoadU(d, x + i + 2 * kLanes), t), hn::Gt(hn::LoadU(d, x + i + 3 * kLanes), t)));
    if (hn::AllFalse(d, any)) continue;
    for (int64_t j = 0; j < kStep; ++j) offer(i + j);
  }
  for (; i < width; ++i) offer(i);
  std::sort_heap(out->begin(), out->end(), Better());
}

bool AllFiniteImpl(const float* x, int64_t width) {
  const hn::RebindToSigned<F32> di;
  // As integers, magnitudes of finite floats are below that of infinity, those of NaN above.
  auto largest = hn::Zero(di);
  ForColumns(width, [&](auto access, int64_t i)
                        HWY_ATTR { largest = hn::Max(largest, hn::BitCast(di, hn::Abs(access.Load(x + i)))); });
  return hn::AllTrue(di, hn::Lt(largest, hn::Set(di, 0x7f800000)));
}

const char* OpsTargetImpl() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace koine::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace koine::kernels {
namespace {
HWY_EXPORT(NormalizeImpl);
HWY_EXPORT(ActivateImpl);
HWY_EXPORT(ActivateGatedImpl);
HWY_EXPORT(AddInPlaceImpl);
HWY_EXPORT(AddScaledImpl);
HWY_EXPORT(AddScaledByImpl);
HWY_EXPORT(ScaleAndAddImpl);
HWY_EXPORT(MeanPoolImpl);
HWY_EXPORT(ConvertToBFloat16Impl);
HWY_EXPORT(LogSumExpImpl);
HWY_EXPORT(TopKImpl);
HWY_EXPORT(AllFiniteImpl);
HWY_EXPORT(OpsTargetImpl);
}  // namespace

void Normalize(NormType type, float eps, const float* weight, const float* bias, const float* x, int64_t x_stride,
               int64_t rows, int64_t width, float* y, int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(NormalizeImpl)(type, eps, weight, bias, x, x_stride, rows, width, y, y_stride);
}

void Activate(Activation activation, float* x, int64_t x_stride, int64_t rows, int64_t width) {
  HWY_DYNAMIC_DISPATCH(ActivateImpl)(activation, x, x_stride, rows, width);
}

void ActivateGated(Activation activation, const float* gate, int64_t gate_stride, const float* up, int64_t up_stride,
                   int64_t rows, int64_t width, float* y, int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(ActivateGatedImpl)
  (activation, gate, gate_stride, up, up_stride, rows, width, y, y_stride);
}

void AddInPlace(float* x, int64_t x_stride, const float* y, int64_t y_stride, int64_t rows, int64_t width) {
  HWY_DYNAMIC_DISPATCH(AddInPlaceImpl)(x, x_stride, y, y_stride, rows, width);
}

void AddScaled(float* x, int64_t x_stride, float factor, const float* y, int64_t y_stride, int64_t rows,
               int64_t width) {
  HWY_DYNAMIC_DISPATCH(AddScaledImpl)(x, x_stride, factor, y, y_stride, rows, width);
}

void AddScaledBy(float* x, int64_t x_stride, const float* factors, const float* y, int64_t y_stride, int64_t rows,
                 int64_t width) {
  HWY_DYNAMIC_DISPATCH(AddScaledByImpl)(x, x_stride, factors, y, y_stride, rows, width);
}

void ScaleAndAdd(float* row, float scale, const float* position, int64_t width) {
  HWY_DYNAMIC_DISPATCH(ScaleAndAddImpl)(row, scale, position, width);
}

void MeanPool(const float* x, int64_t x_stride, int64_t rows, int64_t width, bool l2_normalize, float* out) {
  HWY_DYNAMIC_DISPATCH(MeanPoolImpl)(x, x_stride, rows, width, l2_normalize, out);
}

void ConvertToBFloat16(const float* x, int64_t x_stride, int64_t rows, int64_t width, uint16_t* y, int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(ConvertToBFloat16Impl)(x, x_stride, rows, width, y, y_stride);
}

float LogSumExp(const float* x, int64_t width) { return HWY_DYNAMIC_DISPATCH(LogSumExpImpl)(x, width); }

void TopK(const float* x, int64_t width, int k, std::vector<Scored>* out) {
  out->clear();
  const int64_t kept = std::min<int64_t>(k, width);
  if (kept <= 0) return;
  out->reserve(static_cast<size_t>(kept));
  HWY_DYNAMIC_DISPATCH(TopKImpl)(x, width, kept, out);
}

bool AllFinite(const float* x, int64_t width) { return HWY_DYNAMIC_DISPATCH(AllFiniteImpl)(x, width); }

std::string OpsTarget() { return HWY_DYNAMIC_DISPATCH(OpsTargetImpl)(); }

}  // namespace koine::kernels
#endif  // HWY_ONCE
