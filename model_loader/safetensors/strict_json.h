// JSON as we accept it in files that strangers wrote: no exceptions, no duplicate keys, bounded nesting. nlohmann's DOM
// parser alone keeps the last of two equal keys without a word, so every reader here goes through its SAX interface.
#ifndef KOINE_MODEL_LOADER_SAFETENSORS_STRICT_JSON_H_
#define KOINE_MODEL_LOADER_SAFETENSORS_STRICT_JSON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {

// Debian's Abseil is built with its own string_view, to which std's does not convert by itself.
inline absl::string_view Absl(std::string_view text) { return absl::string_view(text.data(), text.size()); }

// Nesting allowed in any file of ours: the deepest documented value of FORMAT.md has 5 levels.
inline constexpr int kMaxJsonDepth = 32;

// A short, printable version of bytes that came from a file: escaped, cut at 120 bytes.
std::string Printable(std::string_view bytes);

// One line that says where and why a parse failed, from nlohmann's own error.
std::string JsonFault(std::size_t position, std::string_view what);

// Parses one JSON document. Errors: INVALID_ARGUMENT with the fault, without the file's name.
absl::StatusOr<nlohmann::json> ParseStrictJson(std::string_view text);

// The bytes of a small file. NOT_FOUND if it cannot be read; INVALID_ARGUMENT if it is no regular file (a pipe would
// hang, a device never end) or larger than `most` bytes. Both name the file.
inline constexpr std::uintmax_t kMaxJsonBytes = 16 << 20;  // JSON files of a model are small
absl::StatusOr<std::string> ReadJsonText(const std::string& path, std::uintmax_t most = kMaxJsonBytes);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_SAFETENSORS_STRICT_JSON_H_
