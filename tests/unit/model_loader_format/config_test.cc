#include "model_loader/format/config.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The complete example of FORMAT.md.
json Complete() {
  return json::parse(R"json({
    "format": "koine", "format_version": 1, "name": "example", "license": "Apache-2.0", "tasks": ["translate", "encode"],
    "architecture": {"kind": "encoder-decoder", "d_model": 256, "heads": 8, "d_head": 32, "d_ffn": 1024,
      "encoder_layers": 4, "decoder_layers": 2,
      "norm": {"type": "layer_norm", "eps": 1e-5, "placement": "pre"}, "final_norm": true, "linear_bias": true,
      "activation": "relu", "gated_ffn": false, "attention_scale": 0.17677669529663687, "embedding_scale": 16.0,
      "embedding_norm": false,
      "positions": {"type": "sinusoidal", "layout": "sin_then_cos", "base": 10000, "exponent": "i/(d_model/2-1)",
                    "first_position": 0, "max_positions": 1024},
      "tied_output": true, "output_bias": false
}
, "sharing" : {"language_heads" : 0, "language_layers" : {"encoder" : [], "decoder" : [], "scope" : "attention"}},
              "prompt" : {"source" : [ "$text", "</s>" ], "decoder_start" : "<s>"},
                         "special_tokens" : {"pad" : 0, "bos" : 1, "eos" : 2, "unk" : 3},
                                            "pooling" : {"mode" : "mean", "includes_eos" : true, "normalize" : true},
                                                        "zero_shot_pairs" : ["de-fr"],
                                                                            "languages" : [ "en", "de", "fr" ]
})json");
}

json Encoder() {
  json model = Complete();
  model["tasks"] = {"encode"};
  model["architecture"]["kind"] = "encoder";
  model["architecture"].erase("decoder_layers");
  model["prompt"] = {{"source", {"<s>", "$text", "</s>"}}};
  model["sharing"]["language_layers"].erase("decoder");
  return model;
}

absl::StatusOr<ModelConfig> Parse(const json& model) { return ParseModelConfig(model.dump(), "m/model.json"); }

ModelConfig Good(const json& model) {
  const auto config = Parse(model);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : ModelConfig();
}

std::string Fault(const json& model) {
  const auto config = Parse(model);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << config.status();
  EXPECT_THAT(std::string(config.status().message()), testing::StartsWith("m/model.json: "));
  return std::string(config.status().message());
}

// The fault after setting one value, addressed by a JSON pointer.
std::string With(const char* pointer, json value) {
  json model = Complete();
  model[json::json_pointer(pointer)] = std::move(value);
  return Fault(model);
}

std::string Without(const char* parent, const char* key) {
  json model = Complete();
  model[json::json_pointer(parent)].erase(key);
  return Fault(model);
}

TEST(ModelJson, CompleteExampleIsReadAsWritten) {
  const ModelConfig config = Good(Complete());
  EXPECT_EQ(config.name, "example");
  EXPECT_EQ(config.license, "Apache-2.0");
  EXPECT_TRUE(config.translates);
  EXPECT_TRUE(config.encodes);
  EXPECT_EQ(config.kind, ModelKind::kEncoderDecoder);
  const kernels::TransformerConfig& architecture = config.architecture;
  EXPECT_EQ(architecture.d_model, 256);
  EXPECT_EQ(architecture.heads, 8);
  EXPECT_EQ(architecture.language_heads, 0);
  EXPECT_EQ(architecture.d_head, 32);
  EXPECT_EQ(architecture.d_ffn, 1024);
  EXPECT_EQ(architecture.encoder_layers, std::vector<kernels::LayerOwner>(4, kernels::LayerOwner::kShared));
  EXPECT_EQ(architecture.decoder_layers, std::vector<kernels::LayerOwner>(2, kernels::LayerOwner::kShared));
  EXPECT_EQ(architecture.norm_type, kernels::NormType::kLayerNorm);
  EXPECT_EQ(architecture.norm_eps, 1e-5F);
  EXPECT_TRUE(architecture.pre_norm);
  EXPECT_TRUE(architecture.final_norm);
  EXPECT_TRUE(architecture.linear_bias);
  EXPECT_EQ(architecture.activation, kernels::Activation::kRelu);
  EXPECT_FALSE(architecture.gated_ffn);
  EXPECT_FLOAT_EQ(architecture.attention_scale, 0.17677669529663687F);
  EXPECT_EQ(architecture.embedding_scale, 16.0F);
  EXPECT_EQ(architecture.max_positions, 1024);
  EXPECT_TRUE(architecture.tied_output);
  EXPECT_FALSE(architecture.output_bias);
  EXPECT_EQ(config.positions.type, PositionType::kSinusoidal);
  EXPECT_EQ(config.positions.base, 10000);
  EXPECT_TRUE(config.positions.exponent_half_minus_one);
  EXPECT_FALSE(config.shared_embedding);
  EXPECT_EQ(config.prompt.source, (std::vector<std::string>{"$text", "</s>"}));
  EXPECT_EQ(config.prompt.decoder_start, "<s>");
  EXPECT_EQ(config.special_tokens.pad, 0);
  EXPECT_EQ(config.special_tokens.unk, 3);
  EXPECT_EQ(config.pooling.mode, PoolingMode::kMean);
  ASSERT_EQ(config.zero_shot_pairs.size(), 1U);
  EXPECT_EQ(config.zero_shot_pairs[0].source, "de");
  EXPECT_EQ(config.zero_shot_pairs[0].target, "fr");
  EXPECT_EQ(config.languages, (std::vector<std::string>{"en", "de", "fr"}));
}

