#include "model_loader/tokenizer/sentencepiece_proto.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model_loader/safetensors/looks_like.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

// Largest published models: 250,000 pieces, character maps of 0.3 MB, files of 5 MB.
constexpr size_t kMaxPieces = size_t{1} << 22;
constexpr size_t kMaxCharsMapBytes = size_t{8} << 20;
// Bounds the recursion with which the BPE encoder takes unused pieces apart: one level a byte at most.
constexpr size_t kMaxPieceBytes = 1024;
// What one matched rule of the character map may write; the longest of NFKC (U+FDFA) is 33 bytes. Bounds the blow-up.
constexpr size_t kMaxReplacementBytes = 256;
constexpr size_t kMaxRuleBytes = 256;  // longest left side of a rule
// Arrays of fixed size in the library: Normalizer::kMaxTrieResultsSize, kResultSize of PrefixMatcher::PrefixMatch.
constexpr int kMaxNestedRules = 32;
constexpr size_t kMaxNestedSymbols = 64;

enum PieceType : uint64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
enum ModelType : uint64_t { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

struct Piece {
  std::string_view text;
  float score = 0;
  uint64_t type = kNormal;
};

struct Normaliser {
  bool present = false;
  std::string_view charsmap;
  std::optional<bool> add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces;
};

struct Sample {
  std::string_view input, expected;
};

struct Model {
  std::vector<Piece> pieces;
  uint64_t type = kUnigram;
  bool byte_fallback = false, whitespace_suffix = false;
  Normaliser normaliser, denormaliser;
  std::vector<Sample> samples;
};

// One field of protobuf's wire format (https://protobuf.dev/programming-guides/encoding/).
struct Field {
  uint32_t number = 0;
  uint32_t wire = 0;
  uint64_t integer = 0;    // wire types 0 (varint), 1 (64 bits), 5 (32 bits)
  std::string_view bytes;  // wire type 2
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  bool done() const { return rest_.empty(); }

  // False if the bytes are no field. Groups, which no SentencePiece model has, are none.
  bool Next(Field* field) {
    uint64_t tag = 0;
    if (!Varint(&tag) || tag > UINT32_MAX) return false;
    field->number = static_cast<uint32_t>(tag >> 3);
    field->wire = static_cast<uint32_t>(tag & 7);
    if (field->number == 0) return false;
    switch (field->wire) {
      case 0:
        return Varint(&field->integer);
      case 1:
        return Fixed(8, &field->integer);
      case 5:
        return Fixed(4, &field->integer);
      case 2: {
        uint64_t length = 0;
        if (!Varint(&length) || length > rest_.size()) return false;
        field->bytes = rest_.substr(0, length);
        rest_.remove_prefix(length);
        return true;
      }
      default:
        return false;
    }
  }

 private:
  bool Varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return false;
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }
  bool Fixed(size_t bytes, uint64_t* value) {
    if (rest_.size() < bytes) return false;
    *value = 0;
    for (size_t i = 0; i < bytes; ++i) *value |= static_cast<uint64_t>(static_cast<uint8_t>(rest_[i])) << (8 * i);
    rest_.remove_prefix(bytes);
    return true;
  }

  std::string_view rest_;
};

class Writer {
 public:
  void Integer(uint32_t number, uint64_t value) {
    Varint(number << 3);
    Varint(value);
  }
  void Float(uint32_t number, float value) {
    Varint(number << 3 | 5);
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    for (int i = 0; i < 4; ++i) text_.push_back(static_cast<char>(bits >> (8 * i)));
  }
  void Bytes(uint32_t number, std::string_view value) {
    Varint(number << 3 | 2);
    Varint(value.size());
    text_.append(value);
  }
  const std::string& text() const { return text_; }
  std::string Take() { return std::move(text_); }

 private:
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_.push_back(static_cast<char>(value | 0x80));
    text_.push_back(static_cast<char>(value));
  }
  std::string text_;
};

absl::Status Broken(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("not a SentencePiece model: ", what, " is broken"));
}

absl::Status ReadPiece(std::string_view bytes, Piece* piece) {
  for (Reader reader(bytes); !reader.done();) {
    Field field;
    if (!reader.Next(&field)) return Broken("a piece");
    if (field.number == 1 && field.wire == 2) piece->text = field.bytes;
    if (field.number == 2 && field.wire == 5) {
      const auto bits = static_cast<uint32_t>(field.integer);
      std::memcpy(&piece->score, &bits, sizeof(bits));
    }
    if (field.number == 3 && field.wire == 0) piece->type = field.integer;
  }
  return absl::OkStatus();
}

