#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "model_loader/safetensors/safetensors.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

// The file being written: knows where it is, and does not let a large file fill the page cache.
class Output {
 public:
  explicit Output(int fd) : fd_(fd) {}

  absl::Status Append(absl::Span<const uint8_t> bytes) {
    while (!bytes.empty()) {
      // Views can be whole tables; pieces of a window keep the hand-over to the disk even.
      const ssize_t written = write(fd_, bytes.data(), std::min(bytes.size(), kWindow));
      if (written < 0) {
        if (errno == EINTR) continue;
        return absl::ErrnoToStatus(errno, "write failed");
      }
      bytes.remove_prefix(static_cast<size_t>(written));
      position_ += static_cast<off_t>(written);
      HandOver();
    }
    return absl::OkStatus();
  }

 private:
  // Long enough for disks to be written in long runs, short enough that a few of them never matter.
  static constexpr size_t kWindow = size_t{32} << 20;

  // Starts the writing of the window just filled, waits for the one before and drops its pages. Advice: where a file
  // system does not take it, the final fsync does all the work.
  void HandOver() {
    constexpr auto kLength = static_cast<off_t>(kWindow);
    while (position_ - started_ >= kLength) {
      sync_file_range(fd_, started_, kLength, SYNC_FILE_RANGE_WRITE);
      if (started_ >= kLength) {
        const off_t before = started_ - kLength;
        sync_file_range(fd_, before, kLength,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
        posix_fadvise(fd_, before, kLength, POSIX_FADV_DONTNEED);
      }
      started_ += kLength;
    }
  }

  const int fd_;
  off_t position_ = 0;
  off_t started_ = 0;  // end of the windows whose writing was started
};

absl::Span<const uint8_t> BytesOf(absl::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

absl::Status Named(const absl::Status& status, absl::string_view name) {
  return absl::Status(status.code(), absl::StrCat("tensor \"", name, "\": ", status.message()));
}

// f32 values to stored ones.
absl::Status Convert(absl::Span<const float> values, kernels::DType dtype, absl::Span<uint8_t> chunk) {
  if (dtype == kernels::DType::kF16) {
    for (const float value : values) {
      if (std::isfinite(value) && std::isinf(kernels::FromFloat16(kernels::ToFloat16(value)))) {
        return absl::OutOfRangeError(
            absl::StrCat("the value ", value, " is too large for F16 (65,504 at most); BF16 and F32 hold it"));
      }
    }
  }
  kernels::ConvertFromF32(values.data(), dtype, static_cast<int64_t>(values.size()), chunk.data());
  return absl::OkStatus();
}

absl::Status CheckFloatType(absl::string_view name, kernels::DType dtype) {
  if (dtype == kernels::DType::kF32 || dtype == kernels::DType::kF16 || dtype == kernels::DType::kBF16) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("tensor \"", Printable({name.data(), name.size()}),
                                                 "\": f32 values are written as F32, F16 or BF16, not as ",
                                                 Absl(kernels::Name(dtype))));
}

}  // namespace

absl::StatusOr<SafetensorsWriter::Entry*> SafetensorsWriter::NewEntry(std::string name, kernels::DType dtype,
                                                                      std::vector<int64_t> shape,
                                                                      std::optional<size_t> given) {
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
  if (given.has_value() && static_cast<uint64_t>(bytes) != *given) {
    return fault("shape ", ShapeToString(shape), " of ", Absl(kernels::Name(dtype)), " takes ", bytes, " bytes, not ",
                 *given);
  }
  Entry entry;
  entry.dtype = dtype;
  entry.shape = std::move(shape);
  entry.bytes = static_cast<uint64_t>(bytes);
  const auto [at, fresh] = entries_.emplace(name, std::move(entry));
  if (!fresh) return fault("added twice");
  return &at->second;
}

