#include "model_loader/importer/hf_tokenizer.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model_loader/format/json_fields.h"
#include "model_loader/importer/hf_files.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/tokenizer/load_tokenizer.h"

namespace koine::model_loader {
namespace {

using nlohmann::json;

constexpr int64_t kMaxModelBytes = int64_t{256} << 20;
constexpr int64_t kMaxDictionaryBytes = int64_t{64} << 20;

// A token is written as its text, or as an object with the text in "content".
std::string TokenText(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  return "";
}

// REQUIRES an object.
std::string TextOf(const json& object, const char* key, const char* otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

// tokenizer_config.json, special_tokens_map.json and added_tokens.json, merged: the first has the last word.
struct Settings {
  std::string config_path;
  json config = json::object();
  std::string tokenizer_class;
  std::vector<std::string> listed;         // additional special tokens, in order
  std::map<std::string, int32_t> added;    // tokens that the files give ids to
  std::map<std::string, bool> is_special;  // of those in `added`
  std::map<std::string, std::string> names;

  std::string Name(const std::string& key, const std::string& otherwise) const {
    const auto found = names.find(key);
    return found == names.end() ? otherwise : found->second;
  }
};

absl::Status AddId(const std::string& where, const std::string& piece, const json& id, Settings& settings) {
  if (piece.empty() || !id.is_number_unsigned() || id.get<uint64_t>() >= uint64_t{1} << 22) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": the added token \"", Printable(piece), "\" must have an id from 0 to ", (1 << 22) - 1));
  }
  const auto number = static_cast<int32_t>(id.get<uint64_t>());
  const auto [known, fresh] = settings.added.emplace(piece, number);
  if (!fresh && known->second != number) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": the added token \"", Printable(piece), "\" has id ",
                                                   number, " here and ", known->second, " in another file"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Settings> ReadSettings(const std::string& folder) {
  Settings settings;
  settings.config_path = absl::StrCat(folder, "/tokenizer_config.json");
  std::vector<std::pair<std::string, json>> files;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string path = absl::StrCat(folder, "/", name);
    absl::StatusOr<std::optional<json>> file = ReadHfJsonIfThere(path);
    if (!file.ok()) return file.status();
    if (!file->has_value()) continue;
    if (!(*file)->is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": must be an object"));
    if (path == settings.config_path) settings.config = **file;
    files.emplace_back(path, **std::move(file));
  }
  for (const auto& [path, file] : files) {
    for (const char* key :
         {"bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token"}) {
      const auto found = file.find(key);
      if (found == file.end()) continue;
      if (std::string text = TokenText(*found); !text.empty()) settings.names.emplace(key, std::move(text));
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
      const auto found = file.find(key);
      if (found == file.end() || !found->is_array() || !settings.listed.empty()) continue;
      for (const json& token : *found) settings.listed.push_back(TokenText(token));
    }
  }
  if (const auto found = settings.config.find("tokenizer_class");
      found != settings.config.end() && found->is_string()) {
    settings.tokenizer_class = found->get<std::string>();
  }
  if (const auto found = settings.config.find("added_tokens_decoder");
      found != settings.config.end() && found->is_object()) {
    for (const auto& [id, token] : found->items()) {
      uint64_t number = 0;
      const std::string text = TokenText(token);
      const json value = absl::SimpleAtoi(id, &number) ? json(number) : json();
      if (absl::Status status = AddId(settings.config_path, text, value, settings); !status.ok()) return status;
      settings.is_special[text] = token.is_object() && token.contains("special") && token["special"] == true;
    }
  }
  const std::string path = absl::StrCat(folder, "/added_tokens.json");
  absl::StatusOr<std::optional<json>> added = ReadHfJsonIfThere(path);
  if (!added.ok()) return added.status();
  if (added->has_value()) {
    if (!(*added)->is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": must be an object of ids"));
    for (const auto& [piece, id] : (*added)->items()) {
      if (absl::Status status = AddId(path, piece, id, settings); !status.ok()) return status;
    }
  }
  return settings;
}

bool AllOf(std::string_view text, bool (*test)(unsigned char)) {
  return std::all_of(text.begin(), text.end(), [test](char c) { return test(static_cast<unsigned char>(c)); });
}

