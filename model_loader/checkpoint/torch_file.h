// Reader of PyTorch's .bin files as torch.save has written them since version 1.6: a zip archive of stored members,
//
//   <name>/data.pkl     a pickle: {"tensor name": tensor, ...}, tensors as references to storages
//   <name>/data/<key>   the bytes of one storage
//   <name>/version, <name>/byteorder, ...
//
// Nothing is executed: the pickle is read by a machine of its own that knows dictionaries, tuples, numbers, strings and
// the dozen names that tensors need, and refuses every other name. Neither are members unpacked: they are used where
// they lie in the mapped file.
#ifndef KOINE_MODEL_LOADER_CHECKPOINT_TORCH_FILE_H_
#define KOINE_MODEL_LOADER_CHECKPOINT_TORCH_FILE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model_loader/checkpoint/tensor.h"

namespace koine::model_loader {

// An open, validated, memory-mapped file. Immutable; any thread may read it.
class TorchFile {
 public:
  // Bounds on what a file can make us keep; a checkpoint of 10,000 tensors has a pickle of 1.3 MB and 150,000 values.
  static constexpr size_t kMaxPickleBytes = size_t{32} << 20;
  static constexpr size_t kMaxPickleValues = 1'000'000;
  static constexpr size_t kMaxMembers = 200'000;

  // Errors: NOT_FOUND (no such file), INVALID_ARGUMENT (not such a file, or it holds more than tensors), INTERNAL.
  static absl::StatusOr<std::unique_ptr<TorchFile>> Open(const std::string& path);
  // Parses bytes that outlive the object; `name` is for messages. What the fuzzer drives.
  static absl::StatusOr<std::unique_ptr<TorchFile>> Parse(absl::Span<const uint8_t> bytes, std::string name);
  ~TorchFile();
  TorchFile(const TorchFile&) = delete;
  TorchFile& operator=(const TorchFile&) = delete;

  const std::string& name() const { return name_; }
  const std::map<std::string, CheckpointTensor, std::less<>>& tensors() const { return tensors_; }
  // Compares every member with the archive's CRC-32: one pass over the whole file. (The pickle's is always checked.)
  absl::Status VerifyChecksums() const;

 private:
  struct Member {
    std::string name;
    absl::Span<const uint8_t> data;
    uint32_t crc = 0;
  };
  TorchFile() = default;
  std::string name_;
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::vector<Member> members_;
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
};

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_CHECKPOINT_TORCH_FILE_H_
