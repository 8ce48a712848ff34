// model.safetensors.index.json and pytorch_model.bin.index.json: which tensor lies in which shard.
//
//   {"metadata": {"total_size": 3148288}, "weight_map": {"<tensor>": "<file>", ...}}
#ifndef KOINE_MODEL_LOADER_CHECKPOINT_SHARD_INDEX_H_
#define KOINE_MODEL_LOADER_CHECKPOINT_SHARD_INDEX_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace koine::model_loader {

struct ShardIndex {
  std::map<std::string, std::string, std::less<>> weight_map;  // tensor -> file, a plain name
  std::vector<std::string> files;                              // each once, sorted
};

// `name` is for messages. Keys besides weight_map are not interpreted. Errors: INVALID_ARGUMENT (not JSON, no or an
// empty weight_map, a file name with a path in it, ...).
absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view json, const std::string& name);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_CHECKPOINT_SHARD_INDEX_H_
