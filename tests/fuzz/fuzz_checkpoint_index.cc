// Feeds shard indexes. What is accepted names plain files only.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "model_loader/checkpoint/shard_index.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto index = koine::model_loader::ParseShardIndex(text, "fuzz");
  if (!index.ok()) {
    Require(index.status().code() == absl::StatusCode::kInvalidArgument);
    Require(index.status().message().size() < 4096);
    return 0;
  }
  Require(!index->weight_map.empty() && !index->files.empty() && index->files.size() <= index->weight_map.size());
  Require(std::is_sorted(index->files.begin(), index->files.end()));
  for (const auto& [tensor, file] : index->weight_map) {
    Require(std::binary_search(index->files.begin(), index->files.end(), file));
    Require(file.find('/') == std::string::npos && file.find("..") == std::string::npos && file.front() != '.');
  }
  return 0;
}
