// Calls over languages that come and go: a text service with a store that has a budget, on a folder that tests change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "server/text/text_service.h"
#include "tests/support/harness.h"
#include "tests/support/model_copy.h"
#include "tests/unit/server_text/fake_engine.h"

namespace koine::server {
namespace {

using koine::testing::ModelCopy;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StageRecorder final : public Observer {
 public:
  void RequestDone(absl::string_view, absl::string_view, absl::StatusCode, absl::Duration) noexcept override {}
  void ItemDone(absl::string_view, absl::Duration, absl::Duration, int64_t tokens_in, int64_t) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    tokens_.push_back(tokens_in);
  }
  void Cancelled(Stage stage) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    stages_.push_back(stage);
  }
  std::vector<Stage> stages() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stages_;
  }
  std::vector<int64_t> tokens() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return tokens_;
  }

 private:
  std::mutex mutex_;
  std::vector<Stage> stages_;
  std::vector<int64_t> tokens_;
};

// The languages are es, fr and ru.
class TextLanguagesTest : public ::testing::Test {
 protected:
  void Open(int64_t budget, std::vector<std::string> pinned = {}) {
    auto model = model_loader::Model::Open(copy_.path().string(), {});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    LanguageStoreOptions options;
    options.memory_budget = budget;
    options.pinned = std::move(pinned);
    store_ = std::make_unique<LanguageStore>(model_, std::move(options));
    const absl::Status started = store_->Start();
    ASSERT_TRUE(started.ok()) << started;
    queue_ = std::make_unique<JobQueue>(QueueLimits{});
    engine_ = std::make_unique<FakeEngine>(queue_.get(), 32);
    // Ids that every language has.
    engine_->set_answer([](const Job& job) {
      JobResult result = FakeEngine::Echo(job, 32);
      for (kernels::Hypothesis& hypothesis : result.hypotheses) {
        for (int32_t& id : hypothesis.ids) id = id == 2 ? 2 : 4 + id % 200;
      }
      return result;
    });
    TextService::Parts parts;
    parts.queue = queue_.get();
    parts.pool = &pool_;
    parts.languages = store_.get();
    parts.rejections = &rejections_;
    parts.observer = &observer_;
    auto service = TextService::Create("m", std::move(parts), {});
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
  }

  void TearDown() override {
    service_.reset();
    engine_.reset();
    queue_.reset();
    store_.reset();
  }

  int64_t BytesOf(const std::string& code) const {
    auto model = model_loader::Model::Open(copy_.path().string(), {});
    return (*model)->PlanLanguage(code)->memory_bytes();
  }

  static v1::TranslateRequest Request(const std::string& source, const std::string& target, int items = 1) {
    v1::TranslateRequest request;
    request.set_source(source);
    request.set_target(target);
    for (int i = 0; i < items; ++i) request.add_items()->set_text("a small text");
    return request;
  }

  struct Answer {
    absl::StatusOr<v1::TranslateResponse> response = absl::UnknownError("none");
    absl::Notification done;
    std::shared_ptr<Call> call;
  };
  std::shared_ptr<Answer> Begin(const v1::TranslateRequest& request, absl::Time deadline = absl::InfiniteFuture()) {
    auto answer = std::make_shared<Answer>();
    answer->call = service_->Translate(std::make_unique<v1::TranslateRequest>(request), deadline,
                                       [answer](absl::StatusOr<v1::TranslateResponse> response) {
                                         answer->response = std::move(response);
                                         answer->done.Notify();
                                       });
    return answer;
  }
  absl::StatusOr<v1::TranslateResponse> Translate(const v1::TranslateRequest& request,
                                                  absl::Time deadline = absl::InfiniteFuture()) {
    const auto answer = Begin(request, deadline);
    EXPECT_TRUE(answer->done.WaitForNotificationWithTimeout(absl::Seconds(30))) << "no answer";
    return answer->response;
  }

