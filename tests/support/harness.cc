#include "tests/support/harness.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "absl/synchronization/blocking_counter.h"

namespace koine::testing {

using kernels::Precision;
using model_loader::Model;
using server::Job;
using server::JobPtr;
using server::JobResult;

std::string SourcePath(const std::string& relative) { return std::string(KOINE_SOURCE_DIR) + "/" + relative; }

std::shared_ptr<const Model> LoadModel(const std::string& relative, Precision precision) {
  static auto& loaded = *new std::map<std::pair<std::string, Precision>, std::shared_ptr<const Model>>();
  auto& model = loaded[{relative, precision}];
  if (model == nullptr) {
    auto fresh = Model::Load(SourcePath(relative), {precision});
    EXPECT_TRUE(fresh.ok()) << fresh.status();
    if (fresh.ok()) model = *std::move(fresh);
  }
  return model;
}

server::LanguageStore* LoadLanguages(const std::string& relative, Precision precision) {
  static auto& stores = *new std::map<std::pair<std::string, Precision>, std::unique_ptr<server::LanguageStore>>();
  auto& store = stores[{relative, precision}];
  if (store == nullptr) {
    store = std::make_unique<server::LanguageStore>(LoadModel(relative, precision), server::LanguageStoreOptions{});
    const absl::Status started = store->Start();
    EXPECT_TRUE(started.ok()) << started;
  }
  return store.get();
}

std::vector<int32_t> SourceIds(const Model& model, const std::string& language, const std::string& text) {
  auto found = model.FindLanguage(language);
  EXPECT_TRUE(found.ok()) << found.status();
  auto encoded = (*found)->tokenizer().Encode(text);
  EXPECT_TRUE(encoded.ok()) << encoded.status();
  std::vector<int32_t> ids = encoded->ids;
  ids.push_back(model.config().special_tokens.eos);
  return ids;
}

JobPtr TranslateJob(const Model& model, const std::string& source, const std::string& target, const std::string& text,
                    int64_t max_tokens, int beam) {
  auto job = std::make_shared<Job>();
  job->task = Job::Task::kTranslate;
  job->source = *model.FindLanguage(source);
  job->target = *model.FindLanguage(target);
  job->source_adapter = job->source->default_adapter();
  job->target_adapter = job->target->default_adapter();
  job->source_ids = SourceIds(model, source, text);
  job->start_token = job->target->tokenizer().PieceToId(model.config().prompt.decoder_start);
  job->search.beam_size = beam;
  job->search.num_hypotheses = beam;
  job->search.max_tokens = max_tokens > 0 ? max_tokens : 2 * job->tokens() + 10;
  job->search.end_token = model.config().special_tokens.eos;
  return job;
}

JobPtr EncodeJob(const Model& model, const std::string& language, const std::string& text) {
  auto job = std::make_shared<Job>();
  job->task = Job::Task::kEncode;
  job->source = *model.FindLanguage(language);
  job->source_adapter = job->source->default_adapter();
  job->source_ids = SourceIds(model, language, text);
  return job;
}

EngineHarness::EngineHarness(std::shared_ptr<const Model> model, const server::EngineOptions& options,
                             const server::QueueLimits& limits)
    : queue_(limits), engine_(std::move(model), &queue_, options, [this](const server::StepTrace& trace) {
        const absl::MutexLock lock(&mutex_);
        traces_.push_back(trace);
      }) {
  engine_.Start();
}

EngineHarness::~EngineHarness() { engine_.Stop(absl::Now() + absl::Seconds(30)); }

std::vector<JobResult> EngineHarness::Run(const std::vector<JobPtr>& jobs) {
  std::vector<JobResult> results(jobs.size());
  absl::BlockingCounter waiting(static_cast<int>(jobs.size()));
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i]->done = [&results, &waiting, i](JobResult result) {
      results[i] = std::move(result);
      waiting.DecrementCount();
    };
  }
  const absl::Status submitted = queue_.Submit(jobs);
  EXPECT_TRUE(submitted.ok()) << submitted;
  if (submitted.ok()) waiting.Wait();
  return results;
}

std::vector<server::StepTrace> EngineHarness::traces() const {
  const absl::MutexLock lock(&mutex_);
  return traces_;
}

void EngineHarness::ClearTraces() {
  const absl::MutexLock lock(&mutex_);
  traces_.clear();
}

}  // namespace koine::testing
