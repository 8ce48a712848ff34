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

float FromFloat16(uint16_t bits);

// Converts `count` stored elements (F32, F16, BF16; REQUIRES one of these) to f32. `source` needs no alignment.
void ConvertToF32(const void* source, DType dtype, int64_t count, float* destination);

}  // namespace koine::kernels

#endif  // KOINE_KERNELS_TENSOR_DTYPE_H_
