#include "model_loader/tokenizer/text_internal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unicode/utf8.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace koine::model_loader {

std::string ValidUtf8(std::string text) {
  const auto length = [&text](size_t at) -> size_t {
    const auto byte = [&text](size_t i) -> unsigned { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0U; };
    const unsigned first = byte(at);
    const auto continues = [&byte, at](size_t from, size_t to) {
      for (size_t i = from; i <= to; ++i) {
        if ((byte(at + i) & 0xc0) != 0x80) return false;
      }
      return true;
    };
    const unsigned second = byte(at + 1);
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first <= 0xdf) return continues(1, 1) ? 2 : 0;
    if (first >= 0xe0 && first <= 0xef) {
      if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
      return continues(1, 2) ? 3 : 0;
    }
    if (first >= 0xf0 && first <= 0xf4) {
      if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
      return continues(1, 3) ? 4 : 0;
    }
    return 0;
  };
  size_t valid = 0;
  while (valid < text.size()) {
    const size_t step = length(valid);
    if (step == 0) break;
    valid += step;
  }
  if (valid == text.size()) return text;
  std::string result = text.substr(0, valid);
  while (valid < text.size()) {
    const size_t step = length(valid);
    if (step == 0) {
      result.append("\xef\xbf\xbd");
      ++valid;
    } else {
      result.append(text, valid, step);
      valid += step;
    }
  }
  return result;
}

void AppendUtf8(int32_t c, std::string* text) {
  char buffer[U8_MAX_LENGTH];
  int32_t length = 0;
  U8_APPEND_UNSAFE(buffer, length, c);
  text->append(buffer, static_cast<size_t>(length));
}

absl::Status CheckTextSize(std::string_view text) {
  if (text.size() <= kMaxTextBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a text of ", text.size(), " bytes; at most ", kMaxTextBytes, " can be tokenized"));
}

absl::StatusOr<std::string> ReadTokenizerFile(const std::string& path, int64_t most_bytes) {
  // O_NONBLOCK: a named pipe in the place of a file must not hang the start.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  const absl::Cleanup closer = [fd] { close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot examine"));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  if (info.st_size > most_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", info.st_size, " bytes; at most ", most_bytes, " are allowed"));
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t count = read(fd, bytes.data() + filled, bytes.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot read"));
    if (count == 0) break;  // shortened while we read
    filled += static_cast<size_t>(count);
  }
  bytes.resize(filled);
  return bytes;
}

}  // namespace koine::model_loader
