// The demo model against values that PyTorch computed (tests/data/demo.json: 56 directions, one sentence each).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/transformer/transformer.h"
#include "model_loader/verify/verify.h"
#include "tests/support/harness.h"

namespace koine {
namespace {

using kernels::Precision;
using nlohmann::json;

json ReadJson(const std::string& relative) {
  std::ifstream stream(testing::SourcePath(relative));
  EXPECT_TRUE(stream.good()) << relative;
  return json::parse(stream);
}

const json& Cases() {
  static const json& cases = *new json(ReadJson("tests/data/demo.json"));
  return cases["cases"];
}

std::string NameOf(const json& test) {
  return test["source"].get<std::string>() + "-" + test["target"].get<std::string>();
}

std::vector<server::JobResult> Translate(Precision precision) {
  const auto model = testing::LoadModel("deploy/demo_model", precision);
  testing::EngineHarness harness(model, {});
  std::vector<server::JobPtr> jobs;
  for (const json& test : Cases()) {
    jobs.push_back(testing::TranslateJob(*model, test["source"], test["target"], test["text"], test["max_steps"]));
  }
  return harness.Run(jobs);
}

TEST(DemoParity, CoversEveryDirection) { EXPECT_EQ(Cases().size(), 56U); }

TEST(DemoParity, SourceIdsAreEqual) {
  const auto model = testing::LoadModel("deploy/demo_model", Precision::kF32);
  for (const json& test : Cases()) {
    EXPECT_EQ(testing::SourceIds(*model, test["source"], test["text"]), test["source_ids"].get<std::vector<int32_t>>())
        << NameOf(test);
  }
}

TEST(DemoParity, EncoderRowsAndEmbeddingsAreWithin1e4) {
  const auto model = testing::LoadModel("deploy/demo_model", Precision::kF32);
  testing::EngineHarness harness(model, {});
  std::vector<server::JobPtr> jobs;
  for (const json& test : Cases()) {
    jobs.push_back(testing::EncodeJob(*model, test["source"], test["text"]));
    jobs.back()->token_states = true;
  }
  const auto results = harness.Run(jobs);
  double largest = 0;
  const size_t d = 256;
  for (size_t i = 0; i < results.size(); ++i) {
    const json& test = Cases()[i];
    ASSERT_TRUE(results[i].status.ok()) << results[i].status;
    const auto compare = [&](const char* key, const float* computed) {
      const auto expected = test[key].get<std::vector<double>>();
      ASSERT_FALSE(expected.empty());
      for (size_t k = 0; k < expected.size(); ++k) {
        const double difference = std::abs(expected[k] - double{computed[k]});
        largest = std::max(largest, difference);
        ASSERT_LE(difference, 1e-4) << NameOf(test) << " " << key << " " << k;
      }
    };
    compare("encoder_row0", results[i].token_states.data());
    compare("encoder_last_row", results[i].token_states.data() + results[i].token_states.size() - d);
    compare("embedding", results[i].embedding.data());
  }
  std::printf("largest difference of encoder rows and embeddings: %.2g\n", largest);
}

TEST(DemoParity, FirstStepLogitsAreWithin1e3) {
  const auto model = testing::LoadModel("deploy/demo_model", Precision::kF32);
  double largest = 0;
  for (const json& test : Cases()) {
    model_loader::Sample sample;
    sample.source = test["source"];
    sample.target = test["target"];
    sample.source_ids = test["source_ids"].get<std::vector<int32_t>>();
    sample.decoder_ids = {model->config().special_tokens.bos};
    auto& top = sample.logits_top.emplace_back();
    for (const json& pair : test["first_logits_top5"]) top.push_back({pair[0], pair[1]});
    const auto report = model_loader::VerifySample(*model, sample, 0, {.values = 1e-3});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->faults.empty()) << NameOf(test) << ": " << report->faults.front();
    largest = std::max(largest, report->logits);
  }
  EXPECT_GT(largest, 0) << "nothing was compared";
  std::printf("largest difference of first-step logits: %.2g\n", largest);
}

TEST(DemoParity, GreedyIdsAndLogProbabilitiesInF32) {
  const auto results = Translate(Precision::kF32);
  double largest = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const json& test = Cases()[i];
    ASSERT_TRUE(results[i].status.ok()) << results[i].status;
    const kernels::Hypothesis& best = results[i].hypotheses.front();
    EXPECT_EQ(best.ids, test["greedy_ids"].get<std::vector<int32_t>>()) << NameOf(test);
    EXPECT_EQ(best.finish == kernels::FinishReason::kStop, test["finish"] == "stop") << NameOf(test);
    const double difference = std::abs(best.sum - test["sum_log_prob"].get<double>());
    largest = std::max(largest, difference);
    EXPECT_LE(difference, 1e-3) << NameOf(test);
  }
  std::printf("largest difference of summed log-probabilities: %.2g\n", largest);
}

TEST(DemoParity, Bf16DiffersOnlyAtNearTies) {
  if (!kernels::CheckPrecision(Precision::kBF16).ok()) GTEST_SKIP() << kernels::CheckPrecision(Precision::kBF16);
  const auto results = Translate(Precision::kBF16);
  int different = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const json& test = Cases()[i];
    ASSERT_TRUE(results[i].status.ok()) << results[i].status;
    const auto expected = test["greedy_ids"].get<std::vector<int32_t>>();
    if (results[i].hypotheses.front().ids == expected) continue;
    ++different;
    EXPECT_LT(test["smallest_margin"].get<double>(), 0.05) << NameOf(test) << " differs although no choice was close";
  }
  std::printf("bf16: %d of %zu greedy outputs differ from f32\n", different, results.size());
  EXPECT_LT(different, static_cast<int>(results.size())) << "bf16 cannot change everything";
}

TEST(DemoParity, SamplesPass) {
  const auto reports = model_loader::VerifyModel(testing::SourcePath("deploy/demo_model"), {.values = 1e-3});
  ASSERT_TRUE(reports.ok()) << reports.status();
  EXPECT_EQ(reports->size(), 8U);
  for (const auto& report : *reports)
    EXPECT_TRUE(report.faults.empty()) << report.name << ": " << report.faults.front();
}

}  // namespace
}  // namespace koine
