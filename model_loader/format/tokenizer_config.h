// How text becomes ids, as data: the value of the key `tokenizer` in model.json and language.json (FORMAT.md).
#ifndef KOINE_MODEL_LOADER_FORMAT_TOKENIZER_CONFIG_H_
#define KOINE_MODEL_LOADER_FORMAT_TOKENIZER_CONFIG_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace koine::model_loader {

enum class TokenizerKind : uint8_t {
  // One SentencePiece model; id = its number + id_offset (NLLB, mBART, XLM-R: 1; T5: 0).
  kSentencePiece,
  // SentencePiece cuts, a JSON dictionary numbers (M2M-100, Marian).
  kSentencePieceVocab,
  // BERT's clean-up and WordPiece.
  kWordPiece,
  // GPT-2's and RoBERTa's: words, their bytes, merges.
  kByteBpe,
};

// How many files a kind has.
struct FileCount {
  size_t least, most;
  const char* what;  // "one file"
};
FileCount FileCountOf(TokenizerKind kind);

struct TokenizerConfig {
  TokenizerKind kind = TokenizerKind::kSentencePiece;
  // Names in the folder that holds the configuration.
  //   sentencepiece        {model}
  //   sentencepiece_vocab  {model, vocab.json}, or {source model, target model, vocab.json}: the first model encodes,
  //                        the second decodes
  //   wordpiece            {vocab.txt}, or {x.json}: a tokenizer.json, or a plain {"piece": id} dictionary
  //   byte_bpe             {vocab.json, merges.txt}, or {x.json}: a tokenizer.json
  std::vector<std::string> files;
  // Pieces that no text ever yields and that decode to nothing, with their ids: <s>, <pad>, language tags, [CLS].
  // They take their ids from whatever else would have them.
  std::map<std::string, int32_t, std::less<>> markers;

  int32_t id_offset = 0;                   // sentencepiece
  std::optional<int32_t> unk_piece_to;     // sentencepiece: id of the unknown piece; absent: its number + id_offset
  std::string unk_piece;                   // the other kinds; must have an id
  bool lower_case = false;                 // wordpiece
  std::optional<bool> strip_accents;       // wordpiece; absent: as lower_case
  bool split_cjk = true;                   // wordpiece: every CJK ideograph is a word
  std::string continuation_prefix = "##";  // wordpiece
  int32_t max_word_chars = 100;            // wordpiece: longer words are unknown
  bool add_prefix_space = false;           // byte_bpe: before a text that does not begin with one
  bool split_words = true;                 // byte_bpe: no merge reaches over the end of a word

  friend bool operator==(const TokenizerConfig&, const TokenizerConfig&) = default;
};

// Files named by a configuration stay in its folder: letters, digits, '.', '_' and '-', at most 128, no ".." and no '.'
// in front.
bool IsPlainFileName(std::string_view name);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_FORMAT_TOKENIZER_CONFIG_H_
