// The reference checkpoints through the importer: what comes out is what the checkpoint says.
#include "model_loader/importer/importer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "model_loader/checkpoint/checkpoint_tensors.h"
#include "model_loader/format/config.h"
#include "model_loader/model/model.h"
#include "model_loader/model/prompts.h"
#include "model_loader/safetensors/safetensors.h"
#include "model_loader/tokenizer/load_tokenizer.h"
#include "tests/unit/model_loader_importer/checkpoint_copy.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig ConfigOf(const fs::path& model) {
  const auto config = ParseModelConfig(ReadText(model / "model.json"), "model.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : ModelConfig{};
}

LanguageConfig LanguageOf(const fs::path& model, const std::string& code) {
  const auto config = ParseLanguageConfig(ReadText(model / "languages" / code / "language.json"), code);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : LanguageConfig{};
}

// The tensors of a file of ours, by name.
TensorMap TensorsOf(const fs::path& path) {
  TensorMap tensors;
  const auto file = SafetensorsFile::Open(path.string());
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return tensors;
  for (const auto& [name, view] : (*file)->tensors()) {
    tensors[name] = {view.dtype, view.shape, std::vector<uint8_t>(view.data.begin(), view.data.end())};
  }
  return tensors;
}

// A few languages, so that not 202 folders are made.
ImportOptions Small(const CheckpointCopy& checkpoint, const std::string& name) {
  ImportOptions options = checkpoint.Options();
  const bool tagged = name == "hf-nllb" || name == "hf-m2m100" || name == "hf-mbart50";
  if (tagged) options.languages = {"en", "de", "fr", "es", "it", "pt", "ru", "zh"};
  return options;
}

class Reference : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Checkpoints, Reference,
                         testing::Values("hf-nllb", "hf-m2m100", "hf-mbart50", "hf-mt5", "hf-t5", "hf-marian",
                                         "hf-xlmr", "hf-bert", "hf-roberta"),
                         [](const auto& test) { return test.param.substr(3); });

TEST_P(Reference, EveryNumberIsThereOrNamed) {
  const CheckpointCopy checkpoint(GetParam());
  const ImportOptions options = Small(checkpoint, GetParam());
  const auto report = checkpoint.Run(options);
  ASSERT_TRUE(report.ok()) << report.status();
  const auto opened = CheckpointTensors::Open(options.folder);
  ASSERT_TRUE(opened.ok());
  int64_t theirs = 0;
  for (const auto& [name, tensor] : (*opened)->tensors()) {
    const auto in = [&name = name](const std::vector<std::string>& list) {
      return std::find(list.begin(), list.end(), name) != list.end();
    };
    if (in(report->dropped) || in(report->ignored)) continue;
    if (in(report->tied) && name != report->tied.front()) continue;
    theirs += tensor.elements();
  }
  if (GetParam() == "hf-xlmr") theirs -= 64;  // the token type is added to the positions
  if (GetParam() == "hf-roberta") theirs -= 32;
  if (GetParam() == "hf-bert") theirs += 48 * 64 + 48 - 2 * 64;  // and the dense layer has a file of its own
  EXPECT_EQ(report->parameters, theirs);
  int64_t ours = 0;
  for (const auto& [name, tensor] : TensorsOf(checkpoint.out() / "shared.safetensors")) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    ours += elements;
  }
  EXPECT_EQ(ours, theirs);
  EXPECT_THAT(Render(*report), HasSubstr("shared"));
}

// The encoder's input that the reference gave, put together from what was written: prompt, tags and tokenizer.
TEST_P(Reference, PromptAndTokenizerGiveTheReferencesIds) {
  const CheckpointCopy checkpoint(GetParam());
  const auto report = checkpoint.Run(Small(checkpoint, GetParam()));
  ASSERT_TRUE(report.ok()) << report.status();
  const ModelConfig config = ConfigOf(checkpoint.out());
  const auto tokenizer = LoadTokenizer(checkpoint.out().string(), *config.tokenizer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::map<std::string, std::string> tags;  // by the aliases that the reference uses
  for (const LanguageReport& language : report->languages) {
    for (const std::string& alias : language.aliases) tags[alias] = language.tag;
    tags[language.code] = language.tag;
  }
  const json expected = json::parse(ReadText(DataPath(GetParam()) + "/expected.json"));
  int compared = 0;
  for (const char* list : {"cases", "edge_texts"}) {
    for (const json& test : expected.value(list, json::array())) {
      std::vector<int32_t> ids;
      for (const std::string& element : config.prompt.source) {
        if (element == "$text") {
          const auto encoded = (*tokenizer)->Encode(test["text"].get<std::string>());
          ids.insert(ids.end(), encoded->ids.begin(), encoded->ids.end());
        } else {
          const std::string piece = element == "$source" ? tags[test.value("source", "en")] : element;
          ids.push_back((*tokenizer)->PieceToId(piece));
        }
      }
      const auto theirs = test[test.contains("source_ids") ? "source_ids" : "ids"].get<std::vector<int32_t>>();
      const auto longest = static_cast<size_t>(config.longest_source());
      if (config.kind == ModelKind::kEncoder && ids.size() > longest && theirs.size() == longest) {
        // The reference cut there; the end mark stays.
        ids.resize(longest);
        ids.back() = theirs.back();
      }
      EXPECT_EQ(ids, theirs) << test["text"];
      ++compared;
    }
  }
  EXPECT_GE(compared, 20);
  if (config.kind == ModelKind::kEncoderDecoder) {
    EXPECT_EQ((*tokenizer)->PieceToId(config.prompt.decoder_start), expected["decoder_start"].get<int32_t>());
  }
}

TEST(Import, KeepsTheStoredTypesOrTakesTheAskedOne) {
  const CheckpointCopy checkpoint("hf-marian");
  ImportOptions options = checkpoint.Options();
  ASSERT_TRUE(checkpoint.Run(options).ok());
  const TensorMap kept = TensorsOf(checkpoint.out() / "shared.safetensors");
  for (const auto& [name, tensor] : kept) EXPECT_EQ(tensor.dtype, kernels::DType::kF16) << name;
  options.dtype = kernels::DType::kF32;
  ASSERT_TRUE(checkpoint.Run(options).ok());
  const TensorMap wide = TensorsOf(checkpoint.out() / "shared.safetensors");
  ASSERT_EQ(kept.size(), wide.size());
  for (const auto& [name, tensor] : wide) {
    EXPECT_EQ(tensor.dtype, kernels::DType::kF32);
    EXPECT_EQ(tensor.Floats(), kept.at(name).Floats()) << name;  // exact
  }
}

TEST(Import, TypeRowIsAddedToThePositions) {
  const CheckpointCopy checkpoint("hf-bert");
  ASSERT_TRUE(checkpoint.Run().ok());
  const auto opened = CheckpointTensors::Open(checkpoint.path().string());
  std::vector<float> positions(128 * 64), types(2 * 64);
  ASSERT_TRUE(
      (*opened)->Find("embeddings.position_embeddings.weight")->ReadRows(0, 128, absl::MakeSpan(positions)).ok());
  ASSERT_TRUE((*opened)->Find("embeddings.token_type_embeddings.weight")->ReadRows(0, 2, absl::MakeSpan(types)).ok());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] += types[i % 64];
  EXPECT_EQ(TensorsOf(checkpoint.out() / "shared.safetensors").at("encoder.positions.weight").Floats(), positions);
}

// ---- Families and their constants -----------------------------------------------------------------------------------

