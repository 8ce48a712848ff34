#include "model_loader/format/tensor_table.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace koine::model_loader {
namespace {

using kernels::DType;
using kernels::LayerOwner;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

// d = 6, H = 3 heads of 4, H2 = 1 of them the language's in shared layers.
ModelConfig Config() {
  ModelConfig config;
  config.architecture.d_model = 6;
  config.architecture.heads = 3;
  config.architecture.language_heads = 1;
  config.architecture.d_head = 4;
  config.architecture.d_ffn = 10;
  config.architecture.encoder_layers = {LayerOwner::kShared, LayerOwner::kLanguageAttention};
  config.architecture.decoder_layers = {LayerOwner::kLanguageLayer, LayerOwner::kShared};
  config.positions.max_positions = 16;
  config.architecture.max_positions = 16;
  return config;
}

AdapterConfig Lora() {
  AdapterConfig adapter;
  adapter.kind = AdapterKind::kLora;
  adapter.rank = 2;
  adapter.alpha = 4;
  return adapter;
}

using Shapes = std::map<std::string, std::vector<int64_t>>;

Shapes ShapesOf(const std::vector<TensorSpec>& specs) {
  Shapes shapes;
  for (const TensorSpec& spec : specs) EXPECT_TRUE(shapes.emplace(spec.name, spec.shape).second) << spec.name;
  return shapes;
}

std::set<std::string> NamesWith(const std::vector<TensorSpec>& specs, const std::string& part) {
  std::set<std::string> names;
  for (const TensorSpec& spec : specs) {
    if (spec.name.find(part) != std::string::npos) names.insert(spec.name);
  }
  return names;
}

const TensorSpec& Spec(const std::vector<TensorSpec>& specs, const std::string& name) {
  for (const TensorSpec& spec : specs) {
    if (spec.name == name) return spec;
  }
  ADD_FAILURE() << name << " is not listed";
  static const TensorSpec& none = *new TensorSpec;
  return none;
}

TEST(SharedTensors, HoldTheSharedPartOfEveryLayer) {
  const Shapes shapes = ShapesOf(SharedTensors(Config()));
  // A shared layer: H1 = 2 heads of 4.
  EXPECT_EQ(shapes.at("encoder.layers.0.self_attn.q.weight"), (std::vector<int64_t>{8, 6}));
  EXPECT_EQ(shapes.at("encoder.layers.0.self_attn.v.bias"), std::vector<int64_t>{8});
  EXPECT_EQ(shapes.at("encoder.layers.0.self_attn.o.weight"), (std::vector<int64_t>{6, 8}));
  EXPECT_EQ(shapes.at("encoder.layers.0.self_attn.o.bias"), std::vector<int64_t>{6});
  EXPECT_EQ(shapes.at("decoder.layers.1.cross_attn.k.weight"), (std::vector<int64_t>{8, 6}));
  EXPECT_EQ(shapes.at("encoder.layers.0.ffn.up.weight"), (std::vector<int64_t>{10, 6}));
  EXPECT_EQ(shapes.at("encoder.layers.0.ffn.down.weight"), (std::vector<int64_t>{6, 10}));
  EXPECT_EQ(shapes.at("decoder.final_norm.weight"), std::vector<int64_t>{6});
  // A layer whose attention is the language's keeps norms and feed-forward here.
  EXPECT_EQ(shapes.count("encoder.layers.1.self_attn.q.weight"), 0U);
  EXPECT_EQ(shapes.count("encoder.layers.1.self_attn_norm.weight"), 1U);
  EXPECT_EQ(shapes.count("encoder.layers.1.ffn.up.weight"), 1U);
  // A layer of the language's own leaves nothing.
  EXPECT_TRUE(NamesWith(SharedTensors(Config()), "decoder.layers.0.").empty());
  // Sinusoidal positions are computed, and no language's table is here.
  EXPECT_TRUE(NamesWith(SharedTensors(Config()), "positions").empty());
  EXPECT_EQ(shapes.count("embedding.weight"), 0U);
  EXPECT_EQ(shapes.count("encoder.layers.0.cross_attn.q.weight"), 0U) << "the encoder has no cross-attention";
}

TEST(SharedTensors, HoldRelativePositionsAndTheDenseLayerOfPooling) {
  ModelConfig config = Config();
  config.positions.type = PositionType::kRelativeBuckets;
  config.positions.buckets = 8;
  config.pooling.dense = PoolingDense{5, DenseActivation::kTanh, true};
  std::vector<TensorSpec> specs = SharedTensors(config);
  // All H = 3 heads, the language's own included.
  EXPECT_EQ(Spec(specs, "encoder.relative_bias.weight").shape, (std::vector<int64_t>{8, 3}));
  EXPECT_EQ(Spec(specs, "decoder.relative_bias.weight").shape, (std::vector<int64_t>{8, 3}));
  EXPECT_EQ(Spec(specs, "decoder.relative_bias.weight").component, Component::kPositions);
  EXPECT_EQ(Spec(specs, "pooling.dense.weight").shape, (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(Spec(specs, "pooling.dense.weight").component, Component::kPooling);
  EXPECT_EQ(Spec(specs, "pooling.dense.bias").shape, std::vector<int64_t>{5});
  config.pooling.dense->bias = false;
  config.kind = ModelKind::kEncoder;
  specs = SharedTensors(config);
  EXPECT_EQ(NamesWith(specs, "pooling"), std::set<std::string>{"pooling.dense.weight"});
  EXPECT_EQ(NamesWith(specs, "relative_bias"), std::set<std::string>{"encoder.relative_bias.weight"});
}

TEST(LanguageTensors, HoldTableOwnHeadsAndOwnLayers) {
  const std::vector<TensorSpec> specs = LanguageTensors(Config(), AdapterConfig());
  const Shapes shapes = ShapesOf(specs);
  EXPECT_EQ(shapes.at("embedding.weight"), (std::vector<int64_t>{kVocabularyRows, 6}));
  EXPECT_FALSE(Spec(specs, "vocab.ids").required);
  EXPECT_TRUE(Spec(specs, "vocab.ids").integer);
  EXPECT_EQ(shapes.at("encoder.layers.0.self_attn.own.q.weight"), (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(shapes.at("encoder.layers.0.self_attn.own.q.bias"), std::vector<int64_t>{4});
  EXPECT_EQ(shapes.at("encoder.layers.0.self_attn.own.o.weight"), (std::vector<int64_t>{6, 4}));
  EXPECT_EQ(shapes.count("encoder.layers.0.self_attn.own.o.bias"), 0U);
  EXPECT_EQ(shapes.at("decoder.layers.1.cross_attn.own.v.weight"), (std::vector<int64_t>{4, 6}));
  // Own attention has all H heads and its own output bias; language_heads does not apply there.
  EXPECT_EQ(shapes.at("encoder.layers.1.self_attn.q.weight"), (std::vector<int64_t>{12, 6}));
  EXPECT_EQ(shapes.at("encoder.layers.1.self_attn.o.bias"), std::vector<int64_t>{6});
  EXPECT_TRUE(NamesWith(specs, "encoder.layers.1.ffn").empty());
  EXPECT_TRUE(NamesWith(specs, "layers.1.self_attn.own").count("encoder.layers.1.self_attn.own.q.weight") == 0);
  // A layer of the language's own is complete.
  EXPECT_EQ(shapes.at("decoder.layers.0.cross_attn.o.weight"), (std::vector<int64_t>{6, 12}));
  EXPECT_EQ(shapes.at("decoder.layers.0.ffn.up.weight"), (std::vector<int64_t>{10, 6}));
  EXPECT_EQ(shapes.at("decoder.layers.0.ffn_norm.bias"), std::vector<int64_t>{6});
  for (const TensorSpec& spec : specs) EXPECT_EQ(spec.owner, Owner::kLanguage);
}

TEST(TensorTable, CountsOwnPartsUnderTheirOwnComponents) {
  const std::vector<TensorSpec> language = LanguageTensors(Config(), Lora());
  EXPECT_EQ(Spec(language, "encoder.layers.0.self_attn.own.o.weight").component, Component::kOwnHeads);
  EXPECT_EQ(Spec(language, "encoder.layers.1.self_attn.k.weight").component, Component::kOwnLayers);
  EXPECT_EQ(Spec(language, "decoder.layers.0.ffn_norm.weight").component, Component::kOwnLayers);
  EXPECT_EQ(Spec(language, "embedding.weight").component, Component::kEmbedding);
  EXPECT_EQ(Spec(language, "vocab.ids").component, Component::kVocabularyIds);
  EXPECT_EQ(Spec(language, "decoder.layers.0.ffn.up.lora.a").component, Component::kAdapter);
  const std::vector<TensorSpec> shared = SharedTensors(Config());
  EXPECT_EQ(Spec(shared, "encoder.layers.0.self_attn.q.bias").component, Component::kAttentionQ);
  EXPECT_EQ(Spec(shared, "encoder.layers.0.self_attn.k.weight").component, Component::kAttentionK);
  EXPECT_EQ(Spec(shared, "decoder.layers.1.cross_attn.v.weight").component, Component::kAttentionV);
  EXPECT_EQ(Spec(shared, "decoder.layers.1.cross_attn.o.bias").component, Component::kAttentionO);
  EXPECT_EQ(Spec(shared, "encoder.layers.0.ffn.down.bias").component, Component::kFeedForward);
  EXPECT_EQ(Spec(shared, "encoder.layers.0.self_attn_norm.bias").component, Component::kNorm);
  EXPECT_EQ(Name(Component::kOwnLayers), "own_layers");
}

TEST(TensorTable, FollowsTheArchitecturesSwitches) {
  ModelConfig config = Config();
  config.architecture.linear_bias = false;
  config.architecture.norm_type = kernels::NormType::kRmsNorm;
  config.architecture.gated_ffn = true;
  config.architecture.embedding_norm = true;
  config.architecture.final_norm = false;
  config.architecture.tied_output = false;
  config.architecture.output_bias = true;
  config.positions.type = PositionType::kLearned;
  AdapterConfig bottleneck;
  bottleneck.kind = AdapterKind::kBottleneck;
  bottleneck.rank = 2;
  const std::vector<TensorSpec> shared = SharedTensors(config);
  const std::vector<TensorSpec> language = LanguageTensors(config, bottleneck);
  EXPECT_TRUE(NamesWith(shared, ".bias").empty());
  EXPECT_EQ(Spec(shared, "encoder.layers.0.ffn.gate.weight").shape, (std::vector<int64_t>{10, 6}));
  EXPECT_EQ(Spec(shared, "decoder.embedding_norm.weight").component, Component::kNorm);
  EXPECT_TRUE(NamesWith(shared, "final_norm").empty());
  EXPECT_EQ(Spec(shared, "decoder.positions.weight").shape, (std::vector<int64_t>{16, 6}));
  EXPECT_EQ(Spec(language, "output.weight").shape, (std::vector<int64_t>{kVocabularyRows, 6}));
  EXPECT_EQ(Spec(language, "output.bias").shape, std::vector<int64_t>{kVocabularyRows});
  // An adapter keeps its linear biases; its norm is of the model's type.
  EXPECT_THAT(NamesWith(language, "encoder.layers.1.adapter."),
              testing::ElementsAre("encoder.layers.1.adapter.down.bias", "encoder.layers.1.adapter.down.weight",
                                   "encoder.layers.1.adapter.norm.weight", "encoder.layers.1.adapter.up.bias",
                                   "encoder.layers.1.adapter.up.weight"));
  EXPECT_EQ(Spec(language, "decoder.layers.0.adapter.down.weight").shape, (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(Spec(language, "decoder.layers.0.adapter.up.weight").shape, (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(Spec(language, "decoder.layers.0.adapter.up.bias").shape, std::vector<int64_t>{6});
}

TEST(TensorTable, SharedEmbeddingMovesTheVocabularyToTheSharedFile) {
  ModelConfig config = Config();
  config.shared_embedding = true;
  config.architecture.tied_output = false;
  config.architecture.output_bias = true;
  const std::vector<TensorSpec> shared = SharedTensors(config);
  for (const char* name : {"embedding.weight", "output.weight", "output.bias", "vocab.ids"}) {
    EXPECT_EQ(Spec(shared, name).owner, Owner::kShared);
    EXPECT_TRUE(NamesWith(LanguageTensors(config, AdapterConfig()), name).empty());
  }
}

TEST(TensorTable, EncodersHaveNeitherDecoderNorOutput) {
  ModelConfig config = Config();
  config.kind = ModelKind::kEncoder;
  config.architecture.decoder_layers.clear();
  AdapterConfig scale;
  scale.kind = AdapterKind::kScale;
  scale.scale_self_attention = scale.scale_cross_attention = scale.scale_feed_forward = true;
  for (const std::vector<TensorSpec>& specs : {SharedTensors(config), LanguageTensors(config, scale)}) {
    EXPECT_TRUE(NamesWith(specs, "decoder").empty());
    EXPECT_TRUE(NamesWith(specs, "cross_attn").empty());
    EXPECT_TRUE(NamesWith(specs, "output").empty());
  }
}

TEST(TensorTable, LeavesOnlyTheOutputBiasSharedWhereAllHeadsAreTheLanguages) {
  ModelConfig config = Config();
  config.architecture.language_heads = 3;
  EXPECT_THAT(NamesWith(SharedTensors(config), "encoder.layers.0.self_attn."),
              testing::ElementsAre("encoder.layers.0.self_attn.o.bias"));
  EXPECT_EQ(Spec(LanguageTensors(config, AdapterConfig()), "encoder.layers.0.self_attn.own.o.weight").shape,
            (std::vector<int64_t>{6, 12}));
  EXPECT_TRUE(NamesWith(AdapterTensors(config, Lora()), "encoder.layers.0.self_attn").empty());
}

TEST(AdapterTensors, ScaleHasOneVectorASite) {
  AdapterConfig adapter;
  adapter.kind = AdapterKind::kScale;
  adapter.scale_cross_attention = adapter.scale_feed_forward = true;
  const Shapes shapes = ShapesOf(AdapterTensors(Config(), adapter));
  EXPECT_EQ(shapes, (Shapes{{"encoder.layers.0.ffn.scale", {6}},
                            {"encoder.layers.1.ffn.scale", {6}},
                            {"decoder.layers.0.cross_attn.scale", {6}},
                            {"decoder.layers.0.ffn.scale", {6}},
                            {"decoder.layers.1.cross_attn.scale", {6}},
                            {"decoder.layers.1.ffn.scale", {6}}}));
}

TEST(AdapterTensors, LoraCoversTheSharedHeadsOrAllHeadsOfAnOwnLayer) {
  const std::vector<TensorSpec> specs = AdapterTensors(Config(), Lora());
  EXPECT_EQ(Spec(specs, "encoder.layers.0.self_attn.q.lora.a").shape, (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(Spec(specs, "encoder.layers.0.self_attn.q.lora.b").shape, (std::vector<int64_t>{8, 2}));
  EXPECT_EQ(Spec(specs, "encoder.layers.0.self_attn.o.lora.a").shape, (std::vector<int64_t>{2, 8}));
  EXPECT_EQ(Spec(specs, "encoder.layers.0.self_attn.o.lora.b").shape, (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(Spec(specs, "encoder.layers.1.self_attn.v.lora.b").shape, (std::vector<int64_t>{12, 2}));
  EXPECT_EQ(Spec(specs, "decoder.layers.0.cross_attn.o.lora.a").shape, (std::vector<int64_t>{2, 12}));
  EXPECT_EQ(Spec(specs, "decoder.layers.1.ffn.down.lora.a").shape, (std::vector<int64_t>{2, 10}));
  EXPECT_TRUE(NamesWith(specs, "ffn.gate").empty()) << "this feed-forward has no gate";
  for (const TensorSpec& spec : specs) EXPECT_FALSE(spec.required);
}

// Writes files from a list, with changes, and checks them.
class Check : public testing::Test {
 protected:
  void Fill(const std::vector<TensorSpec>& specs, int64_t vocabulary = 5) {
    for (const TensorSpec& spec : specs) {
      if (!spec.required) continue;
      std::vector<int64_t> shape = spec.shape;
      for (int64_t& dimension : shape) dimension = dimension == kVocabularyRows ? vocabulary : dimension;
      Put(spec.name, DType::kF32, shape);
    }
  }
  void Put(const std::string& name, DType dtype, const std::vector<int64_t>& shape) { tensors_[name] = {dtype, shape}; }
  absl::Status Status(const std::vector<TensorSpec>& specs, int64_t* vocabulary = nullptr) {
    SafetensorsWriter writer;
    for (const auto& [name, tensor] : tensors_) {
      size_t bytes = kernels::SizeOf(tensor.first);
      for (const int64_t dimension : tensor.second) bytes *= static_cast<size_t>(dimension);
      EXPECT_TRUE(writer.Add(name, tensor.first, tensor.second, std::vector<uint8_t>(bytes)).ok());
    }
    const std::string path = testing::TempDir() + "check.safetensors";
    EXPECT_TRUE(writer.Write(path).ok());
    const auto file = SafetensorsFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    return CheckTensors(**file, specs, vocabulary);
  }
  std::string Fault(const std::vector<TensorSpec>& specs) {
    const absl::Status status = Status(specs);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }
  std::map<std::string, std::pair<DType, std::vector<int64_t>>> tensors_;
};

TEST_F(Check, AcceptsAMatchingFileAndTellsTheVocabulary) {
  const std::vector<TensorSpec> language = LanguageTensors(Config(), Lora());
  Fill(language);
  Put("vocab.ids", DType::kI32, {5});
  Put("encoder.layers.0.self_attn.q.lora.a", DType::kBF16, {2, 6});
  Put("encoder.layers.0.self_attn.q.lora.b", DType::kF16, {8, 2});
  int64_t vocabulary = -1;
  EXPECT_TRUE(Status(language, &vocabulary).ok()) << Status(language);
  EXPECT_EQ(vocabulary, 5);
  tensors_.clear();
  Fill(SharedTensors(Config()));
  EXPECT_TRUE(Status(SharedTensors(Config()), &vocabulary).ok());
  EXPECT_EQ(vocabulary, 0);
}

TEST_F(Check, ReportsEverythingThatIsWrongAtOnce) {
  const std::vector<TensorSpec> language = LanguageTensors(Config(), AdapterConfig());
  Fill(language);
  tensors_.erase("decoder.layers.0.ffn.up.weight");
  tensors_.erase("encoder.layers.1.self_attn.q.bias");
  Put("encoder.layers.1.self_attn.o.bias", DType::kF32, {7});
  Put("encoder.layers.1.self_attn.v.weight", DType::kI32, {12, 6});
  Put("extra.weight", DType::kF32, {1});
  const std::string fault = Fault(language);
  EXPECT_THAT(fault, AllOf(HasSubstr("check.safetensors: "), HasSubstr("missing tensors (2): "),
                           HasSubstr("decoder.layers.0.ffn.up.weight [10, 6]"),
                           HasSubstr("encoder.layers.1.self_attn.q.bias [12]")));
  EXPECT_THAT(fault, HasSubstr("encoder.layers.1.self_attn.o.bias is [7], not [6]"));
  EXPECT_THAT(fault, HasSubstr("encoder.layers.1.self_attn.v.weight is I32, not F32, F16 or BF16"));
  EXPECT_THAT(fault, HasSubstr("unknown tensors (1): extra.weight [1]"));
}

TEST_F(Check, HintsAtMistypedNames) {
  const std::vector<TensorSpec> language = LanguageTensors(Config(), AdapterConfig());
  Fill(language);
  tensors_.erase("embedding.weight");
  Put("embeddings.weight", DType::kF32, {5, 6});
  EXPECT_THAT(Fault(language), HasSubstr("embeddings.weight [5, 6] (did you mean embedding.weight?)"));
}

TEST_F(Check, TakesQuantisedMatricesWithOneScaleARow) {
  const std::vector<TensorSpec> language = LanguageTensors(Config(), AdapterConfig());
  Fill(language);
  Put("embedding.weight", DType::kI8, {5, 6});
  EXPECT_THAT(Fault(language), HasSubstr("missing tensors (1): embedding.weight.scale [5]"));
  Put("embedding.weight.scale", DType::kF32, {1, 5});
  EXPECT_THAT(Fault(language), HasSubstr("embedding.weight.scale is [1, 5], not [5]"));
  Put("embedding.weight.scale", DType::kBF16, {5});
  EXPECT_THAT(Fault(language), HasSubstr("embedding.weight.scale is BF16, not F32"));
  Put("embedding.weight.scale", DType::kF32, {5});
  int64_t vocabulary = 0;
  EXPECT_TRUE(Status(language, &vocabulary).ok()) << Status(language);
  EXPECT_EQ(vocabulary, 5);
  Put("encoder.layers.1.self_attn.q.bias", DType::kI8, {12});
  EXPECT_THAT(Fault(language), HasSubstr("encoder.layers.1.self_attn.q.bias is I8, which only matrices may be"));
  tensors_["encoder.layers.1.self_attn.q.bias"].first = DType::kF32;
  Put("embedding.weight", DType::kF32, {5, 6});
  EXPECT_THAT(Fault(language), HasSubstr("embedding.weight.scale [5] (row scales, but the tensor is not I8)"));
}

TEST(ReadValues, MultipliesEachRowByItsScaleWhereverReadingStarts) {
  SafetensorsWriter writer;
  const std::vector<uint8_t> integers = {1, 2, 255, 129, 0, 127};  // 1 2 -1 | -127 0 127
  ASSERT_TRUE(writer.Add("m", DType::kI8, {2, 3}, integers).ok());
  ASSERT_TRUE(writer.AddF32("m.scale", DType::kF32, {2}, {0.5F, 2.0F}).ok());
  ASSERT_TRUE(writer.Add("a", DType::kI8, {1}, {integers.data(), 1}).ok()) << "so that the scales lie unaligned";
  const std::string path = testing::TempDir() + "values.safetensors";
  ASSERT_TRUE(writer.Write(path).ok());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<float> expected = {0.5F, 1, -0.5F, -254, 0, 254};
  for (int64_t first = 0; first < 6; ++first) {
    for (int64_t count = 1; first + count <= 6; ++count) {
      std::vector<float> values(static_cast<size_t>(count));
      ASSERT_TRUE(ReadValues(**file, "m", first, count, values.data()).ok());
      EXPECT_EQ(values, std::vector<float>(expected.begin() + first, expected.begin() + first + count));
    }
  }
}

TEST(ReadValues, RefusesScalesThatAreNoFactors) {
  for (const float bad : {NAN, INFINITY, -INFINITY, -1.0F}) {
    SafetensorsWriter writer;
    ASSERT_TRUE(writer.Add("m", DType::kI8, {2, 1}, std::vector<uint8_t>{1, 2}).ok());
    ASSERT_TRUE(writer.AddF32("m.scale", DType::kF32, {2}, {0.0F, bad}).ok());
    const std::string path = testing::TempDir() + "scales.safetensors";
    ASSERT_TRUE(writer.Write(path).ok());
    const auto file = SafetensorsFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    float values[2];
    EXPECT_TRUE(ReadValues(**file, "m", 0, 1, values).ok()) << "a scale of 0 makes a row of zeros";
    const absl::Status status = ReadValues(**file, "m", 0, 2, values);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("m.scale"), HasSubstr("row 1")));
  }
}

TEST_F(Check, RefusesHalfLoraPairs) {
  const std::vector<TensorSpec> adapter = AdapterTensors(Config(), Lora());
  Put("decoder.layers.1.ffn.up.lora.b", DType::kF32, {10, 2});
  Put("encoder.layers.0.self_attn.k.lora.a", DType::kF32, {2, 6});
  EXPECT_THAT(Fault(adapter), AllOf(HasSubstr("LoRA halves missing (2)"),
                                    HasSubstr("decoder.layers.1.ffn.up.lora.a of decoder.layers.1.ffn.up.lora.b"),
                                    HasSubstr("encoder.layers.0.self_attn.k.lora.b of")));
}

TEST_F(Check, RefusesTensorsThatDisagreeAboutTheVocabulary) {
  ModelConfig config = Config();
  config.architecture.tied_output = false;
  const std::vector<TensorSpec> language = LanguageTensors(config, AdapterConfig());
  Fill(language);
  Put("output.weight", DType::kF32, {6, 6});
  EXPECT_THAT(Fault(language), AllOf(HasSubstr("different vocabulary sizes"), HasSubstr("embedding.weight has 5"),
                                     HasSubstr("output.weight has 6")));
  Put("output.weight", DType::kF32, {0, 6});
  EXPECT_THAT(Fault(language), HasSubstr("output.weight is [0, 6], not [V, 6]"));
  Put("output.weight", DType::kF32, {5, 6});
  Put("vocab.ids", DType::kF32, {5});
  EXPECT_THAT(Fault(language), HasSubstr("vocab.ids is F32, not I32"));
}

TEST_F(Check, CutsEndlessLists) {
  for (int i = 0; i < 500; ++i) Put("stranger." + std::to_string(i), DType::kF32, {1});
  EXPECT_THAT(Fault({}), AllOf(HasSubstr("unknown tensors (500)"), HasSubstr("and 400 more")));
}

}  // namespace
}  // namespace koine::model_loader
