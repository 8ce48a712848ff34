// GPT-2's and RoBERTa's tokenizer: words, their bytes, merges of neighbours. By the reference implementations
// (openai/gpt-2 encoder.py; Hugging Face's pre-tokenizer ByteLevel and model BPE, whose order of merges this is).
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/tokenizer/kinds_internal.h"
#include "model_loader/tokenizer/text_internal.h"

namespace koine::model_loader {
namespace {

using nlohmann::json;

// Dictionaries write a byte as a character: printable Latin-1 as itself, the other 68 as U+0100 and following.
constexpr std::array<UChar32, 256> ByteCharacters() {
  std::array<UChar32, 256> characters = {};
  UChar32 next = 0x100;
  for (UChar32 byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    characters[static_cast<size_t>(byte)] = printable ? byte : next++;
  }
  return characters;
}
constexpr std::array<UChar32, 256> kByteCharacters = ByteCharacters();

// The bytes that a piece of the dictionary stands for. One that is not written in bytes (a token added later) stands
// for itself.
std::string BytesOf(const std::string& piece) {
  static constexpr std::array<int16_t, 0x144> kBytes = [] {
    std::array<int16_t, 0x144> bytes = {};
    for (int16_t& byte : bytes) byte = -1;
    for (size_t byte = 0; byte < 256; ++byte) {
      bytes[static_cast<size_t>(kByteCharacters[byte])] = static_cast<int16_t>(byte);
    }
    return bytes;
  }();
  std::string text;
  const auto length = static_cast<int32_t>(piece.size());  // at most 1,024
  for (int32_t i = 0; i < length;) {
    UChar32 c = 0;
    U8_NEXT(piece.data(), i, length, c);
    const int byte = c >= 0 && c < static_cast<UChar32>(kBytes.size()) ? kBytes[static_cast<size_t>(c)] : -1;
    if (byte < 0) return piece;
    text.push_back(static_cast<char>(byte));
  }
  return text;
}

enum class CharClass : uint8_t { kBlank, kLetter, kNumber, kOther };

// Of the character that begins at `at`; *end is behind it.
CharClass ClassAt(std::string_view text, size_t at, size_t* end) {
  auto i = static_cast<int32_t>(at);  // at most 4 MiB + 1
  UChar32 c = 0;
  U8_NEXT_OR_FFFD(text.data(), i, static_cast<int32_t>(text.size()), c);
  *end = static_cast<size_t>(i);
  if (u_isUWhiteSpace(c)) return CharClass::kBlank;
  const uint32_t category = U_GET_GC_MASK(c);
  if ((category & U_GC_L_MASK) != 0) return CharClass::kLetter;
  return (category & U_GC_N_MASK) != 0 ? CharClass::kNumber : CharClass::kOther;
}

// How long the first word of a text is, as by the expression
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// The last of several blanks belongs to the word behind them, or is one by itself. REQUIRES a text.
size_t FirstWord(std::string_view text) {
  for (const std::string_view contraction : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.substr(0, contraction.size()) == contraction) return contraction.size();
  }
  size_t end = 0;
  CharClass kind = ClassAt(text, 0, &end);
  if (text.front() == ' ' && end < text.size()) {
    size_t behind = 0;
    const CharClass following = ClassAt(text, end, &behind);
    if (following != CharClass::kBlank) {
      kind = following;
      end = behind;
    }
  }
  size_t last = 0;  // where the run's last character begins
  while (end < text.size()) {
    size_t behind = 0;
    if (ClassAt(text, end, &behind) != kind) {
      return kind == CharClass::kBlank && last > 0 ? last : end;
    }
    last = end;
    end = behind;
  }
  return end;
}

struct Merge {
  int32_t left, right, result;
};

class ByteBpeTokenizer : public DictionaryTokenizer {
 public:
  // `merges` by rank; of the same pair twice the last counts, as in the reference.
  ByteBpeTokenizer(const TokenizerConfig& config, Vocabulary vocabulary, const std::vector<Merge>& merges,
                   const KeepId& keep, int32_t unknown_id, std::string name)
      : DictionaryTokenizer(std::move(vocabulary), unknown_id, std::move(name)),
        add_prefix_space_(config.add_prefix_space),
        split_words_(config.split_words) {
    for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
      std::string piece;
      AppendUtf8(kByteCharacters[byte], &piece);
      const int32_t id = vocabulary_.Find(piece);
      byte_ids_[byte] = IsText(id) ? id : unknown_id_;
    }
    AddMerges(merges);
    if (keep != nullptr) Restrict(merges, keep);
  }