  LanguageInfo Info(const std::string& code) const {
    for (LanguageInfo& info : store_->List()) {
      if (info.code == code) return info;
    }
    return {};
  }
  std::vector<LanguageLease> Lease(const std::string& code) {
    std::vector<LanguageLease> held;
    absl::Notification done;
    store_->Acquire({code}, absl::InfiniteFuture(), [&](absl::StatusOr<std::vector<LanguageLease>> leases) {
      EXPECT_TRUE(leases.ok()) << leases.status();
      if (leases.ok()) held = *std::move(leases);
      done.Notify();
    });
    done.WaitForNotification();
    return held;
  }
  bool WaitForWaiting(int64_t count) const {
    for (int i = 0; i < 20'000; ++i) {
      if (store_->counters().waiting == count) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }
  bool WaitForNoLeases() const {
    for (int i = 0; i < 20'000; ++i) {
      int64_t leases = 0;
      for (const LanguageInfo& info : store_->List()) leases += info.leases;
      if (leases == 0) return true;
      engine_->Forget();
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }

  ModelCopy copy_;
  std::shared_ptr<const model_loader::Model> model_;
  Rejections rejections_;
  StageRecorder observer_;
  WorkerPool pool_{2};
  std::unique_ptr<LanguageStore> store_;
  std::unique_ptr<JobQueue> queue_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<TextService> service_;
};

TEST_F(TextLanguagesTest, AColdLanguageIsLoadedByItsFirstRequestAndGivenBackAfterTheAnswer) {
  Open(1 << 30);
  ASSERT_EQ(Info("es").state, LanguageState::kCold);
  const auto response = Translate(Request("es", "fr"));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_FALSE(response->results(0).has_status()) << response->results(0).status().DebugString();
  EXPECT_FALSE(response->results(0).text().empty());
  EXPECT_EQ(Info("es").state, LanguageState::kLoaded);
  EXPECT_EQ(Info("fr").state, LanguageState::kLoaded);
  EXPECT_EQ(Info("ru").state, LanguageState::kCold) << "nobody asked for it";
  EXPECT_TRUE(WaitForNoLeases());
  EXPECT_THAT(observer_.tokens(), ElementsAre(response->results(0).input_tokens()));
}

TEST_F(TextLanguagesTest, ItemsMayNameFurtherColdLanguages) {
  Open(1 << 30);
  v1::TranslateRequest request = Request("es", "fr", 3);
  request.mutable_items(1)->set_source("ru");
  request.mutable_items(2)->set_target("RU");
  const auto response = Translate(request);
  ASSERT_TRUE(response.ok()) << response.status();
  for (const v1::TranslateResult& result : response->results()) EXPECT_FALSE(result.has_status());
  EXPECT_EQ(response->results(1).source(), "ru");
  EXPECT_EQ(response->results(2).target(), "ru");
  EXPECT_TRUE(WaitForNoLeases());
}

TEST_F(TextLanguagesTest, ALanguageThatLeftMemoryAnswersAsBefore) {
  Open(1 << 30);
  const auto before = Translate(Request("es", "fr"));
  ASSERT_TRUE(before.ok());
  ASSERT_TRUE(WaitForNoLeases());
  ASSERT_TRUE(store_->Unload("es", absl::InfiniteFuture()).ok());
  ASSERT_TRUE(store_->Unload("fr", absl::InfiniteFuture()).ok());
  EXPECT_EQ(Info("fr").state, LanguageState::kCold);
  const auto after = Translate(Request("es", "fr"));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->results(0).text(), before->results(0).text());
  EXPECT_EQ(Info("fr").loads, 2);
}

TEST_F(TextLanguagesTest, ACallThatWaitsForRoomIsCancelledAtOnce) {
  Open(std::max({BytesOf("es"), BytesOf("fr"), BytesOf("ru")}));
  const auto held = Lease("es");  // no room for another
  const auto answer = Begin(Request("ru", "ru"));
  ASSERT_TRUE(WaitForWaiting(1));
  EXPECT_FALSE(answer->done.HasBeenNotified());
  answer->call->Cancel(absl::CancelledError("the caller went away"));
  ASSERT_TRUE(answer->done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(absl::IsCancelled(answer->response.status())) << answer->response.status();
  EXPECT_EQ(store_->counters().waiting, 0);
  EXPECT_THAT(observer_.stages(), ElementsAre(Stage::kLanguage));
  EXPECT_EQ(service_->permits().items_in_use(), 0);
  EXPECT_THAT(engine_->seen(), IsEmpty());
}

TEST_F(TextLanguagesTest, ADeadlineThatPassesWhileALanguageLoadsEndsTheCall) {
  Open(std::max({BytesOf("es"), BytesOf("fr"), BytesOf("ru")}));
  const auto held = Lease("es");
  const auto response = Translate(Request("ru", "ru"), absl::Now() + absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(response.status())) << response.status();
  EXPECT_THAT(observer_.stages(), ElementsAre(Stage::kLanguage));
}

TEST_F(TextLanguagesTest, ACallThatWaitsGoesOnWhenThereIsRoom) {
  Open(std::max({BytesOf("es"), BytesOf("fr"), BytesOf("ru")}));
  auto held = Lease("es");
  const auto answer = Begin(Request("ru", "ru"));
  ASSERT_TRUE(WaitForWaiting(1));
  held.clear();
  ASSERT_TRUE(answer->done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(answer->response.ok()) << answer->response.status();
  EXPECT_EQ(Info("es").state, LanguageState::kCold);
}

TEST_F(TextLanguagesTest, StoppingTheStoreEndsCallsThatWait) {
  Open(std::max({BytesOf("es"), BytesOf("fr"), BytesOf("ru")}));
  const auto held = Lease("es");
  const auto answer = Begin(Request("ru", "ru"));
  ASSERT_TRUE(WaitForWaiting(1));
  store_->Stop();
  ASSERT_TRUE(answer->done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(absl::IsUnavailable(answer->response.status())) << answer->response.status();
}

TEST_F(TextLanguagesTest, ABrokenLanguageFailsTheItemsThatNameItAndNobodyElse) {
  Open(1 << 30);
  copy_.Break("ru");
  v1::TranslateRequest request = Request("es", "fr", 4);
  request.mutable_items(1)->set_source("ru");
  request.mutable_items(3)->set_target("ru");
  const auto response = Translate(request);
  ASSERT_TRUE(response.ok()) << response.status();
  for (const int i : {0, 2}) EXPECT_FALSE(response->results(i).has_status()) << i;
  for (const int i : {1, 3}) {
    EXPECT_EQ(response->results(i).status().code(), static_cast<int>(absl::StatusCode::kFailedPrecondition)) << i;
    EXPECT_THAT(response->results(i).status().message(), HasSubstr("ru"));
    EXPECT_EQ(response->results(i).status().details_size(), 0);
  }
  EXPECT_EQ(Info("ru").state, LanguageState::kFailed);
  EXPECT_EQ(rejections_.count(Reason::kLanguage), 2);
}

TEST_F(TextLanguagesTest, ABrokenLanguageOfTheRequestFailsTheRequest) {
  Open(1 << 30);
  copy_.Break("ru");
  const auto response = Translate(Request("ru", "fr", 2));
  EXPECT_EQ(response.status().code(), absl::StatusCode::kFailedPrecondition) << response.status();
  EXPECT_THAT(std::string(response.status().message()), HasSubstr("ru"));
  // It stays known, and says so at once.
  EXPECT_EQ(Translate(Request("es", "ru")).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TextLanguagesTest, ALanguageThatCannotFitFailsItsItemsOnly) {
  Open(BytesOf("es") + BytesOf("fr") + BytesOf("ru") - 1);
  v1::TranslateRequest request = Request("es", "fr", 2);
  request.mutable_items(1)->set_target("ru");
  const auto response = Translate(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_FALSE(response->results(0).has_status()) << response->results(0).status().DebugString();
  EXPECT_EQ(response->results(1).status().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  ASSERT_TRUE(WaitForNoLeases());
  // Alone they all find room.
  EXPECT_TRUE(Translate(Request("es", "ru")).ok());
}

TEST_F(TextLanguagesTest, ALanguageThatCannotFitBesideWhatIsPinnedFailsItsRequest) {
  Open(BytesOf("es") + BytesOf("fr") - 1, {"es"});
  const auto response = Translate(Request("es", "fr"));
  EXPECT_TRUE(absl::IsResourceExhausted(response.status())) << response.status();
  EXPECT_EQ(RetryDelay(response.status()), absl::nullopt) << "trying again does not help";
}

TEST_F(TextLanguagesTest, ALanguageRemovedWhileItIsWaitedForIsNotFound) {
  Open(std::max({BytesOf("es"), BytesOf("fr"), BytesOf("ru")}));
  const auto held = Lease("es");
  const auto of_request = Begin(Request("ru", "ru"));
  ASSERT_TRUE(WaitForWaiting(1));
  copy_.Remove("ru");
  EXPECT_THAT(store_->Rescan().removed, ElementsAre("ru"));
  ASSERT_TRUE(of_request->done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(absl::IsNotFound(of_request->response.status())) << of_request->response.status();
  // Now nobody knows it any more.
  EXPECT_TRUE(absl::IsInvalidArgument(Translate(Request("ru", "ru")).status()));
}

TEST_F(TextLanguagesTest, ARunningRequestKeepsTheLanguageThatIsRemoved) {
  Open(1 << 30);
  engine_->set_mode(FakeEngine::Mode::kHold);
  const auto answer = Begin(Request("es", "fr"));
  for (int i = 0; i < 20'000 && queue_->gauges().items == 0; ++i) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_EQ(queue_->gauges().items, 1);
  copy_.Remove("fr");
  EXPECT_THAT(store_->Rescan().removed, ElementsAre("fr"));
  EXPECT_GT(store_->counters().used_bytes, BytesOf("es")) << "its memory goes with the last request";
  engine_->set_mode(FakeEngine::Mode::kAnswer);
  ASSERT_TRUE(answer->done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  ASSERT_TRUE(answer->response.ok()) << answer->response.status();
  EXPECT_FALSE(answer->response->results(0).text().empty());
  ASSERT_TRUE(WaitForNoLeases());
  for (int i = 0; i < 20'000 && store_->counters().used_bytes != BytesOf("es"); ++i) {
    engine_->Forget();
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(store_->counters().used_bytes, BytesOf("es"));
}

TEST_F(TextLanguagesTest, ALanguageAddedWhileTheServerRunsIsServed) {
  Open(1 << 30);
  EXPECT_TRUE(absl::IsInvalidArgument(Translate(Request("xx", "fr")).status()));
  copy_.Add("xx", "es");
  EXPECT_THAT(store_->Rescan().added, ElementsAre("xx"));
  const auto response = Translate(Request("xx", "fr"));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->results(0).text(), Translate(Request("es", "fr"))->results(0).text());
}

TEST_F(TextLanguagesTest, UnknownAdaptersOfColdLanguagesAreNotFound) {
  Open(1 << 30);
  v1::TranslateRequest request = Request("es", "fr");
  request.set_target_adapter("legal");
  EXPECT_TRUE(absl::IsNotFound(Translate(request).status()));
  // Without items nothing is loaded, but the names are checked all the same.
  v1::TranslateRequest empty = Request("ru", "ru", 0);
  empty.set_source_adapter("legal");
  EXPECT_TRUE(absl::IsNotFound(Translate(empty).status()));
  empty.clear_source_adapter();
  EXPECT_TRUE(Translate(empty).ok());
  EXPECT_EQ(Info("ru").state, LanguageState::kCold);
  request.clear_target_adapter();
  request.mutable_items(0)->set_source_adapter("legal");
  const auto of_item = Translate(request);
  ASSERT_TRUE(of_item.ok());
  EXPECT_EQ(of_item->results(0).status().code(), static_cast<int>(absl::StatusCode::kNotFound));
}

TEST_F(TextLanguagesTest, ManyCallersOverMoreLanguagesThanFitAllGetTheirAnswers) {
  for (const char* code : {"aa", "bb", "cc", "dd"}) copy_.Add(code, "es");
  const int64_t one = BytesOf("es");
  Open(3 * one);
  const std::vector<std::string> codes = {"aa", "bb", "cc", "dd", "es"};
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 200; ++i) {
    const size_t source = static_cast<size_t>(i) % codes.size(), target = static_cast<size_t>(i / 5) % codes.size();
    answers.push_back(Begin(Request(codes[source], codes[target])));
    if (i % 10 == 0) engine_->Forget();
  }
  for (const auto& answer : answers) {
    while (!answer->done.WaitForNotificationWithTimeout(absl::Milliseconds(5))) engine_->Forget();
    EXPECT_TRUE(answer->response.ok()) << answer->response.status();
  }
  EXPECT_GT(store_->counters().evictions, 0);
  EXPECT_LE(store_->counters().used_bytes, 3 * one);
}

}  // namespace
}  // namespace koine::server
