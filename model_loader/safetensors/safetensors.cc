#include "model_loader/safetensors/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model_loader/safetensors/looks_like.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

using kernels::DType;
using nlohmann::json;

constexpr size_t kLengthBytes = 8;
// More dimensions than any layer has; bounds what a hostile header can make us keep and print.
constexpr size_t kMaxDimensions = 16;

// The format's further types, with their bytes.
struct ForeignType {
  const char* name;
  size_t bytes;
};

const ForeignType* FindForeignType(std::string_view name) {
  static constexpr ForeignType kTypes[] = {{"F64", 8}, {"I64", 8}, {"U64", 8},  {"U32", 4},     {"I16", 2},
                                           {"U16", 2}, {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const ForeignType& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

// Reads the header as it is parsed; no document is built, so memory stays proportional to the number of tensors.
//
//   { "__metadata__": {string: string}, "<name>": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, ... }
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  struct Entry {
    std::string name;
    TensorView view;
    const ForeignType* foreign = nullptr;  // the type, if it is none of ours
    uint64_t begin = 0, end = 0;
  };

  explicit HeaderReader(ForeignTypes foreign) : foreign_(foreign) {}

  bool null() override { return Scalar("null"); }
  bool boolean(bool) override { return Scalar("a boolean"); }
  bool number_integer(number_integer_t) override { return Scalar("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return Scalar("a number that is no 64-bit integer"); }
  bool binary(binary_t&) override { return Fail("binary value"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return Scalar("a number over 2^63");
      if (entry_.view.shape.size() == kMaxDimensions) {
        return Fail(absl::StrCat(Where(), ": more than ", kMaxDimensions, " dimensions"));
      }
      entry_.view.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offsets_ == 2) return Fail(absl::StrCat(Where(), ": data_offsets has more than two numbers"));
      (offsets_ == 0 ? entry_.begin : entry_.end) = value;
      ++offsets_;
      return true;
    }
    return Scalar("a number");
  }
  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      if (!metadata.emplace(key_, std::move(value)).second) {
        return Fail(absl::StrCat("metadata key \"", Printable(key_), "\" occurs twice"));
      }
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") {
      const std::optional<DType> dtype = kernels::DTypeFromName(value);
      if (!dtype.has_value() && foreign_ == ForeignTypes::kList) entry_.foreign = FindForeignType(value);
      if (entry_.foreign != nullptr) return true;
      if (!dtype.has_value()) {
        return Fail(absl::StrCat(Where(), ": dtype \"", Printable(value),
                                 "\" is not supported (F32, F16, BF16, I8 and I32 are)"));
      }
      entry_.view.dtype = *dtype;
      return true;
    }
    return Scalar("a string");
  }
  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kOutside:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        if (key_ == "__metadata__") {
          if (metadata_seen_) return Fail("\"__metadata__\" occurs twice");
          metadata_seen_ = true;
          place_ = Place::kMetadata;
          return true;
        }
        entry_ = Entry();
        entry_.name = key_;
        dtype_seen_ = shape_seen_ = offsets_seen_ = false;
        offsets_ = 0;
        place_ = Place::kTensor;
        return true;
      default:
        return Scalar("an object");
    }
  }
  bool key(string_t& value) override {
    key_ = std::move(value);
    if (place_ != Place::kTensor) return true;
    bool* seen = key_ == "dtype"          ? &dtype_seen_
                 : key_ == "shape"        ? &shape_seen_
                 : key_ == "data_offsets" ? &offsets_seen_
                                          : nullptr;
    if (seen == nullptr) {
      return Fail(absl::StrCat(Where(), ": unknown key \"", Printable(key_), "\" (dtype, shape, data_offsets)"));
    }
    if (*seen) return Fail(absl::StrCat(Where(), ": key \"", key_, "\" occurs twice"));
    *seen = true;
    return true;
  }
  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (!dtype_seen_ || !shape_seen_ || !offsets_seen_) {
        return Fail(absl::StrCat(Where(), ": ",
                                 !dtype_seen_   ? "dtype"
                                 : !shape_seen_ ? "shape"
                                                : "data_offsets",
                                 " is missing"));
      }
      if (offsets_ != 2) return Fail(absl::StrCat(Where(), ": data_offsets must be two numbers"));
      entries.push_back(std::move(entry_));
      place_ = Place::kTop;
    } else {
      place_ = place_ == Place::kMetadata ? Place::kTop : Place::kOutside;
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
      return true;
    }
    return Scalar("an array");
  }
  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    return Fail(JsonFault(position, error.what()));
  }

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  std::string fault;

 private:
  enum class Place { kOutside, kTop, kMetadata, kTensor, kShape, kOffsets };

  std::string Where() const { return absl::StrCat("tensor \"", Printable(entry_.name), "\""); }
  bool Fail(std::string text) {
    fault = std::move(text);
    return false;
  }
  // A value of a kind that has no business where it stands.
  bool Scalar(absl::string_view kind) {
    switch (place_) {
      case Place::kOutside:
        return Fail(absl::StrCat("the header must be a JSON object, not ", kind));
      case Place::kTop:
        return Fail(absl::StrCat("\"", Printable(key_), "\" must be an object, not ", kind));
      case Place::kMetadata:
        return Fail(absl::StrCat("metadata \"", Printable(key_), "\" must be a string, not ", kind));
      case Place::kTensor:
        return Fail(absl::StrCat(Where(), ": ", key_, " must not be ", kind));
      case Place::kShape:
        return Fail(absl::StrCat(Where(), ": shape must hold non-negative integers, not ", kind));
      case Place::kOffsets:
        return Fail(absl::StrCat(Where(), ": data_offsets must hold non-negative integers, not ", kind));
    }
    return false;
  }

  const ForeignTypes foreign_;
  Place place_ = Place::kOutside;
  std::string key_;
  Entry entry_;
  bool metadata_seen_ = false;
  bool dtype_seen_ = false, shape_seen_ = false, offsets_seen_ = false;
  int offsets_ = 0;
};