  absl::StatusOr<Encoded> Encode(std::string_view text) const override {
    if (absl::Status status = CheckTextSize(text); !status.ok()) return status;
    std::string prefixed;
    if (add_prefix_space_ && !text.empty() && text.front() != ' ') {
      prefixed.append(" ").append(text);
      text = prefixed;
    }
    Encoded encoded;
    Work work;
    while (!text.empty()) {
      const size_t end = split_words_ ? FirstWord(text) : text.size();
      AddWord(text.substr(0, end), work, &encoded.ids);
      text.remove_prefix(end);
    }
    encoded.unknown_pieces = std::count(encoded.ids.begin(), encoded.ids.end(), unknown_id_);
    return encoded;
  }

  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (absl::Status status = CheckId(id); !status.ok()) return status;
      if (IsText(id)) text.append(BytesOf(vocabulary_.piece(id)));
    }
    return ValidUtf8(std::move(text));
  }

  bool IsByte(int32_t id) const override {
    return id != unknown_id_ && std::find(byte_ids_.begin(), byte_ids_.end(), id) != byte_ids_.end();
  }

 private:
  static constexpr uint32_t kNoMerge = std::numeric_limits<uint32_t>::max();

  // A piece of the word in the making. Absorbed ones stay where they are and are linked by none.
  struct Symbol {
    int32_t id, previous, next;  // -1: none
    uint32_t rank;               // of the merge with the next one
  };
  struct Work {
    std::vector<Symbol> symbols;
    std::vector<uint64_t> queue;  // rank << 32 | place: the least first, a binary heap
  };

  bool IsText(int32_t id) const { return id >= 0 && id != unknown_id_ && !vocabulary_.is_marker(id); }

  // Merges that make or use a marker or the unknown piece never apply.
  bool Applies(const Merge& merge) const { return IsText(merge.left) && IsText(merge.right) && IsText(merge.result); }

  void AddMerges(const std::vector<Merge>& merges) {
    results_.reserve(merges.size());
    for (const Merge& merge : merges) results_.push_back(merge.result);
    std::vector<uint32_t> order;
    for (uint32_t rank = 0; rank < merges.size(); ++rank) {
      if (Applies(merges[rank])) order.push_back(rank);
    }
    std::sort(order.begin(), order.end(), [&merges](uint32_t a, uint32_t b) {
      return std::tie(merges[a].left, merges[a].right, a) < std::tie(merges[b].left, merges[b].right, b);
    });
    first_.assign(static_cast<size_t>(vocabulary_.size()) + 1, 0);
    for (const uint32_t rank : order) {
      const Merge& merge = merges[rank];
      auto& count = first_[static_cast<size_t>(merge.left) + 1];
      if (count > 0 && pairs_.back().first == merge.right) {
        pairs_.back().second = rank;
        continue;
      }
      ++count;
      pairs_.emplace_back(merge.right, rank);
    }
    for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
  }

  // Fills kept_ and parts_.
  void Restrict(const std::vector<Merge>& merges, const KeepId& keep) {
    for (int32_t id = 0; id < vocabulary_.size(); ++id) kept_.push_back(keep(id));
    parts_.assign(kept_.size(), {-1, -1});
    for (const int32_t id : byte_ids_) kept_[static_cast<size_t>(id)] = true;
    // Parts are shorter than what they make: by length, all that can become of bytes is found in one pass.
    std::vector<std::pair<size_t, uint32_t>> order;
    for (uint32_t rank = 0; rank < merges.size(); ++rank) {
      if (Applies(merges[rank])) order.emplace_back(vocabulary_.piece(merges[rank].result).size(), rank);
    }
    std::sort(order.begin(), order.end());
    const auto made = [this](int32_t id) {
      return parts_[static_cast<size_t>(id)].first >= 0 ||
             std::find(byte_ids_.begin(), byte_ids_.end(), id) != byte_ids_.end();
    };
    for (const auto& [length, rank] : order) {
      const Merge& merge = merges[rank];
      auto& parts = parts_[static_cast<size_t>(merge.result)];
      if (parts.first < 0 && made(merge.left) && made(merge.right)) parts = {merge.left, merge.right};
    }
  }

  // Looks up the merge of a symbol with its neighbour and queues it.
  void Consider(int32_t place, Work& work) const {
    Symbol& symbol = work.symbols[static_cast<size_t>(place)];
    symbol.rank = kNoMerge;
    if (symbol.next < 0) return;
    const auto left = static_cast<size_t>(symbol.id);
    const int32_t right = work.symbols[static_cast<size_t>(symbol.next)].id;
    const auto end = pairs_.begin() + first_[left + 1];
    const auto found = std::lower_bound(pairs_.begin() + first_[left], end, std::pair(right, uint32_t{0}));
    if (found == end || found->first != right) return;
    symbol.rank = found->second;
    work.queue.push_back(uint64_t{symbol.rank} << 32 | static_cast<uint32_t>(place));
  }

  // Of all neighbours that can merge, those with the lowest rank, of these the leftmost; until none can.
  void AddWord(std::string_view word, Work& work, std::vector<int32_t>* ids) const {
    const auto size = static_cast<int32_t>(word.size());
    work.symbols.clear();
    work.queue.clear();
    for (int32_t i = 0; i < size; ++i) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(word[static_cast<size_t>(i)])];
      work.symbols.push_back({id, i - 1, i + 1 < size ? i + 1 : -1, kNoMerge});
    }
    for (int32_t i = 0; i < size; ++i) Consider(i, work);
    std::make_heap(work.queue.begin(), work.queue.end(), std::greater<>());
    const auto consider = [&](int32_t place) {
      const size_t queued = work.queue.size();
      Consider(place, work);
      if (work.queue.size() > queued) std::push_heap(work.queue.begin(), work.queue.end(), std::greater<>());
    };
    while (!work.queue.empty()) {
      std::pop_heap(work.queue.begin(), work.queue.end(), std::greater<>());
      const auto rank = static_cast<uint32_t>(work.queue.back() >> 32);
      const auto place = static_cast<int32_t>(work.queue.back() & 0xffffffff);
      work.queue.pop_back();
      Symbol& symbol = work.symbols[static_cast<size_t>(place)];
      if (symbol.rank != rank) continue;  // one of the two has merged since: pairs only grow, none comes again
      Symbol& absorbed = work.symbols[static_cast<size_t>(symbol.next)];
      symbol.id = results_[rank];
      symbol.next = absorbed.next;
      absorbed.rank = kNoMerge;
      if (symbol.next >= 0) work.symbols[static_cast<size_t>(symbol.next)].previous = place;
      consider(place);
      if (symbol.previous >= 0) consider(symbol.previous);
    }
    for (int32_t place = 0; place >= 0; place = work.symbols[static_cast<size_t>(place)].next) {
      AddPiece(work.symbols[static_cast<size_t>(place)].id, ids);
    }
  }

  // A piece outside the slice is taken apart into what it was merged from, down to bytes.
  void AddPiece(int32_t id, std::vector<int32_t>* ids) const {
    if (kept_.empty()) return ids->push_back(id);
    std::vector<int32_t> rest = {id};
    while (!rest.empty()) {
      const auto index = static_cast<size_t>(rest.back());
      rest.pop_back();
      if (kept_[index]) {
        ids->push_back(static_cast<int32_t>(index));
      } else {
        rest.push_back(parts_[index].second);
        rest.push_back(parts_[index].first);
      }
    }
  }

  const bool add_prefix_space_, split_words_;
  std::array<int32_t, 256> byte_ids_ = {};           // unknown_id_ where no piece stands for the byte
  std::vector<int32_t> results_;                     // by rank
  std::vector<uint32_t> first_;                      // by left id: where its pairs begin; one more behind the last
  std::vector<std::pair<int32_t, uint32_t>> pairs_;  // {right id, rank}, sorted within each left id
  std::vector<bool> kept_;                           // by id; empty: all
  std::vector<std::pair<int32_t, int32_t>> parts_;   // by id, where kept_ is not empty; {-1, -1}: none
};

