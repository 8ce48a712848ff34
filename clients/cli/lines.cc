#include "clients/cli/lines.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace koine::cli {

absl::Status LineReader::Read() {
  std::array<char, 64 * 1024> buffer;
  ssize_t got = 0;
  do {
    got = read(fd_, buffer.data(), buffer.size());
  } while (got < 0 && errno == EINTR);
  if (got < 0) return absl::InternalError(absl::StrCat("cannot read standard input: ", std::strerror(errno)));
  if (got == 0) {
    if (started_) EndLine();
    at_end_ = true;
    return absl::OkStatus();
  }
  absl::string_view rest(buffer.data(), static_cast<size_t>(got));
  while (!rest.empty()) {
    const size_t feed = rest.find('\n');
    Append(rest.substr(0, feed));
    if (feed == absl::string_view::npos) break;
    EndLine();
    rest.remove_prefix(feed + 1);
  }
  return absl::OkStatus();
}

void LineReader::Append(absl::string_view part) {
  started_ = true;
  const size_t room = max_bytes_ - current_.text.size();
  if (part.size() > room) current_.too_long = true;
  absl::StrAppend(&current_.text, part.substr(0, room));
}

void LineReader::EndLine() {
  current_.number = ++count_;
  lines_.push_back(std::exchange(current_, Line{}));
  started_ = false;
}

bool IsUtf8(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                          : (lead & 0xF0) == 0xE0        ? 3
                          : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                         : 0;
    if (length == 0 || text.size() - i < length) return false;
    for (size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) return false;
    }
    const uint8_t second = byte(i + 1);
    if (lead == 0xE0 && second < 0xA0) return false;  // overlong
    if (lead == 0xED && second > 0x9F) return false;  // surrogates
    if (lead == 0xF0 && second < 0x90) return false;  // overlong
    if (lead == 0xF4 && second > 0x8F) return false;  // beyond U+10FFFF
    i += length;
  }
  return true;
}

}  // namespace koine::cli
