// The one pickle that torch.save writes for a dictionary of tensors; private to this folder.
#ifndef KOINE_MODEL_LOADER_CHECKPOINT_PICKLE_INTERNAL_H_
#define KOINE_MODEL_LOADER_CHECKPOINT_PICKLE_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model_loader/checkpoint/tensor.h"

namespace koine::model_loader {

// A tensor as the pickle describes it; nothing about its storage has been checked but that it has a key.
struct PickledTensor {
  std::string name;
  ElementType type = ElementType::kF32;
  std::string storage_key;
  int64_t storage_elements = 0;
  int64_t offset = 0;
  std::vector<int64_t> shape, strides;
};

// Errors: INVALID_ARGUMENT without the file's name.
absl::StatusOr<std::vector<PickledTensor>> ReadTensorPickle(absl::Span<const uint8_t> bytes, size_t most_values);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_CHECKPOINT_PICKLE_INTERNAL_H_