// Bytes of a tensor, or nullopt if they do not fit 63 bits.
std::optional<uint64_t> ByteCount(absl::Span<const int64_t> shape, size_t element_bytes) {
  int64_t bytes = static_cast<int64_t>(element_bytes);
  for (const int64_t dimension : shape) {
    if (__builtin_mul_overflow(bytes, dimension, &bytes)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace

int64_t TensorView::elements() const { return static_cast<int64_t>(data.size() / kernels::SizeOf(dtype)); }

std::string ShapeToString(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Parse(absl::Span<const uint8_t> bytes,
                                                                        std::string name, ForeignTypes foreign) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto fault = [&name](auto&&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", parts...));
  };
  const auto stranger = [&](auto&&... parts) {
    const std::string guess = LooksLike(text);
    // What a stranger's bytes mean as a length is noise where it is known what they are.
    if (guess.empty()) return fault("not a safetensors file: ", parts...);
    return fault("not a safetensors file; it looks like ", guess);
  };

  if (bytes.size() < kLengthBytes) return stranger("the header length alone takes 8 bytes");
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) header_bytes |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  if (header_bytes > kMaxHeaderBytes) {
    return stranger("its first 8 bytes, read as a header length, give ", header_bytes, "; at most ", kMaxHeaderBytes,
                    " is allowed");
  }
  if (header_bytes > bytes.size() - kLengthBytes) {
    return stranger("the header should take ", header_bytes, " bytes, but only ", bytes.size() - kLengthBytes,
                    " follow its length; perhaps the file is cut off");
  }
  const std::string_view header = text.substr(kLengthBytes, header_bytes);
  if (header.empty() || header.front() != '{') return stranger("the header does not start with '{'");

  HeaderReader reader(foreign);
  if (!json::sax_parse(header.begin(), header.end(), &reader)) return fault("safetensors header: ", reader.fault);

  // No holes, no overlaps, nothing behind: sorted by offset, each tensor must start where the last one ended.
  const absl::Span<const uint8_t> data = bytes.subspan(kLengthBytes + header_bytes);
  std::vector<HeaderReader::Entry>& entries = reader.entries;
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile);
  uint64_t position = 0;
  for (HeaderReader::Entry& entry : entries) {
    const std::string where = absl::StrCat("tensor \"", Printable(entry.name), "\": ");
    if (entry.begin > entry.end) {
      return fault(where, "data_offsets [", entry.begin, ", ", entry.end, "] run backwards");
    }
    if (entry.end > data.size()) {
      return fault(where, "data_offsets [", entry.begin, ", ", entry.end, "] reach beyond the ", data.size(),
                   " data bytes of the file; perhaps it is cut off");
    }
    const std::optional<uint64_t> expected = ByteCount(
        entry.view.shape, entry.foreign != nullptr ? entry.foreign->bytes : kernels::SizeOf(entry.view.dtype));
    if (!expected.has_value()) {
      return fault(where, "shape ", ShapeToString(entry.view.shape), " is too large for 63 bits");
    }
    if (*expected != entry.end - entry.begin) {
      return fault(where, "shape ", ShapeToString(entry.view.shape), " of ",
                   entry.foreign != nullptr ? entry.foreign->name : kernels::Name(entry.view.dtype), " takes ",
                   *expected, " bytes, but data_offsets [", entry.begin, ", ", entry.end, "] give ",
                   entry.end - entry.begin);
    }
    if (entry.begin != position) {
      return fault(where, "starts at byte ", entry.begin, ", where ", position,
                   " was due: ", entry.begin < position ? "tensors overlap" : "there is a hole before it");
    }
    position = entry.end;
    entry.view.data = data.subspan(entry.begin, entry.end - entry.begin);
    if (file->tensors_.count(entry.name) != 0 || file->foreign_.count(entry.name) != 0) {
      return fault(where, "occurs twice");
    }
    if (entry.foreign != nullptr) {
      file->foreign_.emplace(entry.name,
                             ForeignTensor{entry.foreign->name, std::move(entry.view.shape), entry.view.data});
    } else {
      file->tensors_.emplace(entry.name, std::move(entry.view));
    }
  }
  if (position != data.size()) {
    return fault("the tensors end at byte ", position, " of the data, but ", data.size(),
                 " bytes are there: ", data.size() - position, " trailing bytes belong to nothing");
  }
  file->metadata_ = std::move(reader.metadata);
  file->name_ = std::move(name);
  return file;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path, ForeignTypes foreign) {
  // O_NONBLOCK: a named pipe in the place of a file must not hang the start.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  const absl::Cleanup closer = [fd] { close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot examine"));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) return Parse({}, path, foreign);

  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapping == MAP_FAILED) {
    return absl::InternalError(absl::StrCat(path, ": cannot map ", size, " bytes: ", std::strerror(errno)));
  }
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file =
      Parse(absl::MakeConstSpan(static_cast<const uint8_t*>(mapping), size), path, foreign);
  if (!file.ok()) {
    munmap(mapping, size);
    return file;
  }
  (*file)->mapping_ = mapping;
  (*file)->mapped_bytes_ = size;
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_bytes_);
}

const TensorView* SafetensorsFile::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void SafetensorsFile::DropPages() const {
  if (mapping_ != nullptr) madvise(mapping_, mapped_bytes_, MADV_DONTNEED);
}

void SafetensorsFile::DropPages(absl::Span<const uint8_t> part) const {
  if (mapping_ == nullptr) return;
  // Only whole pages inside; the mapping is read-only and private, so that nothing can be lost.
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t last = (begin + part.size()) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace koine::model_loader