absl::Status ReadTrainer(std::string_view bytes, Model* model) {
  for (Reader reader(bytes); !reader.done();) {
    Field field;
    if (!reader.Next(&field)) return Broken("trainer_spec");
    if (field.wire != 0) continue;
    if (field.number == 3) model->type = field.integer;
    if (field.number == 24) model->whitespace_suffix = field.integer != 0;
    if (field.number == 35) model->byte_fallback = field.integer != 0;
  }
  return absl::OkStatus();
}

absl::Status ReadNormaliser(std::string_view bytes, Normaliser* normaliser) {
  normaliser->present = true;
  for (Reader reader(bytes); !reader.done();) {
    Field field;
    if (!reader.Next(&field)) return Broken("a normalizer_spec");
    if (field.number == 2 && field.wire == 2) normaliser->charsmap = field.bytes;
    if (field.wire != 0) continue;
    if (field.number == 3) normaliser->add_dummy_prefix = field.integer != 0;
    if (field.number == 4) normaliser->remove_extra_whitespaces = field.integer != 0;
    if (field.number == 5) normaliser->escape_whitespaces = field.integer != 0;
  }
  return absl::OkStatus();
}

absl::Status ReadSamples(std::string_view bytes, Model* model) {
  for (Reader reader(bytes); !reader.done();) {
    Field field;
    if (!reader.Next(&field)) return Broken("self_test_data");
    if (field.number != 1 || field.wire != 2) continue;
    Sample sample;
    for (Reader inner(field.bytes); !inner.done();) {
      Field part;
      if (!inner.Next(&part)) return Broken("a sample of self_test_data");
      if (part.number == 1 && part.wire == 2) sample.input = part.bytes;
      if (part.number == 2 && part.wire == 2) sample.expected = part.bytes;
    }
    model->samples.push_back(sample);
  }
  return absl::OkStatus();
}

