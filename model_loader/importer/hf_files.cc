#include "model_loader/importer/hf_files.h"

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model_loader/safetensors/looks_like.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {

bool FileExists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t most_bytes) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (error || !std::filesystem::exists(status)) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  if (!std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  if (size > static_cast<uintmax_t>(most_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", size, " bytes; at most ", most_bytes, " are allowed here"));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  std::ifstream stream(path, std::ios::binary);
  stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!stream) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  return bytes;
}

absl::StatusOr<nlohmann::json> ParseHfJson(std::string_view text, const std::string& where) {
  absl::StatusOr<nlohmann::json> value = ParseStrictJson(text);
  if (!value.ok()) {
    const std::string instead = LooksLike(text);
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", value.status().message(),
                                                   instead.empty() ? "" : absl::StrCat("; it looks like ", instead)));
  }
  if (value->is_object()) {
    for (auto it = value->begin(); it != value->end();) it = it->is_null() ? value->erase(it) : std::next(it);
  }
  return value;
}

absl::StatusOr<nlohmann::json> ReadHfJson(const std::string& path) {
  constexpr int64_t kMaxBytes = int64_t{64} << 20;
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxBytes);
  if (!text.ok()) return text.status();
  return ParseHfJson(*text, path);
}

absl::StatusOr<std::optional<nlohmann::json>> ReadHfJsonIfThere(const std::string& path) {
  if (!FileExists(path)) return std::optional<nlohmann::json>();
  absl::StatusOr<nlohmann::json> value = ReadHfJson(path);
  if (!value.ok()) return value.status();
  return std::optional<nlohmann::json>(*std::move(value));
}

}  // namespace koine::model_loader
