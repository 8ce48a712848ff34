// Vector building blocks that several kernels share; compiled once per instruction set (Highway's -inl.h convention).
//
// Everything here works lane by lane or in an order fixed by the element's index, so that bits depend on neither
// alignment nor neighbours. Multiply-adds are written out (MulAdd); the libraries that include this are compiled with
// -ffp-contract=off, so that the compiler does not fuse others differently from one inlined copy to the next.

// Per-target include guard, see hwy/highway.h.
#if defined(KOINE_KERNELS_OPS_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KOINE_KERNELS_OPS_VECTOR_MATH_INL_H_
#undef KOINE_KERNELS_OPS_VECTOR_MATH_INL_H_
#else
#define KOINE_KERNELS_OPS_VECTOR_MATH_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace koine::kernels::vector_math::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most one AVX-512 register; fewer lanes on older processors.
using F32 = hn::CappedTag<float, 16>;
using V32 = hn::Vec<F32>;
inline constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(F32()));

// Whether masked loads and stores skip the memory of lanes that are off (else they are emulated through a buffer).
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
inline constexpr bool kMaskedMemory = true;
#else
inline constexpr bool kMaskedMemory = false;
#endif

// The first n (1 <= n <= lanes) elements at p, zeros in the other lanes. Never reads past p + n.
HWY_INLINE V32 LoadFirst(const float* p, int64_t n) {
  const F32 d;
  if constexpr (kMaskedMemory) {
    return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n)), d, p);
  } else {
    HWY_ALIGN float buffer[kLanes] = {};
    for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
    return hn::Load(d, buffer);
  }
}

// Stores the first n (1 <= n <= lanes) lanes. Never writes past p + n.
HWY_INLINE void StoreFirst(V32 v, float* p, int64_t n) {
  const F32 d;
  if constexpr (kMaskedMemory) {
    hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(n)), d, p);
  } else {
    HWY_ALIGN float buffer[kLanes];
    hn::Store(v, d, buffer);
    for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
  }
}

// e^x with a relative error below 1.5e-7 (about 1 ulp); exactly 0 below -104, infinity above 88.8; NaN stays NaN.
// e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln(2) / 2, ln 2 split in two so that n * hi is exact (Cody and Waite).
// The polynomial is the Chebyshev fit of (e^r - 1 - r) / r^2; its error adds 8e-9.
HWY_INLINE V32 Exp(V32 x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  // Comparisons rather than Min and Max: they are false for NaN, which must survive.
  const V32 low = hn::Set(d, -104.0F);
  const V32 high = hn::Set(d, 89.0F);
  x = hn::IfThenElse(hn::Lt(x, low), low, x);
  x = hn::IfThenElse(hn::Gt(x, high), high, x);
  const auto n = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504F)));
  const V32 nf = hn::ConvertTo(d, n);
  V32 r = hn::NegMulAdd(nf, hn::Set(d, 0.693359375F), x);
  r = hn::NegMulAdd(nf, hn::Set(d, -2.12194440e-4F), r);
  V32 p = hn::Set(d, 0.00139261817F);
  p = hn::MulAdd(p, r, hn::Set(d, 0.008363178F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.0416665561F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.166665763F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5F));
  p = hn::MulAdd(p, hn::Mul(r, r), r);
  p = hn::Add(p, hn::Set(d, 1.0F));
  // 2^n in two factors: n lies in [-150, 128], beyond what one float's exponent holds.
  const auto n1 = hn::ShiftRight<1>(n);
  const auto n2 = hn::Sub(n, n1);
  const auto bias = hn::Set(di, 127);
  const V32 s1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n1, bias)));
  const V32 s2 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n2, bias)));
  return hn::Mul(hn::Mul(p, s1), s2);
}

