#include "model_loader/checkpoint/torch_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model_loader/checkpoint/mapping_internal.h"
#include "model_loader/checkpoint/pickle_internal.h"
#include "model_loader/checkpoint/zip_internal.h"
#include "model_loader/safetensors/looks_like.h"
#include "model_loader/safetensors/safetensors.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

uint32_t Crc32(absl::Span<const uint8_t> bytes) {
  uLong crc = crc32(0, nullptr, 0);
  constexpr size_t kChunk = size_t{1} << 30;  // zlib counts in 32 bits
  while (!bytes.empty()) {
    const size_t step = std::min(bytes.size(), kChunk);
    crc = crc32(crc, bytes.data(), static_cast<uInt>(step));
    bytes.remove_prefix(step);
  }
  return static_cast<uint32_t>(crc);
}

// Whether every element lies in the storage, with all products checked. Fills the fault if not.
std::optional<std::string> Misplaced(const PickledTensor& tensor) {
  const auto fault = [&tensor](auto&&... parts) {
    return absl::StrCat("tensor \"", Printable(tensor.name), "\" of shape ", ShapeToString(tensor.shape), ": ",
                        parts...);
  };
  int64_t elements = 1;
  for (const int64_t dimension : tensor.shape) {
    if (__builtin_mul_overflow(elements, dimension, &elements)) return fault("too large for 63 bits");
  }
  // (A dimension of 0 may hide an overflow of the others in another order; rows() and row_elements() multiply too.)
  int64_t nonzero = 1;
  for (const int64_t dimension : tensor.shape) {
    if (dimension != 0 && __builtin_mul_overflow(nonzero, dimension, &nonzero)) return fault("too large for 63 bits");
  }
  if (elements > tensor.storage_elements) {
    return fault("more elements than the ", tensor.storage_elements, " of its storage");
  }
  if (elements == 0) {
    return tensor.offset > tensor.storage_elements ? std::optional(fault("begins behind its storage")) : std::nullopt;
  }
  int64_t last = tensor.offset;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(tensor.shape[d] - 1, tensor.strides[d], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return fault("its strides are too large for 63 bits");
    }
  }
  if (last >= tensor.storage_elements) {
    return fault("its last element is number ", last, " of a storage of ", tensor.storage_elements);
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<absl::Span<const uint8_t>> MapFile(const std::string& path) {
  // O_NONBLOCK: a named pipe in the place of a file must not hang us.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  const absl::Cleanup closer = [fd] { close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot examine"));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return absl::Span<const uint8_t>();
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapping == MAP_FAILED) {
    return absl::InternalError(absl::StrCat(path, ": cannot map ", size, " bytes: ", std::strerror(errno)));
  }
  return absl::MakeConstSpan(static_cast<const uint8_t*>(mapping), size);
}

