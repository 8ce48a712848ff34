// By PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7 (local header), 4.3.12 (central directory), 4.3.14 to 4.3.16 (its end,
// zip64 and not), 4.5.3 (zip64 extra field).
#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model_loader/checkpoint/zip_internal.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kLocator64 = 0x07064b50;
constexpr uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr uint64_t kMaxComment = 0xffff;
constexpr uint64_t kMaxName = 1024;

class Archive {
 public:
  Archive(absl::Span<const uint8_t> bytes, size_t most_members) : bytes_(bytes), most_members_(most_members) {}

  absl::StatusOr<std::vector<ZipMember>> Read() {
    absl::Status status = FindDirectory();
    if (!status.ok()) return status;
    uint64_t at = directory_;
    std::set<std::string> names;
    for (uint64_t i = 0; i < count_; ++i) {
      status = ReadEntry(&at);
      if (!status.ok()) return status;
      if (!names.insert(members_.back().name).second)
        return Broken("\"", Printable(members_.back().name), "\" occurs twice");
    }
    if (at != directory_end_) {
      return Broken("its directory ends at byte ", at, ", where ", directory_end_, " was announced");
    }
    // Sorted by place, each member must begin after the last one's end.
    std::sort(extents_.begin(), extents_.end());
    for (size_t i = 1; i < extents_.size(); ++i) {
      if (extents_[i].first < extents_[i - 1].second) return Broken("members overlap at byte ", extents_[i].first);
    }
    return std::move(members_);
  }

