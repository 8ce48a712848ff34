// Feeds texts and vocabularies of the kinds that need no SentencePiece model: WordPiece and byte-level BPE.
//
//   u8 options | u16 little-endian: bytes of text | text | vocabulary
//
// Options: 1 lower case, 2 strip accents, 4 split ideographs, 8 the vocabulary is JSON (a dictionary or a
// tokenizer.json: fuzz_vocab_json starts there), 16 the fifth id is a marker.
//
// fuzz_byte_bpe: 1 a blank before the text, 2 the text is one word, 16 as above. The vocabulary is a tokenizer.json, or
// a dictionary, NUL, and merges.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model_loader/tokenizer/load_tokenizer.h"

namespace {

using koine::model_loader::Encoded;
using koine::model_loader::Tokenizer;
using koine::model_loader::TokenizerConfig;

void Require(bool condition) {
  if (!condition) std::abort();
}

// Well-formed UTF-8 (RFC 3629), a precondition of Encode.
bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto at = [&](size_t k) { return k < text.size() ? static_cast<uint8_t>(text[k]) : uint8_t{0}; };
    const uint8_t first = at(i);
    const size_t extra = first < 0x80 ? 0 : first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if ((first >= 0x80 && first < 0xc2) || first > 0xf4) return false;
    for (size_t k = 1; k <= extra; ++k) {
      if ((at(i + k) & 0xc0) != 0x80) return false;
    }
    const uint8_t second = at(i + 1);
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) || (first == 0xf0 && second < 0x90) ||
        (first == 0xf4 && second > 0x8f)) {
      return false;
    }
    i += extra + 1;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const unsigned options = data[0];
  const size_t text_bytes =
      std::min<size_t>(size - 3, static_cast<size_t>(data[1]) | static_cast<size_t>(data[2]) << 8);
  const char* bytes = reinterpret_cast<const char*>(data);
  const std::string_view text(bytes + 3, text_bytes);
  const std::string vocabulary(bytes + 3 + text_bytes, size - 3 - text_bytes);

  TokenizerConfig config;
  std::vector<std::string> contents = {vocabulary};
  bool undone = false;  // decoding must undo encoding
#ifdef KOINE_BYTE_BPE
  config.kind = koine::model_loader::TokenizerKind::kByteBpe;
  config.files = {"tokenizer.json"};
  if (const size_t nul = vocabulary.find('\0'); nul != std::string::npos) {
    config.files = {"vocab.json", "merges.txt"};
    contents = {vocabulary.substr(0, nul), vocabulary.substr(nul + 1)};
  }
  config.add_prefix_space = (options & 1) != 0;
  config.split_words = (options & 2) == 0;
  undone = !config.add_prefix_space;
#else
  config.kind = koine::model_loader::TokenizerKind::kWordPiece;
#ifdef KOINE_VOCAB_JSON
  const bool json = true;
#else
  const bool json = (options & 8) != 0;
#endif
  config.files = {json ? "vocab.json" : "vocab.txt"};
#endif
  config.unk_piece = "[UNK]";
  config.lower_case = (options & 1) != 0;
  config.strip_accents = (options & 2) != 0;
  config.split_cjk = (options & 4) != 0;
  if ((options & 16) != 0) config.markers = {{"[SEP]", 4}};
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = ParseTokenizer(config, contents);
  if (!tokenizer.ok()) {
    Require(tokenizer.status().code() == absl::StatusCode::kInvalidArgument);
    Require(tokenizer.status().message().size() < 4096);
    return 0;
  }
  Require((*tokenizer)->size() > 0 && (*tokenizer)->IdToPiece((*tokenizer)->unknown_id()) == "[UNK]");
  if (!IsUtf8(text)) return 0;
  const absl::StatusOr<Encoded> encoded = (*tokenizer)->Encode(text);
  Require(encoded.ok());
  for (const int32_t id : encoded->ids) {
    Require(id >= 0 && id < (*tokenizer)->size() && !(*tokenizer)->IsMarker(id));
  }
  Require(encoded->unknown_pieces == std::count(encoded->ids.begin(), encoded->ids.end(), (*tokenizer)->unknown_id()));
  const absl::StatusOr<std::string> decoded = (*tokenizer)->Decode(encoded->ids);
  Require(decoded.ok() && IsUtf8(*decoded));
  if (undone && encoded->unknown_pieces == 0) Require(*decoded == text);

  // Every other row of the vocabulary as a slice: never a local id that is none, nothing kept that was lost.
  std::vector<int32_t> rows = {(*tokenizer)->unknown_id()};
  for (int32_t id = 0; id < (*tokenizer)->size() && rows.size() < 1000; id += 2) {
    if (id != rows.front()) rows.push_back(id);
  }
  const auto sliced = ParseSlicedTokenizer(config, contents, rows, 0);
  Require(sliced.ok());
  const absl::StatusOr<Encoded> local = (*sliced)->Encode(text);
  Require(local.ok());
  for (const int32_t id : local->ids) Require(id >= 0 && id < (*sliced)->size());
  const absl::StatusOr<std::string> again = (*sliced)->Decode(local->ids);
  Require(again.ok());
  if (undone && local->unknown_pieces == 0) Require(*again == text);
  return 0;
}
