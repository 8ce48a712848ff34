// What the kernel says about named memory mappings of this process (proc(5), smaps).
#ifndef KOINE_MODEL_LOADER_ACCOUNTING_MAPPINGS_H_
#define KOINE_MODEL_LOADER_ACCOUNTING_MAPPINGS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace koine::model_loader {

struct MappedMemory {
  int64_t size = 0;      // bytes of address space
  int64_t resident = 0;  // bytes in memory (Rss)
  int64_t share = 0;     // its proportional share of them (Pss)
};

// Sums the mappings of each memfd by its name ("/memfd:NAME (deleted)") in the text of an smaps file. Lines that are
// not understood are passed over.
std::map<std::string, MappedMemory, std::less<>> ParseNamedMappings(std::string_view smaps);

// Of this process, now. UNAVAILABLE where /proc/self/smaps cannot be read.
absl::StatusOr<std::map<std::string, MappedMemory, std::less<>>> ReadNamedMappings();

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_ACCOUNTING_MAPPINGS_H_
