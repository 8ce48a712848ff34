#include "model_loader/safetensors/looks_like.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {

std::string LooksLike(std::string_view bytes) {
  if (bytes.empty()) return "an empty file (0 bytes)";
  const auto starts = [bytes](std::string_view prefix) { return bytes.starts_with(prefix); };
  if (starts("version https://git-lfs")) {
    return "a git-lfs pointer: the real file was never fetched (`git lfs pull` does it)";
  }
  if (starts("PK\x03\x04") || starts("PK\x05\x06")) return "a zip archive, as PyTorch's .bin and .pt checkpoints are";
  if (starts("\x1f\x8b")) return "gzip data";
  if (starts("BZh")) return "bzip2 data";
  if (starts("\xfd"
             "7zXZ"))
    return "xz data";
  if (starts("\x28\xb5\x2f\xfd")) return "zstd data";
  if (starts("GGUF")) return "a GGUF file";
  if (starts("\x89HDF")) return "an HDF5 file, as Keras and TensorFlow write";
  if (starts("\x93NUMPY")) return "a NumPy array file";
  if (starts("\x7f"
             "ELF"))
    return "an ELF binary";
  if (bytes.size() > 262 && bytes.substr(257, 5) == "ustar") return "a tar archive";
  if (bytes.size() >= 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5) {
    return "a Python pickle, as old PyTorch checkpoints are";
  }
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(Absl(bytes.substr(0, 512)));
  if (absl::StartsWithIgnoreCase(text, "<!doctype html") || absl::StartsWithIgnoreCase(text, "<html")) {
    return "an HTML page, as a failed download leaves";
  }
  if (absl::StartsWith(text, "<?xml")) return "an XML text";
  if (absl::StartsWith(text, "{")) return "a JSON text";
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c)) || absl::ascii_isspace(static_cast<unsigned char>(c));
  });
  if (printable && !text.empty()) return "a text file";
  if (bytes.size() < 8) return absl::StrCat("a fragment of ", bytes.size(), " bytes");
  return "";
}

}  // namespace koine::model_loader
