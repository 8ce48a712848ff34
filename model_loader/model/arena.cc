#include "model_loader/model/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/ops/ops.h"
#include "model_loader/format/tensor_table.h"

namespace koine::model_loader {
namespace {

constexpr size_t kAlignment = 64;  // a cache line, and what oneDNN's kernels like

absl::Status SystemError(const char* what, const std::string& name, size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot ", what, " ", bytes, " bytes of memory for ", name, ": ", std::strerror(errno)));
}

}  // namespace

int64_t Arena::WholePages(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return static_cast<int64_t>(std::max<size_t>((bytes + page - 1) / page * page, page));
}

absl::StatusOr<std::unique_ptr<Arena>> Arena::Create(const std::string& name, size_t bytes) {
  std::unique_ptr<Arena> arena(new Arena());
  arena->bytes_ = static_cast<size_t>(WholePages(bytes));
  // The kernel takes at most 249 characters of a memfd's name.
  const int fd = memfd_create(name.substr(0, 240).c_str(), MFD_CLOEXEC);
  if (fd < 0) return SystemError("create", name, bytes);
  if (ftruncate(fd, static_cast<off_t>(arena->bytes_)) != 0) {
    const absl::Status status = SystemError("reserve", name, bytes);
    close(fd);
    return status;
  }
  void* data = mmap(nullptr, arena->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (data == MAP_FAILED) return SystemError("map", name, bytes);
  arena->data_ = static_cast<char*>(data);
  return arena;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

absl::Status Arena::Seal() {
  if (mprotect(data_, bytes_, PROT_READ) != 0) {
    return absl::InternalError(absl::StrCat("cannot make parameter memory read-only: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

size_t Arena::ResidentBytes() const {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(bytes_ / page);
  if (mincore(data_, bytes_, pages.data()) != 0) return bytes_;
  return static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; })) *
         page;
}

uint64_t Arena::Checksum() const {
  uint64_t hash = 0xcbf29ce484222325U;
  for (size_t i = 0; i < bytes_; i += sizeof(uint64_t)) {  // whole pages: a multiple of 8
    uint64_t word;
    std::memcpy(&word, data_ + i, sizeof(word));
    hash = (hash ^ word) * 0x100000001b3U;
    hash ^= hash >> 29;  // words, not bytes: bring high bits down again
  }
  return hash;
}

void ArenaBuilder::Add(size_t bytes, std::function<absl::Status(char*)> fill, std::function<void(const char*)> bind) {
  items_.push_back({bytes_, std::move(fill), std::move(bind)});
  bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

absl::Status ArenaBuilder::ForRows(const std::string& name, int64_t width,
                                   const std::function<void(int64_t, int64_t, const float*)>& use) const {
  const TensorView& tensor = *file_.Find(name);
  const int64_t rows = tensor.elements() / width;
  // 64 rows are one block of the packed layout, and 64 * 4096 * 4 bytes = 1 MiB of conversion space at most usual
  // widths.
  constexpr int64_t kPiece = 64;
  std::vector<float> values(static_cast<size_t>(std::min(rows, kPiece) * width));
  for (int64_t row = 0; row < rows; row += kPiece) {
    const int64_t count = std::min(kPiece, rows - row);
    const absl::Status read = ReadValues(file_, name, row * width, count * width, values.data());
    if (!read.ok()) return read;
    if (!kernels::AllFinite(values.data(), count * width)) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_.name(), ": tensor ", name, " holds a NaN or an infinity in rows ", row, " to ", row + count - 1));
    }
    use(row, count, values.data());
  }
  return absl::OkStatus();
}

absl::Status ArenaBuilder::Matrix(const std::vector<std::string>& names, kernels::PackedMatrix* out) {
  int64_t rows = 0;
  int64_t width = 0;
  for (const std::string& name : names) {
    const TensorView& tensor = *file_.Find(name);
    width = tensor.shape[1];
    rows += tensor.shape[0];
  }
  auto layout = kernels::LayoutFor(rows, width, precision_);
  if (!layout.ok()) {
    return absl::Status(layout.status().code(),
                        absl::StrCat(file_.name(), ": ", names.front(), ": ", layout.status().message()));
  }
  const auto packed = *std::move(layout);
  Add(
      kernels::PackedBytes(*packed),
      [this, names, packed, width](char* at) {
        int64_t first = 0;
        for (const std::string& name : names) {
          const absl::Status status = ForRows(name, width, [&](int64_t row, int64_t count, const float* values) {
            kernels::PackRows(*packed, first + row, count, values, at);
          });
          if (!status.ok()) return status;
          first += file_.Find(name)->shape[0];
        }
        return absl::OkStatus();
      },
      [packed, out](const char* at) {
        *out = {packed, at};
      });
  return absl::OkStatus();
}

void ArenaBuilder::Vector(const std::vector<std::string>& names, const float** out) {
  int64_t elements = 0;
  for (const std::string& name : names) elements += file_.Find(name)->elements();
  Add(
      static_cast<size_t>(elements) * sizeof(float),
      [this, names](char* at) {
        auto* to = reinterpret_cast<float*>(at);
        for (const std::string& name : names) {
          const int64_t count = file_.Find(name)->elements();
          if (count == 0) continue;
          const absl::Status status = ForRows(name, count, [&](int64_t, int64_t, const float* values) {
            std::memcpy(to, values, static_cast<size_t>(count) * sizeof(float));
          });
          if (!status.ok()) return status;
          to += count;
        }
        return absl::OkStatus();
      },
      [out](const char* at) { *out = reinterpret_cast<const float*>(at); });
}

void ArenaBuilder::Rows(const std::string& name, const void** out) {
  const TensorView& tensor = *file_.Find(name);
  const int64_t width = tensor.shape[1];
  Add(
      static_cast<size_t>(tensor.elements()) * kernels::SizeOf(precision_),
      [this, name, width](char* at) {
        return ForRows(name, width, [&](int64_t row, int64_t count, const float* values) {
          if (precision_ == kernels::Precision::kF32) {
            std::memcpy(at + static_cast<size_t>(row * width) * sizeof(float), values,
                        static_cast<size_t>(count * width) * sizeof(float));
          } else {
            auto* to = reinterpret_cast<uint16_t*>(at) + row * width;
            kernels::ConvertToBFloat16(values, width, count, width, to, width);
          }
        });
      },
      [out](const char* at) { *out = at; });
}

void ArenaBuilder::Derived(const std::string& name, int64_t floats, std::function<void(const float*, float*)> fill,
                           const float** out) {
  Add(
      static_cast<size_t>(floats) * sizeof(float),
      [this, name, fill = std::move(fill)](char* at) {
        return ForRows(name, file_.Find(name)->elements(),
                       [&](int64_t, int64_t, const float* values) { fill(values, reinterpret_cast<float*>(at)); });
      },
      [out](const char* at) { *out = reinterpret_cast<const float*>(at); });
}

void ArenaBuilder::Computed(int64_t floats, std::function<void(float*)> fill, const float** out) {
  Add(
      static_cast<size_t>(floats) * sizeof(float),
      [fill = std::move(fill)](char* at) {
        fill(reinterpret_cast<float*>(at));
        return absl::OkStatus();
      },
      [out](const char* at) { *out = reinterpret_cast<const float*>(at); });
}

absl::StatusOr<std::shared_ptr<const Arena>> ArenaBuilder::Build(const std::string& name) {
  auto arena = Arena::Create(name, bytes_);
  if (!arena.ok()) return arena.status();
  for (const Item& item : items_) {
    const absl::Status status = item.fill((*arena)->data() + item.offset);
    if (!status.ok()) return status;
  }
  const absl::Status sealed = (*arena)->Seal();
  if (!sealed.ok()) return sealed;
  for (const Item& item : items_) item.bind((*arena)->data() + item.offset);
  file_.DropPages();
  return std::shared_ptr<const Arena>(*std::move(arena));
}

}  // namespace koine::model_loader
