#include "server/text/free_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace koine::server {
namespace {

// The number of a file that holds nothing else; none where it says "max" or is not there.
std::optional<int64_t> Number(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  int64_t value = 0;
  if (!(file >> text) || !absl::SimpleAtoi(text, &value)) return std::nullopt;
  return value;
}

// The value of the line "KEY VALUE" or "KEY: VALUE".
std::optional<int64_t> Field(const std::string& path, absl::string_view key) {
  std::ifstream file(path);
  std::string name, line;
  while (std::getline(file, line)) {
    const absl::string_view view = line;
    if (view.substr(0, key.size()) != key) continue;
    absl::string_view rest = view.substr(key.size());
    if (!rest.empty() && rest.front() == ':') rest.remove_prefix(1);
    if (rest.empty() || rest.front() != ' ') continue;
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    int64_t value = 0;
    if (absl::SimpleAtoi(rest.substr(0, rest.find(' ')), &value)) return value;
  }
  return std::nullopt;
}

std::optional<int64_t> LeftInGroup(std::optional<int64_t> limit, std::optional<int64_t> used,
                                   std::optional<int64_t> droppable) {
  // v1 says "no limit" with a number near 2^63.
  constexpr int64_t kNoLimit = int64_t{1} << 60;
  if (!limit || !used || *limit >= kNoLimit) return std::nullopt;
  return std::max<int64_t>(0, *limit - *used + droppable.value_or(0));
}

}  // namespace

FreeMemory ReadFreeMemory(const std::string& proc, const std::string& cgroup) {
  FreeMemory free;
  free.bytes = Field(absl::StrCat(proc, "/meminfo"), "MemAvailable").value_or(0) * 1024;
  std::optional<int64_t> group =
      LeftInGroup(Number(absl::StrCat(cgroup, "/memory.max")), Number(absl::StrCat(cgroup, "/memory.current")),
                  Field(absl::StrCat(cgroup, "/memory.stat"), "inactive_file"));
  if (!group) {
    group = LeftInGroup(Number(absl::StrCat(cgroup, "/memory/memory.limit_in_bytes")),
                        Number(absl::StrCat(cgroup, "/memory/memory.usage_in_bytes")),
                        Field(absl::StrCat(cgroup, "/memory/memory.stat"), "total_inactive_file"));
  }
  if (group && (free.bytes == 0 || *group < free.bytes)) free = {*group, "cgroup"};
  return free;
}

}  // namespace koine::server
