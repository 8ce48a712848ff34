#include "kernels/tensor/dtype.h"

namespace koine::kernels {

size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI8:
      return 1;
  }
  return 0;
}

size_t SizeOf(Precision precision) { return precision == Precision::kF32 ? 4 : 2; }

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kI8:
      return "I8";
    case DType::kI32:
      return "I32";
  }
  return "?";
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kI32}) {
    if (name == Name(dtype)) return dtype;
  }
  return std::nullopt;
}

const char* Name(Precision precision) { return precision == Precision::kF32 ? "f32" : "bf16"; }

void ConvertToF32(const void* source, DType dtype, int64_t count, float* destination) {
  if (count == 0) return;  // then either pointer may be null, which memcpy forbids
  if (dtype == DType::kF32) {
    std::memcpy(destination, source, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const auto* bytes = static_cast<const unsigned char*>(source);
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes + 2 * i, sizeof(bits));
    destination[i] = dtype == DType::kBF16 ? FromBFloat16(bits) : FromFloat16(bits);
  }
}

void ConvertFromF32(const float* source, DType dtype, int64_t count, void* destination) {
  if (count == 0) return;  // then either pointer may be null, which memcpy forbids
  if (dtype == DType::kF32) {
    std::memcpy(destination, source, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* bytes = static_cast<unsigned char*>(destination);
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = dtype == DType::kBF16 ? ToBFloat16(source[i]) : ToFloat16(source[i]);
    std::memcpy(bytes + 2 * i, &bits, sizeof(bits));
  }
}

}  // namespace koine::kernels
