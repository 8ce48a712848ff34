#include "server/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/unit/server_rpc/served_model.h"

namespace koine::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Samples by their name and labels as written: "koine_inflight", "koine_tokens_total{direction=\"in\"}".
std::map<std::string, double> Samples(const std::string& text) {
  std::map<std::string, double> samples;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.empty() || line.front() == '#') continue;
    const size_t space = line.rfind(' ');
    EXPECT_TRUE(samples.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second) << "twice: " << line;
  }
  return samples;
}

class MetricsTest : public ::testing::Test {
 protected:
  void Start(const ServedModel::Options& options) { served_ = std::make_unique<ServedModel>(options, &metrics_); }
  std::string Text() { return metrics_.Scrape(served_->server().facts(), served_->rejections(), served_->hosts()); }
  std::map<std::string, double> Scrape() { return Samples(Text()); }
  // Until `name` is `value`: what ends after its answer needs a moment.
  bool Becomes(const std::string& name, double value) {
    for (int i = 0; i < 4000; ++i) {
      const auto samples = Scrape();
      const auto found = samples.find(name);
      if (found != samples.end() && found->second == value) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }

  Metrics metrics_{"1.2.3"};
  std::unique_ptr<ServedModel> served_;
};

TEST_F(MetricsTest, EveryRequestCountsOnceByModelOperationAndCode) {
  Start({});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(served_->Translate("es", "fr", 2).ok());
  EXPECT_FALSE(served_->Translate("zz", "fr").ok());
  {
    grpc::ClientContext context;
    v1::TranslateRequest request = ServedModel::Request("es", "fr");
    request.set_model("other");
    v1::TranslateResponse response;
    EXPECT_FALSE(served_->koine().Translate(&context, request, &response).ok());
  }
  EXPECT_EQ(served_->Language("es").code(), "es");
  const auto samples = Scrape();
  EXPECT_EQ(samples.at("koine_requests_total{code=\"OK\",model=\"m\",op=\"Translate\"}"), 3);
  EXPECT_EQ(samples.at("koine_requests_total{code=\"INVALID_ARGUMENT\",model=\"m\",op=\"Translate\"}"), 1);
  EXPECT_EQ(samples.at("koine_requests_total{code=\"NOT_FOUND\",model=\"\",op=\"Translate\"}"), 1)
      << "names that callers make up are no labels";
  EXPECT_EQ(samples.at("koine_requests_total{code=\"OK\",model=\"m\",op=\"ListLanguages\"}"), 1);
  EXPECT_EQ(samples.at("koine_request_seconds_count{op=\"Translate\"}"), 5);
  EXPECT_EQ(samples.at("koine_compute_seconds_count{op=\"Translate\"}"), 6) << "one an item";
  EXPECT_EQ(samples.at("koine_queue_seconds_count{op=\"Translate\"}"), 6);
  EXPECT_EQ(samples.at("koine_queue_seconds_count{op=\"Encode\"}"), 0);
  EXPECT_GT(samples.at("koine_tokens_total{direction=\"in\"}"), 6);
  EXPECT_EQ(samples.at("koine_tokens_total{direction=\"out\"}"),
            static_cast<double>(served_->host().engine->counters().generated_tokens.load()));
  EXPECT_EQ(samples.at("koine_rejected_total{reason=\"validation\"}"), 1);
  EXPECT_EQ(samples.at("koine_rejected_total{reason=\"not_found\"}"), 1);
  EXPECT_GT(samples.at("koine_steps_total{model=\"m\"}"), 0);
  EXPECT_GE(samples.at("koine_step_rows_total{model=\"m\"}"), samples.at("koine_steps_total{model=\"m\"}"));
}

TEST_F(MetricsTest, GaugesMoveWhenSentencesWaitAndWhenTheyGo) {
  ServedModel::Options options;
  options.engine_runs = false;
  Start(options);
  EXPECT_EQ(Scrape().at("koine_queue_depth{model=\"m\"}"), 0);
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) callers.emplace_back([&] { EXPECT_TRUE(served_->Translate("es", "fr", 4).ok()); });
  ASSERT_TRUE(Becomes("koine_queue_depth{model=\"m\"}", 12));
  const auto waiting = Scrape();
  EXPECT_GT(waiting.at("koine_queue_tokens{model=\"m\"}"), 12);
  EXPECT_GT(waiting.at("koine_queue_oldest_seconds{model=\"m\"}"), 0);
  EXPECT_EQ(waiting.at("koine_permits_in_use{model=\"m\"}"), 12);
  EXPECT_EQ(waiting.at("koine_inflight"), 3);
  served_->host().engine->Start();
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(Becomes("koine_inflight", 0));
  EXPECT_TRUE(Becomes("koine_queue_depth{model=\"m\"}", 0));
  EXPECT_TRUE(Becomes("koine_permits_in_use{model=\"m\"}", 0));
  EXPECT_EQ(Scrape().at("koine_queue_tokens{model=\"m\"}"), 0);
}

TEST_F(MetricsTest, CancelledRequestsCountByStage) {
  ServedModel::Options options;
  options.engine_runs = false;
  Start(options);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(800));
  v1::TranslateResponse response;
  const grpc::Status status = served_->koine().Translate(&context, ServedModel::Request("es", "fr"), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Becomes("koine_cancelled_total{stage=\"queue\"}", 1));
  EXPECT_EQ(Scrape().at("koine_cancelled_total{stage=\"compute\"}"), 0);
  EXPECT_TRUE(Becomes("koine_requests_total{code=\"DEADLINE_EXCEEDED\",model=\"m\",op=\"Translate\"}", 1));
  served_->host().engine->Start();
}