// A merge by the texts of its parts.
absl::Status AddMerge(const Vocabulary& vocabulary, std::string_view left, std::string_view right,
                      std::vector<Merge>* merges) {
  const std::string result = std::string(left).append(right);
  for (const std::string_view piece : {left, right, std::string_view(result)}) {
    if (vocabulary.Find(piece) < 0) {
      return absl::InvalidArgumentError(absl::StrCat("\"", Printable(piece), "\" is no piece of the vocabulary"));
    }
  }
  if (merges->size() == static_cast<size_t>(kMaxTokenIds)) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxTokenIds, " merges"));
  }
  merges->push_back({vocabulary.Find(left), vocabulary.Find(right), vocabulary.Find(result)});
  return absl::OkStatus();
}

// "a b", a line of merges.txt or a string of tokenizer.json.
absl::Status AddMergeLine(const Vocabulary& vocabulary, std::string_view line, std::vector<Merge>* merges) {
  const size_t blank = line.find(' ');
  if (blank == 0 || blank >= line.size() - 1 || line.find(' ', blank + 1) != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("\"", Printable(line), "\" is not two pieces with a blank between"));
  }
  return AddMerge(vocabulary, line.substr(0, blank), line.substr(blank + 1), merges);
}

// merges.txt. Some readers take the first line for a header whatever it says, and the last one for empty: only files
// that all of them read alike are read.
absl::Status ReadMergeLines(std::string_view text, const Vocabulary& vocabulary, std::vector<Merge>* merges) {
  if (text.substr(0, 8) != "#version") return absl::InvalidArgumentError("the first line must begin with #version");
  if (text.back() != '\n') return absl::InvalidArgumentError("the last line has no end: the file is cut off");
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (number == 1 || line.empty()) continue;
    if (absl::Status status = AddMergeLine(vocabulary, line, merges); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadMergeList(const json& list, const Vocabulary& vocabulary, std::vector<Merge>* merges) {
  if (!list.is_array()) return absl::InvalidArgumentError("model.merges must be a list");
  for (const json& merge : list) {
    absl::Status status;
    if (merge.is_string()) {
      status = AddMergeLine(vocabulary, merge.get_ref<const std::string&>(), merges);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      status =
          AddMerge(vocabulary, merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(), merges);
    } else {
      status = absl::InvalidArgumentError(absl::StrCat(Show(merge), " is neither \"A B\" nor [\"A\", \"B\"]"));
    }
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("model.merges: ", status.message()));
  }
  return absl::OkStatus();
}

// Refuses a tokenizer.json that does anything but what this kind does, or what the configuration does not say.
absl::Status CheckTokenizerJson(const json& root, const TokenizerConfig& config) {
  const auto value = [](const json& object, const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found == object.end() ? json() : *found;
  };
  if (const json normalizer = value(root, "normalizer"); !normalizer.is_null()) {
    return absl::InvalidArgumentError(
        absl::StrCat("normalizer: ", Show(value(normalizer, "type")), " is not supported with a BPE model"));
  }
  const json words = value(root, "pre_tokenizer");
  if (value(words, "type") != "ByteLevel") {
    return absl::InvalidArgumentError(absl::StrCat("pre_tokenizer: ", Show(value(words, "type")),
                                                   " is not supported with a BPE model; ByteLevel is"));
  }
  if (const json regex = value(words, "use_regex"); !regex.is_null() && regex != config.split_words) {
    return absl::InvalidArgumentError(absl::StrCat("pre_tokenizer.use_regex is ", Show(regex),
                                                   ", but the configuration says ", Show(config.split_words)));
  }
  const json& model = root.at("model");
  const std::pair<const char*, std::vector<json>> allowed[] = {{"type", {"BPE"}},
                                                               {"dropout", {0.0}},
                                                               {"unk_token", {config.unk_piece}},
                                                               {"continuing_subword_prefix", {""}},
                                                               {"end_of_word_suffix", {""}},
                                                               {"byte_fallback", {false}},
                                                               {"ignore_merges", {false}}};
  for (const auto& [key, values] : allowed) {
    const json given = value(model, key);
    if (given.is_null() || std::find(values.begin(), values.end(), given) != values.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("model.", key, " is ", Show(given), "; only ", Show(values.front()), " is supported"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeByteBpeTokenizer(const TokenizerConfig& config,
                                                                const std::vector<std::string>& names,
                                                                const std::vector<std::string>& contents,
                                                                const KeepId& keep) {
  const auto fault = [](const std::string& name, const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", status.message()));
  };
  const std::string& name = names.front();
  const bool whole = names.size() == 1;
  const absl::StatusOr<json> root = ParseStrictJson(contents.front());
  if (!root.ok()) return fault(name, root.status());
  if (whole) {
    if (!root->is_object() || !root->contains("model") || !root->at("model").is_object()) {
      return fault(name, absl::InvalidArgumentError("model is missing: not a tokenizer.json"));
    }
    if (absl::Status status = CheckTokenizerJson(*root, config); !status.ok()) return fault(name, status);
    for (const char* key : {"vocab", "merges"}) {
      if (root->at("model").contains(key)) continue;
      return fault(name, absl::InvalidArgumentError(absl::StrCat("model.", key, " is missing")));
    }
  }
  absl::StatusOr<Vocabulary> vocabulary = Vocabulary::FromJson(whole ? root->at("model").at("vocab") : *root);
  if (!vocabulary.ok()) return fault(name, vocabulary.status());
  if (absl::Status status = vocabulary->AddMarkers(config.markers); !status.ok()) return fault(name, status);
  const int32_t unknown = vocabulary->Find(config.unk_piece);
  if (unknown < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the unknown piece \"", Printable(config.unk_piece), "\" has no id"));
  }
  std::vector<Merge> merges;
  const absl::Status status = whole ? ReadMergeList(root->at("model").at("merges"), *vocabulary, &merges)
                                    : ReadMergeLines(contents.back(), *vocabulary, &merges);
  if (!status.ok()) return fault(names.back(), status);
  return std::make_unique<ByteBpeTokenizer>(config, *std::move(vocabulary), merges, keep, unknown, name);
}

}  // namespace koine::model_loader
