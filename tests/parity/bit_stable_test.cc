// A sentence's ids and scores are the same bits alone and in any batch, for any number of threads and workers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/support/harness.h"
#include "tests/support/random_model.h"

namespace koine {
namespace {

using kernels::Precision;

struct Sentence {
  std::string source, target, text;
};

// 200 sentences of the demo's test texts in mixed directions, in a fixed random order.
std::vector<Sentence> Sentences() {
  const std::vector<std::string> codes = {"en", "de", "fr", "es", "it", "pt", "ru", "zh"};
  std::ifstream stream(testing::SourcePath("deploy/demo_model/test.jsonl"));
  std::mt19937 generator(20261129);
  std::vector<Sentence> sentences;
  std::string line;
  while (sentences.size() < 200 && std::getline(stream, line)) {
    const auto group = nlohmann::json::parse(line);
    const std::string source = codes[generator() % codes.size()];
    const std::string target = codes[generator() % codes.size()];
    if (source == target || !group.contains(source)) continue;
    const std::string text = group[source];
    if (text.size() <= 200) sentences.push_back({source, target, text});
  }
  EXPECT_EQ(sentences.size(), 200U);
  return sentences;
}

// Everything that an answer says, as bytes.
std::string Bytes(const server::JobResult& result) {
  EXPECT_TRUE(result.status.ok()) << result.status;
  std::string bytes;
  const auto append = [&](const void* data, size_t size) { bytes.append(static_cast<const char*>(data), size); };
  for (const kernels::Hypothesis& hypothesis : result.hypotheses) {
    append(hypothesis.ids.data(), hypothesis.ids.size() * sizeof(int32_t));
    append(hypothesis.log_probs.data(), hypothesis.log_probs.size() * sizeof(float));
    append(&hypothesis.sum, sizeof(double));
  }
  append(result.embedding.data(), result.embedding.size() * sizeof(float));
  return bytes;
}

// Beams where the index is divisible by 5, encode jobs where by 7: kinds of work mix in a batch too.
server::JobPtr MakeJob(const model_loader::Model& model, const std::vector<Sentence>& sentences, size_t i) {
  const Sentence& s = sentences[i];
  if (i % 7 == 0) return testing::EncodeJob(model, s.source, s.text);
  return testing::TranslateJob(model, s.source, s.target, s.text, 40, i % 5 == 0 ? 3 : 1);
}

class BitStable : public ::testing::TestWithParam<Precision> {};

TEST_P(BitStable, AloneEqualsAnyBatchThreadsAndWorkers) {
  const Precision precision = GetParam();
  if (!kernels::CheckPrecision(precision).ok()) GTEST_SKIP() << kernels::CheckPrecision(precision);
  const auto model = testing::LoadModel("deploy/demo_model", precision);
  ASSERT_NE(model, nullptr);
  const std::vector<Sentence> sentences = Sentences();
  std::vector<std::string> alone;
  {
    testing::EngineHarness harness(model, {.max_rows = 64});
    for (size_t i = 0; i < sentences.size(); ++i)
      alone.push_back(Bytes(harness.Run({MakeJob(*model, sentences, i)})[0]));
  }
  struct Setting {
    int batch, threads, workers;
  };
  std::mt19937 generator(7);
  for (const Setting setting : {Setting{2, 1, 1}, Setting{7, 1, 1}, Setting{32, 1, 1}, Setting{64, 1, 1},
                                Setting{32, 2, 1}, Setting{64, 1, 2}}) {
    testing::EngineHarness harness(
        model, {.workers = setting.workers, .threads = setting.threads, .max_rows = 3 * setting.batch});
    std::vector<size_t> order(sentences.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), generator);
    for (size_t begin = 0; begin < order.size(); begin += static_cast<size_t>(setting.batch)) {
      const size_t end = std::min(order.size(), begin + static_cast<size_t>(setting.batch));
      std::vector<server::JobPtr> jobs;
      for (size_t i = begin; i < end; ++i) jobs.push_back(MakeJob(*model, sentences, order[i]));
      const auto results = harness.Run(jobs);
      for (size_t i = begin; i < end; ++i) {
        ASSERT_EQ(Bytes(results[i - begin]), alone[order[i]])
            << "sentence " << order[i] << " in batches of " << setting.batch << ", threads " << setting.threads
            << ", workers " << setting.workers;
      }
    }
    // The batches were real.
    int64_t most_languages = 0;
    int64_t most_rows = 0;
    for (const server::StepTrace& trace : harness.traces()) {
      most_languages = std::max(most_languages, trace.languages);
      most_rows = std::max(most_rows, trace.rows);
      // One product per shared matrix and step, however many languages are in it.
      ASSERT_EQ(trace.shared_products, model->transformer().decoder_shared_matrices());
    }
    if (setting.batch >= 32 && setting.workers == 1) {
      EXPECT_EQ(most_languages, 8) << "batches of " << setting.batch;
    }
    EXPECT_GE(most_rows, setting.batch / 2 / setting.workers);
    std::printf("batches of %d, %d threads, %d workers: up to %ld rows and %ld target languages in a step\n",
                setting.batch, setting.threads, setting.workers, static_cast<long>(most_rows),
                static_cast<long>(most_languages));
  }
}

// Relative positions bias scores by distance, and pooling ends in a product of its own: neither may look at neighbours.
TEST_P(BitStable, RelativePositionsAndDensePoolingKeepTheirBitsInAnyBatch) {
  const Precision precision = GetParam();
  if (!kernels::CheckPrecision(precision).ok()) GTEST_SKIP() << kernels::CheckPrecision(precision);
  model_loader::ModelConfig config = testing::SmallConfig("relative");
  config.architecture.d_model = 64;
  config.architecture.d_head = 12;
  config.architecture.output_scale = 0.125F;
  config.positions.type = model_loader::PositionType::kRelativeBuckets;
  config.pooling.dense = model_loader::PoolingDense{48, model_loader::DenseActivation::kTanh, true};
  config.shared_embedding = true;
  const std::string directory = ::testing::TempDir() + "/bit_stable_relative_" + std::string(kernels::Name(precision));
  std::filesystem::remove_all(directory);
  testing::WriteRandomShared(directory, config, 5, kernels::DType::kF32, testing::SmallTokenizer());
  const auto loaded = model_loader::Model::Load(directory, {precision});
  std::filesystem::remove_all(directory);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::shared_ptr<const model_loader::Model> model = *loaded;

  std::mt19937 generator(11);
  std::vector<std::vector<int32_t>> sources(90);
  for (std::vector<int32_t>& ids : sources) {
    for (unsigned length = 1 + generator() % 100; length > 0; --length) {
      ids.push_back(static_cast<int32_t>(4 + generator() % 300));
    }
    ids.push_back(2);
  }
  const auto job = [&](size_t i) {
    auto made = std::make_shared<server::Job>();
    made->source = made->target = model->languages()[0];
    made->source_ids = sources[i];
    made->task = i % 3 == 0 ? server::Job::Task::kEncode : server::Job::Task::kTranslate;
    if (i % 3 == 0) made->target = nullptr;
    made->start_token = 1;
    made->search.beam_size = made->search.num_hypotheses = i % 5 == 0 ? 3 : 1;
    made->search.max_tokens = 40;
    made->search.end_token = 2;
    return made;
  };
  std::vector<std::string> alone;
  {
    testing::EngineHarness harness(model, {.max_rows = 64});
    for (size_t i = 0; i < sources.size(); ++i) alone.push_back(Bytes(harness.Run({job(i)})[0]));
  }
  for (const int threads : {1, 2}) {
    testing::EngineHarness harness(model, {.threads = threads, .max_rows = 200});
    std::vector<server::JobPtr> jobs;
    for (size_t i = 0; i < sources.size(); ++i) jobs.push_back(job(sources.size() - 1 - i));
    const auto results = harness.Run(jobs);
    for (size_t i = 0; i < results.size(); ++i) {
      ASSERT_EQ(Bytes(results[i]), alone[sources.size() - 1 - i]) << i << ", threads " << threads;
    }
    ASSERT_EQ(results.back().embedding.size(), 48U);
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, BitStable, ::testing::Values(Precision::kF32, Precision::kBF16),
                         [](const auto& parameter) { return std::string(kernels::Name(parameter.param)); });

}  // namespace
}  // namespace koine
