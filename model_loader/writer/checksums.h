// SHA256SUMS of a model folder: one line a file, as sha256sum(1) writes them and checks them (`sha256sum -c`).
//
// Importers and `quantize` write the list, `verify` holds the files against it; folders without one are fine too. What
// people change beside the weights is not in it: samples.json, texts (*.md), names that begin with a dot.
#ifndef KOINE_MODEL_LOADER_WRITER_CHECKSUMS_H_
#define KOINE_MODEL_LOADER_WRITER_CHECKSUMS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace koine::model_loader {

inline constexpr char kChecksumFile[] = "SHA256SUMS";

// Writes the list of the files below `folder`. UNKNOWN naming the file that cannot be read or written, INVALID_ARGUMENT
// naming one that is no regular file; `step`, if not null, is asked between pieces of 1 MiB and may end the work.
absl::Status WriteChecksums(const std::string& folder, const std::function<absl::Status()>& step = nullptr);

// Adds the files below `folder`/`part` to a list that is there, under a FolderLock; does nothing where there is none.
// Errors as of WriteChecksums and CheckChecksums.
absl::Status AddChecksums(const std::string& folder, const std::string& part);

struct ChecksumReport {
  bool present = false;              // there is a list
  int64_t files = 0;                 // in it
  std::vector<std::string> faults;   // "shared.safetensors: differs", "...: missing"
  std::vector<std::string> unknown;  // files of the folder that it does not name
};
// INVALID_ARGUMENT for a list that is none, naming the line, or that is no regular file or over 16 MiB.
absl::StatusOr<ChecksumReport> CheckChecksums(const std::string& folder);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_WRITER_CHECKSUMS_H_
