// The tokenizer kinds on small vocabularies: rules that can be read off, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model_loader/tokenizer/load_tokenizer.h"

namespace koine::model_loader {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string ReadData(const std::string& name) {
  std::ifstream file(absl::StrCat(KOINE_SOURCE_DIR, "/tests/data/", name), std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  EXPECT_FALSE(bytes.str().empty()) << name;
  return bytes.str();
}

TokenizerConfig WordPiece(bool lower_case) {
  TokenizerConfig config;
  config.kind = TokenizerKind::kWordPiece;
  config.files = {"vocab.txt"};
  config.unk_piece = "[UNK]";
  config.lower_case = lower_case;
  return config;
}

std::unique_ptr<Tokenizer> MakeWordPiece(const TokenizerConfig& config, const std::vector<std::string>& pieces) {
  auto made = ParseTokenizer(config, {absl::StrJoin(pieces, "\n") + "\n"});
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

std::vector<std::string> Pieces(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::string> pieces;
  const auto encoded = tokenizer.Encode(text);
  EXPECT_TRUE(encoded.ok());
  for (const int32_t id : encoded->ids) pieces.push_back(tokenizer.IdToPiece(id));
  return pieces;
}

std::string Fault(const TokenizerConfig& config, const std::vector<std::string>& contents) {
  const auto made = ParseTokenizer(config, contents);
  if (made.ok()) return "accepted";
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(made.status().message());
}

TEST(WordPiece, TakesTheLongestPieceAndThenContinues) {
  const auto tokenizer = MakeWordPiece(WordPiece(false), {"[UNK]", "un", "unaff", "##aff", "##able", "##abl", "##e"});
  EXPECT_THAT(Pieces(*tokenizer, "unaffable"), ElementsAre("unaff", "##able"));
  // A word that cannot be cut to its end is unknown as a whole.
  EXPECT_THAT(Pieces(*tokenizer, "unaffx un"), ElementsAre("[UNK]", "un"));
  EXPECT_EQ(tokenizer->Encode("unaffx un")->unknown_pieces, 1);
}

TEST(WordPiece, KeepsCaseAndAccentsUnlessToldOtherwise) {
  const std::vector<std::string> pieces = {"[UNK]", "Éa", "éa", "ea", "Ea", "ΟΔΟΣ", "οδοσ"};
  TokenizerConfig config = WordPiece(false);
  EXPECT_THAT(Pieces(*MakeWordPiece(config, pieces), "Éa"), ElementsAre("Éa"));
  config.strip_accents = true;
  EXPECT_THAT(Pieces(*MakeWordPiece(config, pieces), "Éa"), ElementsAre("Ea"));
  config = WordPiece(true);
  EXPECT_THAT(Pieces(*MakeWordPiece(config, pieces), "Éa"), ElementsAre("ea"));
  config.strip_accents = false;
  EXPECT_THAT(Pieces(*MakeWordPiece(config, pieces), "Éa"), ElementsAre("éa"));
  // Lower case without context: no final sigma.
  EXPECT_THAT(Pieces(*MakeWordPiece(config, pieces), "ΟΔΟΣ"), ElementsAre("οδοσ"));
}

TEST(WordPiece, LowersTheDottedCapitalIToTwoCharacters) {
  TokenizerConfig config = WordPiece(true);
  config.strip_accents = false;
  EXPECT_THAT(Pieces(*MakeWordPiece(config, {"[UNK]", "i\u0307"}), "\u0130"), ElementsAre("i\u0307"));
  EXPECT_THAT(Pieces(*MakeWordPiece(WordPiece(true), {"[UNK]", "i"}), "\u0130"), ElementsAre("i"));
}

TEST(WordPiece, PunctuationStandsAlone) {
  const auto tokenizer = MakeWordPiece(WordPiece(true), {"[UNK]", "a", "b", "$", "—", "、", "'"});
  EXPECT_THAT(Pieces(*tokenizer, "a$b—a、b'a"), ElementsAre("a", "$", "b", "—", "a", "、", "b", "'", "a"));
}

TEST(WordPiece, IdeographsStandAloneOnlyWhereToldTo) {
  TokenizerConfig config = WordPiece(false);
  const std::vector<std::string> pieces = {"[UNK]", "中", "文", "##文", "か", "##な"};
  EXPECT_THAT(Pieces(*MakeWordPiece(config, pieces), "中文かな"), ElementsAre("中", "文", "か", "##な"));
  config.split_cjk = false;
  EXPECT_THAT(Pieces(*MakeWordPiece(config, pieces), "中文"), ElementsAre("中", "##文"));
}

TEST(WordPiece, DropsControlsAndTreatsEveryBlankAlike) {
  const auto tokenizer = MakeWordPiece(WordPiece(false), {"[UNK]", "a", "b", "ab"});
  using namespace std::string_view_literals;
  EXPECT_THAT(Pieces(*tokenizer, "a\0b"sv), ElementsAre("ab"));
  EXPECT_THAT(Pieces(*tokenizer, "a\u200db a\ufffdb a\u0007b"), ElementsAre("ab", "ab", "ab"));
  EXPECT_THAT(Pieces(*tokenizer, "a\u00a0b\u3000a\tb\r\na\u2028b"), ElementsAre("a", "b", "a", "b", "a", "b"));
  EXPECT_THAT(Pieces(*tokenizer, " \t\n "), IsEmpty());
  EXPECT_THAT(Pieces(*tokenizer, ""), IsEmpty());
}

TEST(WordPiece, WordsOverTheLimitAreUnknown) {
  const auto tokenizer = MakeWordPiece(WordPiece(false), {"[UNK]", "é", "##é"});
  std::string word;
  for (int i = 0; i < 100; ++i) word += "é";  // characters count, not bytes
  EXPECT_EQ(tokenizer->Encode(word)->ids.size(), 100u);
  EXPECT_THAT(Pieces(*tokenizer, word + "é"), ElementsAre("[UNK]"));
}

TEST(WordPiece, SpecialTokensInATextAreText) {
  TokenizerConfig config = WordPiece(false);
  config.markers = {{"[CLS]", 1}, {"tag", 2}};
  const auto tokenizer = MakeWordPiece(config, {"[UNK]", "[CLS]", "tag", "[", "]", "CLS"});
  EXPECT_THAT(Pieces(*tokenizer, "[CLS] tag"), ElementsAre("[", "CLS", "]", "[UNK]"));
}

TEST(WordPiece, DecodingJoinsContinuationsAndCleansUp) {
  const auto tokenizer =
      MakeWordPiece(WordPiece(true), {"[UNK]", "do", "n", "'", "t", "stop", "##ping", ",", "ok", "?", "it", "s"});
  const auto decode = [&](std::string_view text) { return *tokenizer->Decode(tokenizer->Encode(text)->ids); };
  EXPECT_EQ(decode("stopping, ok?"), "stopping, ok?");
  EXPECT_EQ(decode("it's ok"), "it's ok");
  const std::vector<int32_t> unknown = {1, 0, 5};
  EXPECT_EQ(*tokenizer->Decode(unknown), "do stop");
}

TEST(WordPiece, ReadsADictionaryAndATokenizerJson) {
  TokenizerConfig config = WordPiece(true);
  config.files = {"vocab.json"};
  EXPECT_THAT(Pieces(**ParseTokenizer(config, {R"({"[UNK]": 0, "a": 1, "model": 2})"}), "a model"),
              ElementsAre("a", "model"));
  config.files = {"tokenizer.json"};
  const auto tokenizer =
      ParseTokenizer(config, {R"({"version": "1.0", "model": {"type": "WordPiece", "unk_token": "[UNK]",
               "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "a": 1}}})"});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(Pieces(**tokenizer, "a b"), ElementsAre("a", "[UNK]"));
  EXPECT_THAT(Fault(config, {R"({"model": {"type": "BPE", "vocab": {}}})"}), HasSubstr("not WordPiece"));
  EXPECT_THAT(Fault(config, {R"({"model": {"type": "WordPiece"}})"}), HasSubstr("model.vocab is missing"));
  EXPECT_THAT(Fault(config, {R"({"model": {"unk_token": "<unk>", "vocab": {"<unk>": 0}}})"}),
              HasSubstr("model.unk_token is <unk>, but the configuration says [UNK]"));
}

TEST(WordPiece, RefusesWhatIsNoVocabulary) {
  const TokenizerConfig config = WordPiece(true);
  EXPECT_THAT(Fault(config, {""}), HasSubstr("empty file"));
  EXPECT_THAT(Fault(config, {std::string("a\0b\n", 4)}), HasSubstr("not UTF-8"));
  EXPECT_THAT(Fault(config, {"\xff\xfe"}), HasSubstr("not UTF-8"));
  EXPECT_THAT(Fault(config, {"PK\x03\x04\xff"}), HasSubstr("zip archive"));
  EXPECT_THAT(Fault(config, {"a\nb\n"}), HasSubstr("unknown piece \"[UNK]\" has no id"));
  EXPECT_THAT(Fault(config, {"[UNK]\n" + std::string(1025, 'x')}), HasSubstr("more than 1024 bytes"));
}

TEST(WordPiece, OfEqualLinesTheLastOneCounts) {
  const auto tokenizer = MakeWordPiece(WordPiece(true), {"[UNK]", "a", "", "a"});
  EXPECT_EQ(tokenizer->size(), 4);
  EXPECT_EQ(tokenizer->PieceToId("a"), 3);
  EXPECT_EQ(tokenizer->IdToPiece(1), "a");
  EXPECT_EQ(tokenizer->IdToPiece(2), "");
}

TEST(VocabJson, RefusesWhatIsNoDictionary) {
  TokenizerConfig config = WordPiece(true);
  config.files = {"v.json"};
  EXPECT_THAT(Fault(config, {"[]"}), HasSubstr("must be a JSON object"));
  EXPECT_THAT(Fault(config, {"{}"}), HasSubstr("holds no pieces"));
  EXPECT_THAT(Fault(config, {R"({"a": -1})"}), HasSubstr("must be an integer"));
  EXPECT_THAT(Fault(config, {R"({"a": 1.5})"}), HasSubstr("must be an integer"));
  EXPECT_THAT(Fault(config, {R"({"a": "1"})"}), HasSubstr("must be an integer"));
  EXPECT_THAT(Fault(config, {R"({"a": 4000000})"}), HasSubstr("from 0 to 65536"));
  EXPECT_THAT(Fault(config, {R"({"a": 18446744073709551615})"}), HasSubstr("must be an integer"));
  EXPECT_THAT(Fault(config, {R"({"a": 1, "b": 1})"}), HasSubstr("both have id 1"));
  EXPECT_THAT(Fault(config, {R"({"a": 1, "a": 2})"}), HasSubstr("occurs twice"));
  EXPECT_THAT(Fault(config, {R"({"": 1})"}), HasSubstr("is empty"));
  EXPECT_THAT(Fault(config, {R"({"a": 1)"}), HasSubstr("not valid JSON"));
  EXPECT_THAT(Fault(config, {std::string(100, '[')}), HasSubstr("nested deeper"));
}

// B048: a piece that the model knows and the dictionary does not is unknown, counted, and gives no text.
TEST(SentencePieceVocab, PiecesMissingInTheDictionaryAreUnknownAndCounted) {
  const std::string model = ReadData("hf-m2m100/sentencepiece.bpe.model");
  const auto plain = ParseSentencePiece(model, "plain");
  ASSERT_TRUE(plain.ok());
  const auto cut = (*plain)->Encode("You need to choose a language.");
  ASSERT_GE(cut->ids.size(), 3u);
  std::string dictionary = R"({"<unk>": 0)";
  std::string missing = (*plain)->IdToPiece(cut->ids[1]);
  int32_t next = 1;
  std::set<std::string> seen = {missing};
  for (const int32_t id : cut->ids) {
    const std::string piece = (*plain)->IdToPiece(id);
    if (seen.insert(piece).second) absl::StrAppend(&dictionary, ", \"", piece, "\": ", next++);
  }
  dictionary += "}";
  TokenizerConfig config;
  config.kind = TokenizerKind::kSentencePieceVocab;
  config.files = {"m.model", "vocab.json"};
  config.unk_piece = "<unk>";
  const auto tokenizer = ParseTokenizer(config, {model, dictionary});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto encoded = (*tokenizer)->Encode("You need to choose a language.");
  EXPECT_EQ(encoded->ids.size(), cut->ids.size());
  EXPECT_GE(encoded->unknown_pieces, 1);
  EXPECT_EQ(encoded->ids[1], 0);
  EXPECT_THAT(*(*tokenizer)->Decode(encoded->ids), testing::Not(HasSubstr("unk")));
  EXPECT_THAT(*(*tokenizer)->Decode(encoded->ids), testing::Not(HasSubstr("\u2047")));
}

// The unknown piece is the text's own characters, which the dictionary may know; but not as a marker.
TEST(SentencePieceVocab, UnknownCharactersAreLookedUpButNeverAsMarkers) {
  TokenizerConfig config;
  config.kind = TokenizerKind::kSentencePieceVocab;
  config.files = {"m.model", "vocab.json"};
  config.unk_piece = "<unk>";
  config.markers = {{"語", 2}};
  const std::string model = ReadData("hf-marian/source.spm");
  const auto tokenizer = ParseTokenizer(config, {model, R"({"<unk>": 0, "日": 1, "語": 2, "\u2581": 3})"});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("日")->ids, ElementsAre(3, 1));
  EXPECT_THAT((*tokenizer)->Encode("語")->ids, ElementsAre(3, 0));
}

TEST(SentencePieceVocab, WritesWithTheSecondModel) {
  TokenizerConfig config;
  config.kind = TokenizerKind::kSentencePieceVocab;
  config.files = {"source.spm", "target.spm", "vocab.json"};
  config.unk_piece = "<unk>";
  const auto tokenizer = ParseTokenizer(
      config, {ReadData("hf-marian/source.spm"), ReadData("hf-marian/target.spm"), ReadData("hf-marian/vocab.json")});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  // Pieces of the other model come out as text too, blanks and all.
  const std::vector<int32_t> ids = {(*tokenizer)->PieceToId("\u2581\u00f6ffnen"), (*tokenizer)->PieceToId("\u2581the")};
  ASSERT_GT(ids[0], 0);
  ASSERT_GT(ids[1], 0);
  EXPECT_EQ(*(*tokenizer)->Decode(ids), "\u00f6ffnen the");
}

TEST(OffsetTokenizer, RefusesMarkersThatTakeTheIdOfATextPiece) {
  const std::string model = ReadData("hf-xlmr/sentencepiece.bpe.model");
  TokenizerConfig config;
  config.files = {"m.model"};
  config.id_offset = 1;
  config.markers = {{"<tag>", 100}};
  EXPECT_THAT(Fault(config, {model}), HasSubstr("\"<tag>\" would take id 100 from the piece"));
  config.markers = {};
  config.unk_piece_to = 100;
  EXPECT_THAT(Fault(config, {model}), HasSubstr("would take id 100"));
  config.unk_piece_to = 3;  // SentencePiece's own </s>, which no text yields
  EXPECT_EQ(Fault(config, {model}), "accepted");
  config.id_offset = (1 << 22) - 1;
  EXPECT_THAT(Fault(config, {model}), HasSubstr("at most"));
  config.id_offset = -1;
  EXPECT_THAT(Fault(config, {model}), HasSubstr("id_offset"));
}

TEST(LoadTokenizer, RefusesFilesOutsideTheFolder) {
  TokenizerConfig config = WordPiece(true);
  for (const char* file : {"../vocab.txt", "/etc/passwd", "a/b", "..", ".hidden", "", "a\\b", "x..y"}) {
    config.files = {file};
    EXPECT_THAT(std::string(LoadTokenizer("/nowhere", config).status().message()), HasSubstr("plain name")) << file;
  }
  config.files = {};
  EXPECT_THAT(std::string(LoadTokenizer("/nowhere", config).status().message()), HasSubstr("must be named"));
  config.files = {"vocab.txt"};
  EXPECT_EQ(LoadTokenizer("/nowhere", config).status().code(), absl::StatusCode::kNotFound);
}

TEST(SlicedTokenizer, RenumbersCountsAndRefuses) {
  const std::shared_ptr<const Tokenizer> base = MakeWordPiece(WordPiece(false), {"[UNK]", "a", "b", "c", "##d"});
  // Rows: c, unknown, a, and one that the base has no piece for.
  const std::vector<int32_t> rows = {3, 0, 1, 9};
  const auto sliced = SlicedTokenizer::Create(base, rows, 1);
  ASSERT_TRUE(sliced.ok()) << sliced.status();
  const auto encoded = (*sliced)->Encode("a b c x");
  EXPECT_THAT(encoded->ids, ElementsAre(2, 1, 0, 1));
  EXPECT_EQ(encoded->unknown_pieces, 2);
  const std::vector<int32_t> ids = {2, 1, 0, 3};
  EXPECT_EQ(*(*sliced)->Decode(ids), "a c");
  EXPECT_EQ((*sliced)->size(), 4);
  EXPECT_EQ((*sliced)->unknown_id(), 1);
  EXPECT_EQ((*sliced)->PieceToId("c"), 0);
  EXPECT_EQ((*sliced)->PieceToId("b"), -1);
  EXPECT_EQ((*sliced)->IdToPiece(2), "a");
  EXPECT_EQ((*sliced)->IdToPiece(3), "");
  EXPECT_EQ((*sliced)->IdToPiece(4), "");
  const std::vector<int32_t> beyond = {4};
  EXPECT_EQ((*sliced)->Decode(beyond).status().code(), absl::StatusCode::kInvalidArgument);

  const auto fault = [&](const std::vector<int32_t>& ids_of_rows, int32_t unknown) {
    return std::string(SlicedTokenizer::Create(base, ids_of_rows, unknown).status().message());
  };
  EXPECT_THAT(fault({}, 0), HasSubstr("0 rows"));
  EXPECT_THAT(fault({0, 1, 1}, 0), HasSubstr("rows 1 and 2 both have id 1"));
  EXPECT_THAT(fault({0, -1}, 0), HasSubstr("row 1 has id -1"));
  EXPECT_THAT(fault({0, 1 << 22}, 0), HasSubstr("row 1 has id"));
  EXPECT_THAT(fault({0, 1}, 2), HasSubstr("unknown row 2"));
  EXPECT_THAT(fault({0, 1}, -1), HasSubstr("unknown row -1"));
  EXPECT_THAT(fault({0, 1}, 1), HasSubstr("row 1 should be the unknown piece, id 0, but is id 1"));
}

}  // namespace
}  // namespace koine::model_loader
