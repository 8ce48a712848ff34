// Number formats: what files store (DType) and what kernels compute in (Precision).
#ifndef KOINE_KERNELS_TENSOR_DTYPE_H_
#define KOINE_KERNELS_TENSOR_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace koine::kernels {

// Element types of stored tensors. The names are those of the safetensors format.
enum class DType : uint8_t { kF32, kF16, kBF16, kI8, kI32 };

// What matrix products multiply in. Sums, softmax, norms and residuals are f32 in every precision.
enum class Precision : uint8_t { kF32, kBF16 };

// Bytes of one element.
size_t SizeOf(DType dtype);
size_t SizeOf(Precision precision);

// Literals, since Abseil here does not concatenate std::string_view: "F32", "F16", "BF16", "I8", "I32".
const char* Name(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);

// "f32", "bf16".
const char* Name(Precision precision);

inline float FromBFloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline uint16_t ToBFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// Exact; NaN stays NaN.
inline float FromFloat16(uint16_t bits) {
  // The exponent moves to its place in f32 with a bias that is 112 too small; the product mends it, for subnormal
  // numbers too. Infinities and NaNs get the exponent of all ones back.
  uint32_t wide = static_cast<uint32_t>(bits & 0x7fffU) << 13;
  float magnitude;
  std::memcpy(&magnitude, &wide, sizeof(magnitude));
  magnitude *= 0x1p112F;
  std::memcpy(&wide, &magnitude, sizeof(wide));
  if ((bits & 0x7c00U) == 0x7c00U) wide |= 0x7f800000U;
  wide |= static_cast<uint32_t>(bits & 0x8000U) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Rounds to nearest, ties to even; from 65,520 on to infinity; NaN stays NaN.
inline uint16_t ToFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = (bits >> 16) & 0x8000U;
  uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U);
  if (magnitude >= 0x477ff000U) return static_cast<uint16_t>(sign | 0x7c00U);
  if (magnitude < 0x38800000U) {
    // Below 2^-14 the result is a multiple of 2^-24, which is the last place of floats from 0.5 to 1.
    float shifted;
    std::memcpy(&shifted, &magnitude, sizeof(shifted));
    shifted += 0.5F;
    std::memcpy(&magnitude, &shifted, sizeof(magnitude));
    return static_cast<uint16_t>(sign | (magnitude - 0x3f000000U));
  }
  magnitude += 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000U) >> 13));
}

// Converts `count` stored elements (F32, F16, BF16; REQUIRES one of these) to f32. `source` needs no alignment.
void ConvertToF32(const void* source, DType dtype, int64_t count, float* destination);
// The inverse, rounding to nearest, ties to even. `destination` needs no alignment.
void ConvertFromF32(const float* source, DType dtype, int64_t count, void* destination);

}  // namespace koine::kernels

#endif  // KOINE_KERNELS_TENSOR_DTYPE_H_
