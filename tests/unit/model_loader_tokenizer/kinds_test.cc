// The tokenizer kinds on small vocabularies: rules that can be read off, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "model_loader/tokenizer/load_tokenizer.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {
namespace {

using nlohmann::json;
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

// ---- Byte-level BPE -------------------------------------------------------------------------------------------------

// A byte as dictionaries write it.
std::string ByteCharacter(int byte) {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> characters;
    const auto printable = [](int b) { return (b > 0x20 && b < 0x7f) || (b > 0xa0 && b < 0x100 && b != 0xad); };
    int next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const int c = printable(b) ? b : next++;
      std::string& character = characters.emplace_back();
      if (c >= 0x80) character.push_back(static_cast<char>(0xc0 | (c >> 6)));
      character.push_back(static_cast<char>(c < 0x80 ? c : 0x80 | (c & 0x3f)));
    }
    return characters;
  }();
  return all[static_cast<size_t>(byte)];
}

TokenizerConfig ByteBpe() {
  TokenizerConfig config;
  config.kind = TokenizerKind::kByteBpe;
  config.files = {"vocab.json", "merges.txt"};
  config.unk_piece = "<unk>";
  config.markers = {{"<unk>", 256}};
  return config;
}

// Bytes have their own value as id, <unk> 256, what the merges make the ids from 257 on.
json ByteDictionary(const std::vector<std::string>& merges) {
  json dictionary = {{"<unk>", 256}};
  for (int byte = 0; byte < 256; ++byte) dictionary[ByteCharacter(byte)] = byte;
  for (const std::string& merge : merges) {
    const std::string result = absl::StrReplaceAll(merge, {{" ", ""}});
    const size_t next = dictionary.size();
    if (!dictionary.contains(result)) dictionary[result] = next;
  }
  return dictionary;
}

std::string MergeLines(const std::vector<std::string>& merges) {
  std::string text = "#version: 0.2\n";
  for (const std::string& merge : merges) absl::StrAppend(&text, merge, "\n");
  return text;
}