TEST(ModelJson, OptionalKeysHaveTheirDocumentedDefaults) {
  json model = Complete();
  for (const char* key : {"license", "sharing", "pooling", "zero_shot_pairs", "languages"}) model.erase(key);
  for (const char* key :
       {"linear_bias", "gated_ffn", "embedding_scale", "embedding_norm", "tied_output", "output_bias"}) {
    model["architecture"].erase(key);
  }
  for (const char* key : {"base", "first_position"}) model["architecture"]["positions"].erase(key);
  for (const char* key : {"pad", "bos", "unk"}) model["special_tokens"].erase(key);
  const ModelConfig config = Good(model);
  EXPECT_TRUE(config.architecture.linear_bias);
  EXPECT_FALSE(config.architecture.gated_ffn);
  EXPECT_EQ(config.architecture.embedding_scale, 1.0F);
  EXPECT_FALSE(config.architecture.embedding_norm);
  EXPECT_TRUE(config.architecture.tied_output);
  EXPECT_FALSE(config.architecture.output_bias);
  EXPECT_EQ(config.positions.base, 10000);
  EXPECT_EQ(config.positions.first_position, 0);
  EXPECT_EQ(config.special_tokens.pad, -1);
  EXPECT_EQ(config.special_tokens.eos, 2);
  EXPECT_TRUE(config.pooling.normalize);
  EXPECT_TRUE(config.languages.empty());
}

TEST(ModelJson, RequiredKeysAreNamedWhenMissing) {
  for (const char* key : {"format", "format_version", "name", "tasks", "architecture", "prompt", "special_tokens"}) {
    EXPECT_THAT(Without("", key), HasSubstr(std::string(key) + ": is missing"));
  }
  for (const char* key : {"kind", "d_model", "heads", "d_head", "d_ffn", "encoder_layers", "decoder_layers", "norm",
                          "final_norm", "activation", "attention_scale", "positions"}) {
    EXPECT_THAT(Without("/architecture", key), HasSubstr(std::string("architecture.") + key + ": is missing"));
  }
  for (const char* key : {"type", "eps", "placement"}) {
    EXPECT_THAT(Without("/architecture/norm", key), HasSubstr(std::string("architecture.norm.") + key));
  }
  for (const char* key : {"type", "layout", "exponent", "max_positions"}) {
    EXPECT_THAT(Without("/architecture/positions", key), HasSubstr(std::string("architecture.positions.") + key));
  }
  EXPECT_THAT(Without("/prompt", "decoder_start"), HasSubstr("prompt.decoder_start: is missing"));
  EXPECT_THAT(Without("/prompt", "source"), HasSubstr("prompt.source: is missing"));
  EXPECT_THAT(Without("/special_tokens", "eos"), HasSubstr("special_tokens.eos: is missing"));
}

TEST(ModelJson, UnknownKeysAreRefusedWithTheNearestKnownOne) {
  EXPECT_THAT(With("/architecture/d_modle", 3),
              HasSubstr("architecture.d_modle: unknown key; did you mean \"d_model\""));
  EXPECT_THAT(With("/langauges", json::array()), HasSubstr("did you mean \"languages\""));
  EXPECT_THAT(With("/architecture/norm/epsilon", 3), HasSubstr("architecture.norm.epsilon: unknown key"));
  EXPECT_THAT(With("/xyzzy", 3), AllOf(HasSubstr("xyzzy: unknown key (known: "), HasSubstr("special_tokens")));
  EXPECT_THAT(With("/architecture/d_modle", 3), Not(HasSubstr(";  ")));
}

TEST(ModelJson, AllFaultsAreReportedAtOnce) {
  json model = Complete();
  model["architecture"]["d_modle"] = 1;
  model["architecture"]["heads"] = "8";
  model["architecture"]["norm"]["type"] = "batch_norm";
  model["special_tokens"]["bos"] = -1;
  model["prompt"].erase("decoder_start");
  model.erase("name");
  EXPECT_THAT(Fault(model),
              AllOf(HasSubstr("d_modle"), HasSubstr("architecture.heads"), HasSubstr("batch_norm"),
                    HasSubstr("special_tokens.bos"), HasSubstr("decoder_start"), HasSubstr("name: is missing")));
}

TEST(ModelJson, WrongTypesAndValuesSayWhatIsAllowed) {
  EXPECT_THAT(With("/architecture/heads", 8.0), HasSubstr("must be an integer from 1 to 1024, not 8.0"));
  EXPECT_THAT(With("/architecture/final_norm", 1), HasSubstr("must be true or false, not 1"));
  EXPECT_THAT(With("/architecture", json::array()), HasSubstr("architecture: must be an object, not a list"));
  EXPECT_THAT(With("/architecture/activation", "swish"),
              HasSubstr("must be \"relu\" or \"gelu\" or \"gelu_tanh\" or \"silu\", not \"swish\""));
  EXPECT_THAT(With("/format", "gguf"), HasSubstr("must be \"koine\""));
  EXPECT_THAT(With("/format_version", 2), HasSubstr("is 2; this build reads versions up to 1"));
  EXPECT_THAT(With("/name", ""), HasSubstr("non-empty"));
  EXPECT_THAT(With("/tasks", {"translate", "summarise"}), HasSubstr("\"summarise\" is no task"));
  EXPECT_THAT(With("/tasks", json::array()), HasSubstr("must not be empty"));
  EXPECT_THAT(With("/tasks", {"encode", "encode"}), HasSubstr("twice"));
  EXPECT_THAT(With("/pooling/mode", "max"), HasSubstr("\"mean\" or \"cls\""));
  EXPECT_THAT(With("/architecture/positions/layout", "interleaved"), HasSubstr("\"sin_then_cos\""));
  EXPECT_THAT(With("/architecture/positions/exponent", "i"), HasSubstr("2i/d_model"));
  EXPECT_THAT(With("/sharing/embedding", "all"), HasSubstr("\"language\" or \"shared\""));
  EXPECT_THAT(With("/special_tokens/pad", 2147483648), HasSubstr("special_tokens.pad"));
}

