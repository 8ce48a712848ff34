#include "model_loader/importer/hf_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "nlohmann/json.hpp"

namespace koine::model_loader {
namespace {

TEST(HfNames, MapsEachWayOfNaming) {
  const std::map<std::string, std::string> expected = {
      {"model.shared", "embedding"},
      {"shared", "embedding"},
      {"model.decoder.embed_tokens", "embedding"},
      {"lm_head", "output"},
      {"model.encoder.layers.11.self_attn.out_proj", "encoder.layers.11.self_attn.o"},
      {"model.decoder.layers.0.encoder_attn.k_proj", "decoder.layers.0.cross_attn.k"},
      {"decoder.layers.0.fc1", "decoder.layers.0.ffn.up"},
      {"model.decoder.layers.0.final_layer_norm", "decoder.layers.0.ffn_norm"},
      {"model.decoder.layer_norm", "decoder.final_norm"},
      {"model.encoder.layernorm_embedding", "encoder.embedding_norm"},
      {"encoder.block.7.layer.0.SelfAttention.v", "encoder.layers.7.self_attn.v"},
      {"decoder.block.7.layer.1.EncDecAttention.o", "decoder.layers.7.cross_attn.o"},
      {"decoder.block.7.layer.1.layer_norm", "decoder.layers.7.cross_attn_norm"},
      {"encoder.block.7.layer.1.layer_norm", "encoder.layers.7.ffn_norm"},
      {"encoder.block.0.layer.1.DenseReluDense.wi_0", "encoder.layers.0.ffn.gate"},
      {"decoder.block.0.layer.2.DenseReluDense.wi_1", "decoder.layers.0.ffn.up"},
      {"decoder.block.0.layer.0.SelfAttention.relative_attention_bias", "decoder.relative_bias"},
      {"encoder.final_layer_norm", "encoder.final_norm"},
      {"roberta.encoder.layer.3.attention.output.LayerNorm", "encoder.layers.3.self_attn_norm"},
      {"bert.encoder.layer.3.intermediate.dense", "encoder.layers.3.ffn.up"},
      {"embeddings.LayerNorm", "encoder.embedding_norm"},
      {"pooler.dense", "pooling.dense"},
  };
  for (const auto& [theirs, ours] : expected) EXPECT_EQ(KoineModuleName(theirs), ours) << theirs;
}

TEST(HfNames, KnowsNothingElse) {
  for (const char* name :
       {"", "model", "model.", "model.encoder.layers.x.fc1", "model.encoder.layers..fc1", "model.encoder.layers.01.fc1",
        "model.encoder.layers.0.encoder_attn.q_proj", "model.encoder.layers.0.fc3",
        "encoder.block.1.layer.2.layer_norm", "encoder.block.1.layer.0.SelfAttention.relative_attention_bias",
        "model.middle.layers.0.fc1", "model.encoder.layers.99999999999999999999.fc1",
        "model.encoder.layers.0.fc1.weight.extra", "encoderX.layer_norm"}) {
    EXPECT_EQ(KoineModuleName(name), "") << name;
  }
  EXPECT_EQ(KoineTensorName("model.encoder.layers.0.fc1.scale"), "");
  EXPECT_EQ(KoineTensorName("weight"), "");
  EXPECT_EQ(KoineTensorName("final_logits_bias"), "output.bias");
  EXPECT_EQ(KoineTensorName("lm_head.bias"), "");  // of a masked language model
  EXPECT_EQ(KoineTensorName("bert.embeddings.LayerNorm.gamma"), "encoder.embedding_norm.weight");
}

TEST(HfNames, TheInverseLeadsBack) {
  for (const HfNaming naming : {HfNaming::kBart, HfNaming::kT5, HfNaming::kBert}) {
    for (const bool gated : {false, true}) {
      int named = 0;
      for (const char* module :
           {"embedding", "output", "encoder.positions", "decoder.relative_bias", "encoder.embedding_norm",
            "decoder.final_norm", "encoder.layers.3.self_attn.q", "decoder.layers.12.cross_attn.o",
            "encoder.layers.0.self_attn_norm", "decoder.layers.0.cross_attn_norm", "decoder.layers.4.ffn_norm",
            "encoder.layers.4.ffn.up", "encoder.layers.4.ffn.gate", "decoder.layers.4.ffn.down", "pooling.dense"}) {
        const std::string ours = std::string(module) + ".weight";
        const std::string theirs = HfParameterName(naming, ours, gated);
        if (theirs.empty()) continue;
        EXPECT_EQ(KoineTensorName(theirs), ours) << theirs;
        ++named;
      }
      EXPECT_GE(named, naming == HfNaming::kBert ? 7 : 11);
    }
  }
  EXPECT_EQ(HfParameterName(HfNaming::kT5, "encoder.layers.4.ffn.up.weight", false),
            "encoder.block.4.layer.1.DenseReluDense.wi.weight");
  EXPECT_EQ(HfParameterName(HfNaming::kT5, "encoder.layers.4.ffn.up.weight", true),
            "encoder.block.4.layer.1.DenseReluDense.wi_1.weight");
  EXPECT_EQ(HfParameterName(HfNaming::kBart, "decoder.layers.4.ffn.up.bias", false), "decoder.layers.4.fc1.bias");
}

// Every parameter of the stored checkpoints has a place or is known to need none, and only tied tables share one.
TEST(HfNames, CoversTheReferenceCheckpoints) {
  std::ifstream stream(std::string(KOINE_SOURCE_DIR) + "/tests/data/checkpoint_checksums.json");
  const nlohmann::json checkpoints = nlohmann::json::parse(stream);
  ASSERT_GE(checkpoints.size(), 8u);
  for (const auto& [checkpoint, tensors] : checkpoints.items()) {
    std::set<std::string> seen;
    for (const auto& [parameter, facts] : tensors.items()) {
      std::string name = parameter;
      if (checkpoint.find("lora") != std::string::npos) {
        // base_model.model.MODULE.lora_A.weight
        name = name.substr(sizeof("base_model.model.") - 1);
        const std::string module = name.substr(0, name.find(".lora_"));
        EXPECT_NE(KoineModuleName(module), "") << parameter;
        continue;
      }
      const std::string ours = KoineTensorName(name);
      if (ours.empty()) {
        EXPECT_TRUE(IsKnownIgnorable(name)) << parameter;
      } else if (ours != "embedding.weight") {
        EXPECT_TRUE(seen.insert(ours).second) << checkpoint << ": " << ours << " twice";
      }
    }
  }
}

}  // namespace
}  // namespace koine::model_loader
