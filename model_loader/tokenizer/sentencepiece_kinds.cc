// SentencePiece whose ids are not its own: numbered with an offset, or by a dictionary.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/tokenizer/kinds_internal.h"
#include "model_loader/tokenizer/text_internal.h"

namespace koine::model_loader {
namespace {

constexpr char kWordBoundary[] = "\xe2\x96\x81";  // U+2581, SentencePiece's blank

// id = SentencePiece's number + offset, except for the unknown piece and the markers.
class OffsetTokenizer : public Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Make(const TokenizerConfig& config, const std::string& name,
                                                         std::string_view bytes, const KeepId& keep) {
    const int32_t offset = config.id_offset;
    if (offset < 0 || offset >= kMaxTokenIds) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": id_offset is ", offset));
    }
    KeepPiece keep_piece;
    if (keep != nullptr) {
      keep_piece = [&keep, offset](int32_t number, std::string_view) { return keep(number + offset); };
    }
    absl::StatusOr<std::unique_ptr<SentencePieceBridge>> model = LoadBridge(bytes, name, keep_piece);
    if (!model.ok()) return model.status();
    std::unique_ptr<OffsetTokenizer> made(new OffsetTokenizer(*std::move(model), name, config));
    if (absl::Status status = made->Check(); !status.ok()) return status;
    return made;
  }

  absl::StatusOr<Encoded> Encode(std::string_view text) const override {
    if (absl::Status status = CheckTextSize(text); !status.ok()) return status;
    Encoded encoded;
    std::string error;
    if (!model_->Encode(text, &encoded.ids, &error)) {
      return absl::InternalError(absl::StrCat(name_, ": cannot tokenize: ", error));
    }
    for (int32_t& id : encoded.ids) {
      if (id == model_->unknown_id()) {
        id = unknown_id_;
        ++encoded.unknown_pieces;
      } else {
        id += offset_;
      }
    }
    return encoded;
  }

  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const override {
    std::vector<int32_t> numbers;
    numbers.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id < 0 || id >= size_) {
        return absl::InvalidArgumentError(absl::StrCat(name_, ": id ", id, " is not below ", size_));
      }
      const int32_t number = Number(id);
      if (number >= 0 && number != model_->unknown_id() && !model_->IsControl(number)) numbers.push_back(number);
    }
    std::string text;
    std::string error;
    if (!model_->Decode(numbers, &text, &error)) {
      return absl::InternalError(absl::StrCat(name_, ": cannot make text of ids: ", error));
    }
    return ValidUtf8(std::move(text));
  }

  int64_t size() const override { return size_; }
  int32_t unknown_id() const override { return unknown_id_; }

  int32_t PieceToId(std::string_view piece) const override {
    const auto marker = markers_.find(piece);
    if (marker != markers_.end()) return marker->second;
    const int32_t number = model_->PieceToId(piece);
    if (number < 0 || number >= model_->size() || model_->IdToPiece(number) != piece) return -1;
    if (number == model_->unknown_id()) return unknown_id_;
    return Number(number + offset_) == number ? number + offset_ : -1;
  }

  std::string IdToPiece(int32_t id) const override {
    if (id < 0 || id >= size_) return "";
    const auto marker = marker_by_id_.find(id);
    if (marker != marker_by_id_.end()) return marker->second;
    const int32_t number = id == unknown_id_ ? model_->unknown_id() : Number(id);
    return number >= 0 ? std::string(model_->IdToPiece(number)) : std::string();
  }

  bool IsMarker(int32_t id) const override {
    if (id < 0 || id >= size_ || id == unknown_id_) return false;
    if (marker_by_id_.count(id) != 0) return true;
    const int32_t number = Number(id);
    return number >= 0 && model_->IsControl(number);
  }

  bool IsByte(int32_t id) const override {
    if (id < 0 || id >= size_) return false;
    const int32_t number = Number(id);
    return number >= 0 && model_->IsByte(number);
  }

 private:
  OffsetTokenizer(std::unique_ptr<SentencePieceBridge> model, std::string name, const TokenizerConfig& config)
      : model_(std::move(model)),
        name_(std::move(name)),
        offset_(config.id_offset),
        unknown_id_(config.unk_piece_to.value_or(model_->unknown_id() + config.id_offset)),
        markers_(config.markers) {
    for (const auto& [piece, id] : markers_) marker_by_id_.emplace(id, piece);
  }

  // The model's number of an id; -1 for markers, the unknown id and ids that nothing names.
  int32_t Number(int32_t id) const {
    if (id == unknown_id_ || marker_by_id_.count(id) != 0) return -1;
    const int32_t number = id - offset_;
    return number >= 0 && number < model_->size() && number != model_->unknown_id() ? number : -1;
  }

  // Nothing that a text can yield may lose its id to a marker or to the unknown piece.
  absl::Status Check() {
    int64_t size = int64_t{model_->size()} + offset_;
    const auto check = [&](std::string_view piece, int32_t id) {
      size = std::max(size, int64_t{id} + 1);
      const int64_t number = int64_t{id} - offset_;
      if (id < 0 || id >= kMaxTokenIds) {
        return absl::InvalidArgumentError(
            absl::StrCat(name_, ": \"", Printable(piece), "\" has id ", id, "; ids are 0 to ", kMaxTokenIds - 1));
      }
      if (number < 0 || number >= model_->size() || number == model_->unknown_id() ||
          model_->IsControl(static_cast<int32_t>(number))) {
        return absl::OkStatus();
      }
      return absl::InvalidArgumentError(
          absl::StrCat(name_, ": \"", Printable(piece), "\" would take id ", id, " from the piece \"",
                       Printable(model_->IdToPiece(static_cast<int32_t>(number))), "\", which texts can yield"));
    };
    for (const auto& [piece, id] : markers_) {
      if (absl::Status status = check(piece, id); !status.ok()) return status;
    }
    if (absl::Status status = check("the unknown piece", unknown_id_); !status.ok()) return status;
    if (size > kMaxTokenIds) {
      return absl::InvalidArgumentError(
          absl::StrCat(name_, ": ", size, " ids; at most ", kMaxTokenIds, " are allowed"));
    }
    size_ = static_cast<int32_t>(size);
    return absl::OkStatus();
  }

  const std::unique_ptr<SentencePieceBridge> model_;
  const std::string name_;
  const int32_t offset_;
  const int32_t unknown_id_;
  const std::map<std::string, int32_t, std::less<>> markers_;
  std::unordered_map<int32_t, std::string> marker_by_id_;
  int32_t size_ = 0;
};