TEST(Family, NllbPutsTheTagWhereTheCheckpointSays) {  // B016
  const CheckpointCopy checkpoint("hf-nllb");
  ImportOptions options = checkpoint.Options();
  options.languages = {"eng_Latn", "fr"};
  ASSERT_TRUE(checkpoint.Run(options).ok());
  ModelConfig config = ConfigOf(checkpoint.out());
  EXPECT_THAT(config.prompt.source, ElementsAre("$source", "$text", "</s>"));
  EXPECT_EQ(config.prompt.decoder_start, "</s>");
  EXPECT_THAT(config.prompt.decoder_forced, ElementsAre("$target"));
  EXPECT_THAT(config.languages, ElementsAre("eng_Latn", "fra_Latn"));
  const auto tokenizer = LoadTokenizer(checkpoint.out().string(), *config.tokenizer);
  // SentencePiece size + 1 + place: the reference's own numbers.
  const json expected = json::parse(ReadText(DataPath("hf-nllb/expected.json")));
  EXPECT_EQ((*tokenizer)->PieceToId(LanguageOf(checkpoint.out(), "eng_Latn").tag),
            expected["tags"]["eng_Latn"].get<int>());

  checkpoint.EditJson("tokenizer_config.json", [](json& file) { file["legacy_behaviour"] = true; });
  ASSERT_TRUE(checkpoint.Run(options).ok());
  config = ConfigOf(checkpoint.out());
  EXPECT_THAT(config.prompt.source, ElementsAre("$text", "</s>", "$source"));
  for (const json& test : expected["legacy_source_order"]) {
    const auto text = (*tokenizer)->Encode(test["text"].get<std::string>());
    std::vector<int32_t> ids = text->ids;
    ids.push_back((*tokenizer)->PieceToId("</s>"));
    ids.push_back(test["source_ids"].back().get<int32_t>());
    EXPECT_EQ(ids, test["source_ids"].get<std::vector<int32_t>>());
  }
  options.legacy_source_order = false;  // the flag wins
  ASSERT_TRUE(checkpoint.Run(options).ok());
  EXPECT_THAT(ConfigOf(checkpoint.out()).prompt.source, ElementsAre("$source", "$text", "</s>"));
  const CheckpointCopy other("hf-t5");
  options = other.Options();
  options.legacy_source_order = true;
  EXPECT_THAT(other.Fault(options), HasSubstr("--legacy-source-order is for NLLB"));
}

TEST(Family, MBart25StartsWithTheTargetsTag) {
  const CheckpointCopy checkpoint("hf-mbart50");
  checkpoint.EditJson("tokenizer_config.json", [](json& file) { file = {{"tokenizer_class", "MBartTokenizer"}}; });
  checkpoint.Remove("special_tokens_map.json");
  ImportOptions options = checkpoint.Options();
  options.languages = {"en", "de"};
  const auto report = checkpoint.Run(options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->family, "mBART-25");
  EXPECT_EQ(report->pieces, 2454 - 27);  // 25 tags, not 52
  const ModelConfig config = ConfigOf(checkpoint.out());
  EXPECT_THAT(config.prompt.source, ElementsAre("$text", "</s>", "$source"));
  EXPECT_EQ(config.prompt.decoder_start, "$target");
  EXPECT_TRUE(config.prompt.decoder_forced.empty());
  EXPECT_EQ(config.tokenizer->markers.at("ar_AR"), 2401);
  EXPECT_EQ(config.tokenizer->markers.at("<mask>"), 2426);
  EXPECT_TRUE(config.generation.forced_end);
  checkpoint.EditJson("tokenizer_config.json", [](json& file) { file = json::object(); });
  EXPECT_THAT(checkpoint.Fault(), HasSubstr("neither MBartTokenizer (mBART-25) nor MBart50Tokenizer"));
}

TEST(Family, T5HasItsOwnScalesAndT5v11AHeadOfItsOwn) {
  const CheckpointCopy t5("hf-t5");
  t5.EditJson("config.json", [](json& file) {
    file["task_specific_params"] = {
        {"translation_en_to_de", {{"prefix", "translate English to German: "}, {"num_beams", 4}}},
        {"cola", {{"max_length", 3}}}};
  });
  ASSERT_TRUE(t5.Run().ok());
  ModelConfig config = ConfigOf(t5.out());
  EXPECT_FLOAT_EQ(config.architecture.output_scale, 0.125F);  // 64^-0.5
  EXPECT_EQ(config.architecture.attention_scale, 1);
  EXPECT_EQ(config.architecture.d_head, 16);
  EXPECT_EQ(config.architecture.heads, 3);
  EXPECT_TRUE(config.architecture.tied_output);
  EXPECT_FALSE(config.architecture.gated_ffn);
  EXPECT_EQ(config.prompts,
            (std::map<std::string, std::string>{{"translation_en_to_de", "translate English to German: "}}));
  EXPECT_EQ(config.max_source_tokens, 512);
  EXPECT_TRUE(config.languages.empty());
  EXPECT_FALSE(fs::exists(t5.out() / "languages"));

  const CheckpointCopy v11("hf-mt5");
  v11.EditJson("config.json", [](json& file) { file["model_type"] = "t5"; });
  ASSERT_TRUE(v11.Run().ok());
  config = ConfigOf(v11.out());
  EXPECT_EQ(config.architecture.output_scale, 1);
  EXPECT_FALSE(config.architecture.tied_output);
  EXPECT_TRUE(config.architecture.gated_ffn);
  EXPECT_EQ(config.architecture.activation, kernels::Activation::kGeluTanh);
  EXPECT_EQ(config.positions.type, PositionType::kRelativeBuckets);
  // A newer library writes tie_word_embeddings into mT5's file: no scale, and the head stays the head.
  const CheckpointCopy mt5("hf-mt5");
  mt5.EditJson("config.json", [](json& file) { file["tie_word_embeddings"] = true; });
  const auto report = mt5.Run();
  ASSERT_TRUE(report.ok()) << report.status();
  config = ConfigOf(mt5.out());
  EXPECT_EQ(config.architecture.output_scale, 1);
  EXPECT_FALSE(config.architecture.tied_output);
  EXPECT_THAT(report->notes, testing::Contains(HasSubstr("lm_head.weight")));
  EXPECT_THAT(Render(*report), HasSubstr("the last 112 can never be generated"));
}

TEST(Family, T5EncoderLeavesTheDecoderOut) {
  const CheckpointCopy checkpoint("hf-mt5");
  checkpoint.EditJson("config.json", [](json& file) { file["architectures"] = {"MT5EncoderModel"}; });
  const auto report = checkpoint.Run();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(ConfigOf(checkpoint.out()).kind, ModelKind::kEncoder);
  EXPECT_THAT(report->dropped, testing::Contains("decoder.final_layer_norm.weight"));
  EXPECT_THAT(report->dropped, testing::Contains("lm_head.weight"));
}

TEST(Family, MarianSuppressesPaddingAndMayHaveTags) {
  const CheckpointCopy checkpoint("hf-marian");
  auto report = checkpoint.Run();
  ASSERT_TRUE(report.ok()) << report.status();
  ModelConfig config = ConfigOf(checkpoint.out());
  EXPECT_THAT(config.generation.suppressed, ElementsAre("<pad>"));
  EXPECT_TRUE(config.generation.forced_end);
  EXPECT_EQ(config.generation.beam_size, 4);
  EXPECT_EQ(config.generation.max_tokens, 128);  // 511, but there are no more positions
  EXPECT_EQ(config.architecture.activation, kernels::Activation::kSilu);
  EXPECT_TRUE(config.architecture.output_bias);
  EXPECT_FALSE(config.architecture.pre_norm);
  EXPECT_FALSE(config.positions.exponent_half_minus_one);
  EXPECT_EQ(config.prompt.decoder_start, "<pad>");
  EXPECT_FALSE(fs::exists(checkpoint.out() / "languages"));

  // Two pieces turned into tags: a model of several targets.
  checkpoint.EditJson("vocab.json", [](json& file) {
    for (const char* piece : {"Abbild", "Bilder"}) {
      const json id = file[piece];
      file.erase(piece);
      file[std::string(piece) == "Abbild" ? ">>deu<<" : ">>nds_x y<<"] = id;
    }
  });
  report = checkpoint.Run();
  ASSERT_TRUE(report.ok()) << report.status();
  config = ConfigOf(checkpoint.out());
  EXPECT_THAT(config.prompt.source, ElementsAre("$target", "$text", "</s>"));
  EXPECT_FALSE(config.encodes);
  EXPECT_THAT(config.languages, ElementsAre("en", "deu"));
  EXPECT_EQ(LanguageOf(checkpoint.out(), "deu").tag, ">>deu<<");
  EXPECT_EQ(LanguageOf(checkpoint.out(), "en").tag, "");
  EXPECT_THAT(report->notes, testing::Contains(HasSubstr("names no language code")));
  // Both serve: what has no tag is translated from.
  const auto model = Model::Load(checkpoint.out(), {});
  ASSERT_TRUE(model.ok()) << model.status();
  for (const auto& language : (*model)->languages())
    EXPECT_TRUE(CheckPrompt(config, *language).ok()) << language->code();

  checkpoint.EditJson("config.json", [](json& file) { file["share_encoder_decoder_embeddings"] = false; });
  EXPECT_THAT(checkpoint.Fault(), HasSubstr("separate vocabularies"));
}

