// Ids of every text of the reference checkpoints, against what the reference tokenizers gave (tests/data/hf-*). The
// configurations are put together here as an importer would, from the checkpoint's own files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "model_loader/tokenizer/load_tokenizer.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {
namespace {

using nlohmann::json;

std::string Folder(const std::string& name) { return std::string(KOINE_SOURCE_DIR) + "/tests/data/" + name; }

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return json::parse(text.str());
}

struct Checkpoint {
  std::string folder;
  TokenizerConfig config;
  std::string source_prefix;  // "tag", "<s>" or ""
  std::string end;            // the end mark
  bool has_edge_texts = true;
  size_t cut_at = SIZE_MAX;  // how many ids of a text the reference kept, in its cases
};

// <s> 0, <pad> 1, </s> 2, <unk> 3, SentencePiece's own ids + 1, then further pieces.
TokenizerConfig Fairseq(const std::string& folder, const std::string& model, bool mask_after_tags) {
  TokenizerConfig config;
  config.kind = TokenizerKind::kSentencePiece;
  config.files = {model};
  config.id_offset = 1;
  config.unk_piece_to = 3;
  config.markers = {{"<s>", 0}, {"<pad>", 1}, {"</s>", 2}, {"<unk>", 3}};
  int32_t next = static_cast<int32_t>((*LoadSentencePiece(Folder(folder) + "/" + model))->size()) + 1;
  std::ifstream special(Folder(folder) + "/special_tokens_map.json");
  if (special.good()) {
    const json special_tokens = ReadJson(Folder(folder) + "/special_tokens_map.json");
    for (const json& tag : special_tokens["additional_special_tokens"]) {
      config.markers[tag.get<std::string>()] = next++;
    }
  }
  if (mask_after_tags) config.markers["<mask>"] = next;
  return config;
}

constexpr size_t kEncoderCut = 126;  // 128 tokens with their marks

const std::vector<Checkpoint>& Checkpoints() {
  static const auto* checkpoints = [] {
    auto* all = new std::vector<Checkpoint>;
    all->push_back({"hf-nllb", Fairseq("hf-nllb", "sentencepiece.bpe.model", true), "tag", "</s>"});
    all->push_back({"hf-mbart50", Fairseq("hf-mbart50", "sentencepiece.bpe.model", true), "tag", "</s>"});
    all->push_back({"hf-xlmr", Fairseq("hf-xlmr", "sentencepiece.bpe.model", true), "<s>", "</s>", false, kEncoderCut});

    TokenizerConfig m2m;
    m2m.kind = TokenizerKind::kSentencePieceVocab;
    m2m.files = {"sentencepiece.bpe.model", "vocab.json"};
    m2m.unk_piece = "<unk>";
    m2m.markers = {{"<s>", 0}, {"<pad>", 1}, {"</s>", 2}, {"<unk>", 3}};
    auto next = static_cast<int32_t>(ReadJson(Folder("hf-m2m100") + "/vocab.json").size());
    const json special_tokens = ReadJson(Folder("hf-m2m100") + "/special_tokens_map.json");
    for (const json& tag : special_tokens["additional_special_tokens"]) {
      m2m.markers[tag.get<std::string>()] = next++;
    }
    all->push_back({"hf-m2m100", m2m, "tag", "</s>"});

    TokenizerConfig marian;
    marian.kind = TokenizerKind::kSentencePieceVocab;
    marian.files = {"source.spm", "target.spm", "vocab.json"};
    marian.unk_piece = "<unk>";
    marian.markers = {{"</s>", 0}, {"<unk>", 1}, {"<pad>", 892}};
    all->push_back({"hf-marian", marian, "", "</s>"});

    TokenizerConfig plain;
    plain.files = {"spiece.model"};
    all->push_back({"hf-mt5", plain, "", "</s>"});
    for (int32_t i = 0; i < 100; ++i) plain.markers["<extra_id_" + std::to_string(i) + ">"] = 2400 + 99 - i;
    all->push_back({"hf-t5", plain, "", "</s>"});

    TokenizerConfig bert;
    bert.kind = TokenizerKind::kWordPiece;
    bert.files = {"vocab.txt"};
    bert.unk_piece = "[UNK]";
    bert.lower_case = true;
    bert.markers = {{"[PAD]", 0}, {"[UNK]", 1}, {"[CLS]", 2}, {"[SEP]", 3}, {"[MASK]", 4}};
    all->push_back({"hf-bert", bert, "[CLS]", "[SEP]", false, kEncoderCut});

    TokenizerConfig roberta;
    roberta.kind = TokenizerKind::kByteBpe;
    roberta.files = {"vocab.json", "merges.txt"};
    roberta.unk_piece = "<unk>";
    roberta.markers = {{"<s>", 0}, {"<pad>", 1}, {"</s>", 2}, {"<unk>", 3}, {"<mask>", 799}};
    all->push_back({"hf-roberta", roberta, "<s>", "</s>", true, kEncoderCut});
    return all;
  }();
  return *checkpoints;
}

