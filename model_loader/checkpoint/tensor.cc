#include "model_loader/checkpoint/tensor.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/tensor/dtype.h"

namespace koine::model_loader {
namespace {

kernels::DType ToDType(ElementType type) {
  switch (type) {
    case ElementType::kF16:
      return kernels::DType::kF16;
    case ElementType::kBF16:
      return kernels::DType::kBF16;
    default:
      return kernels::DType::kF32;
  }
}

// Calls visit(byte offset in the storage, elements) for runs of elements that lie side by side, in row-major order.
template <typename Visit>
void ForRuns(const CheckpointTensor& tensor, int64_t first, int64_t count, const Visit& visit) {
  const auto element = static_cast<int64_t>(SizeOf(tensor.type));
  const size_t dimensions = tensor.shape.size();
  if (count == 0 || tensor.row_elements() == 0) return;
  // The longest tail of dimensions that is contiguous makes one run.
  int64_t run = 1;
  size_t outer = dimensions;
  while (outer > 1 && (tensor.shape[outer - 1] == 1 || tensor.strides[outer - 1] == run)) run *= tensor.shape[--outer];
  std::vector<int64_t> index(dimensions, 0);
  for (int64_t row = first; row < first + count; ++row) {
    const int64_t base = tensor.offset + (dimensions == 0 ? 0 : row * tensor.strides[0]);
    std::fill(index.begin(), index.end(), 0);
    while (true) {
      int64_t at = base;
      for (size_t d = 1; d < outer; ++d) at += index[d] * tensor.strides[d];
      visit(at * element, run);
      size_t d = outer;
      while (d > 1 && ++index[d - 1] == tensor.shape[d - 1]) index[--d] = 0;
      if (d <= 1) break;
    }
  }
}

absl::Status CheckRange(const CheckpointTensor& tensor, int64_t first, int64_t count, size_t room, size_t unit) {
  if (first < 0 || count < 0 || first > tensor.rows() || count > tensor.rows() - first) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows ", first, " to ", first, " + ", count, " of a tensor with ", tensor.rows(), " rows"));
  }
  const size_t needed = static_cast<size_t>(count) * static_cast<size_t>(tensor.row_elements()) * unit;
  if (room != needed) {
    return absl::InvalidArgumentError(absl::StrCat("room for ", room, " where ", needed, " are read"));
  }
  return absl::OkStatus();
}

}  // namespace

const char* Name(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return "F32";
    case ElementType::kF16:
      return "F16";
    case ElementType::kBF16:
      return "BF16";
    case ElementType::kF64:
      return "F64";
    case ElementType::kI64:
      return "I64";
    case ElementType::kI32:
      return "I32";
    case ElementType::kI16:
      return "I16";
    case ElementType::kI8:
      return "I8";
    case ElementType::kU8:
      return "U8";
    case ElementType::kBool:
      return "BOOL";
    case ElementType::kOther:
      return "another type";
  }
  return "";
}

size_t SizeOf(ElementType type) {
  switch (type) {
    case ElementType::kF64:
    case ElementType::kI64:
      return 8;
    case ElementType::kF32:
    case ElementType::kI32:
      return 4;
    case ElementType::kF16:
    case ElementType::kBF16:
    case ElementType::kI16:
      return 2;
    case ElementType::kI8:
    case ElementType::kU8:
    case ElementType::kBool:
    case ElementType::kOther:
      return 1;
  }
  return 1;
}

std::optional<kernels::DType> CheckpointTensor::float_type() const {
  switch (type) {
    case ElementType::kF32:
      return kernels::DType::kF32;
    case ElementType::kF16:
      return kernels::DType::kF16;
    case ElementType::kBF16:
      return kernels::DType::kBF16;
    default:
      return std::nullopt;
  }
}

int64_t CheckpointTensor::elements() const { return rows() * row_elements(); }

int64_t CheckpointTensor::row_elements() const {
  int64_t product = 1;
  for (size_t d = 1; d < shape.size(); ++d) {
    // Only a tensor without elements can have such a shape: the files' readers check the whole product.
    if (__builtin_mul_overflow(product, shape[d], &product)) return 0;
  }
  return product;
}

bool CheckpointTensor::contiguous() const {
  if (elements() == 0) return true;
  int64_t expected = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

absl::Span<const uint8_t> CheckpointTensor::bytes() const {
  if (!contiguous()) return {};
  return storage.subspan(static_cast<size_t>(offset) * SizeOf(type), static_cast<size_t>(elements()) * SizeOf(type));
}

absl::Status CheckpointTensor::ReadRows(int64_t first, int64_t count, absl::Span<float> destination) const {
  if (!is_float()) return absl::InvalidArgumentError(absl::StrCat("a tensor of ", Name(type), " holds no floats"));
  if (absl::Status status = CheckRange(*this, first, count, destination.size(), 1); !status.ok()) return status;
  float* next = destination.data();
  ForRuns(*this, first, count, [&](int64_t at, int64_t run) {
    kernels::ConvertToF32(storage.data() + at, ToDType(type), run, next);
    next += run;
  });
  return absl::OkStatus();
}

absl::Status CheckpointTensor::ReadBytes(int64_t first, int64_t count, absl::Span<uint8_t> destination) const {
  const size_t element = SizeOf(type);
  if (absl::Status status = CheckRange(*this, first, count, destination.size(), element); !status.ok()) return status;
  uint8_t* next = destination.data();
  ForRuns(*this, first, count, [&](int64_t at, int64_t run) {
    std::memcpy(next, storage.data() + at, static_cast<size_t>(run) * element);
    next += static_cast<size_t>(run) * element;
  });
  return absl::OkStatus();
}

void CheckpointTensor::DropPages() const {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(storage.data());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t last = (begin + storage.size()) / page * page;
  if (first >= last) return;
  // Only whole pages inside; the mapping is read-only and private, so that nothing can be lost.
  madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

bool SameStorage(const CheckpointTensor& a, const CheckpointTensor& b) {
  return a.storage.data() == b.storage.data() && a.storage.size() == b.storage.size() && a.type == b.type &&
         a.offset == b.offset && a.shape == b.shape && a.strides == b.strides;
}

bool SameValues(const CheckpointTensor& a, const CheckpointTensor& b) {
  if (a.type != b.type || a.shape != b.shape || a.type == ElementType::kOther) return false;
  if (SameStorage(a, b) || a.elements() == 0) return true;
  if (a.contiguous() && b.contiguous()) {
    return std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()) == 0;
  }
  const size_t row_bytes = static_cast<size_t>(a.row_elements()) * SizeOf(a.type);
  std::vector<uint8_t> left(row_bytes), right(row_bytes);
  for (int64_t row = 0; row < a.rows(); ++row) {
    if (!a.ReadBytes(row, 1, absl::MakeSpan(left)).ok() || !b.ReadBytes(row, 1, absl::MakeSpan(right)).ok()) {
      return false;
    }
    if (left != right) return false;
  }
  return true;
}

}  // namespace koine::model_loader