TEST(Family, GenerationSettingsComeFromTheirFileOrFromConfig) {
  const CheckpointCopy checkpoint("hf-m2m100");
  ImportOptions options = checkpoint.Options();
  options.languages = {"en", "de"};
  ASSERT_TRUE(checkpoint.Run(options).ok());
  ModelConfig config = ConfigOf(checkpoint.out());
  EXPECT_EQ(config.generation.beam_size, 5);
  EXPECT_EQ(config.generation.early_stopping, kernels::EarlyStopping::kYes);
  EXPECT_EQ(config.generation.max_tokens, 199);  // 200 with the start token
  EXPECT_FALSE(config.generation.length_penalty.has_value());
  checkpoint.Remove("generation_config.json");
  checkpoint.EditJson("config.json", [](json& file) {
    file["length_penalty"] = 0.6;
    file["early_stopping"] = "never";
    file["no_repeat_ngram_size"] = 3;
    file["min_length"] = 5;
  });
  const auto report = checkpoint.Run(options);
  ASSERT_TRUE(report.ok()) << report.status();
  config = ConfigOf(checkpoint.out());
  EXPECT_EQ(config.generation.length_penalty, 0.6);
  EXPECT_EQ(config.generation.early_stopping, kernels::EarlyStopping::kNever);
  EXPECT_EQ(config.generation.min_tokens, 4);
  EXPECT_FALSE(config.generation.beam_size.has_value());
  EXPECT_THAT(report->notes, testing::Contains(HasSubstr("no_repeat_ngram_size 3 is not carried over")));
}

TEST(Family, EncodersPoolAsTheirOwnFilesSay) {
  const CheckpointCopy bert("hf-bert");
  ASSERT_TRUE(bert.Run().ok());
  ModelConfig config = ConfigOf(bert.out());
  EXPECT_EQ(config.pooling.mode, PoolingMode::kCls);
  ASSERT_TRUE(config.pooling.dense.has_value());
  EXPECT_EQ(config.pooling.dense->size, 48);
  EXPECT_EQ(config.pooling.dense->activation, DenseActivation::kTanh);
  EXPECT_TRUE(config.pooling.normalize);
  EXPECT_EQ(config.positions.first_position, 0);
  bert.EditJson("1_Pooling/config.json", [](json& file) { file["pooling_mode_max_tokens"] = true; });
  EXPECT_THAT(bert.Fault(), HasSubstr("2 pooling modes are on"));
  bert.EditJson("1_Pooling/config.json", [](json& file) { file["pooling_mode_cls_token"] = false; });
  EXPECT_THAT(bert.Fault(), HasSubstr("pooling mode \"max\" is not supported"));
  bert.EditJson("1_Pooling/config.json", [](json& file) { file["pooling_mode_max_tokens"] = false; });
  EXPECT_THAT(bert.Fault(), HasSubstr("0 pooling modes are on"));
  bert.EditJson("1_Pooling/config.json", [](json& file) { file["pooling_mode_cls_token"] = true; });
  // A prompt that the mean leaves out is refused; where there is none, nothing is left out.
  bert.EditJson("1_Pooling/config.json", [](json& file) { file["include_prompt"] = false; });
  EXPECT_TRUE(bert.Run().ok());
  bert.EditJson("config_sentence_transformers.json", [](json& file) { file["prompts"]["query"] = "query: "; });
  EXPECT_THAT(bert.Fault(), HasSubstr("1_Pooling/config.json: include_prompt: is false"));
  bert.EditJson("modules.json", [](json& file) { file[2]["type"] = "sentence_transformers.models.LSTM"; });
  EXPECT_THAT(bert.Fault(), HasSubstr("modules of type \"LSTM\" are not supported"));

  // Without modules.json: the mean, or what is asked for.
  bert.Remove("modules.json");
  auto report = bert.Run();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(ConfigOf(bert.out()).pooling.mode, PoolingMode::kMean);
  EXPECT_THAT(report->notes, testing::Contains(HasSubstr("--pooling")));
  ImportOptions options = bert.Options();
  options.pooling = PoolingChoice::kPooler;
  ASSERT_TRUE(bert.Run(options).ok());
  config = ConfigOf(bert.out());
  EXPECT_EQ(config.pooling.dense->size, 64);
  EXPECT_FALSE(config.pooling.normalize);
  EXPECT_EQ(TensorsOf(bert.out() / "shared.safetensors").count("pooling.dense.bias"), 1u);
}

TEST(Family, XlmRobertaPositionsStartAfterThePadding) {  // B038
  const CheckpointCopy checkpoint("hf-xlmr");
  ASSERT_TRUE(checkpoint.Run().ok());
  ModelConfig config = ConfigOf(checkpoint.out());
  EXPECT_EQ(config.positions.first_position, 2);
  EXPECT_EQ(config.positions.max_positions, 130);
  EXPECT_EQ(config.architecture.max_positions, 128);  // 514 rows would be 512 tokens
  EXPECT_THAT(config.prompt.source, ElementsAre("<s>", "$text", "</s>"));
  EXPECT_EQ(config.prompts, (std::map<std::string, std::string>{{"passage", "passage: "}, {"query", "query: "}}));
  EXPECT_EQ(config.default_prompt, "");
  checkpoint.EditJson("config_sentence_transformers.json", [](json& file) {
    file["default_prompt_name"] = "query";
    file["prompts"]["document"] = "";
  });
  checkpoint.EditJson("sentence_bert_config.json", [](json& file) { file["max_seq_length"] = 64; });
  ASSERT_TRUE(checkpoint.Run().ok());
  config = ConfigOf(checkpoint.out());
  EXPECT_EQ(config.default_prompt, "query");
  EXPECT_EQ(config.prompts.size(), 2u);
  EXPECT_EQ(config.max_source_tokens, 64);
  // The padding id moves the first position; an impossible one is refused.
  checkpoint.EditJson("config.json", [](json& file) { file["pad_token_id"] = 129; });
  EXPECT_THAT(checkpoint.Fault(), HasSubstr("leaves none of the 130 max_position_embeddings"));
  checkpoint.EditJson("config.json", [](json& file) {
    file["pad_token_id"] = 1;
    file["max_position_embeddings"] = 514;
  });
  EXPECT_THAT(checkpoint.Fault(), HasSubstr("\"embeddings.position_embeddings.weight\" is [130, 64], but config.json "
                                            "makes it [514, 64]"));
}

TEST(Family, BertMayHaveXlmRobertasTokenizer) {
  const CheckpointCopy checkpoint("hf-xlmr");
  checkpoint.EditJson("config.json", [](json& file) { file["model_type"] = "bert"; });
  ASSERT_TRUE(checkpoint.Run().ok());
  const ModelConfig config = ConfigOf(checkpoint.out());
  EXPECT_EQ(config.positions.first_position, 0);
  EXPECT_EQ(config.tokenizer->kind, TokenizerKind::kSentencePiece);
}

TEST(Family, WordPieceFromTokenizerJson) {
  const CheckpointCopy checkpoint("hf-bert");
  json vocabulary = json::object();
  std::istringstream lines(ReadText(checkpoint.path() / "vocab.txt"));
  int id = 0;
  for (std::string line; std::getline(lines, line); ++id) vocabulary[line] = id;
  checkpoint.Remove("vocab.txt");
  const json whole = {
      {"normalizer", {{"type", "BertNormalizer"}, {"lowercase", false}, {"handle_chinese_chars", false}}},
      {"model",
       {{"type", "WordPiece"},
        {"unk_token", "[UNK]"},
        {"continuing_subword_prefix", "##"},
        {"max_input_chars_per_word", 50},
        {"vocab", vocabulary}}}};
  checkpoint.Write("tokenizer.json", whole.dump());
  checkpoint.EditJson("tokenizer_config.json", [](json& file) {
    file.erase("do_lower_case");
    file.erase("tokenize_chinese_chars");
  });
  const auto report = checkpoint.Run();
  ASSERT_TRUE(report.ok()) << report.status();
  const ModelConfig config = ConfigOf(checkpoint.out());
  EXPECT_THAT(config.tokenizer->files, ElementsAre("tokenizer.json"));
  EXPECT_FALSE(config.tokenizer->lower_case);
  EXPECT_FALSE(config.tokenizer->split_cjk);
  EXPECT_EQ(config.tokenizer->max_word_chars, 50);
  checkpoint.EditJson("tokenizer.json", [](json& file) { file["model"]["type"] = "Unigram"; });
  EXPECT_THAT(checkpoint.Fault(), HasSubstr("a Unigram tokenizer"));
  checkpoint.Remove("tokenizer.json");
  EXPECT_THAT(checkpoint.Fault(), HasSubstr("no tokenizer; one of sentencepiece.bpe.model, vocab.txt, tokenizer.json, "
                                            "vocab.json with merges.txt is expected"));
}

