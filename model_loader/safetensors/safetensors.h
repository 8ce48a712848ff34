// Reader and writer of safetensors files (the format of Hugging Face's `safetensors`, version 0.4 of its README):
//
//   u64 little-endian N | N bytes of JSON header | tensor bytes
//
// The reader maps the file, trusts nothing in it, and names the file and the tensor in every error. A file that is
// something else (a git-lfs pointer, a zip, an empty file) is named as what it looks like.
#ifndef KOINE_MODEL_LOADER_SAFETENSORS_SAFETENSORS_H_
#define KOINE_MODEL_LOADER_SAFETENSORS_SAFETENSORS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
  // Tells the kernel that the pages are no longer needed (after packing); they can be read again. The second form drops
  // those that `part`, some bytes of this file, covers whole.
  void DropPages() const;
  void DropPages(absl::Span<const uint8_t> part) const;

 private:
  SafetensorsFile() = default;
  std::string name_;
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, ForeignTensor, std::less<>> foreign_;
  std::map<std::string, std::string> metadata_;
};

// Fills `chunk` with the values of rows [first, first + count) of a tensor. A row is one index of the first dimension;
// a tensor without dimensions is one row. Called once for each row, in rising order.
using RowSource = std::function<absl::Status(int64_t first, int64_t count, absl::Span<uint8_t> chunk)>;
using FloatRowSource = std::function<absl::Status(int64_t first, int64_t count, absl::Span<float> chunk)>;

// Collects tensors and writes them to `path` through a temporary name and a rename, so that no reader ever sees half a
// file. Tensors are written in name order; the header is padded to 8 bytes. Not thread-safe.
//
// Tensors come as bytes that are copied (Add, AddF32: small ones), as views that are not (AddView), or row by row while
// the file is written (AddRows, AddF32Rows): then nothing but one buffer of kChunkBytes, or one row, is ever held.
// Large files are handed to the disk as they grow and their pages dropped from the cache.
class SafetensorsWriter {
 public:
  static constexpr size_t kChunkBytes = size_t{4} << 20;

  absl::Status Add(std::string name, kernels::DType dtype, std::vector<int64_t> shape, absl::Span<const uint8_t> data);
  // `data` must stay until the last Write.
  absl::Status AddView(std::string name, kernels::DType dtype, std::vector<int64_t> shape,
                       absl::Span<const uint8_t> data);
  // `source` is called during each Write; what it refers to must stay until the last one. Its errors end the Write.
  // `written`, if any, is called when the tensor's last byte is in the file: the place to drop a source's pages.
  absl::Status AddRows(std::string name, kernels::DType dtype, std::vector<int64_t> shape, RowSource source,
                       std::function<void()> written = nullptr);
  // The same for f32 values, which are stored as F32, F16 or BF16. In F16, a finite value that would become infinite
  // (65,520 and more) ends the Write: OUT_OF_RANGE naming the tensor and the value.
  absl::Status AddF32Rows(std::string name, kernels::DType dtype, std::vector<int64_t> shape, FloatRowSource source,
                          std::function<void()> written = nullptr);
  // All values at once, copied.
  absl::Status AddF32(std::string name, kernels::DType dtype, std::vector<int64_t> shape,
                      absl::Span<const float> values);

  // Bytes of all tensors added so far.
  uint64_t data_bytes() const;
  absl::Status Write(const std::string& path) const;

 private:
  struct Entry {
    kernels::DType dtype = kernels::DType::kF32;
    std::vector<int64_t> shape;
    uint64_t bytes = 0;
    std::vector<uint8_t> copy;       // Add
    absl::Span<const uint8_t> view;  // AddView
    RowSource source;                // AddRows; else copy and view, of which one at least is empty, are the bytes
    std::function<void()> written;
  };
  // Checks everything but the bytes themselves and returns the new entry.
  absl::StatusOr<Entry*> NewEntry(std::string name, kernels::DType dtype, std::vector<int64_t> shape,
                                  std::optional<size_t> bytes);
  std::map<std::string, Entry> entries_;
};

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_SAFETENSORS_SAFETENSORS_H_
