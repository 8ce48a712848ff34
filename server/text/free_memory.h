// How much memory there is for more languages.
#ifndef KOINE_SERVER_TEXT_FREE_MEMORY_H_
#define KOINE_SERVER_TEXT_FREE_MEMORY_H_

#include <cstdint>
#include <string>

namespace koine::server {

struct FreeMemory {
  int64_t bytes = 0;
  const char* basis = "machine";  // or "cgroup", whichever leaves less
};

// MemAvailable of the machine, or what the limit of the process's control group (v2, else v1) leaves beside what it
// uses, page cache that can be dropped not counted. 0 bytes where nothing can be read. The roots are "/proc" and
// "/sys/fs/cgroup", but for tests.
FreeMemory ReadFreeMemory(const std::string& proc = "/proc", const std::string& cgroup = "/sys/fs/cgroup");

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_FREE_MEMORY_H_
