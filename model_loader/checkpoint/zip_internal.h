// The members of a zip archive without compression; private to this folder.
#ifndef KOINE_MODEL_LOADER_CHECKPOINT_ZIP_INTERNAL_H_
#define KOINE_MODEL_LOADER_CHECKPOINT_ZIP_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace koine::model_loader {

struct ZipMember {
  std::string name;                // relative, without "..", backslashes and NUL
  absl::Span<const uint8_t> data;  // where it lies
  uint32_t crc = 0;                // CRC-32 as the archive says, not compared
};

// All members, zip64 included. Strict: members do not overlap each other or the central directory, both headers of a
// member agree, no name occurs twice, nothing is compressed or encrypted. Errors: INVALID_ARGUMENT without the file's
// name.
absl::StatusOr<std::vector<ZipMember>> ReadZip(absl::Span<const uint8_t> bytes, size_t most_members);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_CHECKPOINT_ZIP_INTERNAL_H_