TEST(Family, RobertasByteLevelBpeFromEitherForm) {
  const CheckpointCopy checkpoint("hf-roberta");
  ASSERT_TRUE(checkpoint.Run().ok());
  const ModelConfig whole = ConfigOf(checkpoint.out());
  EXPECT_EQ(whole.tokenizer->kind, TokenizerKind::kByteBpe);
  EXPECT_THAT(whole.tokenizer->files, ElementsAre("tokenizer.json"));
  EXPECT_FALSE(whole.tokenizer->add_prefix_space);
  EXPECT_EQ(whole.tokenizer->markers, (std::map<std::string, int32_t, std::less<>>{
                                          {"<s>", 0}, {"<pad>", 1}, {"</s>", 2}, {"<unk>", 3}, {"<mask>", 799}}));
  EXPECT_EQ(whole.positions.first_position, 2);
  EXPECT_THAT(whole.prompt.source, ElementsAre("<s>", "$text", "</s>"));
  const auto first = LoadTokenizer(checkpoint.out().string(), *whole.tokenizer);
  ASSERT_TRUE(first.ok()) << first.status();

  checkpoint.Remove("tokenizer.json");
  ASSERT_TRUE(checkpoint.Run().ok());
  const ModelConfig parts = ConfigOf(checkpoint.out());
  EXPECT_THAT(parts.tokenizer->files, ElementsAre("vocab.json", "merges.txt"));
  EXPECT_EQ(parts.tokenizer->markers, whole.tokenizer->markers);
  const auto second = LoadTokenizer(checkpoint.out().string(), *parts.tokenizer);
  ASSERT_TRUE(second.ok()) << second.status();
  const json expected = json::parse(ReadText(DataPath("hf-roberta") + "/expected.json"));
  for (const json& test : expected["edge_texts"]) {
    const std::string text = test["text"];
    EXPECT_EQ((*first)->Encode(text)->ids, (*second)->Encode(text)->ids) << text;
  }
  checkpoint.EditJson("tokenizer_config.json", [](json& file) { file["tokenizer_class"] = "GPT2Tokenizer"; });
  EXPECT_THAT(checkpoint.Fault(), HasSubstr("\"GPT2Tokenizer\" with vocab.json and merges.txt"));
  checkpoint.Remove("merges.txt");
  EXPECT_THAT(checkpoint.Fault(), HasSubstr("no tokenizer"));
}

TEST(Family, ByteLevelBpeTakesThePrefixFromTheSettingsAndElseFromTheGeneralClassesFile) {
  const CheckpointCopy checkpoint("hf-roberta");
  const auto prefix = [&](const char* name, const json& setting, bool in_file) {
    checkpoint.EditJson("tokenizer_config.json", [&](json& file) {
      file["tokenizer_class"] = name;
      file["add_prefix_space"] = setting;
    });
    checkpoint.EditJson("tokenizer.json", [&](json& file) { file["pre_tokenizer"]["add_prefix_space"] = in_file; });
    const auto report = checkpoint.Run();
    EXPECT_TRUE(report.ok()) << report.status();
    return ConfigOf(checkpoint.out()).tokenizer->add_prefix_space;
  };
  EXPECT_FALSE(prefix("RobertaTokenizer", nullptr, true));
  EXPECT_TRUE(prefix("RobertaTokenizer", true, false));
  EXPECT_TRUE(prefix("PreTrainedTokenizerFast", nullptr, true));
  EXPECT_FALSE(prefix("PreTrainedTokenizerFast", nullptr, false));
  EXPECT_FALSE(prefix("PreTrainedTokenizerFast", false, true));
}

TEST(Family, ByteLevelBpesTokenizerJsonMustDoWhatTheModelWillDo) {
  const CheckpointCopy checkpoint("hf-roberta");
  // A template that does the same; a token that only this file has; the words kept together; no model type.
  checkpoint.EditJson("tokenizer.json", [](json& file) {
    file["post_processor"] = json::parse(R"({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "</s>", "type_id": 0}}]})");
    file["added_tokens"].push_back({{"id", 800}, {"content", "<term>"}, {"special", false}});
    file["pre_tokenizer"]["use_regex"] = false;
    file["model"].erase("type");
  });
  checkpoint.EditJson("config.json", [](json& file) { file["vocab_size"] = 801; });
  checkpoint.EditTensors([](TensorMap& tensors) {
    TensorCopy& table = tensors.at("embeddings.word_embeddings.weight");
    table.shape[0] = 801;
    table.bytes.resize(size_t{801} * 32 * sizeof(float));
  });
  const auto report = checkpoint.Run();
  ASSERT_TRUE(report.ok()) << report.status();
  const ModelConfig config = ConfigOf(checkpoint.out());
  EXPECT_FALSE(config.tokenizer->split_words);
  EXPECT_EQ(config.tokenizer->markers.at("<term>"), 800);
  EXPECT_THAT(report->notes, testing::Contains(HasSubstr("<term> is not recognised in texts")));

  const auto fault = [](const char* pointer, const char* value) {
    const CheckpointCopy changed("hf-roberta");
    changed.EditJson("tokenizer.json", [&](json& file) { file[json::json_pointer(pointer)] = json::parse(value); });
    return changed.Fault();
  };
  EXPECT_THAT(fault("/normalizer", R"({"type": "Lowercase"})"), HasSubstr("normalizer: Lowercase is not supported"));
  EXPECT_THAT(fault("/pre_tokenizer/type", "\"Metaspace\""), HasSubstr("pre_tokenizer: Metaspace"));
  EXPECT_THAT(fault("/model/end_of_word_suffix", "\"</w>\""), HasSubstr("end_of_word_suffix is </w>"));
  for (const char* processor : {"null", R"({"type": "ByteLevel"})", R"({"type": "TemplateProcessing", "single": []})",
                                R"({"type": "RobertaProcessing", "cls": ["<x>", 0], "sep": ["</s>", 2]})"}) {
    EXPECT_THAT(fault("/post_processor", processor), HasSubstr("puts the class mark before a text")) << processor;
  }
  EXPECT_THAT(fault("/added_tokens/0/id", "5"), HasSubstr("the added token \"<s>\" has id 5 here and 0"));
}

TEST(Slices, OfByteLevelBpeKeepAllBytesAndCutTheSampleAlike) {
  const CheckpointCopy checkpoint("hf-roberta");
  const std::string sample = "You need to choose a language.\nUngültiger Name für einen symbolischen Verweis.\n";
  checkpoint.Write("sample.txt", sample);
  ImportOptions options = checkpoint.Options();
  options.tables = TableMode::kSample;
  options.languages = {"de"};
  options.samples = {{"de", (checkpoint.path() / "sample.txt").string()}};
  const auto report = checkpoint.Run(options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->languages.front().unknown_slice, 0);
  const ModelConfig config = ConfigOf(checkpoint.out());
  const TensorMap tensors = TensorsOf(checkpoint.out() / "languages" / "de" / "language.safetensors");
  const TensorCopy& stored = tensors.at("vocab.ids");
  std::vector<int32_t> rows(stored.bytes.size() / sizeof(int32_t));
  std::memcpy(rows.data(), stored.bytes.data(), stored.bytes.size());
  EXPECT_LT(rows.size(), 500u);
  const auto whole = LoadTokenizer(checkpoint.out().string(), *config.tokenizer);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto sliced =
      LoadSlicedTokenizer(checkpoint.out().string(), *config.tokenizer, rows, config.special_tokens.unk);
  ASSERT_TRUE(sliced.ok()) << sliced.status();
  for (std::string_view rest = sample; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() + 1);
    std::vector<int32_t> ids = (*sliced)->Encode(line)->ids;
    for (int32_t& id : ids) id = rows[static_cast<size_t>(id)];
    EXPECT_EQ(ids, (*whole)->Encode(line)->ids) << line;
  }
  // What the sample does not have is spelled with pieces and bytes of the table; nothing is lost.
  for (const char* text : {"日本語 नमस्ते 🙂", "Etwas ganz anderes, 123 €"}) {
    const auto encoded = (*sliced)->Encode(text);
    EXPECT_EQ(encoded->unknown_pieces, 0);
    EXPECT_EQ(*(*sliced)->Decode(encoded->ids), text);
  }
}

