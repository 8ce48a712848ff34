// BERT's tokenizer: clean-up, words, greedy longest match. By the reference implementations (google-research/bert
// tokenization.py; Hugging Face's BertNormalizer, BertPreTokenizer and WordPiece, whose order of steps this is).
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/tokenizer/kinds_internal.h"
#include "model_loader/tokenizer/text_internal.h"

namespace koine::model_loader {
namespace {

using nlohmann::json;

bool IsBlank(UChar32 c) { return c == '\t' || c == '\n' || c == '\r' || u_isUWhiteSpace(c); }

// Dropped by the clean-up: NUL, U+FFFD, and the categories Cc, Cf, Cs, Co and Cn but for tab and line ends.
bool IsDropped(UChar32 c) {
  if (c == 0 || c == 0xfffd) return true;
  if (c == '\t' || c == '\n' || c == '\r') return false;
  return (U_GET_GC_MASK(c) & U_GC_C_MASK) != 0;
}

// The blocks that the reference calls Chinese: CJK ideographs, neither kana nor hangul.
bool IsIdeograph(UChar32 c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
         (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b820 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

// All printable ASCII that is neither letter nor digit counts ('$', '+', '~' are symbols in Unicode).
bool IsPunctuation(UChar32 c) {
  if (c < 0x80) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
  return (U_GET_GC_MASK(c) & U_GC_P_MASK) != 0;
}

// BERT's clean_up_tokenization of English.
std::string CleanUp(const std::string& text) {
  // One after the other, each over the whole text.
  static constexpr std::pair<const char*, const char*> kRules[] = {
      {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
      {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  std::string result = text;
  for (const auto& [from, to] : kRules) result = absl::StrReplaceAll(result, {{from, to}});
  return result;
}

class WordPieceTokenizer : public DictionaryTokenizer {
 public:
  WordPieceTokenizer(const TokenizerConfig& config, Vocabulary vocabulary, std::vector<bool> kept, int32_t unknown_id,
                     std::string name)
      : DictionaryTokenizer(std::move(vocabulary), unknown_id, std::move(name)),
        kept_(std::move(kept)),
        lower_case_(config.lower_case),
        strip_accents_(config.strip_accents.value_or(config.lower_case)),
        split_cjk_(config.split_cjk),
        prefix_(config.continuation_prefix),
        max_word_chars_(static_cast<size_t>(config.max_word_chars)) {}

  absl::StatusOr<Encoded> Encode(std::string_view text) const override {
    if (absl::Status status = CheckTextSize(text); !status.ok()) return status;
    const absl::StatusOr<std::vector<UChar32>> characters = Normalise(text);
    if (!characters.ok()) return characters.status();
    Encoded encoded;
    std::vector<UChar32> word;
    const auto flush = [&] {
      if (!word.empty()) AddWord(word, &encoded);
      word.clear();
    };
    for (const UChar32 c : *characters) {
      if (IsBlank(c)) {
        flush();
      } else if (IsPunctuation(c)) {
        flush();
        word.push_back(c);
        flush();
      } else {
        word.push_back(c);
      }
    }
    flush();
    return encoded;
  }

  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const override {
    std::string text;
    bool first = true;
    for (const int32_t id : ids) {
      if (absl::Status status = CheckId(id); !status.ok()) return status;
      if (!GivesText(id)) continue;
      const std::string_view piece = vocabulary_.piece(id);
      if (!first && piece.starts_with(prefix_)) {
        text.append(piece.substr(prefix_.size()));
      } else {
        if (!first) text.push_back(' ');
        text.append(piece);
      }
      first = false;
    }
    return ValidUtf8(CleanUp(text));
  }

  bool IsByte(int32_t) const override { return false; }

 private:
  absl::StatusOr<std::vector<UChar32>> Normalise(std::string_view text) const {
    std::vector<UChar32> cleaned;
    cleaned.reserve(text.size());
    const auto length = static_cast<int32_t>(text.size());  // at most 4 MiB
    for (int32_t i = 0; i < length;) {
      UChar32 c = 0;
      U8_NEXT_OR_FFFD(text.data(), i, length, c);
      if (IsDropped(c)) continue;
      if (IsBlank(c)) {
        cleaned.push_back(' ');
      } else if (split_cjk_ && IsIdeograph(c)) {
        cleaned.insert(cleaned.end(), {' ', c, ' '});
      } else {
        cleaned.push_back(c);
      }
    }
    if (strip_accents_) {
      UErrorCode error = U_ZERO_ERROR;
      const icu::Normalizer2* nfd = icu::Normalizer2::getNFDInstance(error);
      if (U_FAILURE(error)) {
        return absl::InternalError(absl::StrCat(name_, ": ICU cannot normalise: ", u_errorName(error)));
      }
      const icu::UnicodeString source =
          icu::UnicodeString::fromUTF32(cleaned.data(), static_cast<int32_t>(cleaned.size()));
      const icu::UnicodeString decomposed = nfd->normalize(source, error);
      if (U_FAILURE(error)) {
        return absl::InternalError(absl::StrCat(name_, ": ICU cannot normalise: ", u_errorName(error)));
      }
      cleaned.clear();
      for (int32_t i = 0; i < decomposed.length(); i = decomposed.moveIndex32(i, 1)) {
        const UChar32 c = decomposed.char32At(i);
        if (u_charType(c) != U_NON_SPACING_MARK) cleaned.push_back(c);
      }
    }
    if (lower_case_) {
      std::vector<UChar32> lowered;
      lowered.reserve(cleaned.size());
      for (const UChar32 c : cleaned) {
        // Character by character, without context. U+0130 is the one whose full lower case is two characters.
        if (c == 0x130) {
          lowered.insert(lowered.end(), {'i', 0x307});
        } else {
          lowered.push_back(u_tolower(c));
        }
      }
      return lowered;
    }
    return cleaned;
  }

  void AddWord(const std::vector<UChar32>& word, Encoded* encoded) const {
    const auto unknown = [&] {
      encoded->ids.push_back(unknown_id_);
      ++encoded->unknown_pieces;
    };
    if (word.size() > max_word_chars_) return unknown();
    std::string bytes;
    std::vector<size_t> ends;  // of each character
    for (const UChar32 c : word) {
      AppendUtf8(c, &bytes);
      ends.push_back(bytes.size());
    }
    const size_t begin_of_word = encoded->ids.size();
    std::string candidate;
    for (size_t first = 0; first < ends.size();) {
      const size_t begin = first == 0 ? 0 : ends[first - 1];
      int32_t id = -1;
      size_t last = ends.size();
      for (; last > first; --last) {
        const size_t taken = ends[last - 1] - begin;
        if (taken + (first == 0 ? 0 : prefix_.size()) > vocabulary_.longest_piece()) continue;
        candidate.assign(first == 0 ? "" : prefix_);
        candidate.append(bytes, begin, taken);
        id = vocabulary_.Find(candidate);
        // A marker spelled without punctuation is no word either.
        if (id >= 0 && !vocabulary_.is_marker(id) && (kept_.empty() || kept_[static_cast<size_t>(id)])) break;
        id = -1;
      }
      if (id < 0) {
        encoded->ids.resize(begin_of_word);
        return unknown();
      }
      encoded->ids.push_back(id);
      first = last;
    }
    encoded->unknown_pieces +=
        std::count(encoded->ids.begin() + static_cast<std::ptrdiff_t>(begin_of_word), encoded->ids.end(), unknown_id_);
  }

  const std::vector<bool> kept_;  // empty: all
  const bool lower_case_, strip_accents_, split_cjk_;
  const std::string prefix_;
  const size_t max_word_chars_;
};

// The dictionary of a tokenizer.json, whose model must be what the configuration says.
absl::StatusOr<const json*> FindDictionary(const json& root, const TokenizerConfig& config) {
  if (!root.is_object()) return absl::InvalidArgumentError("must be a JSON object");
  const auto model = root.find("model");
  // A plain dictionary may hold the piece "model", whose value is a number.
  if (model == root.end() || !model->is_object()) return &root;
  const auto type = model->find("type");
  if (type != model->end() && *type != "WordPiece") {
    return absl::InvalidArgumentError(absl::StrCat("a tokenizer.json whose model is ", Show(*type), ", not WordPiece"));
  }
  const std::pair<const char*, json> expected[] = {{"unk_token", config.unk_piece},
                                                   {"continuing_subword_prefix", config.continuation_prefix},
                                                   {"max_input_chars_per_word", config.max_word_chars}};
  for (const auto& [key, value] : expected) {
    const auto found = model->find(key);
    if (found != model->end() && *found != value) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.", key, " is ", Show(*found), ", but the configuration says ", Show(value)));
    }
  }
  const auto vocab = model->find("vocab");
  if (vocab == model->end()) return absl::InvalidArgumentError("model.vocab is missing");
  return &*vocab;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeWordPieceTokenizer(const TokenizerConfig& config,
                                                                  const std::vector<std::string>& names,
                                                                  const std::vector<std::string>& contents,
                                                                  const KeepId& keep) {
  const std::string& name = names.front();
  const auto fault = [&name](const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", status.message()));
  };
  absl::StatusOr<Vocabulary> vocabulary = Vocabulary();
  if (absl::EndsWith(name, ".json")) {
    const absl::StatusOr<json> root = ParseStrictJson(contents.front());
    if (!root.ok()) return fault(root.status());
    const absl::StatusOr<const json*> dictionary = FindDictionary(*root, config);
    if (!dictionary.ok()) return fault(dictionary.status());
    vocabulary = Vocabulary::FromJson(**dictionary);
  } else {
    vocabulary = Vocabulary::FromLines(contents.front());
  }
  if (!vocabulary.ok()) return fault(vocabulary.status());
  if (absl::Status status = vocabulary->AddMarkers(config.markers); !status.ok()) return fault(status);
  const int32_t unknown = vocabulary->Find(config.unk_piece);
  if (unknown < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the unknown piece \"", Printable(config.unk_piece), "\" has no id"));
  }
  std::vector<bool> kept;
  if (keep != nullptr) {
    for (int32_t id = 0; id < vocabulary->size(); ++id) kept.push_back(keep(id));
  }
  return std::make_unique<WordPieceTokenizer>(config, *std::move(vocabulary), std::move(kept), unknown, name);
}

}  // namespace koine::model_loader
