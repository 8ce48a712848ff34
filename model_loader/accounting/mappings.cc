#include "model_loader/accounting/mappings.h"

#include <cctype>
#include <fstream>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace koine::model_loader {

std::map<std::string, MappedMemory, std::less<>> ParseNamedMappings(std::string_view smaps) {
  // 7f12a000-7f12c000 r--s 00000000 00:01 1026   /memfd:koine:demo:shared (deleted)
  // Size:                  8 kB
  // Rss:                   8 kB
  constexpr absl::string_view kPrefix = "/memfd:", kDeleted = " (deleted)", kUnit = " kB";
  std::map<std::string, MappedMemory, std::less<>> mappings;
  MappedMemory* current = nullptr;
  for (absl::string_view line : absl::StrSplit(absl::string_view(smaps.data(), smaps.size()), '\n')) {
    // Fields start with a capital letter, mappings with a hexadecimal address in small letters.
    const bool field = !line.empty() && std::isupper(static_cast<unsigned char>(line.front())) != 0;
    if (!field) {
      current = nullptr;
      const size_t begin = line.find(kPrefix);
      if (begin == absl::string_view::npos) continue;
      absl::string_view name = absl::StripSuffix(line.substr(begin + kPrefix.size()), kDeleted);
      current = &mappings[std::string(name)];
      continue;
    }
    if (current == nullptr) continue;
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    int64_t kilobytes = 0;
    if (!absl::SimpleAtoi(absl::StripSuffix(parts.second, kUnit), &kilobytes)) continue;
    const int64_t bytes = 1024 * kilobytes;
    if (parts.first == "Size") current->size += bytes;
    if (parts.first == "Rss") current->resident += bytes;
    if (parts.first == "Pss") current->share += bytes;
  }
  return mappings;
}

absl::StatusOr<std::map<std::string, MappedMemory, std::less<>>> ReadNamedMappings() {
  std::ifstream file("/proc/self/smaps");
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.good() && !file.eof()) return absl::UnavailableError("cannot read /proc/self/smaps");
  return ParseNamedMappings(text.str());
}

}  // namespace koine::model_loader