TEST(Family, TagsAddedByFineTuningHaveTheirOwnIds) {
  const CheckpointCopy checkpoint("hf-nllb");
  checkpoint.EditJson("tokenizer_config.json", [](json& file) {
    file["added_tokens_decoder"] = {{"2604", {{"content", "tyv_Cyrl"}, {"special", true}}},
                                    {"2605", {{"content", "<term>"}, {"special", false}}}};
  });
  ImportOptions options = checkpoint.Options();
  options.languages = {"tyv_Cyrl", "en"};
  const auto report = checkpoint.Run(options);
  ASSERT_TRUE(report.ok()) << report.status();
  const ModelConfig config = ConfigOf(checkpoint.out());
  EXPECT_EQ(config.tokenizer->markers.at("tyv_Cyrl"), 2604);
  EXPECT_EQ(config.tokenizer->markers.at("<mask>"), 2603);
  EXPECT_EQ(LanguageOf(checkpoint.out(), "tyv_Cyrl").script, "Cyrl");
  EXPECT_THAT(report->notes, testing::Contains(HasSubstr("<term> is not recognised in texts")));
  checkpoint.EditJson("tokenizer_config.json", [](json& file) {
    file["added_tokens_decoder"] = {{"100", {{"content", "tyv_Cyrl"}}}};
  });
  EXPECT_THAT(checkpoint.Fault(options), HasSubstr("would take id 100 from the piece"));
}

// ---- Languages ------------------------------------------------------------------------------------------------------

TEST(Languages, AnswerToTheCodesThatPeopleUse) {
  const CheckpointCopy checkpoint("hf-nllb");
  ImportOptions options = checkpoint.Options();
  options.languages = {"en", "zh-hans", "ZHO_HANT", "pt-BR", "ar", "no", "ace_Arab"};
  options.zero_shot = {"en-zh-Hant"};
  const auto report = checkpoint.Run(options);
  ASSERT_TRUE(report.ok()) << report.status();
  const ModelConfig config = ConfigOf(checkpoint.out());
  EXPECT_THAT(config.languages,
              ElementsAre("eng_Latn", "zho_Hans", "zho_Hant", "por_Latn", "arb_Arab", "nob_Latn", "ace_Arab"));
  ASSERT_EQ(config.zero_shot_pairs.size(), 1u);
  EXPECT_EQ(config.zero_shot_pairs[0].target, "zho_Hant");
  const LanguageConfig english = LanguageOf(checkpoint.out(), "eng_Latn");
  EXPECT_EQ(english.name, "English");
  EXPECT_EQ(english.tag, "eng_Latn");
  EXPECT_THAT(english.aliases, testing::IsSupersetOf({"en", "eng"}));
  const LanguageConfig simplified = LanguageOf(checkpoint.out(), "zho_Hans");
  EXPECT_THAT(simplified.aliases, testing::IsSupersetOf({"zh", "zh-CN", "zh-Hans"}));  // B014
  const LanguageConfig traditional = LanguageOf(checkpoint.out(), "zho_Hant");
  EXPECT_THAT(traditional.aliases, testing::IsSupersetOf({"zh-Hant", "zh-TW"}));
  EXPECT_THAT(traditional.aliases, testing::Not(testing::Contains("zh")));
  EXPECT_THAT(LanguageOf(checkpoint.out(), "por_Latn").aliases, testing::IsSupersetOf({"pt", "pt-BR", "pb"}));
  const LanguageConfig arabic = LanguageOf(checkpoint.out(), "arb_Arab");
  EXPECT_EQ(arabic.direction, "rtl");
  EXPECT_EQ(arabic.script, "Arab");
  EXPECT_EQ(arabic.native_name, "العربية");
  // "ace" is written in Latin letters unless somebody says otherwise.
  EXPECT_THAT(LanguageOf(checkpoint.out(), "ace_Arab").aliases, testing::Not(testing::Contains("ace")));
  for (const char* code : {"eng_Latn", "ace_Arab"}) {
    EXPECT_TRUE(TensorsOf(checkpoint.out() / "languages" / code / "language.safetensors").empty());
  }
  options.languages = {"en", "xx"};
  EXPECT_THAT(checkpoint.Fault(options), HasSubstr("--languages: unknown language \"xx\""));
  options.languages = {"en", "eng"};
  EXPECT_THAT(checkpoint.Fault(options), HasSubstr("--languages:"));
  options.languages = {"en", "de"};
  options.zero_shot = {"en-fr"};
  EXPECT_THAT(checkpoint.Fault(options), HasSubstr("--zero-shot: \"en-fr\""));
}

TEST(Languages, OfCheckpointsWithoutTagsAreWhatIsNamed) {
  const CheckpointCopy checkpoint("hf-marian");
  ImportOptions options = checkpoint.Options();
  options.languages = {"en", "de"};
  ASSERT_TRUE(checkpoint.Run(options).ok());
  EXPECT_THAT(ConfigOf(checkpoint.out()).languages, ElementsAre("en", "de"));
  EXPECT_EQ(LanguageOf(checkpoint.out(), "de").name, "German");
  options.languages = {"../up"};
  EXPECT_THAT(checkpoint.Fault(options), HasSubstr("no language code"));
}

// ---- Slices ---------------------------------------------------------------------------------------------------------

struct SliceCase {
  std::string checkpoint, language, code;
};

TEST(Slices, HoldTheSamplesPiecesAndTheOriginalsRows) {
  for (const auto& [name, language, code] :
       std::vector<SliceCase>{{"hf-nllb", "en", "eng_Latn"}, {"hf-m2m100", "de", "de"}, {"hf-mt5", "en", "en"}}) {
    SCOPED_TRACE(name);
    const CheckpointCopy checkpoint(name);
    const json expected = json::parse(ReadText(DataPath(name) + "/expected.json"));
    std::string text;
    for (const json& test : expected["cases"]) text += test["text"].get<std::string>() + "\n";
    checkpoint.Write("sample.txt", text);
    ImportOptions options = checkpoint.Options();
    options.languages = {language};
    options.tables = TableMode::kSample;
    EXPECT_THAT(checkpoint.Fault(options), HasSubstr(absl::StrCat("needs --sample LANGUAGE=FILE for ", code)));
    options.samples = {{language, (checkpoint.path() / "sample.txt").string()}};
    const auto report = checkpoint.Run(options);
    ASSERT_TRUE(report.ok()) << report.status();
    const ModelConfig config = ConfigOf(checkpoint.out());
    EXPECT_FALSE(config.shared_embedding);
    EXPECT_EQ(TensorsOf(checkpoint.out() / "shared.safetensors").count("embedding.weight"), 0u);
    const TensorMap own = TensorsOf(checkpoint.out() / "languages" / code / "language.safetensors");
    const TensorCopy& ids_tensor = own.at("vocab.ids");
    std::vector<int32_t> ids(ids_tensor.bytes.size() / 4);
    std::memcpy(ids.data(), ids_tensor.bytes.data(), ids_tensor.bytes.size());
    EXPECT_LT(ids.size() * 10, static_cast<size_t>(report->rows) * 9);
    EXPECT_EQ(report->languages[0].rows, static_cast<int64_t>(ids.size()));
    EXPECT_LT(report->languages[0].multiply_adds, report->multiply_adds);
    EXPECT_EQ(report->languages[0].unknown_slice, report->languages[0].unknown_whole);
    EXPECT_GT(report->languages[0].sample_pieces, 100);
    // Rows are the checkpoint's.
    const auto opened = CheckpointTensors::Open(checkpoint.path().string());
    const CheckpointTensor& table = *(*opened)->Find(report->tied.front());
    std::vector<uint8_t> row(static_cast<size_t>(table.row_elements()) * SizeOf(table.type));
    const TensorCopy& embedding = own.at("embedding.weight");
    for (size_t i = 0; i < ids.size(); ++i) {
      ASSERT_TRUE(table.ReadBytes(ids[i], 1, absl::MakeSpan(row)).ok());
      ASSERT_EQ(std::memcmp(row.data(), embedding.bytes.data() + i * row.size(), row.size()), 0) << i;
    }
    EXPECT_EQ(own.count("output.weight"), config.architecture.tied_output ? 0u : 1u);
    EXPECT_EQ(own.count("output.bias"), config.architecture.output_bias ? 1u : 0u);
    // The slice's tokenizer cuts the texts as the whole one does.
    const auto whole = LoadTokenizer(checkpoint.out().string(), *config.tokenizer);
    const auto sliced =
        LoadSlicedTokenizer(checkpoint.out().string(), *config.tokenizer, ids, config.special_tokens.unk);
    ASSERT_TRUE(sliced.ok()) << sliced.status();
    EXPECT_EQ((*sliced)->PieceToId("</s>"), config.special_tokens.eos);
    for (const json& test : expected["cases"]) {
      const auto a = (*whole)->Encode(test["text"].get<std::string>());
      const auto b = (*sliced)->Encode(test["text"].get<std::string>());
      ASSERT_EQ(a->ids.size(), b->ids.size());
      for (size_t i = 0; i < a->ids.size(); ++i) EXPECT_EQ(ids[static_cast<size_t>(b->ids[i])], a->ids[i]);
    }
    EXPECT_THAT(Render(*report), HasSubstr(" -> "));
  }
}