std::unique_ptr<Tokenizer> MakeByteBpe(const std::vector<std::string>& merges,
                                       const TokenizerConfig& config = ByteBpe()) {
  auto made = ParseTokenizer(config, {ByteDictionary(merges).dump(), MergeLines(merges)});
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

TEST(ByteBpe, MergesTheLowestRankFirstAndOfEqualOnesTheLeftmost) {
  EXPECT_THAT(Pieces(*MakeByteBpe({"b c", "a b", "ab c"}), "abc"), ElementsAre("a", "bc"));
  EXPECT_THAT(Pieces(*MakeByteBpe({"a b", "b c", "ab c"}), "abc"), ElementsAre("abc"));
  EXPECT_THAT(Pieces(*MakeByteBpe({"a a"}), "aaaaa"), ElementsAre("aa", "aa", "a"));
  EXPECT_THAT(Pieces(*MakeByteBpe({"a a", "aa aa"}), "aaaaa"), ElementsAre("aaaa", "a"));
  // A merge that another makes possible goes before further ones of that other's rank.
  EXPECT_THAT(Pieces(*MakeByteBpe({"ab a", "a b"}), "abab"), ElementsAre("aba", "b"));
}

TEST(ByteBpe, WritesBytesAsTheDictionaryDoes) {
  const auto tokenizer = MakeByteBpe({"Ġ a", "Ã ©", "Ġ Ã©"});
  EXPECT_THAT(Pieces(*tokenizer, "a a\u00e9 \u00e9"), ElementsAre("a", "Ġa", "Ã©", "ĠÃ©"));
  EXPECT_THAT(Pieces(*tokenizer, std::string_view("\0\n\x7f\xc2\xad", 5)), ElementsAre("Ā", "Ċ", "ġ", "Â", "Ń"));
}

TEST(ByteBpe, NoMergeReachesOverAWord) {
  const std::vector<std::string> merges = {"a Ġ", "Ġ Ġ", "Ġ b", "Ċ b", "Ġ Ċ", "a '",
                                           "' s", "1 a", "a 1", "a -", "- -", "Â ł"};
  const auto tokenizer = MakeByteBpe(merges);
  EXPECT_THAT(Pieces(*tokenizer, "a b"), ElementsAre("a", "Ġb"));
  EXPECT_THAT(Pieces(*tokenizer, "a   b"), ElementsAre("a", "ĠĠ", "Ġb"));
  EXPECT_THAT(Pieces(*tokenizer, "a   "), ElementsAre("a", "ĠĠ", "Ġ"));
  EXPECT_THAT(Pieces(*tokenizer, "a \nb"), ElementsAre("a", "Ġ", "Ċ", "b"));
  EXPECT_THAT(Pieces(*tokenizer, "a \n b"), ElementsAre("a", "ĠĊ", "Ġb"));
  EXPECT_THAT(Pieces(*tokenizer, "a's"), ElementsAre("a", "'s"));
  EXPECT_THAT(Pieces(*tokenizer, "a''s"), ElementsAre("a", "'", "'", "s"));
  EXPECT_THAT(Pieces(*tokenizer, "a1a--"), ElementsAre("a", "1", "a", "--"));
  // A no-break space is a blank that takes no word behind it.
  EXPECT_THAT(Pieces(*tokenizer, "a\u00a0b"), ElementsAre("a", "Âł", "b"));
  TokenizerConfig config = ByteBpe();
  config.split_words = false;
  EXPECT_THAT(Pieces(*MakeByteBpe(merges, config), "a b's1a"), ElementsAre("aĠ", "b", "'s", "1a"));
}

TEST(ByteBpe, PutsASpaceBeforeTextsThatBeginWithNoneWhereToldTo) {
  TokenizerConfig config = ByteBpe();
  config.add_prefix_space = true;
  const auto tokenizer = MakeByteBpe({"Ġ a"}, config);
  EXPECT_THAT(Pieces(*tokenizer, "a"), ElementsAre("Ġa"));
  EXPECT_THAT(Pieces(*tokenizer, " a"), ElementsAre("Ġa"));
  EXPECT_THAT(Pieces(*tokenizer, "\na"), ElementsAre("Ġ", "Ċ", "a"));
  EXPECT_THAT(Pieces(*tokenizer, "\u00a0a"), ElementsAre("Ġ", "Â", "ł", "a"));
  EXPECT_THAT(Pieces(*tokenizer, ""), IsEmpty());
}

TEST(ByteBpe, MarkersAndTheUnknownPieceAreNeverMade) {
  TokenizerConfig config = ByteBpe();
  config.split_words = false;
  config.markers["<s>"] = 258;
  const auto tokenizer = MakeByteBpe({"< s", "<s >", "<s> a", "< u", "n k", "<u nk", "<unk >"}, config);
  EXPECT_TRUE(tokenizer->IsMarker(258));
  EXPECT_THAT(Pieces(*tokenizer, "<s>a<unk>"), ElementsAre("<s", ">", "a", "<unk", ">"));
  EXPECT_EQ(tokenizer->Encode("<s>a<unk>")->unknown_pieces, 0);
}

TEST(ByteBpe, BytesWithoutAPieceAreUnknownAndCounted) {
  const auto tokenizer = ParseTokenizer(ByteBpe(), {R"({"<unk>": 256, "a": 0, "b": 1})", MergeLines({})});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto encoded = (*tokenizer)->Encode("acb");
  EXPECT_THAT(encoded->ids, ElementsAre(0, 256, 1));
  EXPECT_EQ(encoded->unknown_pieces, 1);
  EXPECT_EQ(*(*tokenizer)->Decode(encoded->ids), "ab");
  EXPECT_TRUE((*tokenizer)->IsByte(0));
  EXPECT_FALSE((*tokenizer)->IsByte(256));
}

TEST(ByteBpe, DecodingJoinsBytesAndReplacesUnfinishedCharacters) {
  const auto tokenizer = MakeByteBpe({"Ġ a", "â Ĥ"});
  const std::vector<int32_t> euro = {257, 258, 0xac};
  EXPECT_EQ(*tokenizer->Decode(euro), " a\u20ac");
  const std::vector<int32_t> unfinished = {258, 256, 'x'};
  EXPECT_EQ(*tokenizer->Decode(unfinished), "\ufffd\ufffdx");
  // A token that is not written in bytes stands for itself.
  const auto added = ParseTokenizer(ByteBpe(), {R"({"<unk>": 256, "日 本": 0})", MergeLines({})});
  const std::vector<int32_t> itself = {0};
  EXPECT_EQ(*(*added)->Decode(itself), "日 本");
}

TEST(ByteBpe, APieceOutsideTheSliceIsTakenApartIntoWhatItWasMergedFrom) {
  // "xy" is made by nothing, so that "xyz" is "x" and "yz".
  const std::vector<std::string> merges = {"xy z", "h e", "l l", "he ll", "hell o", "y z", "x yz"};
  json dictionary = ByteDictionary(merges);
  dictionary["xy"] = 1000;
  const auto whole = ParseTokenizer(ByteBpe(), {dictionary.dump(), MergeLines(merges)});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto cut = [&](const std::vector<std::string>& kept, std::string_view text) {
    std::vector<int32_t> rows(257);  // bytes and <unk>
    std::iota(rows.begin(), rows.end(), 0);
    for (const std::string& piece : kept) rows.push_back((*whole)->PieceToId(piece));
    const auto sliced = ParseSlicedTokenizer(ByteBpe(), {dictionary.dump(), MergeLines(merges)}, rows, 256);
    EXPECT_TRUE(sliced.ok()) << sliced.status();
    EXPECT_EQ((*sliced)->Encode(text)->unknown_pieces, 0);
    return Pieces(**sliced, text);
  };
  EXPECT_THAT(Pieces(**whole, "hello"), ElementsAre("hello"));
  EXPECT_THAT(cut({"hello"}, "hello"), ElementsAre("hello"));  // though "hell" is not there
  EXPECT_THAT(cut({"he"}, "hello"), ElementsAre("he", "l", "l", "o"));
  EXPECT_THAT(cut({"ll"}, "hello"), ElementsAre("h", "e", "ll", "o"));
  EXPECT_THAT(cut({}, "xyz"), ElementsAre("x", "y", "z"));
  EXPECT_THAT(cut({"yz"}, "xyz"), ElementsAre("x", "yz"));
}

// The definition, written down plainly.
std::vector<std::string> MergePlainly(std::vector<std::string> pieces, const std::vector<std::string>& merges) {
  std::map<std::string, size_t> ranks;
  for (size_t rank = 0; rank < merges.size(); ++rank) ranks[merges[rank]] = rank;  // the last of equal ones counts
  while (true) {
    size_t best = merges.size(), place = 0;
    for (size_t i = 0; i + 1 < pieces.size(); ++i) {
      const auto found = ranks.find(absl::StrCat(pieces[i], " ", pieces[i + 1]));
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      place = i;
    }
    if (best == merges.size()) return pieces;
    pieces[place] += pieces[place + 1];
    pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(ByteBpe, EqualsThePlainDefinitionOnRandomMergesInAnyOrder) {
  std::mt19937 random(7);
  const auto below = [&random](size_t bound) { return std::uniform_int_distribution<size_t>(0, bound - 1)(random); };
  size_t merged = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> pieces = {"a", "b", "c"};
    std::vector<std::string> merges;
    for (int i = 0; i < 40; ++i) {
      const std::string left = pieces[below(pieces.size())], right = pieces[below(pieces.size())];
      if (left.size() + right.size() > 40) continue;
      merges.push_back(absl::StrCat(left, " ", right));
      pieces.push_back(left + right);
    }
    if (round % 2 == 1) std::shuffle(merges.begin(), merges.end(), random);  // parts made later than what uses them
    const auto tokenizer = MakeByteBpe(merges);
    ASSERT_NE(tokenizer, nullptr);
    for (int i = 0; i < 20; ++i) {
      std::string word;
      std::vector<std::string> bytes;
      for (size_t n = below(80) + 1; n > 0; --n) {
        word.push_back(static_cast<char>('a' + below(3)));
        bytes.emplace_back(1, word.back());
      }
      const auto expected = MergePlainly(bytes, merges);
      ASSERT_EQ(Pieces(*tokenizer, word), expected) << word << " by " << absl::StrJoin(merges, ", ");
      merged += bytes.size() - expected.size();
    }
  }
  EXPECT_GT(merged, 10'000u);
}

// Quadratic time would be hours.
TEST(ByteBpe, AWordOfAMegabyteIsNoTrouble) {
  std::vector<std::string> merges;
  for (std::string half = "a"; half.size() <= 256; half += half) merges.push_back(absl::StrCat(half, " ", half));
  const auto tokenizer = MakeByteBpe(merges);
  const std::string word(size_t{1} << 20, 'a');
  const auto encoded = tokenizer->Encode(word);
  ASSERT_TRUE(encoded.ok());
  EXPECT_EQ(encoded->ids, std::vector<int32_t>(word.size() / 512, tokenizer->PieceToId(std::string(512, 'a'))));
  EXPECT_EQ(*tokenizer->Decode(encoded->ids), word);
  const std::string blanks(size_t{1} << 20, ' ');
  EXPECT_EQ(tokenizer->Encode(blanks + "b")->ids.size(), blanks.size() + 1);
}

TEST(ByteBpe, ReadsATokenizerJson) {
  TokenizerConfig config = ByteBpe();
  config.files = {"tokenizer.json"};
  json good = json::parse(R"({"normalizer": null,
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true, "use_regex": true},
      "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                "end_of_word_suffix": "", "fuse_unk": false, "merges": ["a b", "Ġ ab"]}})");
  good["model"]["vocab"] = ByteDictionary({"a b", "Ġ ab"});
  const auto pieces = [&](const json& file) {
    const auto tokenizer = ParseTokenizer(config, {file.dump()});
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? Pieces(**tokenizer, "ab ab") : std::vector<std::string>();
  };
  EXPECT_THAT(pieces(good), ElementsAre("ab", "Ġab"));
  json other = good;
  other["model"]["merges"] = json::parse(R"([["a", "b"], ["Ġ", "ab"]])");
  other["model"].erase("type");
  EXPECT_THAT(pieces(other), ElementsAre("ab", "Ġab"));

  const auto fault = [&](const char* pointer, const char* value) {
    json bad = good;
    bad[json::json_pointer(pointer)] = json::parse(value);
    return Fault(config, {bad.dump()});
  };
  EXPECT_THAT(fault("/normalizer", R"({"type": "NFC"})"), HasSubstr("normalizer: NFC is not supported"));
  EXPECT_THAT(fault("/pre_tokenizer", "null"), HasSubstr("pre_tokenizer: null is not supported"));
  EXPECT_THAT(fault("/pre_tokenizer/type", "\"Sequence\""), HasSubstr("pre_tokenizer: Sequence is not supported"));
  EXPECT_THAT(fault("/pre_tokenizer/use_regex", "false"), HasSubstr("is false, but the configuration says true"));
  EXPECT_THAT(fault("/model/type", "\"Unigram\""), HasSubstr("model.type is Unigram; only BPE is supported"));
  EXPECT_THAT(fault("/model/dropout", "0.1"), HasSubstr("model.dropout is 0.1"));
  EXPECT_THAT(fault("/model/unk_token", "\"[UNK]\""), HasSubstr("model.unk_token is [UNK]; only <unk>"));
  EXPECT_THAT(fault("/model/end_of_word_suffix", "\"</w>\""), HasSubstr("model.end_of_word_suffix is </w>"));
  EXPECT_THAT(fault("/model/continuing_subword_prefix", "\"##\""), HasSubstr("continuing_subword_prefix is ##"));
  EXPECT_THAT(fault("/model/byte_fallback", "true"), HasSubstr("model.byte_fallback is true"));
  EXPECT_THAT(fault("/model/ignore_merges", "true"), HasSubstr("model.ignore_merges is true"));
  EXPECT_THAT(fault("/model", "7"), HasSubstr("not a tokenizer.json"));
  EXPECT_THAT(fault("/model/merges", "7"), HasSubstr("model.merges must be a list"));
  EXPECT_THAT(fault("/model/merges/0", R"(["a", "b", "c"])"), HasSubstr("is neither \"A B\" nor"));
  EXPECT_THAT(fault("/model/merges/0", "\"ab\""), HasSubstr("is not two pieces with a blank between"));
  EXPECT_THAT(fault("/model/merges/0", R"(["a", "c"])"), HasSubstr("\"ac\" is no piece of the vocabulary"));
  other["model"].erase("vocab");
  EXPECT_THAT(Fault(config, {other.dump()}), HasSubstr("model.vocab is missing"));
}

TEST(ByteBpe, RefusesWhatIsNoDictionaryWithMerges) {
  const std::string dictionary = ByteDictionary({"a b"}).dump();
  const auto fault = [&](const std::string& merges) { return Fault(ByteBpe(), {dictionary, merges}); };
  EXPECT_EQ(fault("#version: 0.2\r\na b\r\n\r\n"), "accepted");
  EXPECT_THAT(fault(""), HasSubstr("merges.txt: the first line must begin with #version"));
  EXPECT_THAT(fault("a b\n"), HasSubstr("merges.txt: the first line must begin with #version"));
  EXPECT_THAT(fault("#version: 0.2\na b"), HasSubstr("the file is cut off"));
  for (const char* line : {"a", "a ", " b", "a b c", "a  b", " "}) {
    EXPECT_THAT(fault(absl::StrCat("#version: 0.2\na b\n", line, "\n")), HasSubstr("merges.txt: line 3: ")) << line;
  }
  EXPECT_THAT(fault("#version: 0.2\nb a\n"), HasSubstr("line 2: \"ba\" is no piece of the vocabulary"));
  EXPECT_THAT(fault("#version: 0.2\n\xff b\n"), HasSubstr("is no piece of the vocabulary"));
  EXPECT_THAT(Fault(ByteBpe(), {"[]", MergeLines({})}), HasSubstr("vocab.json: must be a JSON object"));
  EXPECT_THAT(Fault(ByteBpe(), {R"({"<unk>": 7})", MergeLines({})}), HasSubstr("should have id 256"));
  TokenizerConfig config = ByteBpe();
  config.markers.clear();
  EXPECT_THAT(Fault(config, {R"({"a": 7})", MergeLines({})}), HasSubstr("unknown piece \"<unk>\" has no id"));
  config.files = {"a", "b", "c"};
  EXPECT_THAT(Fault(config, {"", "", ""}), HasSubstr("must name a tokenizer.json, or a dictionary and its merges"));
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
  EXPECT_THAT(std::string(LoadTokenizer("/nowhere", config).status().message()), HasSubstr("must name one file"));
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