 private:
  template <typename... Parts>
  static absl::Status Broken(const Parts&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("the zip archive is broken: ", parts...));
  }

  // REQUIRES at + size within the bytes.
  uint64_t Number(uint64_t at, int size) const {
    uint64_t value = 0;
    for (int i = size - 1; i >= 0; --i) value = value << 8 | bytes_[at + static_cast<uint64_t>(i)];
    return value;
  }

  absl::Status FindDirectory() {
    const uint64_t size = bytes_.size();
    if (size < kEndBytes) return Broken("it has only ", size, " bytes");
    uint64_t end = size - kEndBytes;
    const uint64_t lowest = end > kMaxComment ? end - kMaxComment : 0;
    while (Number(end, 4) != kEnd || Number(end + 20, 2) != size - kEndBytes - end) {
      if (end == lowest) return Broken("its directory is missing; perhaps the file is cut off");
      --end;
    }
    if (Number(end + 4, 2) != 0 || Number(end + 6, 2) != 0) return Broken("it is a part of several");
    const uint64_t short_count = Number(end + 10, 2), short_size = Number(end + 12, 4), short_at = Number(end + 16, 4);
    count_ = short_count;
    uint64_t directory_bytes = short_size;
    directory_ = short_at;
    directory_end_ = end;
    if (end >= kLocatorBytes && Number(end - kLocatorBytes, 4) == kLocator64) {
      const uint64_t locator = end - kLocatorBytes;
      const uint64_t record = Number(locator + 8, 8);
      if (record > locator || locator - record < kEnd64Bytes || Number(record, 4) != kEnd64 ||
          Number(record + 4, 8) != locator - record - 12) {
        return Broken("its zip64 end record is not where it should be");
      }
      count_ = Number(record + 32, 8);
      directory_bytes = Number(record + 40, 8);
      directory_ = Number(record + 48, 8);
      directory_end_ = record;
      if ((short_count != 0xffff && short_count != count_) ||
          (short_size != 0xffffffff && short_size != directory_bytes) ||
          (short_at != 0xffffffff && short_at != directory_)) {
        return Broken("its two end records disagree");
      }
    }
    if (directory_ > directory_end_ || directory_end_ - directory_ != directory_bytes) {
      return Broken("its directory of ", directory_bytes, " bytes at byte ", directory_,
                    " does not end where the end record begins (", directory_end_, ")");
    }
    if (count_ > most_members_) {
      return Broken("it announces ", count_, " members; at most ", most_members_, " are allowed");
    }
    if (count_ > directory_bytes / kCentralBytes) {
      return Broken("it announces ", count_, " members in a directory of ", directory_bytes, " bytes");
    }
    return absl::OkStatus();
  }

  absl::Status ReadEntry(uint64_t* at) {
    const uint64_t entry = *at;
    if (directory_end_ - entry < kCentralBytes || Number(entry, 4) != kCentralHeader) {
      return Broken("an entry of its directory is missing at byte ", entry);
    }
    const uint64_t flags = Number(entry + 8, 2), method = Number(entry + 10, 2);
    const uint64_t name_bytes = Number(entry + 28, 2), extra_bytes = Number(entry + 30, 2),
                   comment_bytes = Number(entry + 32, 2);
    if (directory_end_ - entry - kCentralBytes < name_bytes + extra_bytes + comment_bytes) {
      return Broken("an entry of its directory is cut off at byte ", entry);
    }
    ZipMember member;
    member.crc = static_cast<uint32_t>(Number(entry + 16, 4));
    member.name.assign(reinterpret_cast<const char*>(bytes_.data()) + entry + kCentralBytes, name_bytes);
    const std::string shown = absl::StrCat("\"", Printable(member.name), "\"");
    if (absl::Status status = CheckName(member.name); !status.ok()) return status;
    if ((flags & 1) != 0) return absl::InvalidArgumentError(absl::StrCat("member ", shown, " is encrypted"));
    uint64_t packed = Number(entry + 20, 4), size = Number(entry + 24, 4), local = Number(entry + 42, 4);
    const uint64_t extra = entry + kCentralBytes + name_bytes;
    if (!ReadExtra64(extra, extra + extra_bytes, {&size, &packed, &local})) {
      return Broken("the sizes of ", shown, " are missing");
    }
    if (method != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("member ", shown, " is compressed (method ", method,
                       "); torch.save stores members as they are, so unpack the archive and save the model again"));
    }
    if (packed != size) return Broken(shown, " has two sizes, ", packed, " and ", size);
    // The local header repeats what the directory says; its extra field, often padding, is its own.
    if (local > directory_ || directory_ - local < kLocalBytes || Number(local, 4) != kLocalHeader) {
      return Broken(shown, " has no header at byte ", local);
    }
    if (Number(local + 8, 2) != method || Number(local + 26, 2) != name_bytes || (Number(local + 6, 2) & 1) != 0) {
      return Broken("the two headers of ", shown, " disagree");
    }
    const uint64_t head = kLocalBytes + name_bytes + Number(local + 28, 2);
    if (directory_ - local < head || directory_ - local - head < size) {
      return Broken(shown, " of ", size, " bytes reaches into the directory; perhaps the file is cut off");
    }
    if (!std::equal(member.name.begin(), member.name.end(),
                    reinterpret_cast<const char*>(bytes_.data()) + local + kLocalBytes)) {
      return Broken("the two headers of ", shown, " disagree");
    }
    member.data = bytes_.subspan(local + head, size);
    extents_.emplace_back(local, local + head + size);
    members_.push_back(std::move(member));
    *at = extra + extra_bytes + comment_bytes;
    return absl::OkStatus();
  }

  // Replaces each value that is all ones by the zip64 field's, in the field's order.
  bool ReadExtra64(uint64_t at, uint64_t end, std::initializer_list<uint64_t*> values) const {
    const bool needed =
        std::any_of(values.begin(), values.end(), [](const uint64_t* value) { return *value == 0xffffffff; });
    if (!needed) return true;
    while (end - at >= 4) {
      const uint64_t id = Number(at, 2), bytes = Number(at + 2, 2);
      at += 4;
      if (bytes > end - at) return false;
      if (id == 1) {
        const uint64_t field_end = at + bytes;
        for (uint64_t* value : values) {
          if (*value != 0xffffffff) continue;
          if (field_end - at < 8) return false;
          *value = Number(at, 8);
          at += 8;
        }
        return true;
      }
      at += bytes;
    }
    return false;
  }

  // Members are never unpacked, so that a path could do no harm; but no honest archive has one.
  static absl::Status CheckName(std::string_view name) {
    const bool fine = !name.empty() && name.size() <= kMaxName && name.front() != '/' &&
                      name.find('\\') == std::string_view::npos && name.find('\0') == std::string_view::npos &&
                      name != ".." && !name.starts_with("../") && name.find("/../") == std::string_view::npos &&
                      !name.ends_with("/..");
    if (fine) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the zip archive has a member named \"", Printable(name), "\", which is no plain relative name"));
  }

  const absl::Span<const uint8_t> bytes_;
  const size_t most_members_;
  uint64_t directory_ = 0, directory_end_ = 0, count_ = 0;
  std::vector<ZipMember> members_;
  std::vector<std::pair<uint64_t, uint64_t>> extents_;
};

}  // namespace

absl::StatusOr<std::vector<ZipMember>> ReadZip(absl::Span<const uint8_t> bytes, size_t most_members) {
  return Archive(bytes, most_members).Read();
}

}  // namespace koine::model_loader
