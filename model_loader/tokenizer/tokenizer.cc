#include "model_loader/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model_loader/tokenizer/kinds_internal.h"
#include "model_loader/tokenizer/sentencepiece_bridge.h"
#include "model_loader/tokenizer/text_internal.h"

namespace koine::model_loader {
namespace {

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<SentencePieceBridge> model, std::string name)
      : model_(std::move(model)), name_(std::move(name)), size_(model_->size()), unknown_id_(model_->unknown_id()) {}

  absl::StatusOr<Encoded> Encode(std::string_view text) const override {
    if (absl::Status status = CheckTextSize(text); !status.ok()) return status;
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

  bool IsMarker(int32_t id) const override {
    return id >= 0 && id < size_ && id != unknown_id_ && model_->IsControl(id);
  }
  bool IsByte(int32_t id) const override { return id >= 0 && id < size_ && model_->IsByte(id); }

 private:
  const std::unique_ptr<SentencePieceBridge> model_;
  const std::string name_;
  const int32_t size_;
  const int32_t unknown_id_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SentencePieceBridge>> LoadBridge(std::string_view bytes, const std::string& name,
                                                                const KeepPiece& keep) {
  const absl::StatusOr<std::string> checked = ValidateSentencePiece(bytes, keep);
  if (!checked.ok()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", checked.status().message()));
  std::string error;
  bool broken_library = false;
  std::unique_ptr<SentencePieceBridge> model = SentencePieceBridge::Load(*checked, &error, &broken_library);
  if (broken_library) return absl::FailedPreconditionError(absl::StrCat(name, ": ", error));
  if (model == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": SentencePiece refuses this model: ", error));
  }
  return model;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseSentencePiece(std::string_view bytes, const std::string& name) {
  absl::StatusOr<std::unique_ptr<SentencePieceBridge>> model = LoadBridge(bytes, name, nullptr);
  if (!model.ok()) return model.status();
  return std::make_unique<SentencePieceTokenizer>(*std::move(model), name);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePiece(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadTokenizerFile(path, kMaxModelFileBytes);
  if (!bytes.ok()) return bytes.status();
  return ParseSentencePiece(*bytes, path);
}

}  // namespace koine::model_loader
