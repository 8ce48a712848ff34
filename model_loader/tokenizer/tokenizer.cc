#include "model_loader/tokenizer/tokenizer.h"

#include "absl/strings/str_cat.h"
#include "model_loader/tokenizer/kinds_internal.h"
#include "model_loader/tokenizer/sentencepiece_bridge.h"
#include "model_loader/tokenizer/text_internal.h"

namespace koine::model_loader {
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

// The kind with an offset, and the offset 0.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseSentencePiece(std::string_view bytes, const std::string& name) {
  return MakeOffsetTokenizer(TokenizerConfig{}, {name}, {std::string(bytes)}, nullptr);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePiece(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadTokenizerFile(path, kMaxModelFileBytes);
  if (!bytes.ok()) return bytes.status();
  return ParseSentencePiece(*bytes, path);
}

}  // namespace koine::model_loader
