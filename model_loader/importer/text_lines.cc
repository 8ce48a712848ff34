#include "model_loader/importer/text_lines.h"

#include <unicode/utf8.h>

#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"

namespace koine::model_loader {
namespace {

constexpr size_t kMostBytes = size_t{4} << 20;

bool IsUtf8(const std::string& text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t i = 0; i < size;) {
    UChar32 c = 0;
    U8_NEXT(bytes, i, size, c);
    if (c < 0) return false;
  }
  return true;
}

}  // namespace

absl::Status ForLines(std::istream& stream, const std::string& name, const UseLine& use) {
  std::string line;
  int64_t number = 0;
  const auto fault = [&](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": line ", number, " ", what));
  };
  const auto finish = [&] {
    // Some editors begin a file with a byte order mark.
    if (number == 1 && line.compare(0, 3, "\xef\xbb\xbf") == 0) line.erase(0, 3);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!IsUtf8(line)) return fault("is not UTF-8");
    absl::Status status = use(number, line);
    line.clear();
    return status;
  };
  // Piece by piece: a line without an end must not fill the memory.
  std::vector<char> piece(1 << 16);
  bool open = false;  // a line has begun
  while (stream) {
    stream.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    for (std::streamsize i = 0; i < stream.gcount(); ++i) {
      if (!open) ++number;
      open = piece[static_cast<size_t>(i)] != '\n';
      if (open) {
        if (line.size() == kMostBytes) return fault("has over 4 MiB");
        line += piece[static_cast<size_t>(i)];
      } else if (absl::Status status = finish(); !status.ok()) {
        return status;
      }
    }
  }
  if (stream.bad() || !stream.eof()) return absl::UnknownError(absl::StrCat(name, ": cannot be read"));
  return open ? finish() : absl::OkStatus();
}

absl::Status ForLinesOfFile(const std::string& path, const UseLine& use) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::UnknownError(absl::StrCat(path, ": cannot be read"));
  return ForLines(stream, path, use);
}

}  // namespace koine::model_loader
