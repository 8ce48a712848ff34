// The tokenizer kinds, made of bytes; private to this folder. LoadTokenizer (load_tokenizer.h) chooses among them.
#ifndef KOINE_MODEL_LOADER_TOKENIZER_KINDS_INTERNAL_H_
#define KOINE_MODEL_LOADER_TOKENIZER_KINDS_INTERNAL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model_loader/format/tokenizer_config.h"
#include "model_loader/tokenizer/sentencepiece_bridge.h"
#include "model_loader/tokenizer/sentencepiece_proto.h"
#include "model_loader/tokenizer/tokenizer.h"
#include "model_loader/tokenizer/vocabulary_internal.h"

namespace koine::model_loader {

// Whether text may be cut into the piece with this id; null: all of them.
using KeepId = std::function<bool(int32_t id)>;

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
