// Reader and writer of safetensors files (the format of Hugging Face's `safetensors`, version 0.4 of its README):
//
//   u64 little-endian N | N bytes of JSON header | tensor bytes
//
// The reader maps the file, trusts nothing in it, and names the file and the tensor in every error. A file that is
// something else (a git-lfs pointer, a zip, an empty file) is named as what it looks like.
#ifndef KOINE_MODEL_LOADER_SAFETENSORS_SAFETENSORS_H_
#define KOINE_MODEL_LOADER_SAFETENSORS_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/tensor/dtype.h"

namespace koine::model_loader {

// One tensor of an open file. Valid as long as the file object; `data` may be unaligned.
struct TensorView {
  kernels::DType dtype = kernels::DType::kF32;
  std::vector<int64_t> shape;
  absl::Span<const uint8_t> data;

  int64_t elements() const;
};

// A tensor of a type that nothing here computes with (I64, F64, BOOL, ...), as checkpoints have in buffers.
struct ForeignTensor {
  std::string dtype;  // the format's name
  std::vector<int64_t> shape;
  absl::Span<const uint8_t> data;
};

// What to do with such types: models of ours have none; checkpoints of others may.
enum class ForeignTypes : uint8_t { kRefuse, kList };

// "[3, 4]" for messages.
std::string ShapeToString(absl::Span<const int64_t> shape);

// An open, validated, memory-mapped file. Immutable; any thread may read it.
class SafetensorsFile {
 public:
  // Largest header accepted: 100 MB, the limit of the reference implementation.
  static constexpr uint64_t kMaxHeaderBytes = 100'000'000;

  // Errors: NOT_FOUND (no such file), INVALID_ARGUMENT (not a valid safetensors file), INTERNAL (mapping failed).
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path,
                                                               ForeignTypes foreign = ForeignTypes::kRefuse);
  // Parses bytes that outlive the object; `name` is for messages. What the fuzzer drives.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Parse(absl::Span<const uint8_t> bytes, std::string name,
                                                                ForeignTypes foreign = ForeignTypes::kRefuse);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& name() const { return name_; }
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  // Empty unless the file was opened with ForeignTypes::kList.
  const std::map<std::string, ForeignTensor, std::less<>>& foreign_tensors() const { return foreign_; }
  const TensorView* Find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Tells the kernel that the pages are no longer needed (after packing).
  void DropPages() const;

 private:
  SafetensorsFile() = default;
  std::string name_;
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, ForeignTensor, std::less<>> foreign_;
  std::map<std::string, std::string> metadata_;
};

// Collects tensors and writes them to `path` through a temporary name and a rename, so that no reader ever sees half a
// file. Tensor data is copied at Add. Tensors are written in name order; the header is padded to 8 bytes.
class SafetensorsWriter {
 public:
  absl::Status Add(std::string name, kernels::DType dtype, std::vector<int64_t> shape, absl::Span<const uint8_t> data);
  // Converts f32 values to `dtype` (F32, BF16).
  absl::Status AddF32(std::string name, kernels::DType dtype, std::vector<int64_t> shape,
                      absl::Span<const float> values);
  absl::Status Write(const std::string& path) const;

 private:
  struct Entry {
    kernels::DType dtype;
    std::vector<int64_t> shape;
    std::vector<uint8_t> data;
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_SAFETENSORS_SAFETENSORS_H_