absl::Status SafetensorsWriter::Add(std::string name, kernels::DType dtype, std::vector<int64_t> shape,
                                    absl::Span<const uint8_t> data) {
  const absl::StatusOr<Entry*> entry = NewEntry(std::move(name), dtype, std::move(shape), data.size());
  if (entry.ok()) (*entry)->copy.assign(data.begin(), data.end());
  return entry.status();
}

absl::Status SafetensorsWriter::AddView(std::string name, kernels::DType dtype, std::vector<int64_t> shape,
                                        absl::Span<const uint8_t> data) {
  const absl::StatusOr<Entry*> entry = NewEntry(std::move(name), dtype, std::move(shape), data.size());
  if (entry.ok()) (*entry)->view = data;
  return entry.status();
}

absl::Status SafetensorsWriter::AddRows(std::string name, kernels::DType dtype, std::vector<int64_t> shape,
                                        RowSource source, std::function<void()> written) {
  const absl::StatusOr<Entry*> entry = NewEntry(std::move(name), dtype, std::move(shape), std::nullopt);
  if (!entry.ok()) return entry.status();
  (*entry)->source = std::move(source);
  (*entry)->written = std::move(written);
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::AddF32Rows(std::string name, kernels::DType dtype, std::vector<int64_t> shape,
                                           FloatRowSource source, std::function<void()> written) {
  if (const absl::Status status = CheckFloatType(name, dtype); !status.ok()) return status;
  const size_t element = kernels::SizeOf(dtype);
  return AddRows(
      std::move(name), dtype, std::move(shape),
      [source = std::move(source), dtype, element](int64_t first, int64_t count, absl::Span<uint8_t> chunk) {
        std::vector<float> values(chunk.size() / element);
        const absl::Status status = source(first, count, absl::MakeSpan(values));
        return status.ok() ? Convert(values, dtype, chunk) : status;
      },
      std::move(written));
}

absl::Status SafetensorsWriter::AddF32(std::string name, kernels::DType dtype, std::vector<int64_t> shape,
                                       absl::Span<const float> values) {
  if (const absl::Status status = CheckFloatType(name, dtype); !status.ok()) return status;
  std::vector<uint8_t> bytes(values.size() * kernels::SizeOf(dtype));
  if (const absl::Status status = Convert(values, dtype, absl::MakeSpan(bytes)); !status.ok()) {
    return Named(status, name);
  }
  return Add(std::move(name), dtype, std::move(shape), bytes);
}

uint64_t SafetensorsWriter::data_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, entry] : entries_) bytes += entry.bytes;
  return bytes;
}

absl::Status SafetensorsWriter::Write(const std::string& path) const {
  nlohmann::json header = nlohmann::json::object();
  header["__metadata__"] = {{"format", "koine"}};
  uint64_t offset = 0;
  for (const auto& [name, entry] : entries_) {
    const uint64_t end = offset + entry.bytes;
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
  Output output(fd);
  absl::Status status = output.Append(length);
  if (status.ok()) status = output.Append(BytesOf(text));
  std::vector<uint8_t> buffer;
  for (const auto& [name, entry] : entries_) {
    if (!status.ok()) break;
    if (entry.source == nullptr) {
      status = output.Append(entry.copy.empty() ? entry.view : absl::MakeConstSpan(entry.copy));
      continue;
    }
    const int64_t rows = entry.bytes == 0 ? 0 : entry.shape.empty() ? 1 : entry.shape[0];
    const size_t row_bytes = rows == 0 ? 0 : static_cast<size_t>(entry.bytes) / static_cast<size_t>(rows);
    const int64_t piece = rows == 0 ? 1 : std::max<int64_t>(1, static_cast<int64_t>(kChunkBytes / row_bytes));
    for (int64_t first = 0; first < rows && status.ok(); first += piece) {
      const int64_t count = std::min(piece, rows - first);
      buffer.resize(static_cast<size_t>(count) * row_bytes);
      status = entry.source(first, count, absl::MakeSpan(buffer));
      status = status.ok() ? output.Append(buffer) : Named(status, name);
    }
    if (status.ok() && entry.written != nullptr) entry.written();
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
