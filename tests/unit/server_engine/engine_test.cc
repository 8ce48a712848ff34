#include "server/engine/engine.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/harness.h"
#include "tests/support/store_client.h"

namespace koine::server {
namespace {

using kernels::Precision;
using testing::EngineHarness;
using testing::ResidentBySmaps;
using testing::TranslateJob;

constexpr char kText[] = "There are invalid values in the input boxes. Please check your inputs.";

std::shared_ptr<const model_loader::Model> Demo() { return testing::LoadModel("deploy/demo_model", Precision::kF32); }

// Ends when the end mark is suppressed only at max_tokens: a job that surely runs for a while.
JobPtr LongJob(const model_loader::Model& model, int64_t tokens) {
  JobPtr job = TranslateJob(model, "en", "de", kText, tokens);
  job->search.min_tokens = tokens;
  return job;
}

// Runs `job` without waiting; the result arrives in *result, then *done rises.
void Start(EngineHarness& harness, const JobPtr& job, JobResult* result, std::atomic<int>* done) {
  job->done = [result, done](JobResult answer) {
    *result = std::move(answer);
    ++*done;
  };
  const absl::Status submitted = harness.queue().Submit({job});
  ASSERT_TRUE(submitted.ok()) << submitted;
}

void WaitFor(const std::function<bool()>& condition) {
  const absl::Time limit = absl::Now() + absl::Seconds(60);
  while (!condition() && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_TRUE(condition());
}

TEST(Engine, TranslatesAndEncodesInOneBatch) {
  EngineHarness harness(Demo(), {});
  const auto results =
      harness.Run({TranslateJob(*Demo(), "en", "de", kText), testing::EncodeJob(*Demo(), "en", kText)});
  ASSERT_TRUE(results[0].status.ok()) << results[0].status;
  ASSERT_EQ(results[0].hypotheses.size(), 1U);
  EXPECT_EQ(results[0].hypotheses[0].ids.back(), 2);
  ASSERT_TRUE(results[1].status.ok());
  EXPECT_EQ(results[1].embedding.size(), 256U);
}

TEST(Engine, CancelWhileDecodingEndsTheJobAndOthersGoOn) {
  EngineHarness harness(Demo(), {});
  JobResult cancelled, other;
  std::atomic<int> done{0};
  const JobPtr victim = LongJob(*Demo(), 900);
  const JobPtr neighbour = LongJob(*Demo(), 100);
  Start(harness, victim, &cancelled, &done);
  Start(harness, neighbour, &other, &done);
  WaitFor([&] { return harness.engine().counters().generated_tokens.load() > 20; });
  harness.queue().Cancel({victim}, absl::CancelledError("client went away"));
  WaitFor([&] { return done.load() == 2; });
  EXPECT_EQ(cancelled.status.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(other.status.ok()) << other.status;
  EXPECT_EQ(other.hypotheses[0].ids.size(), 100U);
  EXPECT_LT(harness.engine().counters().generated_tokens.load(), 900);
  EXPECT_EQ(harness.engine().live_jobs(), 0);
}

TEST(Engine, CancelInTheQueueEndsAtOnce) {
  EngineHarness harness(Demo(), {.max_rows = 1});
  JobResult running, waiting;
  std::atomic<int> done{0};
  const JobPtr first = LongJob(*Demo(), 400);
  const JobPtr second = LongJob(*Demo(), 400);
  Start(harness, first, &running, &done);
  WaitFor([&] { return harness.engine().live_jobs() == 1; });
  Start(harness, second, &waiting, &done);
  EXPECT_EQ(harness.queue().gauges().items, 1);
  harness.queue().Cancel({second}, absl::CancelledError("client went away"));
  EXPECT_EQ(done.load(), 1) << "the answer does not wait for the worker";
  EXPECT_EQ(waiting.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(harness.queue().gauges().items, 0);
  EXPECT_EQ(harness.queue().gauges().tokens, 0);
  WaitFor([&] { return done.load() == 2; });
  EXPECT_TRUE(running.status.ok());
}

TEST(Engine, DeadlinesAreHonouredInQueueAndBetweenSteps) {
  EngineHarness harness(Demo(), {.max_rows = 1});
  JobResult running, waiting;
  std::atomic<int> done{0};
  const JobPtr first = LongJob(*Demo(), 1000);
  first->deadline = absl::Now() + absl::Milliseconds(60);
  const JobPtr second = LongJob(*Demo(), 10);
  second->deadline = absl::Now() + absl::Milliseconds(20);
  Start(harness, first, &running, &done);
  WaitFor([&] { return harness.engine().live_jobs() == 1; });
  Start(harness, second, &waiting, &done);
  WaitFor([&] { return done.load() == 2; });
  EXPECT_EQ(running.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(waiting.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(waiting.hypotheses.empty());
  // The engine is free for the next one.
  EXPECT_TRUE(harness.Run({LongJob(*Demo(), 5)})[0].status.ok());
}

TEST(Engine, AnItemOverTheBudgetRunsAloneAndBlocksNobody) {
  EngineHarness harness(Demo(), {.max_rows = 4, .max_tokens = 16});
  std::string text;
  for (int i = 0; i < 20; ++i) text += "Please check your inputs. ";
  std::vector<JobPtr> jobs = {TranslateJob(*Demo(), "en", "de", text, 20)};  // 100 tokens
  ASSERT_GT(jobs[0]->tokens(), 64);
  jobs.push_back(TranslateJob(*Demo(), "en", "fr", "Please check.", 10, 8));  // 8 beams
  for (int i = 0; i < 10; ++i) jobs.push_back(TranslateJob(*Demo(), "en", "ru", "Advice:", 10));
  for (const JobResult& result : harness.Run(jobs)) EXPECT_TRUE(result.status.ok()) << result.status;
}

TEST(Engine, AJobThatCanNeverFitIsRefusedAtTheDoor) {
  EngineHarness harness(Demo(), {.kv_cache_bytes = 1 << 20});  // 16 blocks of the demo's 64 KiB
  EXPECT_TRUE(harness.engine().CheckFits(*TranslateJob(*Demo(), "en", "de", kText, 40)).ok());
  const absl::Status refused = harness.engine().CheckFits(*TranslateJob(*Demo(), "en", "de", kText, 900));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("16"), absl::string_view::npos) << refused;
  // Many that fit one by one share the small pool.
  std::vector<JobPtr> jobs;
  for (int i = 0; i < 30; ++i) jobs.push_back(TranslateJob(*Demo(), "en", "de", kText, 40, 2));
  for (const JobResult& result : harness.Run(jobs)) EXPECT_TRUE(result.status.ok()) << result.status;
}

TEST(Engine, StopFinishesWhatItHasAndEndsTheRestAfterTheDeadline) {
  JobQueue queue({});
  Engine engine(Demo(), &queue, {});
  engine.Start();
  std::vector<JobResult> results(3);
  std::atomic<int> done{0};
  std::vector<JobPtr> jobs = {LongJob(*Demo(), 10), LongJob(*Demo(), 1000), LongJob(*Demo(), 1000)};
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i]->done = [&, i](JobResult result) {
      results[i] = std::move(result);
      ++done;
    };
  }
  ASSERT_TRUE(queue.Submit(jobs).ok());
  WaitFor([&] { return done.load() == 1; });
  engine.Stop(absl::Now() + absl::Milliseconds(10));
  EXPECT_EQ(done.load(), 3);
  EXPECT_TRUE(results[0].status.ok());
  EXPECT_EQ(results[1].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(queue.Submit({LongJob(*Demo(), 1)}).code(), absl::StatusCode::kUnavailable);
}

TEST(Engine, BeamsNeverCopyFullBlocks) {
  EngineHarness harness(Demo(), {});
  std::vector<JobPtr> jobs;
  for (int i = 0; i < 6; ++i) {
    jobs.push_back(TranslateJob(*Demo(), "en", "de", kText, 60, 4));
    jobs.back()->search.min_tokens = 50;  // beyond three blocks of 16
  }
  for (const JobResult& result : harness.Run(jobs)) {
    ASSERT_TRUE(result.status.ok());
    EXPECT_EQ(result.hypotheses.size(), 4U);
  }
  EXPECT_GT(harness.engine().counters().partial_block_copies.load(), 0);
  EXPECT_EQ(harness.engine().counters().full_block_copies.load(), 0);
}

TEST(Engine, OneStepServesManyLanguagesWithOneProductPerSharedMatrix) {
  EngineHarness harness(Demo(), {});
  const std::vector<std::string> codes = {"en", "de", "fr", "es", "it", "pt", "ru", "zh"};
  std::vector<JobPtr> jobs;
  for (const std::string& target : codes) jobs.push_back(TranslateJob(*Demo(), "en", target, kText, 12));
  for (const JobPtr& job : jobs) job->search.min_tokens = 12;
  harness.Run(jobs);
  const auto traces = harness.traces();
  ASSERT_FALSE(traces.empty());
  // The demo: two decoder layers of q k v, o, cross q, cross o, up, down.
  EXPECT_EQ(Demo()->transformer().decoder_shared_matrices(), 12);
  for (const StepTrace& trace : traces) {
    EXPECT_EQ(trace.languages, 8);
    EXPECT_EQ(trace.rows, 8);
    EXPECT_EQ(trace.shared_products, 12);
    // Per language: down and up of the adapter in two layers, and the output table.
    EXPECT_EQ(trace.language_products, 8 * (2 * 2 + 1));
  }
}

TEST(Engine, MultiplyAddsPerTokenDoNotDependOnTheNumberOfLanguages) {
  const auto count = [&](const std::vector<std::string>& targets) {
    EngineHarness harness(Demo(), {});
    std::vector<JobPtr> jobs;
    for (const std::string& target : targets) {
      jobs.push_back(TranslateJob(*Demo(), "en", target, kText, 10));
      jobs.back()->search.min_tokens = 10;
    }
    harness.Run(jobs);
    return static_cast<double>(harness.engine().counters().multiply_adds.load()) /
           static_cast<double>(harness.engine().counters().step_rows.load());
  };
  EXPECT_EQ(count({"de", "de", "de", "de"}), count({"de", "fr", "ru", "zh"}));
}

TEST(OneSharedCopy, AccountEqualsTheKernelsFigures) {
  const auto model = Demo();
  int64_t account = model->shared_resident_bytes();
  for (const auto& language : model->languages()) account += language->resident_bytes();
  const int64_t kernel = ResidentBySmaps("koine:koine-demo:");
  ASSERT_GT(kernel, 0);
  EXPECT_NEAR(static_cast<double>(account), static_cast<double>(kernel), 0.03 * static_cast<double>(kernel));
  // One shared mapping, however many languages there are.
  EXPECT_NEAR(static_cast<double>(model->shared_resident_bytes()),
              static_cast<double>(ResidentBySmaps("koine:koine-demo:shared")),
              0.03 * static_cast<double>(model->shared_resident_bytes()));
}

TEST(OneSharedCopy, ChangingOneSharedByteChangesEveryLanguage) {
  // A model of its own: the test writes into its memory.
  auto loaded = model_loader::Model::Load(testing::SourcePath("deploy/demo_model"), {Precision::kF32});
  ASSERT_TRUE(loaded.ok());
  const auto model = *loaded;
  const void* address = model->shared_address();
  const uint64_t checksum = model->shared_checksum();
  const auto embeddings = [&] {
    EngineHarness harness(model, {});
    std::vector<JobPtr> jobs;
    for (const auto& language : model->languages()) jobs.push_back(testing::EncodeJob(*model, language->code(), "42"));
    std::vector<std::vector<float>> values;
    for (const JobResult& result : harness.Run(jobs)) values.push_back(result.embedding);
    return values;
  };
  const auto before = embeddings();
  EXPECT_EQ(embeddings(), before);

  // The first bytes hold the first norm's first weight; its sign and exponent are in byte 3.
  auto* byte = static_cast<unsigned char*>(const_cast<void*>(model->shared_address())) + 3;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  ASSERT_EQ(mprotect(const_cast<void*>(address), page, PROT_READ | PROT_WRITE), 0);
  *byte ^= 0x80;
  EXPECT_EQ(model->shared_address(), address);
  EXPECT_NE(model->shared_checksum(), checksum);
  const auto after = embeddings();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NE(before[i], after[i]) << model->languages()[i]->code();
  *byte ^= 0x80;
  EXPECT_EQ(model->shared_checksum(), checksum);
  EXPECT_EQ(embeddings(), before);
}

TEST(OneSharedCopy, ParameterMemoryIsReadOnly) {
  EXPECT_EXIT(
      {
        signal(SIGSEGV, SIG_DFL);  // a sanitizer would take it for a fault
        *static_cast<unsigned char*>(const_cast<void*>(Demo()->shared_address())) = 1;
      },
      ::testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace koine::server