// "eng_Latn"
bool IsFloresCode(std::string_view code) {
  return code.size() == 8 && code[3] == '_' && AllOf(code.substr(0, 3), absl::ascii_islower) &&
         absl::ascii_isupper(static_cast<unsigned char>(code[4])) && AllOf(code.substr(5), absl::ascii_islower);
}
// "en_XX"
bool IsMBartCode(std::string_view code) {
  const size_t bar = code.find('_');
  return (bar == 2 || bar == 3) && code.size() == bar + 3 && AllOf(code.substr(0, bar), absl::ascii_islower) &&
         AllOf(code.substr(bar + 1), absl::ascii_isupper);
}
// "__en__"
bool IsM2MTag(std::string_view tag) {
  return tag.size() > 4 && tag.substr(0, 2) == "__" && tag.substr(tag.size() - 2) == "__";
}

class Reader {
 public:
  Reader(const std::string& folder, const HfConfig& config, Settings settings)
      : folder_(folder), config_(config), settings_(std::move(settings)) {}

  absl::Status Read(bool lower_case, std::optional<bool> legacy_source_order) {
    absl::Status status;
    switch (config_.family) {
      case HfFamily::kM2M100: {
        // Both tokenizers go with the same model; the class says which, else the dictionary that only one of them has.
        const bool nllb = absl::StrContains(settings_.tokenizer_class, "Nllb") ||
                          (!absl::StrContains(settings_.tokenizer_class, "M2M100") && !Exists("vocab.json"));
        status = nllb ? Nllb(legacy_source_order) : M2M100();
        break;
      }
      case HfFamily::kMBart:
        status = MBart();
        break;
      case HfFamily::kMarian:
        status = Marian();
        break;
      case HfFamily::kT5:
      case HfFamily::kMT5:
        status = T5();
        break;
      case HfFamily::kBert:
      case HfFamily::kRoberta:
        status = Encoder(lower_case);
        if (lower_case && result_.config.kind != TokenizerKind::kWordPiece && status.ok()) {
          return absl::InvalidArgumentError(
              absl::StrCat(folder_,
                           ": sentence_bert_config.json lower-cases texts before SentencePiece or byte-level BPE; that "
                           "is not supported"));
        }
        break;
    }
    if (!status.ok()) return status;
    if (legacy_source_order.has_value() && !has_legacy_order_) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder_, ": --legacy-source-order is for NLLB checkpoints, which this is not"));
    }
    if (const auto length = settings_.config.find("model_max_length"); length != settings_.config.end()) {
      // "No limit" is written as 10^30.
      constexpr double kNoLimit = 1e9;
      const double number = length->is_number() ? length->get<double>() : -1;
      if (!(number >= 1)) {
        return absl::InvalidArgumentError(
            absl::StrCat(settings_.config_path, ": model_max_length: must be a number above 0"));
      }
      if (number < kNoLimit) result_.model_max_length = static_cast<int64_t>(number);
    }
    return AddedTokens();
  }

  HfTokenizer Take() { return std::move(result_); }

 private:
  bool Exists(const std::string& name) const { return FileExists(absl::StrCat(folder_, "/", name)); }

  absl::Status NeedFile(const std::string& name, int64_t most_bytes) {
    const std::string path = absl::StrCat(folder_, "/", name);
    if (!FileExists(path)) {
      std::string hint;
      if (Exists("merges.txt")) {
        hint =
            "; vocab.json with merges.txt is a byte-level BPE tokenizer, which only BERT and RoBERTa encoders may have";
      } else if (Exists("tokenizer.json")) {
        hint = "; the same tokenizer in tokenizer.json is not read";
      }
      return absl::NotFoundError(
          absl::StrCat(path, ": missing; this ", config_.model_type, " checkpoint's tokenizer needs it", hint));
    }
    absl::StatusOr<std::string> bytes = ReadWholeFile(path, most_bytes);
    if (!bytes.ok()) return bytes.status();
    result_.config.files.push_back(name);
    result_.contents.push_back(*std::move(bytes));
    return absl::OkStatus();
  }

  // Parses with the markers so far.
  absl::Status Parse() {
    absl::StatusOr<std::unique_ptr<Tokenizer>> parsed = ParseTokenizer(result_.config, result_.contents);
    if (!parsed.ok()) {
      return absl::Status(parsed.status().code(), absl::StrCat(folder_, "/", parsed.status().message()));
    }
    result_.tokenizer = *std::move(parsed);
    return absl::OkStatus();
  }

  void TakeMarks(const std::string& bos, const std::string& pad, const std::string& eos, const std::string& unk) {
    result_.bos = bos;
    result_.pad = pad;
    result_.eos = eos;
    result_.unk = unk;
  }

  // <s> 0, <pad> 1, </s> 2, <unk> 3, the model's pieces from 3 on moved up by one, the tags, <mask>: what the library
  // calls fairseq's order. A tag that the files number themselves has that number.
  absl::Status Fairseq(const std::string& model, const std::vector<std::string>& tags) {
    absl::Status status = NeedFile(model, kMaxModelBytes);
    if (!status.ok()) return status;
    result_.config.kind = TokenizerKind::kSentencePiece;
    result_.config.id_offset = 1;
    result_.config.unk_piece_to = 3;
    if (status = Parse(); !status.ok()) return status;
    auto next = static_cast<int32_t>(result_.tokenizer->size());  // the pieces + 1
    result_.config.markers = {{"<s>", 0}, {"<pad>", 1}, {"</s>", 2}, {"<unk>", 3}};
    // A tag that is not listed and only has an id takes no place in the order.
    for (const std::string& tag : tags) {
      const bool placed = added_tags_.count(tag) == 0;
      result_.config.markers[tag] = IdOf(tag, next);
      if (placed) ++next;
    }
    result_.config.markers["<mask>"] = IdOf("<mask>", next);
    TakeMarks("<s>", "<pad>", "</s>", "<unk>");
    return absl::OkStatus();
  }

  int32_t IdOf(const std::string& piece, int32_t otherwise) const {
    const auto found = settings_.added.find(piece);
    return found == settings_.added.end() ? otherwise : found->second;
  }

  // The listed tokens that look like tags, or else the library's own list. Tags that only have an id come last.
  std::vector<std::string> Tags(bool (*is_tag)(std::string_view), const std::vector<std::string>& otherwise) {
    std::vector<std::string> tags;
    std::set<std::string> seen;
    for (const std::string& token : settings_.listed) {
      if (is_tag(token) && seen.insert(token).second) tags.push_back(token);
    }
    if (tags.empty()) {
      tags = otherwise;
      seen.insert(tags.begin(), tags.end());
    }
    std::map<int32_t, std::string> by_id;
    for (const auto& [piece, id] : settings_.added) {
      if (is_tag(piece) && seen.count(piece) == 0) by_id.emplace(id, piece);
    }
    for (const auto& [id, piece] : by_id) {
      tags.push_back(piece);
      added_tags_.insert(piece);
    }
    return tags;
  }

  absl::Status Nllb(std::optional<bool> legacy_source_order) {
    has_legacy_order_ = true;
    const std::vector<std::string> tags = Tags(IsFloresCode, NllbCodes());
    if (absl::Status status = Fairseq("sentencepiece.bpe.model", tags); !status.ok()) return status;
    for (const std::string& tag : tags) result_.languages.push_back({tag, tag, tag});
    const auto found = settings_.config.find("legacy_behaviour");
    if (found != settings_.config.end() && !found->is_boolean()) {
      return absl::InvalidArgumentError(
          absl::StrCat(settings_.config_path, ": legacy_behaviour: must be true or false"));
    }
    const bool legacy = legacy_source_order.value_or(found != settings_.config.end() && found->get<bool>());
    result_.prompt.source = legacy ? std::vector<std::string>{"$text", "</s>", "$source"}
                                   : std::vector<std::string>{"$source", "$text", "</s>"};
    result_.prompt.decoder_forced = {"$target"};
    if (legacy) result_.notes.push_back("legacy source order: text, end mark, source tag");
    return absl::OkStatus();
  }

  absl::Status MBart() {
    bool fifty = absl::StrContains(settings_.tokenizer_class, "MBart50");
    if (!fifty && !absl::StrContains(settings_.tokenizer_class, "MBartTokenizer")) {
      // The tags tell where the class does not: af_ZA came with mBART-50.
      const auto codes = settings_.config.find("language_codes");
      const bool listed = std::any_of(settings_.listed.begin(), settings_.listed.end(), IsMBartCode);
      if (codes != settings_.config.end() && (*codes == "ML50" || *codes == "cc25")) {
        fifty = *codes == "ML50";
      } else if (listed) {
        fifty = std::count(settings_.listed.begin(), settings_.listed.end(), "af_ZA") > 0;
      } else {
        return absl::InvalidArgumentError(absl::StrCat(
            settings_.config_path, ": tokenizer_class: ",
            settings_.tokenizer_class.empty() ? "is missing"
                                              : absl::StrCat("\"", Printable(settings_.tokenizer_class), "\""),
            ": neither MBartTokenizer (mBART-25) nor MBart50Tokenizer, which order their tags otherwise"));
      }
    }
    const std::vector<std::string>& all = MBart50Codes();
    const std::vector<std::string> tags =
        Tags(IsMBartCode, fifty ? all : std::vector<std::string>(all.begin(), all.begin() + 25));
    if (absl::Status status = Fairseq("sentencepiece.bpe.model", tags); !status.ok()) return status;
    // Regions of these codes tell nothing ("ar_AR", "en_XX").
    for (const std::string& tag : tags) result_.languages.push_back({tag, tag, tag.substr(0, tag.find('_'))});
    if (fifty) {
      result_.prompt.source = {"$source", "$text", "</s>"};
      result_.prompt.decoder_forced = {"$target"};
    } else {
      result_.prompt.source = {"$text", "</s>", "$source"};
      result_.prompt.decoder_start = "$target";
    }
    return absl::OkStatus();
  }

  absl::Status M2M100() {
    if (absl::Status status = NeedFile("sentencepiece.bpe.model", kMaxModelBytes); !status.ok()) return status;
    if (absl::Status status = NeedFile("vocab.json", kMaxDictionaryBytes); !status.ok()) return status;
    const std::string path = absl::StrCat(folder_, "/vocab.json");
    const absl::StatusOr<json> dictionary = ParseHfJson(result_.contents.back(), path);
    if (!dictionary.ok()) return dictionary.status();
    if (!dictionary->is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": must be an object of ids"));
    result_.config.kind = TokenizerKind::kSentencePieceVocab;
    TakeMarks(settings_.Name("bos_token", "<s>"), settings_.Name("pad_token", "<pad>"),
              settings_.Name("eos_token", "</s>"), settings_.Name("unk_token", "<unk>"));
    result_.config.unk_piece = result_.unk;
    if (absl::Status status = MarksOf(*dictionary, path); !status.ok()) return status;
    std::vector<std::string> builtin;
    const auto codes = settings_.config.find("language_codes");
    const bool wmt21 = codes != settings_.config.end() && *codes == "wmt21";
    for (const std::string& code :
         wmt21 ? std::vector<std::string>{"en", "ha", "is", "ja", "cs", "ru", "zh", "de"} : M2M100Codes()) {
      builtin.push_back(absl::StrCat("__", code, "__"));
    }
    auto next = static_cast<int32_t>(dictionary->size());
    for (const std::string& tag : Tags(IsM2MTag, builtin)) {
      result_.config.markers[tag] = IdOf(tag, next++);
      const std::string code = tag.substr(2, tag.size() - 4);
      result_.languages.push_back({code, tag, code});
    }
    result_.prompt.source = {"$source", "$text", result_.eos};
    result_.prompt.decoder_forced = {"$target"};
    return absl::OkStatus();
  }

  absl::Status Marian() {
    const auto separate = settings_.config.find("separate_vocabs");
    if ((separate != settings_.config.end() && *separate == true) || Exists("target_vocab.json")) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder_, ": separate vocabularies for source and target are not supported"));
    }
    for (const char* file : {"source.spm", "target.spm", "vocab.json"}) {
      const int64_t most = absl::EndsWith(file, ".json") ? kMaxDictionaryBytes : kMaxModelBytes;
      if (absl::Status status = NeedFile(file, most); !status.ok()) return status;
    }
    const std::string path = absl::StrCat(folder_, "/vocab.json");
    const absl::StatusOr<json> dictionary = ParseHfJson(result_.contents.back(), path);
    if (!dictionary.ok()) return dictionary.status();
    if (!dictionary->is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": must be an object of ids"));
    result_.config.kind = TokenizerKind::kSentencePieceVocab;
    TakeMarks("", settings_.Name("pad_token", "<pad>"), settings_.Name("eos_token", "</s>"),
              settings_.Name("unk_token", "<unk>"));
    result_.config.unk_piece = result_.unk;
    if (absl::Status status = MarksOf(*dictionary, path); !status.ok()) return status;
    // Models of several target languages tell them by a tag before the text.
    std::map<int64_t, std::string> tags;
    for (const auto& [piece, id] : dictionary->items()) {
      if (piece.size() > 4 && absl::StartsWith(piece, ">>") && absl::EndsWith(piece, "<<") && id.is_number_integer()) {
        tags.emplace(id.get<int64_t>(), piece);
      }
    }
    const auto language = [&](const char* key) -> std::string {
      const auto found = settings_.config.find(key);
      return found != settings_.config.end() && found->is_string() ? found->get<std::string>() : "";
    };
    const std::string source = language("source_lang");
    result_.prompt.source = {"$text", result_.eos};
    if (tags.empty()) return absl::OkStatus();
    result_.prompt.source.insert(result_.prompt.source.begin(), "$target");
    if (source.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(settings_.config_path,
                                                     ": source_lang: is missing; the vocabulary has tags of ",
                                                     tags.size(), " target languages, but none of the source"));
    }
    result_.languages.push_back({source, "", source});
    for (const auto& [id, piece] : tags) {
      const std::string code = piece.substr(2, piece.size() - 4);
      const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(code.front())) && code.size() <= 64 &&
                         std::all_of(code.begin(), code.end(), [](char c) {
                           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
                         });
      result_.config.markers[piece] = static_cast<int32_t>(id);
      if (!plain) {
        result_.notes.push_back(absl::StrCat("the tag ", Printable(piece), " names no language code; left out"));
      } else if (code == source) {
        result_.languages.front().tag = piece;
      } else {
        result_.languages.push_back({code, piece, code});
      }
    }
    return absl::OkStatus();
  }

  absl::Status T5() {
    if (absl::Status status = NeedFile("spiece.model", kMaxModelBytes); !status.ok()) return status;
    result_.config.kind = TokenizerKind::kSentencePiece;
    if (absl::Status status = Parse(); !status.ok()) return status;
    const auto pieces = static_cast<int32_t>(result_.tokenizer->size());
    int64_t extra = 100;  // T5Tokenizer's default
    if (const auto found = settings_.config.find("extra_ids"); found != settings_.config.end()) {
      if (!found->is_number_unsigned() || found->get<uint64_t>() > 1'000) {
        return absl::InvalidArgumentError(
            absl::StrCat(settings_.config_path, ": extra_ids: must be an integer from 0 to 1000"));
      }
      extra = static_cast<int64_t>(found->get<uint64_t>());
    } else if (pieces + extra > config_.rows) {
      extra = 0;  // the table has no room for them: mT5's files without the key
    }
    for (int32_t i = 0; i < extra; ++i) {
      const std::string piece = absl::StrCat("<extra_id_", i, ">");
      result_.config.markers[piece] = IdOf(piece, pieces + static_cast<int32_t>(extra) - 1 - i);
    }
    TakeMarks("", settings_.Name("pad_token", "<pad>"), settings_.Name("eos_token", "</s>"),
              settings_.Name("unk_token", "<unk>"));
    result_.prompt.source = {"$text", result_.eos};
    return absl::OkStatus();
  }

  absl::Status XlmRoberta() {
    if (absl::Status status = Fairseq("sentencepiece.bpe.model", {}); !status.ok()) return status;
    result_.prompt.source = {"<s>", "$text", "</s>"};
    return absl::OkStatus();
  }

  // BERT's and RoBERTa's kinds. The model's kind does not tell the tokenizer's: there are BERT models with XLM-R's.
  absl::Status Encoder(bool lower_case) {
    if (Exists("sentencepiece.bpe.model")) return XlmRoberta();
    if (Exists("vocab.txt")) return WordPiece("vocab.txt", lower_case);
    const std::string path = absl::StrCat(folder_, "/tokenizer.json");
    const absl::StatusOr<std::optional<json>> whole = ReadHfJsonIfThere(path);
    if (!whole.ok()) return whole.status();
    if (!whole->has_value()) {
      if (Exists("vocab.json") && Exists("merges.txt")) return ByteBpe({"vocab.json", "merges.txt"});
      return absl::NotFoundError(absl::StrCat(
          folder_,
          ": no tokenizer; one of sentencepiece.bpe.model, vocab.txt, tokenizer.json, vocab.json with merges.txt is "
          "expected"));
    }
    std::string type = "?";
    if ((*whole)->is_object() && (*whole)->contains("model") && (**whole)["model"].is_object()) {
      const json& model = (**whole)["model"];
      type = TextOf(model, "type", model.contains("merges") ? "BPE" : "WordPiece");  // old files do not say
      result_.config.continuation_prefix = TextOf(model, "continuing_subword_prefix", "##");
      if (model.contains("max_input_chars_per_word") && model["max_input_chars_per_word"].is_number_integer()) {
        // Out of range is for the format to say.
        result_.config.max_word_chars = static_cast<int32_t>(
            std::clamp<int64_t>(model["max_input_chars_per_word"].get<int64_t>(), 0, int64_t{1} << 20));
      }
    }
    if (type == "BPE") {
      if (absl::Status status = ReadByteLevel(**whole, path); !status.ok()) return status;
      return ByteBpe({"tokenizer.json"});
    }
    if (type != "WordPiece") {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": a ", Printable(type),
                       " tokenizer, which is not supported from this file (WordPiece and byte-level BPE are); "
                       "sentencepiece.bpe.model is expected beside it"));
    }
    if (absl::Status status = ReadNormalizer(**whole, path); !status.ok()) return status;
    return WordPiece("tokenizer.json", lower_case);
  }

  absl::Status WordPiece(const std::string& file, bool lower_case) {
    if (absl::Status status = NeedFile(file, kMaxDictionaryBytes); !status.ok()) return status;
    TokenizerConfig& config = result_.config;
    config.kind = TokenizerKind::kWordPiece;
    // BertTokenizer's defaults. The settings win over tokenizer.json, as in BertTokenizerFast.
    Faults faults(settings_.config_path);
    Fields fields(&settings_.config, "", &faults);
    config.lower_case = fields.Bool("do_lower_case", normalizer_lower_case_.value_or(true));
    if (fields.Has("strip_accents")) {
      config.strip_accents = fields.Bool("strip_accents");
    } else {
      config.strip_accents = normalizer_strip_accents_;
    }
    config.split_cjk = fields.Bool("tokenize_chinese_chars", normalizer_split_cjk_.value_or(true));
    if (!fields.Bool("do_basic_tokenize", true)) fields.Fault("do_basic_tokenize", "is false: that is not supported");
    if (!faults.empty()) return faults.ToStatus();
    if (lower_case && !config.lower_case) {
      // sentence-transformers lower-cases the text, and the tokenizer does what it did before.
      config.strip_accents = config.strip_accents.value_or(false);
      config.lower_case = true;
    }
    return EncoderMarks("[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]");
  }

  // RoBERTa's. As in RobertaTokenizerFast the settings win over tokenizer.json; the general class has no own setting.
  absl::Status ByteBpe(const std::vector<std::string>& files) {
    for (const std::string& file : files) {
      if (absl::Status status = NeedFile(file, kMaxDictionaryBytes); !status.ok()) return status;
    }
    TokenizerConfig& config = result_.config;
    config.kind = TokenizerKind::kByteBpe;
    const std::string& name = settings_.tokenizer_class;
    const bool general = name == "PreTrainedTokenizerFast";
    if (files.size() > 1 && !name.empty() && !general && !absl::StartsWith(name, "Roberta")) {
      return absl::InvalidArgumentError(
          absl::StrCat(settings_.config_path, ": tokenizer_class: \"", Printable(name),
                       "\" with vocab.json and merges.txt: only RobertaTokenizer's marks are known"));
    }
    Faults faults(settings_.config_path);
    Fields fields(&settings_.config, "", &faults);
    config.add_prefix_space = fields.Bool("add_prefix_space", general && byte_level_prefix_);
    if (!faults.empty()) return faults.ToStatus();
    return EncoderMarks("<s>", "</s>", "<pad>", "<mask>", "<unk>");
  }

  // What a tokenizer.json with a BPE model says that the folder's other files need not: the configuration's part of the
  // pre-tokenizer, further tokens, the marks around a text. What it must not say is for the kind itself to refuse.
  absl::Status ReadByteLevel(const json& whole, const std::string& path) {
    const auto part = [&whole](const char* key) {
      const auto found = whole.find(key);
      return found != whole.end() && found->is_object() ? *found : json::object();
    };
    const json words = part("pre_tokenizer");
    byte_level_prefix_ = words.value("add_prefix_space", json()) == true;
    result_.config.split_words = words.value("use_regex", json()) != false;
    for (const json& token : whole.value("added_tokens", json::array())) {
      const std::string text = TokenText(token);
      const json id = token.is_object() ? token.value("id", json()) : json();
      if (absl::Status status = AddId(path, text, id, settings_); !status.ok()) return status;
      settings_.is_special.emplace(text, token.value("special", json()) == true);
    }
    const json marks = part("post_processor");
    const std::string type = TextOf(marks, "type", "none");
    std::vector<std::string> around = {TokenPair(marks, "cls"), TokenPair(marks, "sep")};
    if (type == "TemplateProcessing") around = Template(marks);
    if (around != std::vector<std::string>{settings_.Name("cls_token", "<s>"), settings_.Name("sep_token", "</s>")}) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": post_processor: ", Printable(type),
                       ": only one that puts the class mark before a text and the separator behind it is supported"));
    }
    return absl::OkStatus();
  }

  // ["<s>", 0]
  static std::string TokenPair(const json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_array() && !found->empty() ? TokenText((*found)[0]) : "";
  }

  // The marks of a template's `single`, where these are one before and one behind the text.
  static std::vector<std::string> Template(const json& processor) {
    const json single = processor.value("single", json());
    if (!single.is_array() || single.size() != 3 || !single[1].is_object() || !single[1].contains("Sequence"))
      return {};
    std::vector<std::string> marks;
    for (const size_t i : {size_t{0}, size_t{2}}) {
      const json token = single[i].is_object() ? single[i].value("SpecialToken", json()) : json();
      marks.push_back(token.is_object() ? TextOf(token, "id", "") : "");
    }
    return marks;
  }

  // The marks of an encoder by their names in the settings, else as here; their ids in the dictionary, or where the
  // files add them. Reads the dictionary.
  absl::Status EncoderMarks(const char* cls_name, const char* sep_name, const char* pad_name, const char* mask_name,
                            const char* unk_name) {
    TokenizerConfig& config = result_.config;
    config.unk_piece = settings_.Name("unk_token", unk_name);
    const std::string cls = settings_.Name("cls_token", cls_name);
    const std::string sep = settings_.Name("sep_token", sep_name);
    const std::string pad = settings_.Name("pad_token", pad_name);
    const std::string mask = settings_.Name("mask_token", mask_name);
    TakeMarks(cls, pad, sep, config.unk_piece);
    const std::vector<std::string> marks = {cls, sep, pad, mask, config.unk_piece};
    for (const std::string& mark : marks) {
      if (const int32_t id = IdOf(mark, -1); id >= 0) config.markers[mark] = id;
    }
    if (absl::Status status = Parse(); !status.ok()) return status;
    for (const std::string& mark : marks) {
      const int32_t id = result_.tokenizer->PieceToId(mark);
      if (id >= 0) {
        config.markers[mark] = id;
      } else if (mark == cls || mark == sep) {
        return absl::InvalidArgumentError(absl::StrCat(folder_, "/", config.files.front(), ": has no piece \"",
                                                       Printable(mark), "\", which every text needs"));
      }
    }
    if (result_.tokenizer->PieceToId(pad) < 0) result_.pad.clear();
    result_.prompt.source = {cls, "$text", sep};
    return absl::OkStatus();
  }

  // What BertTokenizerFast does to a text, as tokenizer.json has it.
  absl::Status ReadNormalizer(const json& whole, const std::string& path) {
    const auto found = whole.find("normalizer");
    if (found == whole.end() || found->is_null()) return absl::OkStatus();
    if (!found->is_object() || TextOf(*found, "type", "") != "BertNormalizer") {
      return absl::InvalidArgumentError(absl::StrCat(path, ": normalizer: only BertNormalizer is supported"));
    }
    const auto flag = [&](const char* key) -> std::optional<bool> {
      const auto value = found->find(key);
      return value != found->end() && value->is_boolean() ? std::optional<bool>(value->get<bool>()) : std::nullopt;
    };
    normalizer_lower_case_ = flag("lowercase");
    normalizer_strip_accents_ = flag("strip_accents");
    normalizer_split_cjk_ = flag("handle_chinese_chars");
    return absl::OkStatus();
  }

  absl::Status MarksOf(const json& dictionary, const std::string& path) {
    for (const std::string& mark : {result_.bos, result_.pad, result_.eos, result_.unk}) {
      if (mark.empty()) continue;
      const auto found = dictionary.find(mark);
      if (found == dictionary.end() || !found->is_number_unsigned() || found->get<uint64_t>() >= uint64_t{1} << 22) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": has no id for \"", Printable(mark), "\""));
      }
      result_.config.markers[mark] = static_cast<int32_t>(found->get<uint64_t>());
    }
    return absl::OkStatus();
  }

  // Pieces that the model cuts texts into and that the dictionary lacks become unknown (B048).
  absl::Status CountMissingPieces() {
    for (size_t i = 0; i + 1 < result_.contents.size(); ++i) {
      const std::string& file = result_.config.files[i];
      const absl::StatusOr<std::unique_ptr<Tokenizer>> plain =
          ParseSentencePiece(result_.contents[i], absl::StrCat(folder_, "/", file));
      if (!plain.ok()) return plain.status();
      int64_t missing = 0;
      const auto size = static_cast<int32_t>((*plain)->size());
      for (int32_t id = 0; id < size; ++id) {
        if (id == (*plain)->unknown_id() || (*plain)->IsMarker(id)) continue;
        if (result_.tokenizer->PieceToId((*plain)->IdToPiece(id)) < 0) ++missing;
      }
      if (missing > 0) {
        result_.notes.push_back(absl::StrCat(missing, " of the ", size, " pieces of ", file, " are not in ",
                                             result_.config.files.back(), ": texts give the unknown piece for them"));
      }
    }
    return absl::OkStatus();
  }

  // Tokens that the files add to the vocabulary and that have no place yet. The library cuts them out of texts before
  // tokenizing; here no text ever yields them.
  absl::Status AddedTokens() {
    if (absl::Status status = Parse(); !status.ok()) return status;
    bool changed = false;
    for (const auto& [piece, id] : settings_.added) {
      const int32_t known = result_.tokenizer->PieceToId(piece);
      if (known == id) continue;
      if (known >= 0) {
        return absl::InvalidArgumentError(absl::StrCat(folder_, ": the added token \"", Printable(piece), "\" has id ",
                                                       id, ", but the tokenizer's files give it ", known));
      }
      result_.config.markers[piece] = id;
      changed = true;
      const auto special = settings_.is_special.find(piece);
      if (special != settings_.is_special.end() && !special->second) {
        result_.notes.push_back(absl::StrCat("the added token ", Printable(piece), " is not recognised in texts"));
      }
    }
    if (changed) {
      if (absl::Status status = Parse(); !status.ok()) return status;
    }
    return result_.config.kind == TokenizerKind::kSentencePieceVocab ? CountMissingPieces() : absl::OkStatus();
  }

  const std::string& folder_;
  const HfConfig& config_;
  Settings settings_;
  HfTokenizer result_;
  bool has_legacy_order_ = false;
  std::set<std::string> added_tags_;  // known by their ids alone
  std::optional<bool> normalizer_lower_case_, normalizer_strip_accents_, normalizer_split_cjk_;
  bool byte_level_prefix_ = false;
};

}  // namespace

absl::StatusOr<HfTokenizer> ReadHfTokenizer(const std::string& folder, const HfConfig& config, bool lower_case,
                                            std::optional<bool> legacy_source_order) {
  absl::StatusOr<Settings> settings = ReadSettings(folder);
  if (!settings.ok()) return settings.status();
  Reader reader(folder, config, *std::move(settings));
  if (absl::Status status = reader.Read(lower_case, legacy_source_order); !status.ok()) return status;
  return reader.Take();
}

}  // namespace koine::model_loader
