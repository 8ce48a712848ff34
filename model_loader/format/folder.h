// A model's folder as it lies on disk: its configurations and the folders in it.
#ifndef KOINE_MODEL_LOADER_FORMAT_FOLDER_H_
#define KOINE_MODEL_LOADER_FORMAT_FOLDER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model_loader/format/config.h"

namespace koine::model_loader {

// model.json of a model's folder, language.json of a language's. NOT_FOUND or INVALID_ARGUMENT, naming the file.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder);
absl::StatusOr<LanguageConfig> ReadLanguageConfig(const std::string& folder);

// Names of the folders in `folder`, sorted; none if it is not there. Those that begin with a dot are left out:
// somebody's work in progress (a language being copied in).
std::vector<std::string> FoldersIn(const std::string& folder);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_FORMAT_FOLDER_H_
