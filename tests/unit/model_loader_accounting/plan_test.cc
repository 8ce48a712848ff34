// The closed formulas against DESIGN section 4's worked values, against published parameter counts, and against the
// tensor table for random models of the whole family.
#include "model_loader/accounting/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "model_loader/accounting/account.h"
#include "model_loader/accounting/params.h"
#include "model_loader/format/tensor_table.h"

namespace koine::model_loader {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

PlanShape Seed(int64_t languages) {
  PlanShape shape = Preset("seed").value();
  shape.languages = languages;
  return shape;
}

int64_t Qkv(absl::StatusOr<int64_t> (*formula)(const PlanShape&, AttentionCount), const PlanShape& shape) {
  return formula(shape, AttentionCount::kQkv).value();
}

// --- DESIGN section 4 ---

TEST(WorkedValues, OneHeadOneLayerOneLanguage) {
  const PlanShape seed = Seed(1);
  EXPECT_EQ(Qkv(HeadParameters, seed), 393'216);
  EXPECT_EQ(Qkv(BlockParameters, seed), 3'145'728);
  EXPECT_EQ(Qkv(IndependentAttention, seed), 37'748'736);
  EXPECT_EQ(Qkv(SharedAttention, seed), 37'748'736);
  // With the output projection a third more: 4 matrices of 1024 x 1024 in place of 3.
  EXPECT_EQ(HeadParameters(seed, AttentionCount::kQkvo).value(), 524'288);
  EXPECT_EQ(SharedAttention(seed, AttentionCount::kQkvo).value(), 50'331'648);
}

TEST(WorkedValues, HundredLanguagesShareNinetyNinePercent) {
  const PlanShape seed = Seed(100);
  EXPECT_EQ(Qkv(IndependentAttention, seed), 3'774'873'600);
  EXPECT_EQ(Qkv(SharedAttention, seed), 37'748'736);
  EXPECT_DOUBLE_EQ(SavingRatio(Qkv(SharedAttention, seed), Qkv(IndependentAttention, seed)), 0.99);
}

TEST(WorkedValues, TwoHundredLanguages) {
  const PlanShape seed = Seed(200);
  EXPECT_EQ(Qkv(IndependentAttention, seed), 7'549'747'200);
  EXPECT_DOUBLE_EQ(SavingRatio(Qkv(SharedAttention, seed), Qkv(IndependentAttention, seed)), 0.995);
}

double HybridLayersSaving(int64_t languages) {
  PlanShape shape = Seed(languages);
  shape.own_encoder_layers = 4;  // 8 shared + 4 own of 12
  return SavingRatio(Qkv(HybridLayersAttention, shape), Qkv(IndependentAttention, shape));
}

TEST(WorkedValues, EightSharedAndFourOwnLayersTendToTwoThirds) {
  EXPECT_NEAR(HybridLayersSaving(2), 1.0 / 3, 1e-15);
  EXPECT_EQ(HybridLayersSaving(1), 0);
  double previous = 0;
  for (int64_t n = 2; n <= 1'000'000; n *= 10) {
    const double saving = HybridLayersSaving(n);
    EXPECT_GT(saving, previous);
    EXPECT_LT(saving, 2.0 / 3);  // never 75 %
    previous = saving;
  }
  EXPECT_NEAR(previous, 2.0 / 3, 1e-5);
}

TEST(WorkedValues, HybridHeadsSaveByTheirFormula) {
  PlanShape shape = Seed(100);
  shape.language_heads = 2;  // 6 + 2
  EXPECT_EQ(Qkv(HybridHeadsAttention, shape), 12 * (6 + 100 * 2) * int64_t{393'216});
  EXPECT_DOUBLE_EQ(SavingRatio(Qkv(HybridHeadsAttention, shape), Qkv(IndependentAttention, shape)),
                   1 - (6 + 100 * 2) / 800.0);
}

TEST(WorkedValues, HeadsAndLayersCombine) {
  PlanShape shape = Seed(10);
  shape.language_heads = 2;
  shape.own_encoder_layers = 4;
  EXPECT_EQ(Qkv(PlanAttention, shape), (8 * (6 + 10 * 2) + 10 * 4 * 8) * int64_t{393'216});
  shape.language_heads = 0;
  EXPECT_EQ(Qkv(PlanAttention, shape), Qkv(HybridLayersAttention, shape));
  shape.own_encoder_layers = 0;
  EXPECT_EQ(Qkv(PlanAttention, shape), Qkv(SharedAttention, shape));
  shape.language_heads = 8;
  EXPECT_EQ(Qkv(PlanAttention, shape), Qkv(IndependentAttention, shape));
}

TEST(WorkedValues, Gpt3) {
  const PlanShape gpt3 = Preset("gpt3").value();
  EXPECT_EQ(HeadParameters(gpt3, AttentionCount::kQkvo).value(), 6'291'456);
  EXPECT_EQ(BlockParameters(gpt3, AttentionCount::kQkvo).value(), 603'979'776);
  EXPECT_EQ(SharedAttention(gpt3, AttentionCount::kQkvo).value(), 57'982'058'496);
  // One 12288 x 12288 matrix: all heads' queries of one layer.
  EXPECT_EQ(gpt3.d_model * gpt3.heads * gpt3.d_k, 150'994'944);
  EXPECT_EQ(BlockParameters(gpt3, AttentionCount::kQkvo).value(), 4 * int64_t{150'994'944});
  EXPECT_NEAR(57'982'058'496.0 / static_cast<double>(CountPlan(gpt3)->total), 1.0 / 3, 0.002);
}

TEST(WorkedValues, Adapters) {
  PlanShape shape = Seed(1);  // 12 layers of d = 1024
  shape.adapter.kind = AdapterKind::kScale;
  shape.adapter.scale_self_attention = true;
  EXPECT_EQ(AdapterParameters(shape).value(), 12 * 1024);
  shape.adapter.kind = AdapterKind::kBottleneck;
  shape.adapter.rank = 64;
  EXPECT_EQ(AdapterParameters(shape).value(), 12 * (2 * 1024 * 64 + 64 + 1024 + 2 * 1024));
  shape.norm_type = kernels::NormType::kRmsNorm;
  EXPECT_EQ(AdapterParameters(shape).value(), 12 * (2 * 1024 * 64 + 64 + 1024 + 1024));
  shape.adapter.kind = AdapterKind::kLora;
  shape.adapter.rank = 16;
  PlaceLora({Projection::kSelfQ, Projection::kSelfV}, shape);
  EXPECT_EQ(AdapterParameters(shape).value(), 12 * 2 * 16 * (1024 + 1024));
}

// --- Presets against what the models' own libraries report ---

TEST(Presets, CountWhatThePublishedModelsHave) {
  // num_parameters() of facebook/nllb-200-distilled-600M and google/mt5-small in transformers.
  EXPECT_EQ(CountPlan(Preset("nllb-600m").value())->independent / 202, 615'073'792);
  EXPECT_EQ(CountPlan(Preset("mt5-small").value())->independent / 101, 300'176'768);
  // 12 d² + 13 d a block, a final norm, 50,257 tokens and 2,048 positions.
  const int64_t d = 12'288;
  EXPECT_EQ(CountPlan(Preset("gpt3").value())->total, 96 * (12 * d * d + 13 * d) + 2 * d + (50'257 + 2'048) * d);
}

TEST(Presets, SayWhatTheyCount) {
  for (const std::string& name : PresetNames()) {
    const PlanShape shape = Preset(name).value();
    EXPECT_FALSE(shape.about.empty()) << name;
    EXPECT_TRUE(CheckShape(shape).ok()) << name;
  }
  EXPECT_EQ(WhatIsCounted(Seed(1)),
            "Q, K and V matrices; not output projections, biases, feed-forward, norms, vocabularies");
  EXPECT_THAT(WhatIsCounted(Preset("nllb-600m").value()), HasSubstr("a table of 256,206 rows for all languages, tied"));
}

TEST(Presets, UnknownNameListsThem) {
  const absl::Status status = Preset("gpt5").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("seed, nllb-600m, mt5-small, gpt3"));
}

// --- Bounds ---

TEST(Checked, OverflowIsAnErrorAndNamesTheCount) {
  PlanShape shape = Seed(kMost / 37'748'736);
  EXPECT_EQ(Qkv(IndependentAttention, shape), kMost / 37'748'736 * 37'748'736);
  ++shape.languages;
  const absl::Status status = IndependentAttention(shape, AttentionCount::kQkv).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), HasSubstr("independent attention"));
  EXPECT_EQ(CountPlan(shape).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ComparePlans(shape).status().code(), absl::StatusCode::kOutOfRange);
  // Parameters fit, their bytes do not.
  EXPECT_TRUE(CountPlan(Seed(kMost / 37'748'736)).ok());
  EXPECT_EQ(ComparePlans(Seed(kMost / 37'748'736)).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(Checked, ImpossibleShapesNameEveryFault) {
  PlanShape shape = Seed(0);
  shape.own_encoder_layers = 13;
  shape.language_heads = 9;
  shape.d_v = 0;
  shape.adapter.kind = AdapterKind::kLora;
  const absl::Status status = CountPlan(shape).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char* fault : {"languages is 0", "own encoder layers are 13 of 12", "language heads are 9 of 8",
                            "d_v is 0", "adapter rank is 0"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(fault));
  }
}

TEST(LanguagesThatFit, CountsWholeLanguages) {
  EXPECT_EQ(LanguagesThatFit(1'000, 400, 200), 3);
  EXPECT_EQ(LanguagesThatFit(999, 400, 200), 2);
  EXPECT_EQ(LanguagesThatFit(400, 400, 200), 0);
  EXPECT_EQ(LanguagesThatFit(399, 400, 200), 0);
  EXPECT_EQ(LanguagesThatFit(1'000, 400, 0), std::nullopt);
  EXPECT_EQ(LanguagesThatFit(100, 400, 0), 0);
}

// --- Formula == tensor table, for random models of the whole family ---

struct RandomModel {
  ModelConfig config;
  AdapterConfig adapter;
  int64_t vocabulary = 0;
};

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int64_t Between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  bool Flip() { return Between(0, 1) == 1; }

 private:
  std::mt19937_64 engine_;
};

RandomModel Draw(Dice& dice) {
  RandomModel model;
  ModelConfig& config = model.config;
  kernels::TransformerConfig& architecture = config.architecture;
  config.kind = dice.Between(0, 4) == 0 ? ModelKind::kEncoder : ModelKind::kEncoderDecoder;
  config.layer_scope = dice.Flip() ? LayerScope::kLayer : LayerScope::kAttention;
  const kernels::LayerOwner own = config.layer_scope == LayerScope::kLayer ? kernels::LayerOwner::kLanguageLayer
                                                                           : kernels::LayerOwner::kLanguageAttention;
  const auto draw_layers = [&](std::vector<kernels::LayerOwner>& layers) {
    const bool some = dice.Flip();
    for (int64_t i = dice.Between(1, 7); i > 0; --i) {
      layers.push_back(some && dice.Flip() ? own : kernels::LayerOwner::kShared);
    }
  };
  draw_layers(architecture.encoder_layers);
  if (config.kind == ModelKind::kEncoderDecoder) draw_layers(architecture.decoder_layers);
  architecture.heads = static_cast<int>(dice.Between(1, 9));
  architecture.language_heads = dice.Flip() ? 0 : static_cast<int>(dice.Between(0, architecture.heads));
  architecture.d_model = static_cast<int>(dice.Between(1, 200));
  architecture.d_head = static_cast<int>(dice.Between(1, 40));
  architecture.d_ffn = static_cast<int>(dice.Between(1, 300));
  architecture.norm_type = dice.Flip() ? kernels::NormType::kLayerNorm : kernels::NormType::kRmsNorm;
  architecture.final_norm = dice.Flip();
  architecture.linear_bias = dice.Flip();
  architecture.gated_ffn = dice.Flip();
  architecture.embedding_norm = dice.Flip();
  architecture.tied_output = dice.Flip();
  architecture.output_bias = dice.Flip();
  config.positions.type = static_cast<PositionType>(dice.Between(0, 2));
  config.positions.max_positions = dice.Between(1, 100);
  config.positions.buckets = 2 * dice.Between(2, 20);
  if (dice.Flip()) config.pooling.dense = PoolingDense{dice.Between(1, 100), DenseActivation::kTanh, dice.Flip()};
  config.shared_embedding = dice.Between(0, 3) == 0;
  model.adapter.kind = static_cast<AdapterKind>(dice.Between(0, 3));
  model.adapter.scale_self_attention = dice.Flip();
  model.adapter.scale_cross_attention = dice.Flip();
  model.adapter.scale_feed_forward = dice.Flip();
  model.adapter.rank = static_cast<int>(dice.Between(1, 20));
  model.vocabulary = dice.Between(1, 500);
  return model;
}

// Parameters of the listed tensors by component, from ExpectedTensors through the account's own path.
ComponentCounts Listed(const std::vector<TensorSpec>& specs, int64_t vocabulary) {
  const std::vector<LoadedTensor> tensors = ExpectedTensors(specs, vocabulary, kernels::DType::kF16).value();
  OwnerTensors owner;
  owner.owner = "listed";
  owner.tensors = tensors;
  return MakeAccount(owner, {})->shared.parameters();
}

TEST(FormulaCount, EqualsTheTensorTableByComponent) {
  Dice dice(20'240'611);
  int with_own_heads = 0, with_own_layers = 0;
  for (int i = 0; i < 1'000; ++i) {
    RandomModel model = Draw(dice);
    SCOPED_TRACE(testing::Message() << "model " << i << ": " << ToJson(model.config) << ToJson(model.adapter));
    // Some pairs have a rank of their own.
    if (model.adapter.kind == AdapterKind::kLora && dice.Flip()) {
      for (const TensorSpec& spec : AdapterTensors(model.config, model.adapter)) {
        if (!spec.name.ends_with(".lora.a") || dice.Between(0, 3) > 0) continue;
        model.adapter.pairs[spec.name.substr(0, spec.name.size() - 7)] = {static_cast<int>(dice.Between(1, 30)), 1};
      }
    }
    // A file may hold some of the LoRA pairs: drop each with one chance in two, or none.
    std::vector<TensorSpec> language = LanguageTensors(model.config, model.adapter);
    if (dice.Flip()) {
      std::vector<TensorSpec> kept;
      for (size_t t = 0; t < language.size(); ++t) {
        const bool pair = language[t].name.ends_with(".lora.a");
        if (pair && dice.Flip()) {
          ++t;  // its .lora.b, which follows
          ASSERT_TRUE(language[t].name.ends_with(".lora.b"));
          continue;
        }
        kept.push_back(language[t]);
      }
      language = kept;
    }
    std::vector<std::string_view> names;
    for (const TensorSpec& spec : language) names.emplace_back(spec.name);
    const absl::StatusOr<PlanCounts> formula =
        FormulaCount(model.config, model.adapter, model.vocabulary, LoraCountsOf(model.config, model.adapter, names));
    ASSERT_TRUE(formula.ok()) << formula.status();
    ASSERT_EQ(formula->shared, Listed(SharedTensors(model.config), model.vocabulary));
    ASSERT_EQ(formula->language, Listed(language, model.vocabulary));
    with_own_heads += formula->language[static_cast<size_t>(Component::kOwnHeads)] > 0 ? 1 : 0;
    with_own_layers += formula->language[static_cast<size_t>(Component::kOwnLayers)] > 0 ? 1 : 0;
  }
  EXPECT_GT(with_own_heads, 200);
  EXPECT_GT(with_own_layers, 200);
}

TEST(FormulaCount, AdapterAloneEqualsItsTensorTable) {
  Dice dice(7);
  for (int i = 0; i < 500; ++i) {
    const RandomModel model = Draw(dice);
    const ComponentCounts listed = Listed(AdapterTensors(model.config, model.adapter), model.vocabulary);
    const LoraCounts everywhere = LoraEverywhere(model.config, model.adapter);
    const PlanShape shape = ShapeOf(model.config, model.adapter, model.vocabulary, everywhere);
    ASSERT_EQ(AdapterParameters(shape).value(), listed[static_cast<size_t>(Component::kAdapter)])
        << "model " << i << ": " << ToJson(model.config) << ToJson(model.adapter);
  }
}

TEST(FormulaCount, IndependentIsNWholeModels) {
  Dice dice(11);
  for (int i = 0; i < 200; ++i) {
    RandomModel model = Draw(dice);
    model.config.languages = {"a", "b", "c"};
    const PlanCounts counts = FormulaCount(model.config, model.adapter, model.vocabulary).value();
    ModelConfig whole = model.config;
    whole.architecture.language_heads = 0;
    for (auto* layers : {&whole.architecture.encoder_layers, &whole.architecture.decoder_layers}) {
      for (kernels::LayerOwner& owner : *layers) owner = kernels::LayerOwner::kShared;
    }
    int64_t one = 0;
    for (const auto& specs : {SharedTensors(whole), LanguageTensors(whole, {})}) {
      for (const int64_t count : Listed(specs, model.vocabulary)) one += count;
    }
    ASSERT_EQ(counts.independent, 3 * one);
    ASSERT_EQ(counts.total, counts.shared_total + 3 * counts.language_total);
  }
}

// --- Comparison, texts and chart ---

const PlanRow& Row(const PlanReport& report, const std::string& start) {
  for (const PlanRow& row : report.rows) {
    if (row.plan.starts_with(start)) return row;
  }
  ADD_FAILURE() << "no plan " << start;
  return report.rows.front();
}

TEST(ComparePlans, SeedRowsHaveTheWorkedValues) {
  const PlanReport report = ComparePlans(Seed(2), int64_t{1} << 30).value();
  EXPECT_EQ(Row(report, "independent").attention_qkv, 75'497'472);
  EXPECT_EQ(Row(report, "shared").attention_qkv, 37'748'736);
  EXPECT_EQ(Row(report, "shared").attention_qkvo, 50'331'648);
  EXPECT_DOUBLE_EQ(Row(report, "shared").attention_saving, 0.5);
  EXPECT_NEAR(Row(report, "hybrid layers (8 shared + 4 own)").attention_saving, 1.0 / 3, 1e-15);
  EXPECT_TRUE(Row(report, "shared").any_number_fits);
  // 1 GiB / 144 MiB.
  EXPECT_EQ(Row(report, "independent").languages_that_fit, 7);
  EXPECT_EQ(Row(report, "independent").language_bytes, 4 * int64_t{37'748'736});
  for (const PlanRow& row : report.rows) EXPECT_NE(row.plan, "as given");
}

TEST(ComparePlans, AsGivenComesFirstWhereLanguagesOwnSomething) {
  PlanShape shape = Seed(10);
  shape.language_heads = 3;
  shape.own_encoder_layers = 5;
  const PlanReport report = ComparePlans(shape).value();
  EXPECT_EQ(report.rows.front().plan, "as given");
  EXPECT_EQ(report.rows.front().attention_qkv, Qkv(PlanAttention, shape));
  EXPECT_EQ(Row(report, "hybrid heads (5 shared + 3 own)").attention_qkv, Qkv(HybridHeadsAttention, shape));
  EXPECT_EQ(Row(report, "hybrid layers (7 shared + 5 own)").attention_qkv, Qkv(HybridLayersAttention, shape));
}

TEST(RenderTable, ShowsTheNumbersGrouped) {
  const std::string table = RenderTable(ComparePlans(Seed(100), int64_t{16} << 30).value());
  for (const char* text : {"N = 100", "393,216", "3,145,728", "37,748,736", "3,774,873,600", "99.00 %", "14.06 GiB",
                           "fit in 16.00 GiB", "attention_q", "not output projections"}) {
    EXPECT_THAT(table, HasSubstr(text));
  }
}

TEST(RenderSvgChart, DrawsOneRisingLineAPlan) {
  const PlanReport report = ComparePlans(Seed(100)).value();
  const std::string svg = RenderSvgChart(report, 200).value();
  EXPECT_TRUE(svg.starts_with("<svg xmlns"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  size_t lines = 0;
  double independent_top = 0, shared_top = 0;
  for (size_t at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1)) {
    const PlanRow& row = report.rows[lines++];
    const size_t begin = svg.find("points=\"", at) + 8;
    const std::string points = svg.substr(begin, svg.find('"', begin) - begin);
    // Screen y falls as memory rises; the first point is N = 1, the last N = 200.
    const double first_y = std::stod(points.substr(points.find(',') + 1));
    const double last_y = std::stod(points.substr(points.rfind(',') + 1));
    EXPECT_LE(last_y, first_y) << row.plan;
    EXPECT_GE(last_y, 0);
    EXPECT_LE(first_y, 540);
    if (row.plan == "independent") independent_top = last_y;
    if (row.plan == "shared") {
      shared_top = last_y;
      EXPECT_EQ(first_y, last_y);  // no language costs anything
    }
  }
  EXPECT_EQ(lines, report.rows.size());
  EXPECT_LT(independent_top, shared_top);
  EXPECT_EQ(RenderSvgChart(report, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RenderSvgChart, EscapesNames) {
  PlanShape shape = Seed(3);
  shape.name = "<script>&\"";
  const std::string svg = RenderSvgChart(ComparePlans(shape).value(), 10).value();
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_THAT(svg, HasSubstr("&lt;script&gt;&amp;&quot;"));
}

// --- The planner's options ---

TEST(Params, DefaultsToTheSeedPreset) {
  const absl::StatusOr<ParamsOutput> output = Params({});
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(Row(output->report, "independent").attention_qkv, 3'774'873'600);
  EXPECT_THAT(output->table, HasSubstr("3,774,873,600"));
  EXPECT_THAT(output->json, HasSubstr("\"attention_qkv\": 3774873600"));
  EXPECT_TRUE(output->svg.starts_with("<svg"));
}

TEST(Params, OptionsOverrideThePreset) {
  ParamsOptions options;
  options.preset = "nllb-600m";
  options.languages = 8;
  options.layers = 4;
  options.decoder_layers = 2;
  options.own_layers = 1;
  options.shared_heads = 6;
  options.language_heads = 2;
  options.d_model = 256;
  options.d_k = options.d_v = 32;
  options.d_ffn = 1024;
  options.vocabulary = 8000;
  options.shared_embedding = false;
  options.adapter = "bottleneck";
  options.adapter_rank = 16;
  options.dtype = "bf16";
  const PlanShape shape = ShapeFromOptions(options).value();
  EXPECT_EQ(shape.languages, 8);
  EXPECT_EQ(shape.encoder_layers, 4);
  EXPECT_EQ(shape.decoder_layers, 2);
  EXPECT_EQ(shape.own_encoder_layers, 1);
  EXPECT_EQ(shape.own_decoder_layers, 1);
  EXPECT_EQ(shape.heads, 8);
  EXPECT_EQ(shape.language_heads, 2);
  EXPECT_EQ(shape.adapter.rank, 16);
  EXPECT_EQ(shape.dtype, kernels::DType::kBF16);
  const PlanReport report = Params(options)->report;
  EXPECT_EQ(report.rows.front().total_bytes, 2 * report.counts.total);
}

TEST(Params, SharedHeadsAloneLeaveTheRestToLanguages) {
  ParamsOptions options;
  options.shared_heads = 5;
  EXPECT_EQ(ShapeFromOptions(options)->language_heads, 3);
  options.language_heads = 2;
  EXPECT_EQ(ShapeFromOptions(options)->heads, 7);
  options.heads = 8;
  EXPECT_EQ(ShapeFromOptions(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Params, FaultsNameTheOption) {
  const auto message = [](const ParamsOptions& options) {
    const absl::StatusOr<ParamsOutput> output = Params(options);
    EXPECT_EQ(output.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(output.status().message());
  };
  ParamsOptions options;
  options.adapter = "prefix";
  EXPECT_THAT(message(options), HasSubstr("none, scale, bottleneck, lora"));
  options.adapter = "scale";
  options.adapter_rank = 3;
  EXPECT_THAT(message(options), HasSubstr("no rank"));
  options = {};
  options.adapter = "lora";
  options.adapter_sites = {"self_attn.x"};
  EXPECT_THAT(message(options), HasSubstr("cross_attn.q"));
  options = {};
  options.dtype = "int4";
  EXPECT_THAT(message(options), HasSubstr("int4"));
  options = {};
  options.own_layers = 13;
  EXPECT_THAT(message(options), HasSubstr("13 of 12"));
  options = {};
  options.budget = -1;
  EXPECT_THAT(message(options), HasSubstr("-1"));
  options = {};
  options.shared_heads = 9;
  EXPECT_THAT(message(options), HasSubstr("9 of 8"));
}

TEST(Params, LoraSitesAreThoseNamed) {
  ParamsOptions options;
  options.adapter = "lora";
  options.adapter_rank = 4;
  options.adapter_sites = {"self_attn.q", "self_attn.o", "ffn.up", "cross_attn.k"};
  // The seed preset has neither feed-forward nor cross-attention nor, in its count, an output projection.
  EXPECT_EQ(Params(options)->report.counts.language_total, 12 * 4 * (1024 + 1024));
  options.output_projection = true;
  options.d_ffn = 4096;
  EXPECT_EQ(Params(options)->report.counts.language_total, 12 * 4 * (2 * (1024 + 1024) + 1024 + 4096));
}

}  // namespace
}  // namespace koine::model_loader