// SentencePiece cuts, a dictionary numbers.
class VocabTokenizer : public DictionaryTokenizer {
 public:
  // `decoder` null: the encoder's model decodes.
  VocabTokenizer(std::unique_ptr<SentencePieceBridge> encoder, std::unique_ptr<SentencePieceBridge> decoder,
                 Vocabulary vocabulary, int32_t unknown_id, std::string name)
      : DictionaryTokenizer(std::move(vocabulary), unknown_id, std::move(name)),
        encoder_(std::move(encoder)),
        decoder_(std::move(decoder)) {}

  absl::StatusOr<Encoded> Encode(std::string_view text) const override {
    if (absl::Status status = CheckTextSize(text); !status.ok()) return status;
    std::vector<std::string> pieces;
    std::string error;
    if (!encoder_->EncodePieces(text, &pieces, &error)) {
      return absl::InternalError(absl::StrCat(name_, ": cannot tokenize: ", error));
    }
    Encoded encoded;
    encoded.ids.reserve(pieces.size());
    for (const std::string& piece : pieces) {
      // An unknown piece is the text's own characters: it may name something in the dictionary, but never a marker.
      int32_t id = vocabulary_.Find(piece);
      if (id < 0 || vocabulary_.is_marker(id)) id = unknown_id_;
      if (id == unknown_id_) ++encoded.unknown_pieces;
      encoded.ids.push_back(id);
    }
    return encoded;
  }

  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const override {
    std::vector<std::string> pieces;
    pieces.reserve(ids.size());
    for (const int32_t id : ids) {
      if (absl::Status status = CheckId(id); !status.ok()) return status;
      if (GivesText(id)) pieces.push_back(vocabulary_.piece(id));
    }
    std::string text;
    std::string error;
    const SentencePieceBridge& model = decoder_ != nullptr ? *decoder_ : *encoder_;
    if (!model.DecodePieces(pieces, &text, &error)) {
      return absl::InternalError(absl::StrCat(name_, ": cannot make text of ids: ", error));
    }
    // Pieces of the dictionary that the decoding model lacks still have their blanks spelled out.
    text = absl::StrReplaceAll(text, {{kWordBoundary, " "}});
    const absl::string_view stripped = absl::StripAsciiWhitespace(text);
    return ValidUtf8(std::string(stripped.data(), stripped.size()));
  }

