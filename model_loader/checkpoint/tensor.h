// A tensor of somebody's checkpoint, where it lies in a mapped file.
#ifndef KOINE_MODEL_LOADER_CHECKPOINT_TENSOR_H_
#define KOINE_MODEL_LOADER_CHECKPOINT_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/tensor/dtype.h"

namespace koine::model_loader {

// Only the first three can be read as numbers; the others are buffers (position ids, counters) that importers skip.
enum class ElementType : uint8_t { kF32, kF16, kBF16, kF64, kI64, kI32, kI16, kI8, kU8, kBool, kOther };

const char* Name(ElementType type);  // "F32", ...
size_t SizeOf(ElementType type);     // bytes of an element; 1 for kOther

// Valid as long as the file that it came from is open. Immutable; any thread.
struct CheckpointTensor {
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;    // [] is one element
  std::vector<int64_t> strides;  // in elements, as many as the shape has; never negative
  int64_t offset = 0;            // of the first element in the storage, in elements
  // The whole storage; unaligned. Checked: every element lies in it.
  absl::Span<const uint8_t> storage;

  bool is_float() const { return float_type().has_value(); }
  std::optional<kernels::DType> float_type() const;  // F32, F16 or BF16
  int64_t elements() const;
  int64_t rows() const { return shape.empty() ? 1 : shape.front(); }
  int64_t row_elements() const;  // of one row: the product of the other dimensions
  bool contiguous() const;       // elements lie one after the other in row-major order
  // The elements' bytes where they lie; empty if not contiguous.
  absl::Span<const uint8_t> bytes() const;

  // Rows `first` to `first + count - 1` in row-major order. Errors: INVALID_ARGUMENT for rows that are not there, a
  // destination that is not exactly count * row_elements() elements long and, in ReadRows, a type that is no float.
  absl::Status ReadRows(int64_t first, int64_t count, absl::Span<float> destination) const;
  absl::Status ReadBytes(int64_t first, int64_t count, absl::Span<uint8_t> destination) const;

  // Tells the kernel that the storage's pages are no longer needed (after conversion); they can be read again.
  void DropPages() const;
};

// The same elements of the same storage: tied in the file. Storages of different files never are.
bool SameStorage(const CheckpointTensor& a, const CheckpointTensor& b);
// The same type, shape and bytes: tied in effect, as where a checkpoint stores a tied table twice. Reads both.
bool SameValues(const CheckpointTensor& a, const CheckpointTensor& b);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_CHECKPOINT_TENSOR_H_
