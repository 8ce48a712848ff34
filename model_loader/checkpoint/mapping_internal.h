// Mapping a file that somebody else wrote; private to this folder.
#ifndef KOINE_MODEL_LOADER_CHECKPOINT_MAPPING_INTERNAL_H_
#define KOINE_MODEL_LOADER_CHECKPOINT_MAPPING_INTERNAL_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace koine::model_loader {

// The whole of a regular file, read-only; the caller unmaps it. Empty for an empty file. Errors name the path.
absl::StatusOr<absl::Span<const uint8_t>> MapFile(const std::string& path);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_CHECKPOINT_MAPPING_INTERNAL_H_