TEST(ModelJson, SizesAreBounded) {
  EXPECT_THAT(With("/architecture/d_model", 65537), HasSubstr("from 1 to 65536"));
  EXPECT_THAT(With("/architecture/d_model", 0), HasSubstr("from 1"));
  EXPECT_THAT(With("/architecture/d_model", json::parse("18446744073709551615")), HasSubstr("from 1"));
  EXPECT_THAT(With("/architecture/heads", 1025), HasSubstr("architecture.heads"));
  EXPECT_THAT(With("/architecture/d_head", 65536), HasSubstr("heads * d_head is 524288"));
  EXPECT_THAT(With("/architecture/d_ffn", 1048577), HasSubstr("architecture.d_ffn"));
  EXPECT_THAT(With("/architecture/encoder_layers", 1025), HasSubstr("architecture.encoder_layers"));
  EXPECT_THAT(With("/architecture/decoder_layers", 0), HasSubstr("architecture.decoder_layers"));
  EXPECT_THAT(With("/architecture/positions/max_positions", 1048577), HasSubstr("max_positions"));
  // 2^26 / 256 = 262,144 rows may be computed.
  EXPECT_THAT(With("/architecture/positions/max_positions", 262145), HasSubstr("a computed table"));
  EXPECT_THAT(With("/architecture/norm/eps", 0), HasSubstr("architecture.norm.eps"));
  EXPECT_THAT(With("/architecture/norm/eps", -1e-5), HasSubstr("architecture.norm.eps"));
  EXPECT_THAT(With("/architecture/attention_scale", 0), HasSubstr("attention_scale"));
  EXPECT_THAT(With("/architecture/attention_scale", "0.1"), HasSubstr("attention_scale"));
  EXPECT_THAT(With("/architecture/embedding_scale", 1e300), HasSubstr("embedding_scale"));
  EXPECT_THAT(With("/name", std::string(1025, 'x')), HasSubstr("at most 1024 bytes"));
  const auto huge = ParseModelConfig(std::string((size_t{1} << 20) + 1, ' '), "m");
  EXPECT_EQ(huge.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ModelJson, PositionsMustFitTheModel) {
  json odd = Complete();
  odd["architecture"]["d_model"] = 255;
  EXPECT_THAT(Fault(odd), HasSubstr("sinusoidal needs an even d_model, not 255"));
  json two = Complete();
  two["architecture"]["d_model"] = 2;
  EXPECT_THAT(Fault(two), HasSubstr("at least 4"));
  two["architecture"]["positions"]["exponent"] = "2i/d_model";
  EXPECT_FALSE(Good(two).positions.exponent_half_minus_one);
  EXPECT_THAT(With("/architecture/positions/first_position", 1024), HasSubstr("leaves none of the 1024"));

  json learned = Complete();
  learned["architecture"]["d_model"] = 255;
  learned["architecture"]["positions"] = {{"type", "learned"}, {"first_position", 2}, {"max_positions", 514}};
  const ModelConfig config = Good(learned);
  EXPECT_EQ(config.positions.type, PositionType::kLearned);
  EXPECT_EQ(config.positions.max_positions, 514);
  EXPECT_EQ(config.architecture.max_positions, 512) << "rows that a sequence can use";
  learned["architecture"]["positions"]["base"] = 10000;
  EXPECT_THAT(Fault(learned), HasSubstr("positions.base: unknown key"));
}

TEST(ModelJson, LanguageLayersBecomeOwnersByScope) {
  json model = Complete();
  model["sharing"] = {{"language_heads", 3},
                      {"language_layers", {{"encoder", {0, 3}}, {"decoder", {1}}, {"scope", "attention"}}}};
  using kernels::LayerOwner;
  ModelConfig config = Good(model);
  EXPECT_EQ(config.architecture.language_heads, 3);
  EXPECT_EQ(config.architecture.shared_heads(), 5);
  EXPECT_EQ(config.architecture.encoder_layers, (std::vector{LayerOwner::kLanguageAttention, LayerOwner::kShared,
                                                             LayerOwner::kShared, LayerOwner::kLanguageAttention}));
  EXPECT_EQ(config.architecture.decoder_layers, (std::vector{LayerOwner::kShared, LayerOwner::kLanguageAttention}));
  model["sharing"]["language_layers"]["scope"] = "layer";
  config = Good(model);
  EXPECT_EQ(config.layer_scope, LayerScope::kLayer);
  EXPECT_EQ(config.architecture.decoder_layers[1], LayerOwner::kLanguageLayer);

  EXPECT_THAT(With("/sharing/language_layers/encoder", {4}), HasSubstr("integers from 0 to 3, not 4"));
  EXPECT_THAT(With("/sharing/language_layers/encoder", {-1}), HasSubstr("integers from 0 to 3"));
  EXPECT_THAT(With("/sharing/language_layers/decoder", {1, 1}), HasSubstr("holds 1 twice"));
  EXPECT_THAT(With("/sharing/language_layers/scope", "block"), HasSubstr("\"attention\" or \"layer\""));
  EXPECT_THAT(With("/sharing/language_heads", 9), HasSubstr("sharing.language_heads"));
  EXPECT_EQ(Good([] {
              json all = Complete();
              all["sharing"]["language_heads"] = 8;
              return all;
            }())
                .architecture.shared_heads(),
            0);
}

TEST(ModelJson, EncodersHaveNoDecoder) {
  const ModelConfig config = Good(Encoder());
  EXPECT_EQ(config.kind, ModelKind::kEncoder);
  EXPECT_TRUE(config.architecture.decoder_layers.empty());
  json model = Encoder();
  model["architecture"]["decoder_layers"] = 0;
  model["special_tokens"].erase("eos");
  EXPECT_EQ(Good(model).special_tokens.eos, -1);
  const auto fault = [](const char* pointer, json value) {
    json changed = Encoder();
    changed[json::json_pointer(pointer)] = std::move(value);
    return Fault(changed);
  };
  EXPECT_THAT(fault("/architecture/decoder_layers", 2), HasSubstr("architecture.decoder_layers"));
  EXPECT_THAT(fault("/prompt/decoder_start", "<s>"), HasSubstr("an encoder has no decoder"));
  EXPECT_THAT(fault("/tasks", {"translate"}), HasSubstr("an encoder cannot translate"));
  EXPECT_THAT(fault("/architecture/tied_output", false), HasSubstr("no output projection"));
  EXPECT_THAT(fault("/architecture/output_bias", true), HasSubstr("no output projection"));
  EXPECT_THAT(fault("/sharing/language_layers/decoder", {0}), HasSubstr("must be empty"));
}

TEST(ModelJson, PromptsAreHeldAgainstTheirWords) {
  EXPECT_THAT(With("/prompt/source", {"</s>"}), HasSubstr("\"$text\" exactly once"));
  EXPECT_THAT(With("/prompt/source", {"$text", "$text"}), HasSubstr("\"$text\" exactly once"));
  EXPECT_THAT(With("/prompt/source", {"$test", "$text"}), HasSubstr("\"$test\" has no meaning here"));
  EXPECT_THAT(With("/prompt/source", {"", "$text"}), HasSubstr("non-empty strings"));
  EXPECT_THAT(With("/prompt/decoder_start", "$source"), HasSubstr("$target or a piece"));
  EXPECT_THAT(With("/prompt/decoder_start", ""), HasSubstr("must be a piece"));
  EXPECT_THAT(With("/prompt/decoder_forced", {"$text"}), HasSubstr("has no meaning here"));
  json model = Complete();
  model["prompt"]["source"] = {"$source", "$", "$text", "</s>"};
  model["prompt"]["decoder_forced"] = {"$target"};
  model["prompt"]["decoder_start"] = "$target";
  const ModelConfig config = Good(model);
  EXPECT_EQ(config.prompt.decoder_start, "$target");
  EXPECT_EQ(config.prompt.source.size(), 4U) << "a lone $ is a piece";
  EXPECT_EQ(config.prompt.decoder_forced, std::vector<std::string>{"$target"});
}

TEST(ModelJson, RelativeBucketsHaveNoTableOfPositions) {
  json model = Complete();
  json& positions = model["architecture"]["positions"];
  positions = {{"type", "relative_buckets"}, {"max_positions", 512}};
  ModelConfig config = Good(model);
  EXPECT_EQ(config.positions.type, PositionType::kRelativeBuckets);
  EXPECT_EQ(config.positions.buckets, 32);
  EXPECT_EQ(config.positions.max_distance, 128);
  EXPECT_EQ(config.architecture.max_positions, 512);
  positions["buckets"] = 6;
  positions["max_distance"] = 4;
  config = Good(model);
  EXPECT_EQ(config.positions.buckets, 6);
  EXPECT_EQ(config.positions.max_distance, 4);
  const auto fault = [&model](const char* key, const json& value) {
    json changed = model;
    changed["architecture"]["positions"][key] = value;
    return Fault(changed);
  };
  EXPECT_THAT(fault("buckets", 7), HasSubstr("must be even"));
  EXPECT_THAT(fault("buckets", 2), HasSubstr("from 4 to 4096"));
  EXPECT_THAT(fault("buckets", 4098), HasSubstr("from 4 to 4096"));
  EXPECT_THAT(fault("buckets", 8), HasSubstr("more than half the buckets, 4"));
  EXPECT_THAT(fault("first_position", 0), HasSubstr("positions.first_position: unknown key"));
  model["architecture"]["heads"] = 64;
  model["architecture"]["d_head"] = 4;
  // 2^26 / (2 * 64) = 524,288.
  EXPECT_THAT(fault("max_positions", 524'289), HasSubstr("2 * 524289 distances of 64 heads exceed"));
}

TEST(ModelJson, OutputScaleNeedsAnOutput) {
  json model = Complete();
  EXPECT_EQ(Good(model).architecture.output_scale, 1.0F);
  model["architecture"]["output_scale"] = 0.125;
  EXPECT_EQ(Good(model).architecture.output_scale, 0.125F);
  EXPECT_THAT(With("/architecture/output_scale", 0), HasSubstr("architecture.output_scale"));
  json encoder = Encoder();
  encoder["architecture"]["output_scale"] = 0.5;
  EXPECT_THAT(Fault(encoder), HasSubstr("no output projection"));
}

TEST(ModelJson, PoolingMayEndInADenseLayer) {
  json model = Encoder();
  EXPECT_FALSE(Good(model).pooling.dense.has_value());
  EXPECT_EQ(Good(model).embedding_size(), 256);
  model["pooling"]["dense"] = {{"size", 48}, {"activation", "tanh"}};
  ModelConfig config = Good(model);
  ASSERT_TRUE(config.pooling.dense.has_value());
  EXPECT_EQ(config.pooling.dense->size, 48);
  EXPECT_EQ(config.pooling.dense->activation, DenseActivation::kTanh);
  EXPECT_TRUE(config.pooling.dense->bias);
  EXPECT_EQ(config.embedding_size(), 48);
  model["pooling"]["dense"] = {{"size", 1}, {"activation", "identity"}, {"bias", false}};
  config = Good(model);
  EXPECT_EQ(config.pooling.dense->activation, DenseActivation::kIdentity);
  EXPECT_FALSE(config.pooling.dense->bias);
  EXPECT_THAT(With("/pooling/dense", {{"size", 65'537}, {"activation", "relu"}}),
              AllOf(HasSubstr("pooling.dense.size"), HasSubstr("\"tanh\" or \"identity\", not \"relu\"")));
}

TEST(ModelJson, TextPromptsHaveNames) {
  json model = Complete();
  EXPECT_TRUE(Good(model).prompts.empty());
  model["prompts"] = {{"query", "query: "}, {"passage", "passage: "}};
  EXPECT_EQ(Good(model).default_prompt, "");
  model["default_prompt"] = "passage";
  const ModelConfig config = Good(model);
  EXPECT_EQ(config.prompts, (std::map<std::string, std::string>{{"query", "query: "}, {"passage", "passage: "}}));
  EXPECT_EQ(config.default_prompt, "passage");
  model["default_prompt"] = "search";
  EXPECT_THAT(Fault(model), HasSubstr("default_prompt: \"search\" is no name of \"prompts\""));
  EXPECT_THAT(With("/prompts", {"query: "}), HasSubstr("prompts: must be an object"));
  EXPECT_THAT(With("/prompts", {{"none", "x"}}), HasSubstr("\"none\" is no name of a prompt"));
  EXPECT_THAT(With("/prompts", {{"a b", "x"}}), HasSubstr("\"a b\" is no name of a prompt"));
  EXPECT_THAT(With("/prompts", {{"a", ""}}), HasSubstr("prompts.a: must be a text"));
  EXPECT_THAT(With("/prompts", {{"a", 1}}), HasSubstr("prompts.a: must be a string"));
}

TEST(ModelJson, GenerationDefaultsAreSetOrSilent) {
  json model = Complete();
  Generation generation = Good(model).generation;
  EXPECT_FALSE(generation.beam_size.has_value());
  EXPECT_FALSE(generation.length_penalty.has_value());
  EXPECT_FALSE(generation.early_stopping.has_value());
  EXPECT_FALSE(generation.max_tokens.has_value());
  EXPECT_FALSE(generation.min_tokens.has_value());
  EXPECT_FALSE(generation.forced_end);
  model["generation"] = {{"beam_size", 5},  {"length_penalty", 0.6},   {"early_stopping", "never"}, {"max_tokens", 199},
                         {"min_tokens", 2}, {"suppressed", {"<pad>"}}, {"forced_end", true}};
  generation = Good(model).generation;
  EXPECT_EQ(generation.beam_size, 5);
  EXPECT_EQ(generation.length_penalty, 0.6);
  EXPECT_EQ(generation.early_stopping, kernels::EarlyStopping::kNever);
  EXPECT_EQ(generation.max_tokens, 199);
  EXPECT_EQ(generation.min_tokens, 2);
  EXPECT_EQ(generation.suppressed, std::vector<std::string>{"<pad>"});
  EXPECT_TRUE(generation.forced_end);
  model["generation"]["early_stopping"] = true;
  EXPECT_EQ(Good(model).generation.early_stopping, kernels::EarlyStopping::kYes);
  model["generation"]["early_stopping"] = false;
  EXPECT_EQ(Good(model).generation.early_stopping, kernels::EarlyStopping::kNo);
  EXPECT_THAT(With("/generation", {{"early_stopping", "always"}, {"beam_size", 0}, {"length_penalty", 11}}),
              AllOf(HasSubstr("true, false or \"never\""), HasSubstr("generation.beam_size"),
                    HasSubstr("generation.length_penalty: must be a number from -10 to 10")));
  EXPECT_THAT(With("/generation", {{"max_tokens", 4}, {"min_tokens", 5}}), HasSubstr("more than max_tokens 4"));
  EXPECT_THAT(With("/generation", {{"beams", 4}}), HasSubstr("generation.beams: unknown key"));
  json encoder = Encoder();
  encoder["generation"] = json::object();
  EXPECT_THAT(Fault(encoder), HasSubstr("an encoder generates nothing"));
}

TEST(ModelJson, LongestSourceIsThatOfThePositionsUnlessSaid) {
  json model = Complete();
  EXPECT_EQ(Good(model).longest_source(), 1024);
  model["max_source_tokens"] = 128;
  EXPECT_EQ(Good(model).longest_source(), 128);
  EXPECT_THAT(With("/max_source_tokens", 1025), HasSubstr("max_source_tokens: must be an integer from 1 to 1024"));
  EXPECT_THAT(With("/max_source_tokens", 0), HasSubstr("max_source_tokens: must be an integer from 1 to 1024"));
}

TEST(ModelJson, LanguageCodesAreSafeFolderNames) {
  for (const char* code : {"..", "../en", "a/b", ".hidden", "-x", "en us", "", "a.b", "\u00e9"}) {
    EXPECT_THAT(With("/languages", {"en", "de", "fr", code}), HasSubstr("languages: ")) << code;
  }
  EXPECT_THAT(With("/languages", {"de", "fr", "pt-BR", "pt_br"}), HasSubstr("\"pt_br\" twice"));
}

TEST(ModelJson, ZeroShotPairsAreSplitByTheKnownCodes) {
  json model = Complete();
  model["languages"] = {"pt", "BR", "pt-BR", "de", "BR-de"};
  model["zero_shot_pairs"] = {"de-pt-BR", "pt-BR"};
  const ModelConfig config = Good(model);
  EXPECT_EQ(config.zero_shot_pairs[0].target, "pt-BR");
  EXPECT_EQ(config.zero_shot_pairs[1].source, "pt");
  model["zero_shot_pairs"] = {"pt-BR-de"};  // pt to BR-de, or pt-BR to de
  EXPECT_THAT(Fault(model), HasSubstr("ambiguous"));
  EXPECT_THAT(With("/zero_shot_pairs", {"de-xx"}), HasSubstr("\"de-xx\" is not SOURCE-TARGET"));
  EXPECT_THAT(With("/zero_shot_pairs", {"de"}), HasSubstr("not SOURCE-TARGET"));
  EXPECT_THAT(With("/zero_shot_pairs", {"de-fr", "de-fr"}), HasSubstr("twice"));
}

TEST(ModelJson, TokenizersAreReadAndWritten) {
  EXPECT_FALSE(Good(Complete()).tokenizer.has_value());
  const auto read = [](const char* text) {
    json model = Complete();
    model["tokenizer"] = json::parse(text);
    const ModelConfig config = Good(model);
    const auto again = ParseModelConfig(ToJson(config), "again");
    EXPECT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->tokenizer, config.tokenizer);
    const auto language =
        ParseLanguageConfig(json({{"code", "x"}, {"tokenizer", model["tokenizer"]}}).dump(), "l/language.json");
    EXPECT_TRUE(language.ok()) << language.status();
    EXPECT_EQ(language->tokenizer, config.tokenizer);
    EXPECT_EQ(ParseLanguageConfig(ToJson(*language), "again")->tokenizer, config.tokenizer);
    return config.tokenizer.value_or(TokenizerConfig());
  };
  TokenizerConfig tokenizer = read(R"({"kind": "sentencepiece", "files": ["sentencepiece.bpe.model"], "id_offset": 1,
                                      "unk_piece_to": 3, "markers": {"<s>": 0, "eng_Latn": 256047}})");
  EXPECT_EQ(tokenizer.kind, TokenizerKind::kSentencePiece);
  EXPECT_EQ(tokenizer.files, std::vector<std::string>{"sentencepiece.bpe.model"});
  EXPECT_EQ(tokenizer.id_offset, 1);
  EXPECT_EQ(tokenizer.unk_piece_to, 3);
  EXPECT_EQ(tokenizer.markers.at("eng_Latn"), 256047);
  tokenizer = read(R"({"kind": "sentencepiece", "files": ["m.model"]})");
  EXPECT_EQ(tokenizer.id_offset, 0);
  EXPECT_FALSE(tokenizer.unk_piece_to.has_value());
  tokenizer = read(R"({"kind": "sentencepiece_vocab", "files": ["source.spm", "target.spm", "vocab.json"]})");
  EXPECT_EQ(tokenizer.unk_piece, "<unk>");
  tokenizer = read(R"({"kind": "wordpiece", "files": ["vocab.txt"], "lower_case": true})");
  EXPECT_EQ(tokenizer.unk_piece, "[UNK]");
  EXPECT_TRUE(tokenizer.lower_case);
  EXPECT_TRUE(tokenizer.split_cjk);
  EXPECT_FALSE(tokenizer.strip_accents.has_value());
  EXPECT_EQ(tokenizer.max_word_chars, 100);
  tokenizer = read(R"({"kind": "wordpiece", "files": ["vocab.txt"], "lower_case": false, "strip_accents": true,
                      "split_cjk": false, "unk_piece": "<u>", "continuation_prefix": "@@", "max_word_chars": 50})");
  EXPECT_EQ(tokenizer.strip_accents, true);
  EXPECT_FALSE(tokenizer.split_cjk);
  EXPECT_EQ(tokenizer.continuation_prefix, "@@");
  tokenizer = read(R"({"kind": "byte_bpe", "files": ["vocab.json", "merges.txt"]})");
  EXPECT_EQ(tokenizer.kind, TokenizerKind::kByteBpe);
  EXPECT_EQ(tokenizer.unk_piece, "<unk>");
  EXPECT_FALSE(tokenizer.add_prefix_space);
  EXPECT_TRUE(tokenizer.split_words);
  tokenizer = read(R"({"kind": "byte_bpe", "files": ["tokenizer.json"], "add_prefix_space": true, "split_words": false,
                      "unk_piece": "[UNK]", "markers": {"[UNK]": 3}})");
  EXPECT_EQ(tokenizer.unk_piece, "[UNK]");
  EXPECT_TRUE(tokenizer.add_prefix_space);
  EXPECT_FALSE(tokenizer.split_words);
}

TEST(ModelJson, TokenizerFaultsAreNamed) {
  const auto fault = [](const char* text) { return With("/tokenizer", json::parse(text)); };
  EXPECT_THAT(fault(R"({"kind": "bpe", "files": ["a"]})"), HasSubstr("tokenizer.kind: must be \"sentencepiece\" or"));
  EXPECT_THAT(fault(R"({"kind": "sentencepiece"})"), HasSubstr("tokenizer.files: is missing"));
  EXPECT_THAT(fault(R"({"kind": "sentencepiece", "files": ["a", "b"]})"), HasSubstr("must name one file"));
  EXPECT_THAT(fault(R"({"kind": "sentencepiece_vocab", "files": ["a"]})"), HasSubstr("a model and a dictionary"));
  EXPECT_THAT(fault(R"({"kind": "byte_bpe", "files": ["a", "b", "c"]})"), HasSubstr("a dictionary and its merges"));
  EXPECT_THAT(fault(R"({"kind": "byte_bpe", "files": ["a"], "lower_case": true})"), HasSubstr("unknown key"));
  for (const char* file : {"../a", "a/b", "/a", "..", ".a", "a..b", "a b", "a\\\\b"}) {
    EXPECT_THAT(fault((std::string(R"({"kind": "sentencepiece", "files": [")") + file + "\"]}").c_str()),
                HasSubstr("no name of a file"))
        << file;
  }
  EXPECT_THAT(fault(R"({"kind": "sentencepiece", "files": ["a"], "lower_case": true})"), HasSubstr("unknown key"));
  EXPECT_THAT(fault(R"({"kind": "wordpiece", "files": ["a"]})"), HasSubstr("lower_case: is missing"));
  EXPECT_THAT(fault(R"({"kind": "wordpiece", "files": ["a"], "lower_case": true, "id_offset": 1})"),
              HasSubstr("unknown key"));
  EXPECT_THAT(fault(R"({"kind": "sentencepiece", "files": ["a"], "markers": ["<s>"]})"),
              HasSubstr("must be an object"));
  EXPECT_THAT(fault(R"({"kind": "sentencepiece", "files": ["a"], "markers": {"a": 1, "b": 1}})"),
              HasSubstr("both have id 1"));
  EXPECT_THAT(fault(R"({"kind": "sentencepiece", "files": ["a"], "markers": {"a": -1}})"), HasSubstr("from 0 to"));
  EXPECT_THAT(fault(R"({"kind": "sentencepiece", "files": ["a"], "markers": {"a": 4194304}})"), HasSubstr("from 0 to"));
  EXPECT_THAT(fault(R"({"kind": "sentencepiece", "files": ["a"], "markers": {"": 1}})"), HasSubstr("1 to 1024 bytes"));
  EXPECT_THAT(fault(R"({"kind": "sentencepiece_vocab", "files": ["a", "b"], "unk_piece": ""})"),
              HasSubstr("must not be empty"));
}

TEST(ModelJson, SharedEmbeddingIsRead) {
  json model = Complete();
  model["sharing"]["embedding"] = "shared";
  EXPECT_TRUE(Good(model).shared_embedding);
}

TEST(ModelJson, BadJsonIsNamed) {
  for (const char* text : {"", "{", "[]", "3", "{\"a\":1}x"}) {
    EXPECT_EQ(ParseModelConfig(text, "m").status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(std::string(ParseModelConfig("[]", "m").status().message()), HasSubstr("must be an object, not a list"));
  EXPECT_THAT(std::string(ParseModelConfig(R"({"name":"a","name":"b"})", "m").status().message()), HasSubstr("twice"));
}

TEST(ModelJson, ManyFaultsAreCounted) {
  json model = Complete();
  for (int i = 0; i < 1000; ++i) model["key" + std::to_string(i)] = i;
  const std::string fault = Fault(model);
  EXPECT_THAT(fault, HasSubstr("and 936 more"));
  EXPECT_LT(fault.size(), 30'000U);
}

TEST(ModelJson, WritingAndReadingKeepsEverything) {
  json model = Complete();
  model["sharing"] = {{"embedding", "shared"},
                      {"language_heads", 2},
                      {"language_layers", {{"encoder", {1}}, {"decoder", {0}}, {"scope", "layer"}}}};
  model["prompt"]["decoder_forced"] = {"$target"};
  model["pooling"] = {{"mode", "cls"}, {"includes_eos", false}, {"normalize", false}};
  for (const json& one : {Complete(), model, Encoder()}) {
    const ModelConfig config = Good(one);
    const std::string text = ToJson(config);
    const ModelConfig again = Good(json::parse(text));
    EXPECT_EQ(ToJson(again), text);
    EXPECT_EQ(again.architecture.attention_scale, config.architecture.attention_scale);
    EXPECT_EQ(again.architecture.encoder_layers, config.architecture.encoder_layers);
    EXPECT_EQ(again.prompt.decoder_forced, config.prompt.decoder_forced);
    // What the writer says is what the original said, default values filled in.
    const json written = json::parse(text);
    for (const auto& [key, value] : one.items()) {
      if (key == "architecture" || key == "sharing") continue;
      EXPECT_EQ(written.at(key), value) << key;
    }
  }
  EXPECT_THAT(ToJson(Good(Complete())), HasSubstr("\"eps\": 1e-05"));
}

TEST(LanguageJson, IsReadWithDefaults) {
  const auto full = ParseLanguageConfig(R"({"code": "pt-BR", "name": "Portuguese", "native_name": "português",
      "script": "Latn", "direction": "ltr", "aliases": ["pt", "por_Latn"], "tag": "__pt__",
      "adapter": {"kind": "bottleneck", "rank": 32, "activation": "silu"}})",
                                        "l");
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->code, "pt-BR");
  EXPECT_EQ(full->native_name, "português");
  EXPECT_EQ(full->aliases, (std::vector<std::string>{"pt", "por_Latn"}));
  EXPECT_EQ(full->tag, "__pt__");
  EXPECT_EQ(full->adapter.kind, AdapterKind::kBottleneck);
  EXPECT_EQ(full->adapter.rank, 32);
  EXPECT_EQ(full->adapter.activation, kernels::Activation::kSilu);
  const auto least = ParseLanguageConfig(R"({"code": "ar", "direction": "rtl"})", "l");
  ASSERT_TRUE(least.ok()) << least.status();
  EXPECT_EQ(least->direction, "rtl");
  EXPECT_EQ(least->adapter.kind, AdapterKind::kNone);
  EXPECT_EQ(ParseLanguageConfig(R"({"code": "ar"})", "l")->direction, "ltr");
}

std::string LanguageFault(const char* text) {
  const auto language = ParseLanguageConfig(text, "l/language.json");
  EXPECT_EQ(language.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(language.status().message());
}

TEST(LanguageJson, FaultsAreNamed) {
  EXPECT_THAT(LanguageFault("{}"), HasSubstr("l/language.json: code: is missing"));
  EXPECT_THAT(LanguageFault(R"({"code": "../x"})"), HasSubstr("no language code"));
  EXPECT_THAT(LanguageFault(R"({"code": "x", "direction": "up"})"), HasSubstr("\"ltr\" or \"rtl\""));
  EXPECT_THAT(LanguageFault(R"({"code": "x", "aliases": ["a/b"]})"), HasSubstr("aliases"));
  EXPECT_THAT(LanguageFault(R"({"code": "x", "nativename": "a"})"), HasSubstr("did you mean \"native_name\""));
  EXPECT_THAT(LanguageFault(R"({"code": "x", "tokenizer": {}})"), HasSubstr("tokenizer.kind: is missing"));
  EXPECT_THAT(LanguageFault(R"({"code": "x", "adapter": {"kind": "prefix"}})"), HasSubstr("adapter.kind"));
}

std::string AdapterFault(const char* text) {
  const auto adapter = ParseAdapterConfig(text, "a/adapter.json");
  EXPECT_EQ(adapter.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(adapter.status().message());
}

TEST(AdapterJson, AllKindsAreReadAndWritten) {
  for (const char* text :
       {R"({"kind":"none"})", R"({"kind":"scale","sites":["self_attn","ffn"]})",
        R"({"kind":"scale","sites":["cross_attn"]})", R"({"kind":"bottleneck","rank":4,"activation":"gelu"})",
        R"({"kind":"lora","rank":2,"alpha":8.5,"rank_stabilised":true})",
        R"({"kind":"lora","rank":2,"alpha":8.5,"rank_stabilised":false,"pairs":
            {"decoder.layers.11.cross_attn.o":{"rank":7,"alpha":2.5},"encoder.layers.0.ffn.gate":{"rank":1,"alpha":8.5}}})"}) {
    const auto adapter = ParseAdapterConfig(text, "a");
    ASSERT_TRUE(adapter.ok()) << adapter.status();
    EXPECT_EQ(json::parse(ToJson(*adapter)), json::parse(text));
  }
  EXPECT_EQ(ParseAdapterConfig(R"({"kind":"bottleneck","rank":4})", "a")->activation, kernels::Activation::kRelu);
  EXPECT_FALSE(ParseAdapterConfig(R"({"kind":"lora","rank":4,"alpha":1})", "a")->rank_stabilised);
}

TEST(AdapterJson, PairsHaveTheAdaptersRankAndAlphaWhereTheyAreSilent) {
  const auto adapter = ParseAdapterConfig(
      R"({"kind":"lora","rank":4,"alpha":6,"rank_stabilised":true,
          "pairs":{"encoder.layers.0.self_attn.q":{"rank":9},"encoder.layers.0.self_attn.k":{"alpha":2}}})",
      "a");
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->PairOf("encoder.layers.0.self_attn.q").rank, 9);
  EXPECT_EQ(adapter->PairOf("encoder.layers.0.self_attn.q").alpha, 6);
  EXPECT_EQ(adapter->PairScale("encoder.layers.0.self_attn.q"), 2) << "6 / sqrt(9)";
  EXPECT_EQ(adapter->PairScale("encoder.layers.0.self_attn.k"), 1) << "2 / sqrt(4)";
  EXPECT_EQ(adapter->PairScale("encoder.layers.0.self_attn.v"), 3) << "6 / sqrt(4)";
  for (const char* name : {"encoder.layers.0.cross_attn.q", "encoder.layers.00.ffn.up", "encoder.layers.-1.ffn.up",
                           "encoder.layers.1024.ffn.up", "decoder.layers.0.self_attn.x", "decoder.layers.ffn.up", "",
                           "layers.0.ffn.up", "encoder.layers.0.ffn.up.lora.a", "encoder.layers."}) {
    EXPECT_FALSE(IsProjectionName(name)) << name;
    EXPECT_THAT(
        AdapterFault(
            (R"({"kind":"lora","rank":4,"alpha":1,"pairs":{")" + std::string(name) + R"(":{"rank":1}}})").c_str()),
        HasSubstr("is no projection of a layer"));
  }
  EXPECT_THAT(
      AdapterFault(R"({"kind":"lora","rank":4,"alpha":1,"pairs":{"encoder.layers.0.ffn.up":{"rank":0,"beta":1}}})"),
      AllOf(HasSubstr("pairs.encoder.layers.0.ffn.up.rank"), HasSubstr("beta: unknown key")));
  EXPECT_THAT(AdapterFault(R"({"kind":"lora","rank":4,"alpha":1,"pairs":[]})"), HasSubstr("pairs: must be an object"));
}

