#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "model_loader/safetensors/safetensors.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

absl::Status WriteAll(int fd, const void* bytes, size_t count) {
  const char* next = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t written = write(fd, next, count);
    if (written < 0) {
      if (errno == EINTR) continue;
      return absl::ErrnoToStatus(errno, "write failed");
    }
    next += written;
    count -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SafetensorsWriter::Add(std::string name, kernels::DType dtype, std::vector<int64_t> shape,
                                    absl::Span<const uint8_t> data) {
  const auto fault = [&name](auto&&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", Printable(name), "\": ", parts...));
  };
  const bool plain =
      std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isprint(static_cast<unsigned char>(c)); });
  if (name.empty() || !plain || name == "__metadata__") return fault("tensor names are printable ASCII");
  int64_t bytes = static_cast<int64_t>(kernels::SizeOf(dtype));
  for (const int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(bytes, dimension, &bytes)) {
      return fault("shape ", ShapeToString(shape), " is negative or too large");
    }
  }
  if (static_cast<uint64_t>(bytes) != data.size()) {
    return fault("shape ", ShapeToString(shape), " of ", Absl(kernels::Name(dtype)), " takes ", bytes, " bytes, not ",
                 data.size());
  }
  if (entries_.find(name) != entries_.end()) return fault("added twice");
  entries_.emplace(std::move(name), Entry{dtype, std::move(shape), std::vector<uint8_t>(data.begin(), data.end())});
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::AddF32(std::string name, kernels::DType dtype, std::vector<int64_t> shape,
                                       absl::Span<const float> values) {
  if (dtype == kernels::DType::kF32) {
    return Add(std::move(name), dtype, std::move(shape),
               absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)));
  }
  if (dtype != kernels::DType::kBF16) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", Printable(name),
                                                   "\": f32 values are written as F32 or BF16, not as ",
                                                   Absl(kernels::Name(dtype))));
  }
  std::vector<uint8_t> bytes;
  bytes.reserve(values.size() * 2);
  for (const float value : values) {
    const uint16_t bits = kernels::ToBFloat16(value);
    bytes.push_back(static_cast<uint8_t>(bits & 0xff));
    bytes.push_back(static_cast<uint8_t>(bits >> 8));
  }
  return Add(std::move(name), dtype, std::move(shape), bytes);
}

absl::Status SafetensorsWriter::Write(const std::string& path) const {
  nlohmann::json header = nlohmann::json::object();
  header["__metadata__"] = {{"format", "koine"}};
  uint64_t offset = 0;
  for (const auto& [name, entry] : entries_) {
    const uint64_t end = offset + entry.data.size();
    header[name] = {
        {"dtype", std::string(kernels::Name(entry.dtype))}, {"shape", entry.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensor bytes start at a multiple of 8
  if (text.size() > SafetensorsFile::kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a header of ", text.size(), " bytes is too large"));
  }
  uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(static_cast<uint64_t>(text.size()) >> (8 * i));

  // Same directory as the goal, so that the rename stays within one file system and is atomic.
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  const auto fault = [&path](int error, absl::string_view what) {
    return absl::ErrnoToStatus(error, absl::StrCat(path, ": ", what));
  };
  const int fd = mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return fault(errno, "cannot create a temporary file beside it");
  absl::Cleanup remover = [fd, &temporary] {
    close(fd);
    unlink(temporary.c_str());
  };
  absl::Status status = WriteAll(fd, length, sizeof(length));
  if (status.ok()) status = WriteAll(fd, text.data(), text.size());
  for (const auto& [name, entry] : entries_) {
    if (status.ok()) status = WriteAll(fd, entry.data.data(), entry.data.size());
  }
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  // mkostemp makes files of mode 0600; a model is as readable as any other new file would be.
  const mode_t mask = umask(0);
  umask(mask);
  if (fchmod(fd, 0666 & ~mask) != 0) return fault(errno, "cannot set its mode");
  if (fsync(fd) != 0) return fault(errno, "cannot be made durable");
  if (rename(temporary.c_str(), path.c_str()) != 0) return fault(errno, "cannot be put in its place");
  std::move(remover).Cancel();
  if (close(fd) != 0) return fault(errno, "cannot be closed");
  // The rename itself is durable only once the directory is.
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int directory_fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd < 0) return fault(errno, "its directory cannot be made durable");
  const absl::Cleanup closer = [directory_fd] { close(directory_fd); };
  if (fsync(directory_fd) != 0) return fault(errno, "its directory cannot be made durable");
  return absl::OkStatus();
}

}  // namespace koine::model_loader
