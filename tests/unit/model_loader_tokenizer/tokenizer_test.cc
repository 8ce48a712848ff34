#include "model_loader/tokenizer/tokenizer.h"

#include <google/protobuf/struct.pb.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {
namespace {

using testing::HasSubstr;

const std::string& DemoModel() {
  static const std::string& path = *new std::string(KOINE_SOURCE_DIR "/deploy/demo_model");
  return path;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string DemoPath(const std::string& code) { return DemoModel() + "/languages/" + code + "/tokenizer.model"; }

std::unique_ptr<Tokenizer> Demo(const std::string& code) {
  auto tokenizer = LoadSentencePiece(DemoPath(code));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text) {
  const auto encoded = tokenizer.Encode(text);
  EXPECT_TRUE(encoded.ok()) << encoded.status();
  return encoded.ok() ? encoded->ids : std::vector<int32_t>{};
}

std::string Text(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  const auto text = tokenizer.Decode(ids);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? *text : "";
}

// A writer of the wire format that knows nothing of the code under test.
class Proto {
 public:
  Proto& Varint(int field, uint64_t value) {
    Raw(static_cast<uint64_t>(field) << 3);
    Raw(value);
    return *this;
  }
  Proto& Float(int field, float value) {
    Raw(static_cast<uint64_t>(field) << 3 | 5);
    char bytes[4];
    std::memcpy(bytes, &value, 4);
    text_.append(bytes, 4);
    return *this;
  }
  Proto& Bytes(int field, const std::string& value) {
    Raw(static_cast<uint64_t>(field) << 3 | 2);
    Raw(value.size());
    text_ += value;
    return *this;
  }
  const std::string& str() const { return text_; }

 private:
  void Raw(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_.push_back(static_cast<char>((value & 0x7f) | 0x80));
    text_.push_back(static_cast<char>(value));
  }
  std::string text_;
};

enum Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
enum Kind { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

struct ToyPiece {
  std::string text;
  float score;
  Type type;
};

struct Toy {
  std::vector<ToyPiece> pieces = {
      {"<pad>", 0, kControl},        {"<s>", 0, kControl}, {"</s>", 0, kControl}, {"<unk>", 0, kUnknown},
      {"\xe2\x96\x81", -3, kNormal}, {"a", -2, kNormal},   {"b", -2, kNormal},    {"ab", -1, kNormal}};
  Kind kind = kUnigram;
  bool byte_fallback = false;
  std::string charsmap;

  void AddBytes() {
    byte_fallback = true;
    for (int i = 0; i < 256; ++i) {
      char name[8];
      std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(i));
      pieces.push_back({name, 0, kByte});
    }
  }
  std::string Serialise() const {
    Proto model;
    for (const ToyPiece& piece : pieces) {
      Proto inner;
      inner.Bytes(1, piece.text).Float(2, piece.score).Varint(3, piece.type);
      model.Bytes(1, inner.str());
    }
    Proto trainer;
    trainer.Varint(3, kind).Varint(35, byte_fallback ? 1 : 0);
    model.Bytes(2, trainer.str());
    Proto normaliser;
    if (!charsmap.empty()) normaliser.Bytes(2, charsmap);
    return model.Bytes(3, normaliser.str()).str();
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> Parse() const { return ParseSentencePiece(Serialise(), "toy"); }
  std::string Fault() const { return std::string(Parse().status().message()); }
};

std::string Little(uint32_t value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return bytes;
}

std::string CharsMap(const std::vector<uint32_t>& units, const std::string& replacements) {
  std::string trie;
  for (const uint32_t unit : units) trie += Little(unit);
  return Little(static_cast<uint32_t>(trie.size())) + trie + replacements;
}

// No label matches it, like the fillers that darts-clone leaves.
constexpr uint32_t kFiller = 1U << 31;

// A map with one rule, "x" -> "ab": the root's base is 256, "x" at 256 ^ 'x', its value at that node's base, 512.
std::vector<uint32_t> OneRule() {
  std::vector<uint32_t> units(768, kFiller);
  units[0] = 256U << 10;
  const uint32_t node = 256U ^ 'x';
  units[node] = ((node ^ 512U) << 10) | (1U << 8) | 'x';
  units[512] = (1U << 31) | 0U;
  return units;
}

TEST(SentencePiece, GivesTheIdsThatTheReferenceStored) {
  const nlohmann::json cases = nlohmann::json::parse(ReadFile(KOINE_SOURCE_DIR "/tests/data/demo.json")).at("cases");
  ASSERT_GE(cases.size(), 56U);
  for (const nlohmann::json& one : cases) {
    const std::string code = one.at("source").get<std::string>();
    const std::unique_ptr<Tokenizer> tokenizer = Demo(code);
    ASSERT_NE(tokenizer, nullptr);
    std::vector<int32_t> ids = Ids(*tokenizer, one.at("text").get<std::string>());
    ids.push_back(tokenizer->PieceToId("</s>"));
    EXPECT_EQ(ids, one.at("source_ids").get<std::vector<int32_t>>()) << one.at("text");
  }
}

TEST(SentencePiece, LivesBesideTheNewerProtobufOfTheProcess) {
  google::protobuf::Struct message;
  (*message.mutable_fields())["before"].set_string_value("x");
  const std::unique_ptr<Tokenizer> tokenizer = Demo("en");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_FALSE(Ids(*tokenizer, "Open the file").empty());
  (*message.mutable_fields())["after"].mutable_list_value()->add_values()->set_number_value(1);
  google::protobuf::Struct copy;
  ASSERT_TRUE(copy.ParseFromString(message.SerializeAsString()));
  EXPECT_EQ(copy.fields().at("before").string_value(), "x");
  EXPECT_EQ(copy.fields().at("after").list_value().values(0).number_value(), 1);
}

TEST(SentencePiece, DecodingUndoesEncoding) {
  for (const char* code : {"en", "de", "fr", "es", "it", "pt", "ru", "zh"}) {
    const std::unique_ptr<Tokenizer> tokenizer = Demo(code);
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(tokenizer->size(), 8000);
    EXPECT_EQ(Text(*tokenizer, Ids(*tokenizer, "file 1 2 3")), "file 1 2 3") << code;
  }
  EXPECT_EQ(Text(*Demo("ru"), Ids(*Demo("ru"), "Открыть файл")), "Открыть файл");
}

TEST(SentencePiece, TakesSpecialTokensInTheTextAsText) {
  const std::unique_ptr<Tokenizer> tokenizer = Demo("en");
  const int32_t end = tokenizer->PieceToId("</s>");
  ASSERT_GE(end, 0);
  for (const char* text : {"</s>", "a </s> b", "<pad>", "<s>", "<unk>"}) {
    const std::vector<int32_t> ids = Ids(*tokenizer, text);
    EXPECT_FALSE(ids.empty());
    for (const char* special : {"</s>", "<pad>", "<s>"}) {
      EXPECT_THAT(ids, testing::Not(testing::Contains(tokenizer->PieceToId(special)))) << text;
    }
  }
  for (const Kind kind : {kUnigram, kBpe, kChar}) {
    Toy toy;
    toy.kind = kind;
    for (const char* one : {"<", "/", "s", ">"}) toy.pieces.push_back({one, -4, kNormal});
    const auto parsed = toy.Parse();
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(Text(**parsed, Ids(**parsed, "a</s>b")), "a</s>b") << kind;
  }
}

TEST(SentencePiece, ReadsTextPastNulBytes) {
  const std::unique_ptr<Tokenizer> tokenizer = Demo("en");
  const std::vector<int32_t> left = Ids(*tokenizer, "left");
  const std::vector<int32_t> both = Ids(*tokenizer, std::string_view("left\0right", 10));
  EXPECT_GT(both.size(), left.size());
  EXPECT_THAT(Text(*tokenizer, both), HasSubstr("right"));
  Toy toy;
  toy.AddBytes();
  const auto bytes = toy.Parse();
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(Text(**bytes, Ids(**bytes, std::string_view("a\0b", 3))), std::string("a\0b", 3));
}

TEST(SentencePiece, CountsUnknownPieces) {
  const auto toy = Toy().Parse();
  ASSERT_TRUE(toy.ok()) << toy.status();
  const auto encoded = (*toy)->Encode("ab q ab");
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  EXPECT_EQ(encoded->unknown_pieces, 1);
  EXPECT_THAT(encoded->ids, testing::Contains((*toy)->unknown_id()).Times(1));
  EXPECT_EQ((*toy)->Encode("ab ab")->unknown_pieces, 0);
}

TEST(SentencePiece, GivesNoTextForControlAndUnknownIds) {
  const auto toy = Toy().Parse();
  ASSERT_TRUE(toy.ok()) << toy.status();
  EXPECT_EQ(Text(**toy, {1, 7, 3, 7, 2, 0}), "abab");
  EXPECT_EQ(Text(**toy, {}), "");
  EXPECT_EQ(Text(**toy, {3, 3}), "");
}

TEST(SentencePiece, RefusesIdsOutOfRange) {
  const auto toy = Toy().Parse();
  ASSERT_TRUE(toy.ok()) << toy.status();
  for (const int32_t id : {-1, 8, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    EXPECT_EQ((*toy)->Decode({id}).status().code(), absl::StatusCode::kInvalidArgument) << id;
    EXPECT_EQ((*toy)->IdToPiece(id), "");
  }
}

TEST(SentencePiece, TurnsUnfinishedBytePiecesIntoReplacementCharacters) {
  Toy toy;
  toy.AddBytes();
  const auto tokenizer = toy.Parse();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string face = "\xf0\x9f\x98\x80";
  std::vector<int32_t> ids = Ids(**tokenizer, "a" + face);
  EXPECT_EQ(Text(**tokenizer, ids), "a" + face);
  ids.resize(ids.size() - 2);  // two of four bytes, as a generation stopped by its length leaves them
  EXPECT_EQ(Text(**tokenizer, ids), "a\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(SentencePiece, NeverDecodesToInvalidUtf8) {
  Toy toy;
  // Pieces that are no UTF-8: a lone lead byte, a lone continuation, an overlong form, a surrogate, a value too large.
  for (const char* piece : {"\xc3", "\x80", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82"}) {
    toy.pieces.push_back({piece, -5, kNormal});
  }
  const auto tokenizer = toy.Parse();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids(1 + random() % 8);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>((*tokenizer)->size()));
    // nlohmann's serialiser throws on invalid UTF-8: an independent judge.
    EXPECT_NO_THROW((void)nlohmann::json(Text(**tokenizer, ids)).dump());
  }
  EXPECT_EQ(Text(**tokenizer, {5, 8, 6}),
            "a\xef\xbf\xbd"
            "b");
}

TEST(SentencePiece, FindsPiecesExactly) {
  const auto toy = Toy().Parse();
  ASSERT_TRUE(toy.ok()) << toy.status();
  EXPECT_EQ((*toy)->PieceToId("</s>"), 2);
  EXPECT_EQ((*toy)->PieceToId("ab"), 7);
  EXPECT_EQ((*toy)->PieceToId("<unk>"), 3);
  EXPECT_EQ((*toy)->unknown_id(), 3);
  EXPECT_EQ((*toy)->PieceToId("abc"), -1);
  EXPECT_EQ((*toy)->PieceToId(""), -1);
  EXPECT_EQ((*toy)->IdToPiece(7), "ab");
  EXPECT_EQ((*toy)->size(), 8);
}

TEST(SentencePiece, HasNoPiecesForEmptyText) {
  EXPECT_TRUE(Ids(*Demo("en"), "").empty());
  EXPECT_TRUE(Ids(*Demo("en"), "   \n\t ").empty());
}

TEST(SentencePiece, TokenizesLongTextsAndRefusesEndlessOnes) {
  const std::unique_ptr<Tokenizer> tokenizer = Demo("en");
  std::string text;
  while (text.size() < 300'000) text += "open the file ";
  const std::vector<int32_t> one = Ids(*tokenizer, "open the file ");
  EXPECT_EQ(Ids(*tokenizer, text).size(), text.size() / 14 * one.size());
  EXPECT_EQ(tokenizer->Encode(std::string((size_t{4} << 20) + 1, 'a')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SentencePiece, GivesTheSameAnswersFromManyThreads) {
  const std::unique_ptr<Tokenizer> first = Demo("en");
  const std::unique_ptr<Tokenizer> second = Demo("ru");
  const std::vector<std::string> texts = {"Open the file", "Открыть файл", "cannot open display: %s", "错误"};
  std::vector<std::vector<int32_t>> expected;
  for (const std::string& text : texts) {
    expected.push_back(Ids(*first, text));
    expected.push_back(Ids(*second, text));
  }
  std::vector<std::thread> threads;
  std::vector<int> wrong(8, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 1000; ++i) {
        const size_t k = (i + t) % expected.size();
        const auto got = (k % 2 == 0 ? *first : *second).Encode(texts[k / 2]);
        if (!got.ok() || got->ids != expected[k]) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(8, 0));
}

TEST(SentencePiece, AppliesTheRulesOfItsCharacterMap) {
  Toy toy;
  toy.charsmap = CharsMap(OneRule(), std::string("ab\0", 3));
  const auto tokenizer = toy.Parse();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(Ids(**tokenizer, "axb"), Ids(**tokenizer, "aabb"));
}

TEST(BrokenModels, CharacterMapsThatLeadOutsideAreRefused) {
  const std::string ab("ab\0", 3);
  const auto fault = [](const std::string& charsmap) {
    Toy toy;
    toy.charsmap = charsmap;
    const auto parsed = toy.Parse();
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(parsed.status().message());
  };
  EXPECT_THAT(fault(CharsMap(OneRule(), "ab")), HasSubstr("does not end with NUL"));
  EXPECT_THAT(fault(CharsMap(OneRule(), "")), HasSubstr("wrong trie size"));
  EXPECT_THAT(fault("ab"), HasSubstr("cut off"));
  EXPECT_THAT(fault(Little(0xffffffff) + ab), HasSubstr("wrong trie size"));
  // The four bytes of the size itself must not count as trie: this is where the library reads past the end.
  EXPECT_THAT(fault(Little(8) + Little(0) + ab), HasSubstr("wrong trie size"));

  std::vector<uint32_t> units = OneRule();
  units[512] = (1U << 31) | 3U;  // a replacement behind the end
  EXPECT_THAT(fault(CharsMap(units, ab)), HasSubstr("outside its replacements"));
  units = OneRule();
  units[0] = 4096U << 10;
  EXPECT_THAT(fault(CharsMap(units, ab)), HasSubstr("outside itself"));
  units = OneRule();
  units[0] = (0x3fffffU << 10) | (1U << 9);  // the largest offset there is
  EXPECT_THAT(fault(CharsMap(units, ab)), HasSubstr("outside itself"));
  units = OneRule();
  const uint32_t node = 256U ^ 'x';
  units[node] = ((node ^ 256U) << 10) | (1U << 8) | 'x';  // "x" leads to itself
  EXPECT_THAT(fault(CharsMap(units, ab)), HasSubstr("circle"));
  EXPECT_THAT(fault(CharsMap(OneRule(), std::string(300, 'y') + std::string(1, '\0'))), HasSubstr("replacement"));
}

TEST(BrokenModels, RulesNestedDeeperThanTheLibrarysArrayAreRefused) {
  // "x", "xx", "xxx", ...: node k's base is block k + 1, where its value and its child lie.
  const auto chain = [](uint32_t rules) {
    std::vector<uint32_t> units((rules + 2) * 256, kFiller);
    units[0] = 256U << 10;
    for (uint32_t k = 1; k <= rules; ++k) {
      const uint32_t node = (k * 256) ^ 'x';
      const uint32_t base = (k + 1) * 256;
      units[node] = ((node ^ base) << 10) | (1U << 8) | 'x';
      units[base] = 1U << 31;
    }
    return CharsMap(units, std::string("ab\0", 3));
  };
  Toy toy;
  toy.charsmap = chain(32);
  const auto fits = toy.Parse();
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(Ids(**fits, std::string(40, 'x')), Ids(**fits, "abab"));
  toy.charsmap = chain(33);
  EXPECT_THAT(toy.Fault(), HasSubstr("nests too many rules"));
}

TEST(BrokenModels, UserDefinedPiecesNestedDeeperThanTheLibrarysArrayAreRefused) {
  Toy toy;
  for (size_t i = 1; i <= 64; ++i) toy.pieces.push_back({std::string(i, 'z'), 0, kUserDefined});
  EXPECT_TRUE(toy.Parse().ok()) << toy.Fault();
  toy.pieces.push_back({std::string(65, 'z'), 0, kUserDefined});
  EXPECT_THAT(toy.Fault(), HasSubstr("prefixes of one another"));
}

TEST(BrokenModels, PiecesThatTheLibraryWouldChokeOnAreRefused) {
  const auto with = [](ToyPiece piece, Kind kind = kUnigram) {
    Toy toy;
    toy.kind = kind;
    toy.pieces.push_back(std::move(piece));
    const auto parsed = toy.Parse();
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(parsed.status().message());
  };
  EXPECT_THAT(with({"", -1, kNormal}), HasSubstr("is empty"));
  EXPECT_THAT(with({std::string("x\0y", 3), -1, kNormal}), HasSubstr("NUL"));
  EXPECT_THAT(with({std::string("\0", 1), -1, kUserDefined}), HasSubstr("NUL"));
  EXPECT_THAT(with({"ab", -1, kNormal}), HasSubstr("occurs twice"));
  EXPECT_THAT(with({"</s>", -1, kNormal}), HasSubstr("occurs twice"));
  EXPECT_THAT(with({"x", NAN, kNormal}), HasSubstr("not finite"));
  EXPECT_THAT(with({"x", INFINITY, kNormal}), HasSubstr("not finite"));
  EXPECT_THAT(with({"<unk2>", 0, kUnknown}), HasSubstr("second unknown"));
  EXPECT_THAT(with({"<0x00>", 0, kByte}), HasSubstr("byte_fallback"));
  EXPECT_THAT(with({std::string(1025, 'x'), 0, kNormal}), HasSubstr("more than 1024 bytes"));
  EXPECT_THAT(with({"x", 0, kControl}, kBpe), HasSubstr("one character"));
  EXPECT_THAT(with({"x", 0, kNormal}, kWord), HasSubstr("WORD"));
}

TEST(BrokenModels, VocabulariesWithoutWhatIsNeededAreRefused) {
  Toy toy;
  toy.pieces.clear();
  EXPECT_THAT(toy.Fault(), HasSubstr("no pieces"));
  toy.pieces = {{"a", 0, kNormal}};
  EXPECT_THAT(toy.Fault(), HasSubstr("no unknown piece"));
  toy.pieces = {{"<unk>", 0, kUnknown}};
  EXPECT_THAT(toy.Fault(), HasSubstr("no pieces of text"));
  toy = Toy();
  toy.byte_fallback = true;  // but no byte pieces
  EXPECT_THAT(toy.Fault(), HasSubstr("byte"));
}

TEST(BrokenModels, AreNamedAsWhatTheyLookLike) {
  const auto fault = [](const std::string& bytes) {
    const auto parsed = ParseSentencePiece(bytes, "some/tokenizer.model");
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()), testing::StartsWith("some/tokenizer.model: "));
    return std::string(parsed.status().message());
  };
  EXPECT_THAT(fault(""), HasSubstr("empty file"));
  EXPECT_THAT(fault("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), HasSubstr("git-lfs"));
  EXPECT_THAT(fault("{\"model\": {}}"), HasSubstr("JSON"));
  EXPECT_THAT(fault("<!DOCTYPE html><p>404"), HasSubstr("HTML"));
}

TEST(BrokenModels, MissingFilesAreNotFoundByTheirPath) {
  const auto missing = LoadSentencePiece("/no/such/tokenizer.model");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/no/such/tokenizer.model"));
  EXPECT_EQ(LoadSentencePiece("/").status().code(), absl::StatusCode::kInvalidArgument);
}

// Every truncation and many single-byte changes of a real model: an error or a tokenizer that works, never a crash.
TEST(BrokenModels, TruncationsAndFlippedBytesNeverCrash) {
  const std::string whole = ReadFile(DemoPath("en"));
  std::mt19937 random(11);
  for (size_t cut = 0; cut < whole.size(); cut += 1 + whole.size() / 200) {
    const auto parsed = ParseSentencePiece(std::string_view(whole).substr(0, cut), "cut");
    if (!parsed.ok()) {
      EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << parsed.status();
    }
  }
  for (int round = 0; round < 200; ++round) {
    std::string changed = whole;
    for (int k = 0; k < 3; ++k) changed[random() % changed.size()] = static_cast<char>(random());
    const auto parsed = ParseSentencePiece(changed, "changed");
    if (!parsed.ok()) {
      EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << parsed.status();
      continue;
    }
    const auto encoded = (*parsed)->Encode("Open the file: naïve Ⅷ ﷺ 错误");
    if (encoded.ok()) {
      EXPECT_TRUE((*parsed)->Decode(encoded->ids).ok());
    }
  }
}

}  // namespace
}  // namespace koine::model_loader