  bool IsByte(int32_t id) const override {
    if (id < 0 || id >= vocabulary_.size()) return false;
    const std::string& piece = vocabulary_.piece(id);
    const int32_t number = encoder_->PieceToId(piece);
    return number >= 0 && number < encoder_->size() && encoder_->IdToPiece(number) == piece && encoder_->IsByte(number);
  }

 private:
  const std::unique_ptr<SentencePieceBridge> encoder_, decoder_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeOffsetTokenizer(const TokenizerConfig& config,
                                                               const std::vector<std::string>& names,
                                                               const std::vector<std::string>& contents,
                                                               const KeepId& keep) {
  return OffsetTokenizer::Make(config, names.front(), contents.front(), keep);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeVocabTokenizer(const TokenizerConfig& config,
                                                              const std::vector<std::string>& names,
                                                              const std::vector<std::string>& contents,
                                                              const KeepId& keep) {
  const std::string& name = names.back();
  const auto fault = [&name](const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", status.message()));
  };
  const absl::StatusOr<nlohmann::json> json = ParseStrictJson(contents.back());
  if (!json.ok()) return fault(json.status());
  absl::StatusOr<Vocabulary> vocabulary = Vocabulary::FromJson(*json);
  if (!vocabulary.ok()) return fault(vocabulary.status());
  if (absl::Status status = vocabulary->AddMarkers(config.markers); !status.ok()) return fault(status);
  const int32_t unknown = vocabulary->Find(config.unk_piece);
  if (unknown < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the unknown piece \"", Printable(config.unk_piece), "\" has no id"));
  }
  KeepPiece keep_piece;
  if (keep != nullptr) {
    // A piece that the dictionary lacks stays: it is unknown with the whole table too, so that a table's slice cuts
    // texts as the whole does wherever it can.
    keep_piece = [&keep, &vocabulary](int32_t, std::string_view piece) {
      const int32_t id = vocabulary->Find(piece);
      return id < 0 || keep(id);
    };
  }
  absl::StatusOr<std::unique_ptr<SentencePieceBridge>> encoder =
      LoadBridge(contents.front(), names.front(), keep_piece);
  if (!encoder.ok()) return encoder.status();
  std::unique_ptr<SentencePieceBridge> decoder;
  if (contents.size() == 3) {
    absl::StatusOr<std::unique_ptr<SentencePieceBridge>> second = LoadBridge(contents[1], names[1], nullptr);
    if (!second.ok()) return second.status();
    decoder = *std::move(second);
  }
  return std::make_unique<VocabTokenizer>(*std::move(encoder), std::move(decoder), *std::move(vocabulary), unknown,
                                          name);
}

}  // namespace koine::model_loader
