#include "model_loader/peft/adapter_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/harness.h"

namespace koine::model_loader {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::string Stored(const std::string& folder) {
  std::ostringstream text;
  text << std::ifstream(koine::testing::SourcePath("tests/data/" + folder + "/adapter_config.json")).rdbuf();
  return text.str();
}

std::string Fault(const std::string& json) {
  const auto config = ParsePeftConfig(json, "adapter_config.json");
  EXPECT_FALSE(config.ok()) << json;
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

TEST(PeftConfig, ReadsWhatTheLibraryWrites) {
  const auto de = ParsePeftConfig(Stored("hf-nllb-lora-de"), "de");
  ASSERT_TRUE(de.ok()) << de.status();
  EXPECT_EQ(de->rank, 4);
  EXPECT_EQ(de->alpha, 8);
  EXPECT_FALSE(de->rank_stabilised);
  ASSERT_TRUE(de->targets.has_value());
  EXPECT_THAT(*de->targets, UnorderedElementsAre("q_proj", "v_proj"));
  const auto fr = ParsePeftConfig(Stored("hf-nllb-lora-fr"), "fr");
  ASSERT_TRUE(fr.ok()) << fr.status();
  EXPECT_EQ(fr->rank, 8);
  EXPECT_TRUE(fr->rank_stabilised);
  EXPECT_EQ(fr->targets->size(), 6U);
}

TEST(PeftConfig, SilentKeysHaveTheLibrarysDefaults) {
  const auto config = ParsePeftConfig(R"({"peft_type": "LORA"})", "x");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rank, 8);
  EXPECT_EQ(config->alpha, 8);
  EXPECT_FALSE(config->targets.has_value());
  EXPECT_TRUE(config->IsTarget("anything.at.all"));
}

TEST(PeftConfig, EachUnsupportedFeatureIsRefusedByItsKeyAllAtOnce) {
  const std::pair<const char*, const char*> kFeatures[] = {{"use_dora", "true"},
                                                           {"bias", "\"lora_only\""},
                                                           {"modules_to_save", "[\"lm_head\"]"},
                                                           {"trainable_token_indices", "[1, 2]"},
                                                           {"target_parameters", "[\"a.weight\"]"},
                                                           {"lora_bias", "true"},
                                                           {"use_qalora", "true"},
                                                           {"use_bdlora", "{\"x\": 1}"},
                                                           {"layer_replication", "[[0, 2]]"},
                                                           {"alora_invocation_tokens", "[5]"},
                                                           {"init_lora_weights", "\"pissa_niter_4\""},
                                                           {"some_new_feature", "3"}};
  std::string all = R"({"peft_type": "LORA")";
  for (const auto& [key, value] : kFeatures) {
    const std::string one = std::string("\"") + key + "\": " + value;
    EXPECT_THAT(Fault("{\"peft_type\": \"LORA\", " + one + "}"),
                AllOf(HasSubstr("adapter_config.json: "), HasSubstr(key)));
    all += ", " + one;
  }
  const std::string fault = Fault(all + "}");
  for (const auto& [key, value] : kFeatures) EXPECT_THAT(fault, HasSubstr(key));
  EXPECT_THAT(Fault(R"({"peft_type": "IA3"})"), HasSubstr("\"IA3\"; LORA adapters are read"));
  EXPECT_THAT(Fault("{}"), HasSubstr("peft_type: is missing"));
  // Unset features, and ways of starting that leave the base model as it is, are fine.
  for (const char* key : {"use_dora", "modules_to_save", "some_new_feature"}) {
    for (const char* value : {"null", "false", "[]", "{}", "\"\""}) {
      EXPECT_TRUE(ParsePeftConfig(std::string(R"({"peft_type": "LORA", ")") + key + "\": " + value + "}", "x").ok());
    }
  }
  for (const char* value : {"true", "false", "\"gaussian\"", "\"eva\""}) {
    EXPECT_TRUE(ParsePeftConfig(std::string(R"({"peft_type": "LORA", "init_lora_weights": )") + value + "}", "x").ok());
  }
}

TEST(PeftConfig, PatternsMatchNamesFromADotOnOrWhole) {
  const auto config = ParsePeftConfig(R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8,
      "rank_pattern": {"fc1": 2, "^model.decoder.layers.0.encoder_attn.k_proj$": 16, "layers\\.1\\.self_attn.q_proj": 6},
      "alpha_pattern": {"fc1": 3.5, "v_proj": 1}})",
                                      "x");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config->RankOf("model.encoder.layers.0.fc1"), 2);
  EXPECT_EQ(*config->AlphaOf("model.encoder.layers.0.fc1"), 3.5);
  EXPECT_EQ(*config->RankOf("model.encoder.layers.0.xfc1"), 4);
  EXPECT_EQ(*config->RankOf("fc1"), 2);
  EXPECT_EQ(*config->RankOf("model.decoder.layers.0.encoder_attn.k_proj"), 16);
  EXPECT_EQ(*config->RankOf("x.model.decoder.layers.0.encoder_attn.k_proj"), 4);
  EXPECT_EQ(*config->RankOf("model.encoder.layers.1.self_attn.q_proj"), 6);
  EXPECT_EQ(*config->RankOf("model.encoder.layers.11.self_attn.q_proj"), 4) << "an escaped dot is a dot";
  EXPECT_EQ(*config->AlphaOf("a.v_proj"), 1);
  EXPECT_EQ(*config->AlphaOf("a.q_proj"), 8);
}

