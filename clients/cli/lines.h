// Reading lines from a descriptor without blocking the answers that are due meanwhile.
#ifndef KOINE_CLIENTS_CLI_LINES_H_
#define KOINE_CLIENTS_CLI_LINES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace koine::cli {

struct Line {
  std::string text;       // without its line feed; everything else untouched
  int64_t number = 0;     // from 1
  bool too_long = false;  // more than max_bytes: `text` is its beginning, the rest was skipped
};

// Not thread-safe. Does not own the descriptor.
class LineReader {
 public:
  LineReader(int fd, size_t max_bytes) : fd_(fd), max_bytes_(max_bytes) {}

  // One read(2): blocks only if nothing is there. A last line without line feed counts.
  absl::Status Read();
  bool at_end() const { return at_end_; }
  std::deque<Line>& lines() { return lines_; }

 private:
  void Append(absl::string_view part);
  void EndLine();

  const int fd_;
  const size_t max_bytes_;
  std::deque<Line> lines_;
  Line current_;
  bool started_ = false;  // current_ holds something of a line, be it empty
  int64_t count_ = 0;
  bool at_end_ = false;
};

// True if `text` is well-formed UTF-8 (Unicode 15, table 3-7: no surrogates, no overlong forms).
bool IsUtf8(absl::string_view text);

}  // namespace koine::cli

#endif  // KOINE_CLIENTS_CLI_LINES_H_