const Checkpoint& Named(const std::string& folder) {
  const auto& all = Checkpoints();
  return *std::find_if(all.begin(), all.end(), [&](const Checkpoint& one) { return one.folder == folder; });
}

std::unique_ptr<Tokenizer> Load(const std::string& folder) {
  auto tokenizer = LoadTokenizer(Folder(folder), Named(folder).config);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// The reference's ids of the text alone: without the tag, the end mark or what else the family puts around it.
std::vector<int32_t> TextIds(const Checkpoint& checkpoint, const Tokenizer& tokenizer, const json& test) {
  const char* key = test.contains("source_ids") ? "source_ids" : "ids";
  std::vector<int32_t> ids = test[key].get<std::vector<int32_t>>();
  EXPECT_FALSE(ids.empty());
  EXPECT_EQ(ids.back(), tokenizer.PieceToId(checkpoint.end));
  ids.pop_back();
  if (!checkpoint.source_prefix.empty()) {
    EXPECT_FALSE(ids.empty());
    if (checkpoint.source_prefix == "tag") {
      EXPECT_TRUE(tokenizer.IsMarker(ids.front())) << ids.front();
    } else {
      EXPECT_EQ(ids.front(), tokenizer.PieceToId(checkpoint.source_prefix));
    }
    ids.erase(ids.begin());
  }
  return ids;
}

// {text, ids} of all cases and edge texts.
std::vector<std::pair<std::string, std::vector<int32_t>>> References(const Checkpoint& checkpoint,
                                                                     const Tokenizer& tokenizer) {
  const json expected = ReadJson(Folder(checkpoint.folder) + "/expected.json");
  EXPECT_EQ(expected.contains("edge_texts"), checkpoint.has_edge_texts);
  std::vector<std::pair<std::string, std::vector<int32_t>>> result;
  for (const char* list : {"cases", "edge_texts"}) {
    if (!expected.contains(list)) continue;
    for (const json& test : expected[list]) result.emplace_back(test["text"], TextIds(checkpoint, tokenizer, test));
  }
  return result;
}

class KindsParity : public testing::TestWithParam<std::string> {};

TEST_P(KindsParity, GivesTheReferencesIdsForEveryText) {
  const Checkpoint& checkpoint = Named(GetParam());
  const std::unique_ptr<Tokenizer> tokenizer = Load(checkpoint.folder);
  ASSERT_NE(tokenizer, nullptr);
  const auto references = References(checkpoint, *tokenizer);
  ASSERT_GE(references.size(), 20u);
  for (const auto& [text, ids] : references) {
    auto encoded = tokenizer->Encode(text);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    // Where the reference cut a long text ours is longer.
    const bool cut = ids.size() == checkpoint.cut_at;
    if (cut) encoded->ids.resize(std::min(encoded->ids.size(), ids.size()));
    EXPECT_EQ(encoded->ids, ids) << text;
    if (!cut) {
      EXPECT_EQ(encoded->unknown_pieces, std::count(ids.begin(), ids.end(), tokenizer->unknown_id())) << text;
    }
  }
}

TEST_P(KindsParity, NeverMakesAMarkerOfAText) {
  const std::unique_ptr<Tokenizer> tokenizer = Load(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  for (int32_t id = 0; id < tokenizer->size(); ++id) {
    if (!tokenizer->IsMarker(id)) continue;
    const std::string piece = tokenizer->IdToPiece(id);
    for (const std::string& text : {piece, "a " + piece, piece + piece, "x" + piece + "y"}) {
      const auto encoded = tokenizer->Encode(text);
      ASSERT_TRUE(encoded.ok());
      for (const int32_t each : encoded->ids) EXPECT_FALSE(tokenizer->IsMarker(each)) << text << ": " << each;
    }
    EXPECT_EQ(tokenizer->PieceToId(piece), id);
    const std::vector<int32_t> one = {id};
    EXPECT_EQ(*tokenizer->Decode(one), "") << piece;
  }
}

TEST_P(KindsParity, NamesEveryIdOnce) {
  const std::unique_ptr<Tokenizer> tokenizer = Load(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  std::set<std::string> seen;
  for (int32_t id = 0; id < tokenizer->size(); ++id) {
    const std::string piece = tokenizer->IdToPiece(id);
    if (piece.empty()) continue;
    EXPECT_TRUE(seen.insert(piece).second) << piece;
    EXPECT_EQ(tokenizer->PieceToId(piece), id) << piece;
  }
  EXPECT_EQ(tokenizer->IdToPiece(-1), "");
  EXPECT_EQ(tokenizer->IdToPiece(static_cast<int32_t>(tokenizer->size())), "");
  const std::vector<int32_t> beyond = {static_cast<int32_t>(tokenizer->size())};
  EXPECT_EQ(tokenizer->Decode(beyond).status().code(), absl::StatusCode::kInvalidArgument);
}

// Text whose pieces are all known comes back, but for what the normaliser changed.
TEST_P(KindsParity, DecodingUndoesEncoding) {
  const Checkpoint& checkpoint = Named(GetParam());
  const std::unique_ptr<Tokenizer> tokenizer = Load(checkpoint.folder);
  ASSERT_NE(tokenizer, nullptr);
  int compared = 0;
  for (const auto& [text, ids] : References(checkpoint, *tokenizer)) {
    if (std::count(ids.begin(), ids.end(), tokenizer->unknown_id()) != 0) continue;
    if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) < 0; })) continue;
    const auto decoded = tokenizer->Decode(ids);
    ASSERT_TRUE(decoded.ok());
    // Encoded again, the decoded text has the same pieces; that is what a piece sequence can promise.
    EXPECT_EQ(tokenizer->Encode(*decoded)->ids, ids) << text << " became " << *decoded;
    // (Marian reads with one model and writes with another, so its texts come back only where both agree.)
    if (ids.size() == checkpoint.cut_at) continue;
    const bool exact = checkpoint.config.kind != TokenizerKind::kWordPiece && text.find("  ") == std::string::npos &&
                       text.find('\t') == std::string::npos && text != " ";
    if (exact) {
      EXPECT_EQ(*decoded, text);
    }
    ++compared;
  }
  EXPECT_GE(compared, 3);
}

