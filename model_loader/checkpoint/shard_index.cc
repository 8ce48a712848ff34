#include "model_loader/checkpoint/shard_index.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "model_loader/format/tokenizer_config.h"
#include "model_loader/safetensors/looks_like.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {

absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view text, const std::string& name) {
  const auto fault = [&name](auto&&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", parts...));
  };
  const absl::StatusOr<nlohmann::json> root = ParseStrictJson(text);
  if (!root.ok()) {
    const std::string guess = LooksLike(text);
    if (guess.empty() || guess == "a JSON text") return fault(root.status().message());
    return fault("not an index of shards; it looks like ", guess);
  }
  if (!root->is_object()) return fault("must be a JSON object");
  const auto map = root->find("weight_map");
  if (map == root->end() || !map->is_object() || map->empty()) {
    return fault("weight_map must be an object of file names by tensors");
  }
  ShardIndex index;
  std::set<std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) return fault("weight_map: the file of \"", Printable(tensor), "\" must be a string");
    const auto& file_name = file.get_ref<const std::string&>();
    if (!IsPlainFileName(file_name)) {
      return fault("weight_map: \"", Printable(tensor), "\" lies in \"", Printable(file_name),
                   "\", which is no plain name of a file in this folder");
    }
    index.weight_map.emplace(tensor, file_name);
    files.insert(file_name);
  }
  index.files.assign(files.begin(), files.end());
  return index;
}

}  // namespace koine::model_loader