TEST(Slices, HoldThePiecesOfBothModelsOfAPair) {
  const CheckpointCopy checkpoint("hf-marian");
  const std::string text = "Der Wissenschaftler sprach gestern lange.";
  checkpoint.Write("sample.txt", text + "\n");
  ImportOptions options = checkpoint.Options();
  options.languages = {"de"};
  options.tables = TableMode::kSample;
  options.samples = {{"de", (checkpoint.path() / "sample.txt").string()}};
  const auto report = checkpoint.Run(options);
  ASSERT_TRUE(report.ok()) << report.status();
  const TensorMap own = TensorsOf(checkpoint.out() / "languages" / "de" / "language.safetensors");
  const TensorCopy& ids_tensor = own.at("vocab.ids");
  std::vector<int32_t> ids(ids_tensor.bytes.size() / 4);
  std::memcpy(ids.data(), ids_tensor.bytes.data(), ids_tensor.bytes.size());
  const json dictionary = json::parse(ReadText(DataPath("hf-marian") + "/vocab.json"));
  std::map<std::string, std::set<std::string>> pieces;
  for (const char* file : {"source.spm", "target.spm"}) {
    const auto model = LoadSentencePiece(DataPath("hf-marian") + "/" + file);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto encoded = (*model)->Encode(text);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    for (const int32_t id : encoded->ids) {
      const std::string piece = (*model)->IdToPiece(id);
      if (!dictionary.contains(piece)) continue;
      pieces[file].insert(piece);
      EXPECT_THAT(ids, testing::Contains(dictionary[piece].get<int32_t>())) << file << ": " << piece;
    }
  }
  EXPECT_NE(pieces["source.spm"], pieces["target.spm"]) << "the text tells nothing";
  EXPECT_LT(ids.size() * 10, static_cast<size_t>(report->rows) * 6);
}

TEST(Slices, SpecialTokensHaveTheSameRowsInEveryTable) {
  const CheckpointCopy checkpoint("hf-nllb");
  ImportOptions options = checkpoint.Options();
  options.languages = {"en", "ru", "zh", "ar"};
  options.tables = TableMode::kScript;
  const auto report = checkpoint.Run(options);
  ASSERT_TRUE(report.ok()) << report.status();
  const ModelConfig config = ConfigOf(checkpoint.out());
  std::vector<std::vector<int32_t>> slices;
  for (const std::string& code : config.languages) {
    const TensorCopy ids = TensorsOf(checkpoint.out() / "languages" / code / "language.safetensors").at("vocab.ids");
    slices.emplace_back(ids.bytes.size() / 4);
    std::memcpy(slices.back().data(), ids.bytes.data(), ids.bytes.size());
  }
  constexpr size_t kCommon = 4 + 202 + 1;  // <s> <pad> </s> <unk>, the tags, <mask>
  for (const auto& slice : slices) {
    ASSERT_GT(slice.size(), kCommon);
    EXPECT_TRUE(std::equal(slice.begin(), slice.begin() + kCommon, slices.front().begin()));
    EXPECT_TRUE(std::is_sorted(slice.begin() + kCommon, slice.end()));
  }
  // Each script's pieces are in its own table alone; digits are in all.
  const auto whole = LoadTokenizer(checkpoint.out().string(), *config.tokenizer);
  const auto has = [&](size_t slice, const std::string& piece) {
    const int32_t id = (*whole)->PieceToId(piece);
    EXPECT_GE(id, 0) << piece;
    return std::count(slices[slice].begin(), slices[slice].end(), id) == 1;
  };
  EXPECT_TRUE(has(0, "▁the"));
  EXPECT_FALSE(has(1, "▁the"));
  EXPECT_TRUE(has(1, "о"));
  EXPECT_FALSE(has(0, "о"));
  EXPECT_TRUE(has(2, "物"));
  EXPECT_FALSE(has(3, "物"));
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(has(i, "1"));
}

// ---- Cases of the field, and files that lie
// --------------------------------------------------------------------------

