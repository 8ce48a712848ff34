// One batch over the whole sharing family: languages with every kind of adapter, own heads and own layers, equal alone
// and together, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/harness.h"
#include "tests/support/random_model.h"

namespace koine {
namespace {

using kernels::LayerOwner;
using kernels::Precision;
using model_loader::AdapterConfig;
using model_loader::AdapterKind;

constexpr int kLanguages = 12;

AdapterConfig AdapterOf(int i) {
  AdapterConfig adapter;
  switch (i % 4) {
    case 0:
      return adapter;
    case 1:
      adapter.kind = AdapterKind::kScale;
      adapter.scale_self_attention = true;
      adapter.scale_cross_attention = i % 3 != 0;
      adapter.scale_feed_forward = i % 2 == 0;
      return adapter;
    case 2:
      adapter.kind = AdapterKind::kBottleneck;
      adapter.rank = 2 + i;
      adapter.activation = kernels::Activation::kGelu;
      return adapter;
    default:
      adapter.kind = AdapterKind::kLora;
      adapter.rank = 1 + i;
      adapter.alpha = 2 * adapter.rank;
      adapter.rank_stabilised = i % 2 == 0;
      return adapter;
  }
}

std::string Code(int i) { return absl::StrCat("l", i); }

// Writes (once a process) a model of 12 languages and returns its folder.
std::string Folder(const std::string& name, const model_loader::ModelConfig& config) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / absl::StrCat("koine_mixed_", name);
  std::filesystem::remove_all(folder);
  testing::WriteRandomShared(folder.string(), config, 1);
  for (int i = 0; i < kLanguages; ++i) {
    testing::WriteRandomLanguage(folder.string(), config, {Code(i), AdapterOf(i), 0}, testing::SmallTokenizer(),
                                 static_cast<unsigned>(100 + i));
    testing::WriteRandomAdapter(folder.string(), config, Code(i), "legal", AdapterOf(i + 1),
                                static_cast<unsigned>(200 + i));
  }
  return folder.string();
}

std::string Bytes(const server::JobResult& result) {
  EXPECT_TRUE(result.status.ok()) << result.status;
  std::string bytes;
  for (const kernels::Hypothesis& hypothesis : result.hypotheses) {
    bytes.append(reinterpret_cast<const char*>(hypothesis.ids.data()), hypothesis.ids.size() * sizeof(int32_t));
    bytes.append(reinterpret_cast<const char*>(hypothesis.log_probs.data()),
                 hypothesis.log_probs.size() * sizeof(float));
  }
  bytes.append(reinterpret_cast<const char*>(result.embedding.data()), result.embedding.size() * sizeof(float));
  return bytes;
}

class MixedFamily : public ::testing::TestWithParam<std::tuple<std::string, Precision>> {
 protected:
  static model_loader::ModelConfig Config(const std::string& plan) {
    model_loader::ModelConfig config = testing::SmallConfig(plan);
    auto& a = config.architecture;
    if (plan == "heads" || plan == "everything") a.language_heads = 2;
    if (plan == "layers" || plan == "everything") {
      a.encoder_layers[1] = LayerOwner::kLanguageAttention;
      a.decoder_layers[0] = LayerOwner::kLanguageAttention;
    }
    if (plan == "whole_layers") {
      config.layer_scope = model_loader::LayerScope::kLayer;
      a.encoder_layers[0] = LayerOwner::kLanguageLayer;
      a.decoder_layers[1] = LayerOwner::kLanguageLayer;
    }
    if (plan == "everything") {
      a.pre_norm = false;
      a.final_norm = false;
      a.gated_ffn = true;
      a.embedding_norm = true;
      a.tied_output = false;
      a.output_bias = true;
      a.norm_type = kernels::NormType::kRmsNorm;
      a.activation = kernels::Activation::kSilu;
    }
    return config;
  }
};

TEST_P(MixedFamily, TwelveLanguagesTogetherEqualAlone) {
  const auto& [plan, precision] = GetParam();
  if (!kernels::CheckPrecision(precision).ok()) GTEST_SKIP() << kernels::CheckPrecision(precision);
  const std::string folder = Folder(plan + "_" + kernels::Name(precision), Config(plan));
  const auto loaded = model_loader::Model::Load(folder, {precision});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const auto model = *loaded;
  const std::vector<std::string> texts = {"a", "one two", "a b c d e f g h", "the quick brown fox jumps", "0123456789"};
  std::mt19937 generator(11);
  struct Case {
    int source, target, text, beam;
    bool encode, named_source, named_target;
  };
  std::vector<Case> cases;
  for (int i = 0; i < 60; ++i) {
    cases.push_back({i % kLanguages, static_cast<int>(generator() % kLanguages), static_cast<int>(generator() % 5),
                     i % 6 == 0 ? 3 : 1, i % 9 == 0, i % 4 == 1, i % 5 == 2});
  }
  const auto make = [&](const Case& c) {
    const std::string& text = texts[static_cast<size_t>(c.text)];
    const server::JobPtr job = c.encode
                                   ? testing::EncodeJob(*model, Code(c.source), text)
                                   : testing::TranslateJob(*model, Code(c.source), Code(c.target), text, 14, c.beam);
    if (c.named_source) job->source_adapter = *job->source->FindAdapter("legal");
    if (c.named_target && !c.encode) job->target_adapter = *job->target->FindAdapter("legal");
    return job;
  };
  std::vector<std::string> alone;
  {
    testing::EngineHarness harness(model, {});
    for (const Case& c : cases) alone.push_back(Bytes(harness.Run({make(c)})[0]));
  }
  // Languages differ: a batch that mixed them up could not pass.
  EXPECT_GT(std::set<std::string>(alone.begin(), alone.end()).size(), 50U);
  for (const int workers : {1, 2}) {
    testing::EngineHarness harness(model, {.workers = workers, .max_rows = 128});
    for (int round = 0; round < 3; ++round) {
      std::vector<size_t> order(cases.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), generator);
      std::vector<server::JobPtr> jobs;
      for (const size_t i : order) jobs.push_back(make(cases[i]));
      const auto results = harness.Run(jobs);
      for (size_t i = 0; i < order.size(); ++i) {
        ASSERT_EQ(Bytes(results[i]), alone[order[i]]) << "case " << order[i] << " with " << workers << " workers";
      }
    }
    int64_t languages = 0;
    for (const server::StepTrace& trace : harness.traces()) {
      languages = std::max(languages, trace.languages);
      ASSERT_EQ(trace.shared_products, model->transformer().decoder_shared_matrices());
    }
    if (workers == 1) {
      EXPECT_EQ(languages, kLanguages);
    }
  }
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Plans, MixedFamily,
                         ::testing::Combine(::testing::Values("shared", "heads", "layers", "whole_layers",
                                                              "everything"),
                                            ::testing::Values(Precision::kF32, Precision::kBF16)),
                         [](const auto& parameter) {
                           return std::get<0>(parameter.param) + "_" + kernels::Name(std::get<1>(parameter.param));
                         });

}  // namespace
}  // namespace koine
