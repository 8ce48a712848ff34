// Lines of text from strangers' files.
#ifndef KOINE_MODEL_LOADER_IMPORTER_TEXT_LINES_H_
#define KOINE_MODEL_LOADER_IMPORTER_TEXT_LINES_H_

#include <cstdint>
#include <functional>
#include <istream>
#include <string>

#include "absl/status/status.h"

namespace koine::model_loader {

// Calls `use` with each line, without its end ("\n" or "\r\n") and without a byte order mark before the first; its
// error ends the reading. INVALID_ARGUMENT naming `name` and the line for one that is no UTF-8 or has over 4 MiB, which
// nothing can tokenize; UNKNOWN where the stream fails.
using UseLine = std::function<absl::Status(int64_t number, const std::string& line)>;
absl::Status ForLines(std::istream& stream, const std::string& name, const UseLine& use);
// Of a file. NOT_FOUND; INVALID_ARGUMENT also for what is no regular file.
absl::Status ForLinesOfFile(const std::string& path, const UseLine& use);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_IMPORTER_TEXT_LINES_H_