absl::StatusOr<std::unique_ptr<TorchFile>> TorchFile::Parse(absl::Span<const uint8_t> bytes, std::string name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto fault = [&name](auto&&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", parts...));
  };
  if (!text.starts_with("PK")) {
    // torch.save before 1.6: a pickle of 0x1950a86a20f9469cfc6c, then further pickles.
    constexpr std::string_view kOldMagic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
    if (text.starts_with(kOldMagic)) {
      return fault(
          "written in the format of PyTorch before 1.6, which is not read; load it and save it again with "
          "save_pretrained(..., safe_serialization=True)");
    }
    const std::string guess = LooksLike(text);
    return fault("not a PyTorch file", guess.empty() ? "" : absl::StrCat("; it looks like ", guess));
  }
  absl::StatusOr<std::vector<ZipMember>> members = ReadZip(bytes, kMaxMembers);
  if (!members.ok()) return fault(members.status().message());

  constexpr char kPickle[] = "data.pkl";
  const ZipMember* pickle = nullptr;
  for (const ZipMember& member : *members) {
    if (member.name != kPickle && !absl::EndsWith(member.name, absl::StrCat("/", kPickle))) continue;
    if (pickle != nullptr) return fault("a zip archive with two data.pkl");
    pickle = &member;
  }
  if (pickle == nullptr) {
    return fault("a zip archive without data.pkl: not a PyTorch file", members->empty() ? "; it is empty" : "");
  }
  const std::string prefix = pickle->name.substr(0, pickle->name.size() - std::strlen(kPickle));
  std::map<std::string_view, const ZipMember*> storages;
  for (const ZipMember& member : *members) {
    const std::string_view path = member.name;
    if (!path.starts_with(prefix)) return fault("\"", Printable(path), "\" lies outside \"", Printable(prefix), "\"");
    const std::string_view rest = path.substr(prefix.size());
    if (rest == "constants.pkl" || rest.starts_with("code/")) {
      return fault("a TorchScript program, which is not read; give the folder that save_pretrained wrote");
    }
    if (rest == "byteorder") {
      const std::string_view order(reinterpret_cast<const char*>(member.data.data()), member.data.size());
      if (order != "little") return fault("its byte order is \"", Printable(order), "\"; only little is read");
    }
    if (rest.starts_with("data/")) storages.emplace(rest.substr(5), &member);
  }
  if (pickle->data.size() > kMaxPickleBytes) {
    return fault("its pickle has ", pickle->data.size(), " bytes; at most ", kMaxPickleBytes, " are read");
  }
  if (Crc32(pickle->data) != pickle->crc) return fault("its pickle does not have the checksum that the archive gives");
  absl::StatusOr<std::vector<PickledTensor>> tensors = ReadTensorPickle(pickle->data, kMaxPickleValues);
  if (!tensors.ok()) return fault(tensors.status().message());

  std::unique_ptr<TorchFile> file(new TorchFile);
  for (PickledTensor& pickled : *tensors) {
    const auto storage = storages.find(pickled.storage_key);
    if (storage == storages.end()) {
      return fault("tensor \"", Printable(pickled.name), "\": its bytes, \"data/", Printable(pickled.storage_key),
                   "\", are missing in the archive");
    }
    const absl::Span<const uint8_t> data = storage->second->data;
    const size_t element = SizeOf(pickled.type);
    if (static_cast<uint64_t>(pickled.storage_elements) > data.size() / element ||
        static_cast<uint64_t>(pickled.storage_elements) * element != data.size()) {
      return fault("tensor \"", Printable(pickled.name), "\": its storage of ", pickled.storage_elements, " ",
                   Name(pickled.type), " has ", data.size(), " bytes in the archive");
    }
    if (const std::optional<std::string> why = Misplaced(pickled)) return fault(*why);
    CheckpointTensor tensor;
    tensor.type = pickled.type;
    tensor.shape = std::move(pickled.shape);
    tensor.strides = std::move(pickled.strides);
    tensor.offset = pickled.offset;
    tensor.storage = data;
    file->tensors_.emplace(std::move(pickled.name), std::move(tensor));
  }
  for (ZipMember& member : *members) file->members_.push_back({std::move(member.name), member.data, member.crc});
  file->name_ = std::move(name);
  return file;
}

absl::StatusOr<std::unique_ptr<TorchFile>> TorchFile::Open(const std::string& path) {
  const absl::StatusOr<absl::Span<const uint8_t>> bytes = MapFile(path);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<std::unique_ptr<TorchFile>> file = Parse(*bytes, path);
  void* mapping = const_cast<uint8_t*>(bytes->data());
  if (!file.ok()) {
    if (!bytes->empty()) munmap(mapping, bytes->size());
    return file;
  }
  (*file)->mapping_ = mapping;
  (*file)->mapped_bytes_ = bytes->size();
  return file;
}

TorchFile::~TorchFile() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_bytes_);
}

absl::Status TorchFile::VerifyChecksums() const {
  for (const Member& member : members_) {
    if (Crc32(member.data) != member.crc) {
      return absl::DataLossError(
          absl::StrCat(name_, ": \"", Printable(member.name), "\" does not have the checksum that the archive gives"));
    }
  }
  return absl::OkStatus();
}

}  // namespace koine::model_loader