TEST(AdapterJson, FaultsAreNamed) {
  EXPECT_THAT(AdapterFault("{}"), HasSubstr("a/adapter.json: kind: is missing"));
  EXPECT_THAT(AdapterFault(R"({"kind":"scale"})"), HasSubstr("sites: is missing"));
  EXPECT_THAT(AdapterFault(R"({"kind":"scale","sites":[]})"), HasSubstr("must not be empty"));
  EXPECT_THAT(AdapterFault(R"({"kind":"scale","sites":["ffn","ffn"]})"), HasSubstr("twice"));
  EXPECT_THAT(AdapterFault(R"({"kind":"scale","sites":["norm"]})"), HasSubstr("\"norm\" is no site"));
  EXPECT_THAT(AdapterFault(R"({"kind":"scale","sites":["ffn"],"rank":1})"), HasSubstr("rank: unknown key"));
  EXPECT_THAT(AdapterFault(R"({"kind":"bottleneck","rank":0})"), HasSubstr("rank: must be an integer"));
  EXPECT_THAT(AdapterFault(R"({"kind":"bottleneck"})"), HasSubstr("rank: is missing"));
  EXPECT_THAT(AdapterFault(R"({"kind":"lora","rank":4})"), HasSubstr("alpha: is missing"));
  EXPECT_THAT(AdapterFault(R"({"kind":"lora","rank":4,"alpha":0})"), HasSubstr("alpha: must be a number above 0"));
  EXPECT_THAT(AdapterFault(R"({"kind":"lora","rank":4,"alpha":1,"rank_stabilized":true})"),
              HasSubstr("did you mean \"rank_stabilised\""));
}

}  // namespace
}  // namespace koine::model_loader
