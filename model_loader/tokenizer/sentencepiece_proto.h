// Validates a SentencePiece model file (a serialised sentencepiece.ModelProto) before the library sees it.
//
// The library trusts its files: it walks the double array of the normaliser's character map without bounds, writes
// matches into arrays of fixed size, and ends the process where a trie cannot be built. Everything of that kind that a
// file could cause is checked here, by the sources of version 0.1.97 (src/normalizer.cc, src/model_interface.cc,
// src/unigram_model.cc, src/bpe_model.cc, third_party/darts_clone/darts.h).
#ifndef KOINE_MODEL_LOADER_TOKENIZER_SENTENCEPIECE_PROTO_H_
#define KOINE_MODEL_LOADER_TOKENIZER_SENTENCEPIECE_PROTO_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace koine::model_loader {

// Returns the model written anew from the fields that were checked, and only from these: whatever else the bytes hold
// (training options, unknown fields, a field given twice) does not reach the library. Errors: INVALID_ARGUMENT.
absl::StatusOr<std::string> ValidateSentencePiece(std::string_view bytes);

// The same with a restricted vocabulary: ordinary pieces of more than one character for which `keep` is false are
// marked as unused, so that no text is cut into them. Control, unknown, byte and user-defined pieces stay as they are.
// (The library's own SetVocabulary would switch byte pieces off and needs every piece's text.)
using KeepPiece = std::function<bool(int32_t id, std::string_view piece)>;
absl::StatusOr<std::string> ValidateSentencePiece(std::string_view bytes, const KeepPiece& keep);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_TOKENIZER_SENTENCEPIECE_PROTO_H_