TEST(Loader, NamesWhatIsNoSafetensorsFile) {  // B039
  const CheckpointCopy checkpoint("hf-nllb");
  const std::string path = (checkpoint.path() / "model.safetensors").string();
  checkpoint.Write("model.safetensors",
                   "version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 2460457927\n");
  EXPECT_THAT(checkpoint.Fault(), testing::AllOf(HasSubstr(path), HasSubstr("git-lfs pointer")));
  checkpoint.Write("model.safetensors", "PK\x03\x04" + std::string(100, 'x'));
  EXPECT_THAT(checkpoint.Fault(), testing::AllOf(HasSubstr(path), HasSubstr("zip")));
  checkpoint.Write("model.safetensors", "");
  EXPECT_THAT(checkpoint.Fault(), testing::AllOf(HasSubstr(path), HasSubstr("empty file")));
  checkpoint.Write("model.safetensors", ReadText(DataPath("hf-nllb/model.safetensors")).substr(0, 700'000));
  EXPECT_THAT(checkpoint.Fault(), HasSubstr(path));
}

TEST(Loader, TiesTheTableWhateverNameItHas) {  // B043
  const CheckpointCopy original("hf-nllb");
  ImportOptions options = original.Options();
  options.languages = {"en"};
  ASSERT_TRUE(original.Run(options).ok());
  const TensorMap expected = TensorsOf(original.out() / "shared.safetensors");
  for (const char* name :
       {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"}) {
    SCOPED_TRACE(name);
    const CheckpointCopy checkpoint("hf-nllb");
    checkpoint.EditTensors([name](TensorMap& tensors) {
      tensors[name] = tensors["model.shared.weight"];
      tensors.erase("model.shared.weight");
    });
    options = checkpoint.Options();
    options.languages = {"en"};
    const auto report = checkpoint.Run(options);
    ASSERT_TRUE(report.ok()) << report.status();
    const TensorMap found = TensorsOf(checkpoint.out() / "shared.safetensors");
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [tensor, copy] : expected) EXPECT_EQ(found.at(tensor).bytes, copy.bytes) << tensor;
  }
  const CheckpointCopy none("hf-nllb");
  none.EditTensors([](TensorMap& tensors) { tensors.erase("model.shared.weight"); });
  EXPECT_THAT(none.Fault(), HasSubstr("none of model.shared.weight, model.encoder.embed_tokens.weight, "
                                      "model.decoder.embed_tokens.weight, lm_head.weight is there"));
  // Tied by name, but not in fact.
  const CheckpointCopy different("hf-nllb");
  different.EditTensors([](TensorMap& tensors) {
    tensors["lm_head.weight"] = tensors["model.shared.weight"];
    tensors["lm_head.weight"].bytes[5] ^= 1;
  });
  EXPECT_THAT(different.Fault(), HasSubstr("differ, but config.json says that they are tied"));
  // Not tied: the head is a tensor of its own.
  different.EditJson("config.json", [](json& file) { file["tie_word_embeddings"] = false; });
  options = different.Options();
  options.languages = {"en"};
  ASSERT_TRUE(different.Run(options).ok());
  EXPECT_FALSE(ConfigOf(different.out()).architecture.tied_output);
  const CheckpointCopy halves("hf-nllb");
  halves.EditTensors([](TensorMap& tensors) {
    tensors["model.decoder.embed_tokens.weight"] = tensors["model.shared.weight"];
    tensors["model.decoder.embed_tokens.weight"].bytes[5] ^= 1;
  });
  EXPECT_THAT(halves.Fault(), HasSubstr("the encoder and the decoder of this family have one table"));
  halves.EditTensors([](TensorMap& tensors) { tensors.erase("model.decoder.embed_tokens.weight"); });
  halves.EditJson("config.json", [](json& file) { file["tie_word_embeddings"] = false; });
  EXPECT_THAT(halves.Fault(), HasSubstr("missing tensors (1): lm_head.weight"));
}

TEST(Loader, HoldsTheShardIndexAgainstTheShards) {  // B045
  const CheckpointCopy checkpoint("hf-m2m100");
  ImportOptions options = checkpoint.Options();
  options.languages = {"en"};
  checkpoint.Write("model-00003-of-00002.safetensors", "anything");
  const auto report = checkpoint.Run(options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->notes, testing::Contains(HasSubstr("model-00003-of-00002.safetensors is ignored")));
  checkpoint.EditJson("model.safetensors.index.json", [](json& file) {
    file["weight_map"]["model.shared.weight"] = "model-00002-of-00002.safetensors";
  });
  EXPECT_THAT(checkpoint.Fault(),
              HasSubstr("\"model.shared.weight\" is not in model-00002-of-00002.safetensors but in"));
  checkpoint.Remove("model-00002-of-00002.safetensors");
  EXPECT_THAT(checkpoint.Fault(), HasSubstr("model-00002-of-00002.safetensors is missing"));
}

TEST(Loader, HoldsTheTokenizerAgainstTheTable) {  // B046
  const CheckpointCopy checkpoint("hf-nllb");
  const auto resize = [&](int64_t rows) {
    checkpoint.EditTensors([rows](TensorMap& tensors) {
      TensorCopy& table = tensors["model.shared.weight"];
      table.shape[0] = rows;
      table.bytes.resize(static_cast<size_t>(rows) * 64 * 4);
    });
    checkpoint.EditJson("config.json", [rows](json& file) { file["vocab_size"] = rows; });
  };
  ImportOptions options = checkpoint.Options();
  options.languages = {"en"};
  resize(2700);
  const auto report = checkpoint.Run(options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->rows, 2700);
  EXPECT_EQ(report->pieces, 2604);
  resize(2603);
  EXPECT_THAT(checkpoint.Fault(options), HasSubstr("the tokenizer has 2604 ids, but the table only 2603 rows"));
  checkpoint.EditJson("config.json", [](json& file) { file["vocab_size"] = 2604; });
  EXPECT_THAT(checkpoint.Fault(options), HasSubstr("is [2603, 64], but config.json says vocab_size 2604"));
}

TEST(Loader, NeverNarrowsBf16Unasked) {  // B047
  const CheckpointCopy checkpoint("hf-t5");
  checkpoint.EditTensors([](TensorMap& tensors) {
    for (auto& [name, tensor] : tensors) {
      std::vector<float> values = tensor.Floats();
      if (name == "encoder.block.1.layer.1.DenseReluDense.wo.weight") values[77] = 7e4F;
      tensor.dtype = kernels::DType::kBF16;
      tensor.SetFloats(values);
    }
  });
  ImportOptions options = checkpoint.Options();
  ASSERT_TRUE(checkpoint.Run(options).ok());
  for (const auto& [name, tensor] : TensorsOf(checkpoint.out() / "shared.safetensors")) {
    EXPECT_EQ(tensor.dtype, kernels::DType::kBF16) << name;
  }
  options.dtype = kernels::DType::kF32;
  ASSERT_TRUE(checkpoint.Run(options).ok());
  options.dtype = kernels::DType::kF16;
  EXPECT_THAT(checkpoint.Fault(options),
              testing::AllOf(HasSubstr("encoder.layers.1.ffn.down.weight"), HasSubstr("70144")));
}

TEST(Loader, CountsPiecesThatTheDictionaryLacks) {  // B048
  const CheckpointCopy checkpoint("hf-m2m100");
  ImportOptions options = checkpoint.Options();
  options.languages = {"en"};
  const auto report = checkpoint.Run(options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->notes, testing::Contains(HasSubstr("pieces of sentencepiece.bpe.model are not in vocab.json")));
}

TEST(Loader, SaysWhatToGiveInsteadOfOtherFormats) {
  const TemporaryFolder temporary;
  const auto fault = [&](const std::string& name, const std::map<std::string, std::string>& files) {
    const fs::path folder = temporary.path() / name;
    for (const auto& [file, bytes] : files) {
      fs::create_directories((folder / file).parent_path());
      std::ofstream(folder / file, std::ios::binary) << bytes;
    }
    ImportOptions options;
    options.folder = folder.string();
    options.out = (temporary.path() / "out").string();
    const auto report = Import(options);
    EXPECT_FALSE(fs::exists(options.out));
    return report.ok() ? std::string("imported") : std::string(report.status().message());
  };
  using namespace std::string_literals;
  const std::string ctranslate2 = "\x06\0\0\0\x10\0TransformerSpec\0"s;
  EXPECT_THAT(fault("ct2", {{"config.json", "{}"}, {"model.bin", ctranslate2}, {"shared_vocabulary.json", "[]"}}),
              testing::AllOf(HasSubstr("a CTranslate2 model"), HasSubstr("give the Hugging Face folder")));
  EXPECT_THAT(fault("argos", {{"metadata.json", "{}"}, {"model/model.bin", ctranslate2}}),
              testing::AllOf(HasSubstr("Argos"), HasSubstr("give the Hugging Face folder")));
  EXPECT_THAT(fault("gguf", {{"config.json", "{}"}, {"model.gguf", "GGUF\3\0\0\0"s}}), HasSubstr("GGUF"));
  EXPECT_THAT(fault("onnx", {{"config.json", "{}"}, {"encoder_model.onnx", "x"}}), HasSubstr("ONNX"));
  EXPECT_THAT(fault("tf", {{"config.json", "{}"}, {"tf_model.h5", "x"}}), HasSubstr("TensorFlow"));
  EXPECT_THAT(fault("fairseq", {{"dict.en.txt", "a 1\n"}, {"model.pt", "x"}}),
              testing::AllOf(HasSubstr("fairseq"), HasSubstr("give the Hugging Face folder")));
  EXPECT_THAT(fault("peft", {{"adapter_config.json", "{}"}}), HasSubstr("add-adapter"));
  EXPECT_THAT(fault("nothing", {{"readme", "x"}}), HasSubstr("no weights"));
  ImportOptions options;
  options.folder = (temporary.path() / "absent").string();
  options.out = (temporary.path() / "out").string();
  EXPECT_EQ(Import(options).status().code(), absl::StatusCode::kNotFound);
}

TEST(Loader, NamesAllThatIsMissingUnknownOrMisshaped) {
  const CheckpointCopy checkpoint("hf-nllb");
  checkpoint.EditTensors([](TensorMap& tensors) {
    tensors.erase("model.encoder.layers.0.self_attn.k_proj.weight");
    tensors.erase("model.decoder.layers.1.encoder_attn_layer_norm.bias");
    tensors["model.decoder.layers.0.fc1.weight"].shape = {64, 128};
    tensors["model.encoder.extra"] = tensors["model.encoder.layer_norm.bias"];
  });
  const std::string fault = checkpoint.Fault();
  EXPECT_THAT(fault, HasSubstr("missing tensors (2): "));
  EXPECT_THAT(fault, HasSubstr("model.encoder.layers.0.self_attn.k_proj.weight"));
  EXPECT_THAT(fault, HasSubstr("model.decoder.layers.1.encoder_attn_layer_norm.bias"));
  EXPECT_THAT(fault,
              HasSubstr("\"model.decoder.layers.0.fc1.weight\" is [64, 128], but config.json makes it [128, 64]"));
  const CheckpointCopy extra("hf-nllb");
  extra.EditTensors([](TensorMap& tensors) {
    tensors["model.encoder.extra"] = tensors["model.encoder.layer_norm.bias"];
    tensors["model.encoder.embed_positions.weights"] = tensors["model.encoder.layer_norm.bias"];
  });
  ImportOptions options = extra.Options();
  options.languages = {"en"};
  auto report = extra.Run(options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->dropped, ElementsAre("model.encoder.extra"));
  EXPECT_THAT(report->ignored, ElementsAre("model.encoder.embed_positions.weights"));
  extra.EditJson("config.json", [](json& file) { file["encoder_layers"] = 1; });
  EXPECT_THAT(extra.Fault(options), HasSubstr("layers that config.json, with 1 + 2, does not have (16): "));
}

TEST(Loader, RefusesValuesThatAreNoNumbers) {
  for (const float value : {NAN, INFINITY}) {
    const CheckpointCopy checkpoint("hf-t5");
    checkpoint.EditTensors([value](TensorMap& tensors) {
      TensorCopy& tensor = tensors["decoder.block.1.layer.2.DenseReluDense.wi.weight"];
      std::vector<float> values = tensor.Floats();
      values[1234] = value;
      tensor.SetFloats(values);
    });
    EXPECT_THAT(checkpoint.Fault(), HasSubstr("\"decoder.block.1.layer.2.DenseReluDense.wi.weight\" holds values that "
                                              "are not finite"));
  }
}

struct Lie {
  std::string checkpoint, file, key;
  json value;
  std::string message;
};

TEST(Loader, RefusesConfigurationsThatLie) {
  const std::vector<Lie> lies = {
      {"hf-nllb", "config.json", "model_type", "llama",
       "\"llama\" is none of those that can be imported (m2m_100, mbart"},
      {"hf-nllb", "config.json", "model_type", 7, "model_type"},
      {"hf-nllb", "config.json", "activation_function", "quick_gelu", "\"quick_gelu\" is no activation that Koine has"},
      {"hf-nllb", "config.json", "encoder_attention_heads", 5, "decoder_attention_heads"},
      {"hf-nllb", "config.json", "d_model", 63, "cannot be divided among 4 heads"},
      {"hf-nllb", "config.json", "d_model", -64, "d_model: must be an integer from 1"},
      {"hf-nllb", "config.json", "d_model", 1e300, "d_model: must be an integer from 1"},
      {"hf-nllb", "config.json", "d_model", 32, "config.json makes it"},
      {"hf-nllb", "config.json", "encoder_layers", 1'000'000'000, "encoder_layers: must be an integer"},
      {"hf-nllb", "config.json", "decoder_layers", 3, "model.decoder.layers.2."},
      {"hf-nllb", "config.json", "vocab_size", 1 << 30, "vocab_size: must be an integer"},
      {"hf-nllb", "config.json", "vocab_size", "2606", "vocab_size: must be an integer"},
      {"hf-nllb", "config.json", "eos_token_id", 77, "config.json's is 77: another end mark is not supported"},
      {"hf-nllb", "config.json", "scale_embedding", 1, "scale_embedding: must be true or false"},
      {"hf-nllb", "generation_config.json", "num_beams", 0, "num_beams: must be an integer from 1"},
      {"hf-nllb", "generation_config.json", "eos_token_id", 3, "eos_token_id: is 3, but config.json's is 2"},
      {"hf-nllb", "generation_config.json", "eos_token_id", {2, 3}, "eos_token_id: must be one integer"},
      {"hf-nllb", "generation_config.json", "forced_eos_token_id", 5, "which is not the end mark"},
      {"hf-nllb", "generation_config.json", "bad_words_ids", 5, "bad_words_ids"},
      {"hf-nllb", "generation_config.json", "decoder_start_token_id", 99'999, "is no piece's id"},
      {"hf-nllb", "tokenizer_config.json", "legacy_behaviour", "yes", "legacy_behaviour: must be true or false"},
      {"hf-nllb", "tokenizer_config.json", "model_max_length", "long", "model_max_length"},
      {"hf-nllb", "tokenizer_config.json", "added_tokens_decoder", {{"x", {{"content", "<a>"}}}}, "must have an id"},
      {"hf-t5", "config.json", "d_kv", 15, "config.json makes it"},
      {"hf-t5", "config.json", "relative_attention_num_buckets", 30, "relative_attention_bias.weight\" is [32, 3]"},
      {"hf-t5", "config.json", "relative_attention_num_buckets", 31, "relative_attention_num_buckets: is 31 with"},
      {"hf-t5", "config.json", "relative_attention_max_distance", 16, "relative_attention_max_distance 16"},
      {"hf-t5", "config.json", "feed_forward_proj", "half-gelu", "neither ACT nor gated-ACT"},
      {"hf-t5", "config.json", "is_gated_act", true, "DenseReluDense.wi_0.weight"},
      {"hf-t5", "tokenizer_config.json", "extra_ids", -1, "extra_ids"},
      {"hf-t5", "tokenizer_config.json", "extra_ids", 500, "the tokenizer has 2900 ids, but the table only 2500"},
      {"hf-bert", "config.json", "position_embedding_type", "relative_key", "only absolute"},
      {"hf-bert", "config.json", "is_decoder", true, "only encoders"},
      {"hf-nllb", "config.json", "pad_token_id", 99999, "pad_token_id"},
      {"hf-nllb", "config.json", "decoder_start_token_id", -7, "decoder_start_token_id"},
      {"hf-nllb", "config.json", "quantization_config", {{"load_in_8bit", true}}, "give the original"},
      {"hf-bert", "config.json", "type_vocab_size", 3, "token_type_embeddings.weight\" is [2, 64]"},
      {"hf-bert", "config.json", "layer_norm_eps", 0, "layer_norm_eps"},
      {"hf-bert", "tokenizer_config.json", "cls_token", "[NONE]", "has no piece \"[NONE]\""},
      {"hf-bert", "2_Dense/config.json", "out_features", 49, "linear.weight\" is [48, 64]"},
      {"hf-bert", "2_Dense/config.json", "activation_function", "torch.nn.ReLU", "\"ReLU\" is not supported"},
      {"hf-marian", "config.json", "decoder_vocab_size", 900, "separate vocabularies"},
      {"hf-marian", "tokenizer_config.json", "eos_token", "<end>", "has no id for \"<end>\""},
      {"hf-xlmr", "config_sentence_transformers.json", "prompts", {{"query", 7}}, "prompts.query: must be a text"},
      {"hf-xlmr", "sentence_bert_config.json", "do_lower_case", true, "lower-cases texts before SentencePiece"},
      {"hf-roberta", "sentence_bert_config.json", "do_lower_case", true, "or byte-level BPE; that is not supported"},
      {"hf-roberta", "tokenizer_config.json", "cls_token", "[CLS]", "post_processor: RobertaProcessing"},
      {"hf-roberta", "tokenizer_config.json", "unk_token", "<none>", "unknown piece \"<none>\" has no id"},
      {"hf-roberta", "tokenizer_config.json", "add_prefix_space", 1, "add_prefix_space: must be true or false"},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.checkpoint + " " + lie.file + " " + lie.key + " " + lie.value.dump());
    const CheckpointCopy checkpoint(lie.checkpoint);
    checkpoint.EditJson(lie.file, [&lie](json& file) { file[lie.key] = lie.value; });
    EXPECT_THAT(checkpoint.Fault(), HasSubstr(lie.message));
  }
}

// Whatever is cut off or flipped in a text file: one clear line, or a model as before; never a crash, never half a
// model.
TEST(Loader, SurvivesBrokenFiles) {
  struct Broken {
    const char* checkpoint;
    const char* file;
  };
  for (const auto& [name, file] : std::vector<Broken>{{"hf-bert", "config.json"},
                                                      {"hf-bert", "modules.json"},
                                                      {"hf-bert", "tokenizer_config.json"},
                                                      {"hf-bert", "1_Pooling/config.json"},
                                                      {"hf-bert", "vocab.txt"},
                                                      {"hf-roberta", "tokenizer.json"},
                                                      {"hf-marian", "vocab.json"},
                                                      {"hf-marian", "generation_config.json"},
                                                      {"hf-marian", "source.spm"},
                                                      {"hf-marian", "pytorch_model.bin"},
                                                      {"hf-xlmr", "model.safetensors"}}) {
    const CheckpointCopy checkpoint(name);
    const std::string bytes = ReadText(checkpoint.path() / file);
    for (int i = 0; i < 8; ++i) {
      SCOPED_TRACE(absl::StrCat(name, "/", file, " cut in ", i, "/8"));
      checkpoint.Write(file, bytes.substr(0, bytes.size() * static_cast<size_t>(i) / 8));
      const auto report = checkpoint.Run();
      const bool lines = std::string(file) == "vocab.txt";
      if (!lines) {
        EXPECT_FALSE(report.ok());
      }
      if (!report.ok()) {
        EXPECT_THAT(std::string(report.status().message()), HasSubstr(checkpoint.path().string()));
      }
    }
    for (size_t i = 0; i < 6; ++i) {
      std::string flipped = bytes;
      flipped[(bytes.size() * (2 * i + 1)) / 12] ^= 0x41;
      checkpoint.Write(file, flipped);
      const auto report = checkpoint.Run();  // asserts that nothing but a whole model is left
      if (std::string(file) == "pytorch_model.bin") {
        EXPECT_FALSE(report.ok()) << "the archive's checksums tell";
      }
    }
  }
}

TEST(Loader, LeavesNothingWhenInterrupted) {
  const CheckpointCopy checkpoint("hf-nllb");
  ImportOptions options = checkpoint.Options();
  options.languages = {"en", "de"};
  for (const int after : {0, 1, 10, 60}) {
    int asked = 0;
    options.cancelled = [&asked, after] { return ++asked > after; };
    const auto report = checkpoint.Run(options);
    EXPECT_EQ(report.status().code(), absl::StatusCode::kCancelled);
  }
  options.cancelled = nullptr;
  int64_t last = 0, total = 0;
  options.progress = [&](int64_t done, int64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  };
  ASSERT_TRUE(checkpoint.Run(options).ok());
  EXPECT_EQ(last, total);
  EXPECT_GT(total, 1'000'000);
  // A folder that is there is not touched.
  options = checkpoint.Options();
  const std::string before = ReadText(checkpoint.out() / "model.json");
  EXPECT_EQ(Import(options).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadText(checkpoint.out() / "model.json"), before);
}

}  // namespace
}  // namespace koine::model_loader
