// Feeds PyTorch files. A fuzzer cannot guess checksums, so that inputs come in two kinds:
//
//   first byte even: the rest is a file
//   first byte odd:  the rest is a pickle, wrapped here in an archive with two storages of 24 and 16 bytes
//
// Whatever is accepted must hold together: all elements lie in storages, storages in the file, and can be read.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model_loader/checkpoint/torch_file.h"
#include "tests/unit/model_loader_checkpoint/torch_builder.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void Check(absl::Span<const uint8_t> bytes) {
  using koine::model_loader::TorchFile;
  const absl::StatusOr<std::unique_ptr<TorchFile>> file = TorchFile::Parse(bytes, "fuzz");
  if (!file.ok()) {
    Require(file.status().code() == absl::StatusCode::kInvalidArgument);
    Require(file.status().message().size() < 4096);
    return;
  }
  int64_t budget = 1 << 20;  // elements: thousands of tensors may share one storage
  for (const auto& [name, tensor] : (*file)->tensors()) {
    Require(!name.empty());
    Require(tensor.storage.empty() ||
            (tensor.storage.data() >= bytes.data() && tensor.storage.end() <= bytes.data() + bytes.size()));
    Require(tensor.elements() >= 0 && tensor.elements() <= static_cast<int64_t>(tensor.storage.size()));
    budget -= tensor.elements();
    if (budget < 0) break;
    std::vector<uint8_t> copy(static_cast<size_t>(tensor.elements()) * SizeOf(tensor.type));
    Require(tensor.ReadBytes(0, tensor.rows(), absl::MakeSpan(copy)).ok());
    if (tensor.contiguous()) Require(tensor.elements() == 0 || tensor.bytes() == absl::MakeConstSpan(copy));
    if (tensor.is_float()) {
      std::vector<float> values(static_cast<size_t>(tensor.elements()));
      Require(tensor.ReadRows(0, tensor.rows(), absl::MakeSpan(values)).ok());
    }
    Require(SameStorage(tensor, tensor) &&
            SameValues(tensor, tensor) == (tensor.type != koine::model_loader::ElementType::kOther));
  }
  (void)(*file)->VerifyChecksums();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  if (data[0] % 2 == 0) {
    Check(absl::MakeConstSpan(data + 1, size - 1));
    return 0;
  }
  const std::string pickle(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string archive =
      koine::model_loader::TorchArchive(pickle, {std::string(24, '\x3f'), std::string(16, '\x01')});
  Check(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(archive.data()), archive.size()));
  return 0;
}
