#include "model_loader/tokenizer/tokenizer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "model_loader/tokenizer/sentencepiece_bridge.h"
#include "model_loader/tokenizer/sentencepiece_proto.h"

namespace koine::model_loader {
namespace {

// SentencePiece counts in 32 bits; the longest replacement of one byte is 256 bytes (sentencepiece_proto.cc), so that
// 4 MiB of text stay below 2^30 + a few bytes. A request is at most 4 MiB anyway.
constexpr size_t kMaxTextBytes = size_t{4} << 20;
constexpr off_t kMaxFileBytes = off_t{256} << 20;

// Replaces every byte that belongs to no well-formed sequence (Unicode 15, table 3-7) by U+FFFD.
std::string ValidUtf8(std::string text) {
  const auto length = [&text](size_t at) -> size_t {
    const auto byte = [&text](size_t i) -> unsigned { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0U; };
    const unsigned first = byte(at);
    const auto continues = [&byte, at](size_t from, size_t to) {
      for (size_t i = from; i <= to; ++i) {
        if ((byte(at + i) & 0xc0) != 0x80) return false;
      }
      return true;
    };
    const unsigned second = byte(at + 1);
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first <= 0xdf) return continues(1, 1) ? 2 : 0;
    if (first >= 0xe0 && first <= 0xef) {
      if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
      return continues(1, 2) ? 3 : 0;
    }
    if (first >= 0xf0 && first <= 0xf4) {
      if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
      return continues(1, 3) ? 4 : 0;
    }
    return 0;
  };
  size_t valid = 0;
  while (valid < text.size()) {
    const size_t step = length(valid);
    if (step == 0) break;
    valid += step;
  }
  if (valid == text.size()) return text;
  std::string result = text.substr(0, valid);
  while (valid < text.size()) {
    const size_t step = length(valid);
    if (step == 0) {
      result.append("\xef\xbf\xbd");
      ++valid;
    } else {
      result.append(text, valid, step);
      valid += step;
    }
  }
  return result;
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<SentencePieceBridge> model, std::string name)
      : model_(std::move(model)), name_(std::move(name)), size_(model_->size()), unknown_id_(model_->unknown_id()) {}

  absl::StatusOr<Encoded> Encode(std::string_view text) const override {
    if (text.size() > kMaxTextBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a text of ", text.size(), " bytes; at most ", kMaxTextBytes, " can be tokenized"));
    }
    Encoded encoded;
    std::string error;
    if (!model_->Encode(text, &encoded.ids, &error)) {
      return absl::InternalError(absl::StrCat(name_, ": cannot tokenize: ", error));
    }
    encoded.unknown_pieces = std::count(encoded.ids.begin(), encoded.ids.end(), unknown_id_);
    return encoded;
  }

  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const override {
    std::vector<int32_t> visible;
    visible.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id < 0 || id >= size_) {
        return absl::InvalidArgumentError(absl::StrCat(name_, ": id ", id, " is not below ", size_));
      }
      if (id != unknown_id_ && !model_->IsControl(id)) visible.push_back(id);
    }
    std::string text;
    std::string error;
    if (!model_->Decode(visible, &text, &error)) {
      return absl::InternalError(absl::StrCat(name_, ": cannot make text of ids: ", error));
    }
    return ValidUtf8(std::move(text));
  }

  int64_t size() const override { return size_; }
  int32_t unknown_id() const override { return unknown_id_; }

  int32_t PieceToId(std::string_view piece) const override {
    const int32_t id = model_->PieceToId(piece);  // the unknown id for strangers
    return id >= 0 && id < size_ && model_->IdToPiece(id) == piece ? id : -1;
  }

  std::string IdToPiece(int32_t id) const override {
    return id >= 0 && id < size_ ? std::string(model_->IdToPiece(id)) : std::string();
  }

 private:
  const std::unique_ptr<SentencePieceBridge> model_;
  const std::string name_;
  const int32_t size_;
  const int32_t unknown_id_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseSentencePiece(std::string_view bytes, const std::string& name) {
  const absl::StatusOr<std::string> checked = ValidateSentencePiece(bytes);
  if (!checked.ok()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", checked.status().message()));
  std::string error;
  bool broken_library = false;
  std::unique_ptr<SentencePieceBridge> model = SentencePieceBridge::Load(*checked, &error, &broken_library);
  if (broken_library) return absl::FailedPreconditionError(absl::StrCat(name, ": ", error));
  if (model == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": SentencePiece refuses this model: ", error));
  }
  return std::make_unique<SentencePieceTokenizer>(std::move(model), name);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePiece(const std::string& path) {
  // O_NONBLOCK: a named pipe in the place of a file must not hang the start.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  const absl::Cleanup closer = [fd] { close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot examine"));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  if (info.st_size > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", info.st_size, " bytes; at most ", kMaxFileBytes, " are allowed"));
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t count = read(fd, bytes.data() + filled, bytes.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot read"));
    if (count == 0) break;  // shortened while we read
    filled += static_cast<size_t>(count);
  }
  bytes.resize(filled);
  return ParseSentencePiece(bytes, path);
}

}  // namespace koine::model_loader
