#include "model_loader/format/folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/model.json");
  const absl::StatusOr<std::string> text = ReadJsonText(path);
  if (!text.ok()) return text.status();
  return ParseModelConfig(*text, path);
}

absl::StatusOr<LanguageConfig> ReadLanguageConfig(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/language.json");
  const absl::StatusOr<std::string> text = ReadJsonText(path);
  if (!text.ok()) return text.status();
  return ParseLanguageConfig(*text, path);
}

std::vector<std::string> FoldersIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.empty() || name[0] == '.' || !it->is_directory(error)) continue;
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace koine::model_loader