// A table that holds just the pieces of all texts gives the same pieces, and no unknown ones that were known.
TEST_P(KindsParity, ASliceThatHoldsAllPiecesCutsTheSame) {
  const Checkpoint& checkpoint = Named(GetParam());
  const std::unique_ptr<Tokenizer> whole = Load(checkpoint.folder);
  ASSERT_NE(whole, nullptr);
  std::set<int32_t> needed = {whole->unknown_id()};
  std::vector<std::string> texts;
  for (const auto& [text, ids] : References(checkpoint, *whole)) {
    const auto encoded = whole->Encode(text);
    needed.insert(encoded->ids.begin(), encoded->ids.end());
    texts.push_back(text);
  }
  for (int32_t id = 0; id < whole->size(); ++id) {
    if (whole->IsMarker(id)) needed.insert(id);
  }
  ASSERT_LT(needed.size(), static_cast<size_t>(whole->size()) * 3 / 4);
  const std::vector<int32_t> slice(needed.begin(), needed.end());
  const auto unknown_row =
      static_cast<int32_t>(std::find(slice.begin(), slice.end(), whole->unknown_id()) - slice.begin());
  const auto sliced = LoadSlicedTokenizer(Folder(checkpoint.folder), checkpoint.config, slice, unknown_row);
  ASSERT_TRUE(sliced.ok()) << sliced.status();
  EXPECT_EQ((*sliced)->size(), static_cast<int64_t>(slice.size()));
  for (const std::string& text : texts) {
    const auto local = (*sliced)->Encode(text);
    const auto global = whole->Encode(text);
    ASSERT_EQ(local->ids.size(), global->ids.size()) << text;
    for (size_t i = 0; i < local->ids.size(); ++i) {
      EXPECT_EQ(slice[static_cast<size_t>(local->ids[i])], global->ids[i]) << text;
    }
    EXPECT_EQ(local->unknown_pieces, global->unknown_pieces);
    EXPECT_EQ(*(*sliced)->Decode(local->ids), *whole->Decode(global->ids));
  }
}