absl::Status ReadModel(std::string_view bytes, Model* model) {
  for (Reader reader(bytes); !reader.done();) {
    Field field;
    if (!reader.Next(&field)) {
      const std::string guess = LooksLike(bytes);
      if (guess.empty()) return Broken(absl::StrCat("the field after piece ", model->pieces.size()));
      return absl::InvalidArgumentError(absl::StrCat("not a SentencePiece model; it looks like ", guess));
    }
    if (field.wire != 2) continue;
    absl::Status status;
    if (field.number == 1) {
      if (model->pieces.size() == kMaxPieces) {
        return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxPieces, " pieces"));
      }
      model->pieces.emplace_back();
      status = ReadPiece(field.bytes, &model->pieces.back());
    } else if (field.number == 2) {
      status = ReadTrainer(field.bytes, model);
    } else if (field.number == 3) {
      status = ReadNormaliser(field.bytes, &model->normaliser);
    } else if (field.number == 4) {
      status = ReadSamples(field.bytes, model);
    } else if (field.number == 5) {
      status = ReadNormaliser(field.bytes, &model->denormaliser);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// The normaliser's rules: a double array (darts-clone) whose values are offsets into NUL-ended replacements.
//
//   u32 trie bytes | trie: u32 units | replacements
//
//   unit:  bits 0-7 label | 8 has a value | 9 shift offset by 8 | 10-31 offset        (a node)
//          bits 0-30 value | 31 set                                                  (a value, at its node's base)
//   base of node p = p ^ offset(p); child by byte c at base ^ c, if its label is c.
//
// Subtrees may be shared (the builder makes a DAG), but no path may return to itself, leave the array, be longer than
// kMaxRuleBytes or pass more than kMaxNestedRules values.
class CharsMap {
 public:
  static absl::Status Check(std::string_view blob) {
    if (blob.empty()) return absl::OkStatus();
    CharsMap map;
    const absl::Status status = map.Read(blob);
    if (!status.ok()) return status;
    map.states_.resize(map.units_);
    return map.Visit(0, 0) ? absl::OkStatus() : Fault(map.fault_);
  }

 private:
  static absl::Status Fault(absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("the normaliser's character map ", why));
  }

  absl::Status Read(std::string_view blob) {
    if (blob.size() > kMaxCharsMapBytes) {
      return Fault(absl::StrCat("has ", blob.size(), " bytes; at most ", kMaxCharsMapBytes, " are allowed"));
    }
    if (blob.size() < 4) return Fault("is cut off");
    uint32_t trie_bytes = 0;
    std::memcpy(&trie_bytes, blob.data(), 4);
    blob.remove_prefix(4);
    // One byte at least must follow: the last replacement's NUL.
    if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes >= blob.size()) return Fault("has a wrong trie size");
    trie_ = blob.substr(0, trie_bytes);
    units_ = trie_bytes / 4;
    replacements_ = blob.substr(trie_bytes);
    if (replacements_.back() != '\0') return Fault("does not end with NUL");
    size_t start = 0;
    for (size_t end = replacements_.find('\0'); end != std::string_view::npos;
         start = end + 1, end = replacements_.find('\0', start)) {
      if (end - start > kMaxReplacementBytes) {
        return Fault(absl::StrCat("has a replacement of more than ", kMaxReplacementBytes, " bytes"));
      }
    }
    return absl::OkStatus();
  }

  uint32_t Unit(size_t index) const {
    uint32_t unit = 0;
    std::memcpy(&unit, trie_.data() + 4 * index, 4);
    return unit;
  }

  bool Fail(const char* why) {
    fault_ = why;
    return false;
  }

  // Depth-first, each node once; sets states_[node] to 1 + the most values on any path below it.
  bool Visit(size_t node, size_t depth) {
    constexpr uint8_t kOpen = 255;
    if (depth > kMaxRuleBytes) return Fail("has rules that are too long, or that never end");
    states_[node] = kOpen;
    const uint32_t unit = Unit(node);
    const size_t base = node ^ (static_cast<size_t>(unit >> 10) << ((unit & (1U << 9)) >> 6));
    if ((base | 0xff) >= units_) return Fail("points outside itself");
    int most = 0;
    for (size_t label = 0; label < 256; ++label) {
      const size_t child = base ^ label;
      const uint32_t child_unit = Unit(child);
      if ((child_unit & 0x800000ffU) != label) continue;
      if (states_[child] == kOpen) return Fail("runs in a circle");
      if (states_[child] == 0 && !Visit(child, depth + 1)) return false;
      most = std::max(most, states_[child] - 1 + ((child_unit >> 8) & 1 ? 1 : 0));
    }
    if (((unit >> 8) & 1) != 0 && (Unit(base) & 0x7fffffffU) >= replacements_.size()) {
      return Fail("points outside its replacements");
    }
    if (most > kMaxNestedRules) return Fail("nests too many rules");
    states_[node] = static_cast<uint8_t>(most + 1);
    return true;
  }

  std::string_view trie_, replacements_;
  size_t units_ = 0;
  std::vector<uint8_t> states_;  // 0: not seen
  const char* fault_ = "";
};

bool IsOneCharacter(std::string_view text) {
  // Bytes of a character by its first byte, as the library counts them.
  static constexpr size_t kBytes[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};
  return text.size() == kBytes[static_cast<uint8_t>(text.front()) >> 4];
}

