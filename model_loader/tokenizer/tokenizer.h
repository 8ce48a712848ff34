// Text to token ids and back. The tokenizer library stays hidden behind this type: SentencePiece's own header opens
// namespace `absl` and must not meet real Abseil headers.
#ifndef KOINE_MODEL_LOADER_TOKENIZER_TOKENIZER_H_
#define KOINE_MODEL_LOADER_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace koine::model_loader {

struct Encoded {
  std::vector<int32_t> ids;    // pieces of the text only: no prompt tokens
  int64_t unknown_pieces = 0;  // ids that are the unknown id
};

// Immutable; every method may be called from any thread at once and depends on its arguments only.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // REQUIRES valid UTF-8. Special tokens written in the text (`</s>`) are ordinary text. NUL bytes are text.
  virtual absl::StatusOr<Encoded> Encode(std::string_view text) const = 0;
  // Always valid UTF-8: unfinished byte pieces become U+FFFD. Control pieces and unknown ids give no text; ids out of
  // range are INVALID_ARGUMENT.
  virtual absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const = 0;
  virtual int64_t size() const = 0;  // number of ids: the highest id + 1
  virtual int32_t unknown_id() const = 0;
  // Id of exactly this piece (`</s>`, a language tag), or -1.
  virtual int32_t PieceToId(std::string_view piece) const = 0;
  virtual std::string IdToPiece(int32_t id) const = 0;  // "" if out of range, or an id that nothing names
  // A piece that no text yields and that gives no text (end mark, tag, padding); the unknown piece is not one.
  virtual bool IsMarker(int32_t id) const = 0;
  // One byte of a character that the vocabulary lacks; sliced tables keep all of these.
  virtual bool IsByte(int32_t id) const = 0;
};

// Plain SentencePiece with its own ids; the other kinds: load_tokenizer.h.
//
// Reads a SentencePiece model file. Errors: NOT_FOUND, INVALID_ARGUMENT (not a model; empty vocabulary), each naming
// the path.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePiece(const std::string& path);
// From bytes; `name` is for messages. What the fuzzer drives.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseSentencePiece(std::string_view bytes, const std::string& name);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_TOKENIZER_TOKENIZER_H_