// With half the pieces gone texts fall into smaller pieces of the table; without the restriction they would be lost.
TEST_P(KindsParity, ARestrictedTokenizerLosesLessThanARenumberedOne) {
  const Checkpoint& checkpoint = Named(GetParam());
  const std::shared_ptr<const Tokenizer> whole = Load(checkpoint.folder);
  ASSERT_NE(whole, nullptr);
  std::vector<int32_t> slice;
  for (int32_t id = 0; id < whole->size(); ++id) {
    // Every other piece, but for one-character ones (of up to two bytes and a mark), which any sample would hold.
    if (id % 2 == 0 || whole->IsMarker(id) || id == whole->unknown_id() || whole->IdToPiece(id).size() <= 3) {
      slice.push_back(id);
    }
  }
  const auto unknown_row =
      static_cast<int32_t>(std::find(slice.begin(), slice.end(), whole->unknown_id()) - slice.begin());
  const auto restricted = LoadSlicedTokenizer(Folder(checkpoint.folder), checkpoint.config, slice, unknown_row);
  ASSERT_TRUE(restricted.ok()) << restricted.status();
  const auto renumbered = SlicedTokenizer::Create(whole, slice, unknown_row);
  ASSERT_TRUE(renumbered.ok()) << renumbered.status();
  int64_t lost_restricted = 0, lost_renumbered = 0, lost_whole = 0;
  for (const auto& [text, ids] : References(checkpoint, *whole)) {
    lost_whole += whole->Encode(text)->unknown_pieces;
    lost_restricted += (*restricted)->Encode(text)->unknown_pieces;
    lost_renumbered += (*renumbered)->Encode(text)->unknown_pieces;
  }
  EXPECT_LE(lost_whole, lost_restricted);
  EXPECT_LT(2 * (lost_restricted - lost_whole), lost_renumbered - lost_whole);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, KindsParity,
                         testing::Values("hf-nllb", "hf-m2m100", "hf-mbart50", "hf-mt5", "hf-t5", "hf-marian",
                                         "hf-xlmr", "hf-bert", "hf-roberta"),
                         [](const auto& test) {
                           std::string name = test.param.substr(3);
                           return name;
                         });

TEST(KindsParity, NllbTagsAreNumberedAsTheReferenceSays) {
  for (const char* folder : {"hf-nllb", "hf-mbart50", "hf-m2m100"}) {
    const std::unique_ptr<Tokenizer> tokenizer = Load(folder);
    ASSERT_NE(tokenizer, nullptr);
    const json expected = ReadJson(Folder(folder) + "/expected.json");
    ASSERT_GT(expected["tags"].size(), 50u);
    for (const auto& [tag, id] : expected["tags"].items()) {
      const std::string piece = folder == std::string("hf-m2m100") ? "__" + tag + "__" : tag;
      EXPECT_EQ(tokenizer->PieceToId(piece), id.get<int32_t>()) << piece;
    }
  }
}

TEST(KindsParity, NllbsLegacyOrderHasTheSamePieces) {
  const std::unique_ptr<Tokenizer> tokenizer = Load("hf-nllb");
  ASSERT_NE(tokenizer, nullptr);
  const json expected = ReadJson(Folder("hf-nllb") + "/expected.json");
  ASSERT_FALSE(expected["legacy_source_order"].empty());
  for (const json& test : expected["legacy_source_order"]) {
    std::vector<int32_t> ids = test["source_ids"].get<std::vector<int32_t>>();
    ASSERT_GE(ids.size(), 2u);
    ids.resize(ids.size() - 2);  // </s> [tag]
    EXPECT_EQ(tokenizer->Encode(test["text"].get<std::string>())->ids, ids);
  }
}

}  // namespace
}  // namespace koine::model_loader
