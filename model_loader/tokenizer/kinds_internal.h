// The tokenizer kinds, made of bytes; private to this folder. LoadTokenizer (load_tokenizer.h) chooses among them.
#ifndef KOINE_MODEL_LOADER_TOKENIZER_KINDS_INTERNAL_H_
#define KOINE_MODEL_LOADER_TOKENIZER_KINDS_INTERNAL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model_loader/format/tokenizer_config.h"
#include "model_loader/tokenizer/sentencepiece_bridge.h"
#include "model_loader/tokenizer/sentencepiece_proto.h"
#include "model_loader/tokenizer/tokenizer.h"
#include "model_loader/tokenizer/vocabulary_internal.h"

namespace koine::model_loader {

// Whether text may be cut into the piece with this id; null: all of them.
using KeepId = std::function<bool(int32_t id)>;

// A tokenizer whose ids a dictionary gives.
class DictionaryTokenizer : public Tokenizer {
 public:
  int64_t size() const override { return vocabulary_.size(); }
  int32_t unknown_id() const override { return unknown_id_; }
  int32_t PieceToId(std::string_view piece) const override { return vocabulary_.Find(piece); }
  std::string IdToPiece(int32_t id) const override {
    return id >= 0 && id < vocabulary_.size() ? vocabulary_.piece(id) : std::string();
  }
  bool IsMarker(int32_t id) const override {
    return id >= 0 && id < vocabulary_.size() && id != unknown_id_ && vocabulary_.is_marker(id);
  }

 protected:
  // `name` is for messages.
  DictionaryTokenizer(Vocabulary vocabulary, int32_t unknown_id, std::string name)
      : vocabulary_(std::move(vocabulary)), unknown_id_(unknown_id), name_(std::move(name)) {}

  // INVALID_ARGUMENT for an id out of range.
  absl::Status CheckId(int32_t id) const;
  // Whether an id in range gives text: no marker, not the unknown piece, not a hole.
  bool GivesText(int32_t id) const {
    return id != unknown_id_ && !vocabulary_.is_marker(id) && !vocabulary_.piece(id).empty();
  }

  const Vocabulary vocabulary_;
  const int32_t unknown_id_;
  const std::string name_;
};

// Checks the bytes and loads them into the library.
absl::StatusOr<std::unique_ptr<SentencePieceBridge>> LoadBridge(std::string_view bytes, const std::string& name,
                                                                const KeepPiece& keep);

// The four kinds. `names` and `contents` go with config.files, one by one.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeOffsetTokenizer(const TokenizerConfig& config,
                                                               const std::vector<std::string>& names,
                                                               const std::vector<std::string>& contents,
                                                               const KeepId& keep);
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeVocabTokenizer(const TokenizerConfig& config,
                                                              const std::vector<std::string>& names,
                                                              const std::vector<std::string>& contents,
                                                              const KeepId& keep);
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeWordPieceTokenizer(const TokenizerConfig& config,
                                                                  const std::vector<std::string>& names,
                                                                  const std::vector<std::string>& contents,
                                                                  const KeepId& keep);
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeByteBpeTokenizer(const TokenizerConfig& config,
                                                                const std::vector<std::string>& names,
                                                                const std::vector<std::string>& contents,
                                                                const KeepId& keep);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_TOKENIZER_KINDS_INTERNAL_H_
