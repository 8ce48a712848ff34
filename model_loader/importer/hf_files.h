// JSON files of a Hugging Face folder, as they lie there: written by Python, read strictly.
#ifndef KOINE_MODEL_LOADER_IMPORTER_HF_FILES_H_
#define KOINE_MODEL_LOADER_IMPORTER_HF_FILES_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {

bool FileExists(const std::string& path);

// Parses a document and removes keys of its outermost object whose value is null: to the library a key that is null and
// one that is missing are the same. INVALID_ARGUMENT naming `where`.
absl::StatusOr<nlohmann::json> ParseHfJson(std::string_view text, const std::string& where);

// Reads a file of at most 64 MiB (tokenizer.json of a vocabulary of 250,000 pieces has 17 MB). NOT_FOUND and
// INVALID_ARGUMENT name the path.
absl::StatusOr<nlohmann::json> ReadHfJson(const std::string& path);
// The same for a file that need not be there: nullopt if it is not.
absl::StatusOr<std::optional<nlohmann::json>> ReadHfJsonIfThere(const std::string& path);

// A whole file; what it looks like instead is for the caller's parser to say. NOT_FOUND, INVALID_ARGUMENT.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t most_bytes);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_IMPORTER_HF_FILES_H_