absl::Status CheckPieces(Model& model) {
  const auto fault = [](size_t id, auto&&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("piece ", id, " ", parts...));
  };
  if (model.pieces.empty()) return absl::InvalidArgumentError("not a SentencePiece model: it has no pieces");
  std::unordered_set<std::string_view> seen;
  seen.reserve(model.pieces.size());
  std::vector<std::string_view> user_defined;
  bool has_unknown = false, has_text = false;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    Piece& piece = model.pieces[id];
    // Values this version of the format does not know mean the default (proto2).
    if (piece.type < kNormal || piece.type > kByte) piece.type = kNormal;
    if (piece.text.empty()) return fault(id, "is empty");
    if (piece.text.size() > kMaxPieceBytes) return fault(id, "has more than ", kMaxPieceBytes, " bytes");
    // The library builds its tries from C strings.
    if (piece.text.find('\0') != std::string_view::npos) return fault(id, "holds a NUL");
    if (!std::isfinite(piece.score)) return fault(id, "has a score that is not finite");
    if (!seen.insert(piece.text).second) return fault(id, "(\"", Printable(piece.text), "\") occurs twice");
    switch (piece.type) {
      case kUnknown:
        if (has_unknown) return fault(id, "is a second unknown piece");
        has_unknown = true;
        break;
      case kControl:
        // Such a piece would be found in ordinary text by BPE and character models.
        if (model.type != kUnigram && IsOneCharacter(piece.text))
          return fault(id, "is a control piece of one character");
        break;
      case kUserDefined:
        user_defined.push_back(piece.text);
        has_text = true;
        break;
      case kByte:
        if (!model.byte_fallback) return fault(id, "is a byte piece, but byte_fallback is off");
        break;
      default:
        has_text = true;
        break;
    }
  }
  if (!has_unknown) return absl::InvalidArgumentError("it has no unknown piece");
  if (!has_text) return absl::InvalidArgumentError("it has no pieces of text");
  std::sort(user_defined.begin(), user_defined.end());
  std::vector<std::string_view> prefixes;
  for (const std::string_view symbol : user_defined) {
    while (!prefixes.empty() && !symbol.starts_with(prefixes.back())) prefixes.pop_back();
    prefixes.push_back(symbol);
    if (prefixes.size() > kMaxNestedSymbols) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", kMaxNestedSymbols, " user-defined pieces are prefixes of one another"));
    }
  }
  return absl::OkStatus();
}

std::string Rewrite(const Normaliser& normaliser) {
  Writer writer;
  if (!normaliser.charsmap.empty()) writer.Bytes(2, normaliser.charsmap);
  if (normaliser.add_dummy_prefix) writer.Integer(3, *normaliser.add_dummy_prefix ? 1 : 0);
  if (normaliser.remove_extra_whitespaces) writer.Integer(4, *normaliser.remove_extra_whitespaces ? 1 : 0);
  if (normaliser.escape_whitespaces) writer.Integer(5, *normaliser.escape_whitespaces ? 1 : 0);
  return writer.Take();
}

std::string Rewrite(const Model& model) {
  Writer writer;
  for (const Piece& piece : model.pieces) {
    Writer inner;
    inner.Bytes(1, piece.text);
    inner.Float(2, piece.score);
    inner.Integer(3, piece.type);
    writer.Bytes(1, inner.text());
  }
  Writer trainer;
  trainer.Integer(3, model.type);
  trainer.Integer(24, model.whitespace_suffix ? 1 : 0);
  trainer.Integer(35, model.byte_fallback ? 1 : 0);
  writer.Bytes(2, trainer.text());
  writer.Bytes(3, Rewrite(model.normaliser));
  if (!model.samples.empty()) {
    Writer samples;
    for (const Sample& sample : model.samples) {
      Writer inner;
      inner.Bytes(1, sample.input);
      inner.Bytes(2, sample.expected);
      samples.Bytes(1, inner.text());
    }
    writer.Bytes(4, samples.text());
  }
  if (model.denormaliser.present) writer.Bytes(5, Rewrite(model.denormaliser));
  return writer.Take();
}

}  // namespace

absl::StatusOr<std::string> ValidateSentencePiece(std::string_view bytes) {
  return ValidateSentencePiece(bytes, nullptr);
}

absl::StatusOr<std::string> ValidateSentencePiece(std::string_view bytes, const KeepPiece& keep) {
  if (bytes.empty()) return absl::InvalidArgumentError("not a SentencePiece model: an empty file (0 bytes)");
  Model model;
  if (absl::Status status = ReadModel(bytes, &model); !status.ok()) return status;
  if (model.type < kUnigram || model.type > kChar) model.type = kUnigram;
  if (model.type == kWord) {
    return absl::InvalidArgumentError(
        "a SentencePiece model of type WORD, which is not supported (UNIGRAM, BPE, CHAR)");
  }
  if (absl::Status status = CheckPieces(model); !status.ok()) return status;
  if (absl::Status status = CharsMap::Check(model.normaliser.charsmap); !status.ok()) return status;
  if (absl::Status status = CharsMap::Check(model.denormaliser.charsmap); !status.ok()) return status;
  if (keep != nullptr) {
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      Piece& piece = model.pieces[id];
      if (piece.type == kNormal && !IsOneCharacter(piece.text) && !keep(static_cast<int32_t>(id), piece.text)) {
        piece.type = kUnused;
      }
    }
  }
  return Rewrite(model);
}

}  // namespace koine::model_loader