TEST_F(MetricsTest, LanguagesAndTheirMemoryAreThere) {
  ServedModel::Options options;
  options.language_memory = 1 << 30;
  Start(options);
  auto samples = Scrape();
  EXPECT_EQ(samples.at("koine_languages{model=\"m\",state=\"cold\"}"), 3);
  EXPECT_EQ(samples.at("koine_language_memory_budget_bytes{model=\"m\"}"), 1 << 30);
  EXPECT_EQ(samples.at("koine_language_memory_used_bytes{model=\"m\"}"), 0);
  EXPECT_EQ(samples.at("koine_parameter_bytes{model=\"m\",scope=\"language\"}"), 0);
  ASSERT_TRUE(served_->Translate("es", "fr").ok());
  samples = Scrape();
  EXPECT_EQ(samples.at("koine_languages{model=\"m\",state=\"loaded\"}"), 2);
  EXPECT_EQ(samples.at("koine_language_loads_total{model=\"m\"}"), 2);
  EXPECT_EQ(samples.at("koine_parameter_bytes{model=\"m\",scope=\"shared\"}"),
            static_cast<double>(served_->host().model->shared_mapped_bytes()));
  EXPECT_GT(samples.at("koine_parameter_bytes{model=\"m\",scope=\"language\"}"), 0);
  EXPECT_GT(samples.at("koine_language_memory_used_bytes{model=\"m\"}"),
            samples.at("koine_parameter_bytes{model=\"m\",scope=\"language\"}"))
      << "tokenizers count too";
  EXPECT_GT(samples.at("process_resident_memory_bytes"), 1 << 20);
  EXPECT_EQ(samples.at("koine_build_info{version=\"1.2.3\"}"), 1);
  EXPECT_EQ(samples.at("koine_draining"), 0);
}

TEST_F(MetricsTest, ScrapesUnderLoadAreWholeAndCountersNeverFall) {
  Start({});
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  std::atomic<int> sent{0};
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&, i] {
      while (!stop.load()) {
        EXPECT_TRUE(served_->Translate(i % 2 == 0 ? "es" : "ru", "fr", 2).ok());
        sent.fetch_add(1);
      }
    });
  }
  double last = 0;
  for (int i = 0; i < 100 || last < 20; ++i) {
    const auto samples = Scrape();
    const auto found = samples.find("koine_requests_total{code=\"OK\",model=\"m\",op=\"Translate\"}");
    const double now = found == samples.end() ? 0 : found->second;
    EXPECT_GE(now, last);
    last = now;
    EXPECT_GE(samples.at("koine_inflight"), 0);
  }
  stop.store(true);
  for (std::thread& caller : callers) caller.join();
  // A call is in flight until the library has let go of it, which is after its caller has the answer.
  for (int i = 0; i < 1000 && Scrape().at("koine_inflight") != 0; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(Scrape().at("koine_inflight"), 0);
  EXPECT_EQ(Scrape().at("koine_requests_total{code=\"OK\",model=\"m\",op=\"Translate\"}"), sent.load());
}

TEST_F(MetricsTest, EveryFamilyHasItsHelpAndTypeAndNoTextOrLanguageIsALabel) {
  Start({});
  ASSERT_TRUE(served_->Translate("es", "fr").ok());
  const std::string text = Text();
  std::istringstream lines(text);
  std::string line;
  std::map<std::string, int> types;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string hash, what, name;
    words >> hash >> what >> name;
    if (hash == "#" && what == "TYPE") ++types[name];
  }
  EXPECT_GT(types.size(), 25U);
  for (const auto& [name, count] : types) {
    EXPECT_EQ(count, 1) << name;
    EXPECT_THAT(text, HasSubstr("# HELP " + name + " "));
  }
  EXPECT_THAT(text, Not(HasSubstr("\"es\"")));
  EXPECT_THAT(text, Not(HasSubstr("small text")));
}

TEST(Metrics, ManyThreadsLoseNoCount) {
  Metrics metrics("1");
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        metrics.RequestDone("m", "Translate", absl::StatusCode::kOk, absl::Milliseconds(3));
        metrics.ItemDone("Translate", absl::Milliseconds(1), absl::Milliseconds(2), 2, 3);
        metrics.Cancelled(Stage::kCompute);
        metrics.RequestDone("m", "SomethingElse", absl::StatusCode::kOk, absl::Milliseconds(3));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto samples = Samples(metrics.Scrape({}, Rejections(), ModelHosts({})));
  EXPECT_EQ(samples.at("koine_requests_total{code=\"OK\",model=\"m\",op=\"Translate\"}"), 8000);
  EXPECT_EQ(samples.at("koine_request_seconds_count{op=\"Translate\"}"), 8000);
  EXPECT_NEAR(samples.at("koine_request_seconds_sum{op=\"Translate\"}"), 24, 1e-6);
  EXPECT_EQ(samples.at("koine_request_seconds_bucket{op=\"Translate\",le=\"0.002\"}"), 0);
  EXPECT_EQ(samples.at("koine_request_seconds_bucket{op=\"Translate\",le=\"0.004\"}"), 8000);
  EXPECT_EQ(samples.at("koine_tokens_total{direction=\"in\"}"), 16'000);
  EXPECT_EQ(samples.at("koine_tokens_total{direction=\"out\"}"), 24'000);
  EXPECT_EQ(samples.at("koine_cancelled_total{stage=\"compute\"}"), 8000);
}

}  // namespace
}  // namespace koine::server
