// Feeds bytes to the safetensors parser. Whatever it accepts must hold together: every tensor lies inside the file, has
// the bytes its shape and type say, touches no other, and survives being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/tensor/dtype.h"
#include "model_loader/safetensors/safetensors.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

#ifdef KOINE_PLANTED_BOUNDS_FAULT
// The planted fault: one byte read behind the end, once the header is understood. ASan must report it.
uint8_t ReadBehindTheEnd(const uint8_t* data, size_t size) {
  const volatile uint8_t* bytes = data;
  return bytes[size];
}
#endif

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using koine::model_loader::SafetensorsFile;
  const absl::StatusOr<std::unique_ptr<SafetensorsFile>> file =
      SafetensorsFile::Parse(absl::MakeConstSpan(data, size), "fuzz");
  if (!file.ok()) {
    Require(file.status().code() == absl::StatusCode::kInvalidArgument);
    Require(file.status().message().size() < 4096);
    return 0;
  }
#ifdef KOINE_PLANTED_BOUNDS_FAULT
  if (ReadBehindTheEnd(data, size) == 0) return 0;
#endif
  size_t total = 0;
  for (const auto& [name, tensor] : (*file)->tensors()) {
    size_t bytes = koine::kernels::SizeOf(tensor.dtype);
    for (const int64_t dimension : tensor.shape) bytes *= static_cast<size_t>(dimension);
    Require(bytes == tensor.data.size());
    Require(tensor.data.empty() || (tensor.data.data() >= data && tensor.data.end() <= data + size));
    total += bytes;
    // Touches every byte: a view that leaves the buffer is ASan's to find.
    uint8_t sum = 0;
    for (const uint8_t byte : tensor.data) sum = static_cast<uint8_t>(sum + byte);
    const volatile uint8_t sink = sum;
    (void)sink;
    Require((*file)->Find(name) == &tensor);
  }
  // No holes and no overlaps: the tensors fill what follows the header exactly.
  uint64_t header = 0;
  for (int i = 7; i >= 0; --i) header = header << 8 | data[i];
  Require(8 + header + total == size);
  return 0;
}