// The error function with an absolute error below 1.5e-7. Chebyshev fits:
//   |x| < 1   erf(x) = x + x P(x^2)
//   else      erf(|x|) = 1 - e^(-t Q(t)), t = min(|x|, 4); 1 - erf(4) = 1.5e-8 is below half an ulp of 1.
HWY_INLINE V32 Erf(V32 x) {
  const F32 d;
  const V32 one = hn::Set(d, 1.0F);
  const V32 four = hn::Set(d, 4.0F);
  const V32 a = hn::Abs(x);
  const V32 t = hn::IfThenElse(hn::Gt(a, four), four, a);

  const V32 s = hn::Mul(t, t);
  V32 p = hn::Set(d, 7.87587487e-05F);
  p = hn::MulAdd(p, s, hn::Set(d, -0.00080168643F));
  p = hn::MulAdd(p, s, hn::Set(d, 0.00518908724F));
  p = hn::MulAdd(p, s, hn::Set(d, -0.0268542115F));
  p = hn::MulAdd(p, s, hn::Set(d, 0.112835944F));
  p = hn::MulAdd(p, s, hn::Set(d, -0.37612626F));
  p = hn::MulAdd(p, s, hn::Set(d, 0.128379166F));
  p = hn::MulAdd(p, t, t);

  V32 q = hn::Set(d, -1.16603246e-06F);
  q = hn::MulAdd(q, t, hn::Set(d, 3.659301e-05F));
  q = hn::MulAdd(q, t, hn::Set(d, -0.000515745545F));
  q = hn::MulAdd(q, t, hn::Set(d, 0.00437392248F));
  q = hn::MulAdd(q, t, hn::Set(d, -0.0253086016F));
  q = hn::MulAdd(q, t, hn::Set(d, 0.108091913F));
  q = hn::MulAdd(q, t, hn::Set(d, 0.633971453F));
  q = hn::MulAdd(q, t, hn::Set(d, 1.12895727F));
  q = hn::Sub(one, Exp(hn::Neg(hn::Mul(q, t))));

  return hn::CopySignToAbs(hn::IfThenElse(hn::Lt(t, one), p, q), x);
}

// Reductions keep kSumLanes partial sums, element i in sum i % kSumLanes, and add those up as a binary tree: the same
// order whatever the number of lanes.
inline constexpr int64_t kSumLanes = 32;
inline constexpr int64_t kSumVectors = kSumLanes / kLanes;

// Adds up `n` (a power of two) floats in place, as a binary tree.
HWY_INLINE float TreeSum(float* partial, int64_t n) {
  for (int64_t half = n / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) partial[i] += partial[i + half];
  }
  return partial[0];
}

// Sum over a row of what `term` adds: term(accumulator, x) -> accumulator, lane by lane.
template <class Term>
HWY_INLINE float ReduceSum(const float* x, int64_t width, const Term& term) {
  const F32 d;
  V32 sums[kSumVectors];
  for (int64_t v = 0; v < kSumVectors; ++v) sums[v] = hn::Zero(d);
  int64_t i = 0;
  for (; i + kSumLanes <= width; i += kSumLanes) {
    for (int64_t v = 0; v < kSumVectors; ++v) sums[v] = term(sums[v], hn::LoadU(d, x + i + v * kLanes));
  }
  for (int64_t v = 0; v < kSumVectors; ++v) {
    const int64_t left = width - i - v * kLanes;
    if (left >= kLanes) {
      sums[v] = term(sums[v], hn::LoadU(d, x + i + v * kLanes));
    } else if (left > 0) {
      const V32 sum = term(sums[v], LoadFirst(x + i + v * kLanes, left));
      sums[v] = hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(left)), sum, sums[v]);
    }
  }
  HWY_ALIGN float partial[kSumLanes];
  for (int64_t v = 0; v < kSumVectors; ++v) hn::Store(sums[v], d, partial + v * kLanes);
  return TreeSum(partial, kSumLanes);
}

}  // namespace koine::kernels::vector_math::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KOINE_KERNELS_OPS_VECTOR_MATH_INL_H_