TEST(PeftConfig, PatternsThatDisagreeAndRegularExpressionsAreRefused) {
  const auto config =
      ParsePeftConfig(R"({"peft_type": "LORA", "rank_pattern": {"q_proj": 2, "self_attn.q_proj": 4}})", "x");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(std::string(config->RankOf("a.self_attn.q_proj").status().message()),
              AllOf(HasSubstr("rank_pattern"), HasSubstr("both 2 and 4")));
  EXPECT_EQ(*config->RankOf("a.cross.q_proj"), 2);
  EXPECT_THAT(Fault(R"({"peft_type": "LORA", "alpha_pattern": {".*decoder.*": 2}})"),
              AllOf(HasSubstr("alpha_pattern"), HasSubstr("regular expression")));
}

TEST(PeftConfig, NumbersOutOfRangeAndWrongTypesAreNamed) {
  for (const char* bad :
       {R"("r": 0)", R"("r": -4)", R"("r": 65537)", R"("r": 1e99)", R"("r": "8")", R"("lora_alpha": 0)",
        R"("lora_alpha": -1)", R"("lora_alpha": null)", R"("rank_pattern": {"q": 0})", R"("rank_pattern": [1])",
        R"("alpha_pattern": {"q": "1"})", R"("target_modules": 4)", R"("target_modules": [4])",
        R"("layers_to_transform": "0")", R"("layers_to_transform": [-1])", R"("use_rslora": 1)"}) {
    const std::string text = bad;
    const std::string key = text.substr(1, text.find('"', 1) - 1);
    EXPECT_THAT(Fault(R"({"peft_type": "LORA", )" + text + "}"), HasSubstr(key)) << bad;
  }
  EXPECT_THAT(Fault("[]"), HasSubstr("object"));
  EXPECT_THAT(Fault(R"({"peft_type": "LORA", "r": 1, "r": 2})"), Not(HasSubstr("ok")));
}

TEST(PeftConfig, LayersToTransformAreHeldAgainstNames) {
  const auto config =
      ParsePeftConfig(R"({"peft_type": "LORA", "target_modules": ["q_proj"], "layers_to_transform": [1, 3]})", "x");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->IsTarget("model.encoder.layers.3.self_attn.q_proj"));
  EXPECT_FALSE(config->IsTarget("model.encoder.layers.2.self_attn.q_proj"));
  EXPECT_FALSE(config->IsTarget("model.encoder.layers.13.self_attn.q_proj"));
  EXPECT_FALSE(config->IsTarget("model.encoder.layers.3.self_attn.k_proj"));
  const auto one = ParsePeftConfig(R"({"peft_type": "LORA", "layers_to_transform": 0})", "x");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_TRUE(one->IsTarget("model.encoder.layers.0.fc1"));
  EXPECT_FALSE(one->IsTarget("model.encoder.layers.1.fc1"));
}

}  // namespace
}  // namespace koine::model_loader
