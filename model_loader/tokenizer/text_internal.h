// What the tokenizers share; private to this folder.
#ifndef KOINE_MODEL_LOADER_TOKENIZER_TEXT_INTERNAL_H_
#define KOINE_MODEL_LOADER_TOKENIZER_TEXT_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace koine::model_loader {

// SentencePiece counts in 32 bits; the longest replacement of one byte is 256 bytes (sentencepiece_proto.cc), so that
// 4 MiB of text stay below 2^30 + a few bytes. A request is at most 4 MiB anyway.
inline constexpr size_t kMaxTextBytes = size_t{4} << 20;
inline constexpr int64_t kMaxModelFileBytes = int64_t{256} << 20;
// The largest published vocabulary file, LaBSE's, has 5 MB; its tokenizer.json 10 MB.
inline constexpr int64_t kMaxDictionaryBytes = int64_t{64} << 20;
// 16 times the largest published vocabulary, as FORMAT.md says.
inline constexpr int64_t kMaxTokenIds = int64_t{1} << 22;

// Replaces every byte that belongs to no well-formed sequence (Unicode 15, table 3-7) by U+FFFD.
std::string ValidUtf8(std::string text);

// REQUIRES a code point.
void AppendUtf8(int32_t c, std::string* text);

// OK, or INVALID_ARGUMENT naming both sizes.
absl::Status CheckTextSize(std::string_view text);

// A whole regular file. Errors name the path.
absl::StatusOr<std::string> ReadTokenizerFile(const std::string& path, int64_t most_bytes);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_TOKENIZER_TEXT_INTERNAL_H_
