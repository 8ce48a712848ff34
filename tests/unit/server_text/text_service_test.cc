#include "server/text/text_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "google/rpc/error_details.pb.h"
#include "tests/support/harness.h"
#include "tests/unit/server_text/fake_engine.h"

namespace koine::server {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr int kInvalidArgument = static_cast<int>(absl::StatusCode::kInvalidArgument);
constexpr int kNotFound = static_cast<int>(absl::StatusCode::kNotFound);

// The answer of a call that may come on another thread.
template <typename Response>
class Pending {
 public:
  std::function<void(absl::StatusOr<Response>)> done() {
    return [state = state_](absl::StatusOr<Response> response) {
      ASSERT_FALSE(state->second.HasBeenNotified()) << "answered twice";
      state->first = std::move(response);
      state->second.Notify();
    };
  }
  bool has() const { return state_->second.HasBeenNotified(); }
  absl::StatusOr<Response> Get() {
    EXPECT_TRUE(state_->second.WaitForNotificationWithTimeout(absl::Seconds(30))) << "no answer";
    return std::move(state_->first);
  }

 private:
  std::shared_ptr<std::pair<absl::StatusOr<Response>, absl::Notification>> state_ =
      std::make_shared<std::pair<absl::StatusOr<Response>, absl::Notification>>();
};

class TextServiceTest : public ::testing::Test {
 protected:
  void SetUp() override { Create({}, {}); }

  void Create(const TextServiceOptions& options, const QueueLimits& queue) {
    service_.reset();
    engine_.reset();
    model_ = testing::LoadModel("deploy/demo_model", kernels::Precision::kF32);
    ASSERT_NE(model_, nullptr);
    queue_ = std::make_unique<JobQueue>(queue);
    engine_ = std::make_unique<FakeEngine>(queue_.get());
    TextService::Parts parts;
    parts.queue = queue_.get();
    parts.pool = &pool_;
    parts.languages = testing::LoadLanguages("deploy/demo_model", kernels::Precision::kF32);
    parts.rejections = &rejections_;
    parts.check_fits = [](const Job& job) {
      return job.source_ids.front() == 777 ? absl::InvalidArgumentError("needs 9 blocks, there are 3")
                                           : absl::OkStatus();
    };
    auto service = TextService::Create("demo", std::move(parts), options);
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
  }

  static v1::TranslateRequest Request(const std::vector<std::string>& texts, const std::string& source = "en",
                                      const std::string& target = "de") {
    v1::TranslateRequest request;
    request.set_source(source);
    request.set_target(target);
    for (const std::string& text : texts) request.add_items()->set_text(text);
    return request;
  }

  absl::StatusOr<v1::TranslateResponse> Translate(const v1::TranslateRequest& request,
                                                  absl::Time deadline = absl::InfiniteFuture()) {
    Pending<v1::TranslateResponse> pending;
    service_->Translate(std::make_unique<v1::TranslateRequest>(request), deadline, pending.done());
    auto response = pending.Get();
    EXPECT_EQ(service_->permits().items_in_use(), 0);
    EXPECT_EQ(service_->permits().bytes_in_use(), 0);
    return response;
  }

  absl::StatusOr<v1::EncodeResponse> Encode(const v1::EncodeRequest& request) {
    Pending<v1::EncodeResponse> pending;
    service_->Encode(std::make_unique<v1::EncodeRequest>(request), absl::InfiniteFuture(), pending.done());
    auto response = pending.Get();
    EXPECT_EQ(service_->permits().items_in_use(), 0);
    return response;
  }

  std::vector<int32_t> Ids(const std::string& language, const std::string& text) {
    return testing::SourceIds(*model_, language, text);
  }

  std::shared_ptr<const model_loader::Model> model_;
  Rejections rejections_;
  WorkerPool pool_{2};
  std::unique_ptr<JobQueue> queue_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<TextService> service_;
};

TEST_F(TextServiceTest, TextsBecomeJobsAndAnswersComeInOrder) {
  v1::TranslateRequest request = Request({"the standard library", "a game", "this package"});
  request.mutable_options()->set_return_ids(true);
  const auto response = Translate(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->model(), "demo");
  ASSERT_EQ(response->results_size(), 3);
  const auto seen = engine_->seen();
  ASSERT_EQ(seen.size(), 3U);
  for (int i = 0; i < 3; ++i) {
    const v1::TranslateResult& result = response->results(i);
    EXPECT_FALSE(result.has_status());
    const std::vector<int32_t> ids = Ids("en", request.items(i).text());
    EXPECT_THAT(result.source_ids(), ElementsAreArray(ids));
    EXPECT_EQ(result.input_tokens(), static_cast<int>(ids.size()));
    EXPECT_EQ(result.output_tokens(), static_cast<int>(ids.size()));  // the fake echoes
    EXPECT_THAT(result.hypotheses(0).ids(), ElementsAreArray(ids));
    const auto german = *model_->FindLanguage("de");
    EXPECT_EQ(result.text(), *german->tokenizer().Decode(ids));
    EXPECT_EQ(result.text(), result.hypotheses(0).text());
    EXPECT_EQ(result.source(), "en");
    EXPECT_EQ(result.target(), "de");
    EXPECT_EQ(result.finish_reason(), v1::FINISH_REASON_STOP);
    EXPECT_FALSE(result.truncated());
    EXPECT_FALSE(result.zero_shot());
    EXPECT_DOUBLE_EQ(result.timings().queue_seconds(), 0.002);
    EXPECT_DOUBLE_EQ(result.timings().compute_seconds(), 0.003);
    EXPECT_GT(result.timings().total_seconds(), 0);
  }
  for (const JobPtr& job : seen) {
    EXPECT_EQ(job->task, Job::Task::kTranslate);
    EXPECT_EQ(job->start_token, 1);
    EXPECT_EQ(job->search.end_token, 2);
    EXPECT_EQ(job->search.max_tokens, 2 * job->tokens() + 10);
    EXPECT_EQ(job->source_adapter, job->source->default_adapter());
    EXPECT_EQ(job->target_adapter, job->target->default_adapter());
  }
}

TEST_F(TextServiceTest, ScoresAndIdsComeOnlyWhenAskedFor) {
  v1::TranslateRequest request = Request({"the standard library"});
  auto response = Translate(request);
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->results(0).hypotheses(0).token_log_probs_size(), 0);
  EXPECT_EQ(response->results(0).hypotheses(0).sum_log_prob(), 0);
  EXPECT_EQ(response->results(0).source_ids_size(), 0);
  EXPECT_EQ(response->results(0).hypotheses(0).ids_size(), 0);

  request.mutable_options()->set_return_scores(true);
  request.mutable_options()->set_beam_size(3);
  request.mutable_options()->set_num_hypotheses(2);
  response = Translate(request);
  ASSERT_TRUE(response.ok());
  ASSERT_EQ(response->results(0).hypotheses_size(), 2);
  const v1::Hypothesis& best = response->results(0).hypotheses(0);
  EXPECT_EQ(best.token_log_probs_size(), best.tokens());
  EXPECT_DOUBLE_EQ(best.sum_log_prob(), -0.5 * best.tokens());
  EXPECT_DOUBLE_EQ(best.mean_log_prob(), -0.5);
  EXPECT_DOUBLE_EQ(best.score(), -0.5);
  EXPECT_EQ(engine_->seen().back()->search.beam_size, 3);
}

TEST_F(TextServiceTest, AnEmptyListIsAnsweredWithAnEmptyList) {
  const auto response = Translate(Request({}));
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->results_size(), 0);
  // Whatever else is wrong with the request is still wrong.
  EXPECT_TRUE(absl::IsInvalidArgument(Translate(Request({}, "xx")).status()));
  v1::EncodeRequest encode;
  encode.set_language("en");
  EXPECT_TRUE(Encode(encode).ok());
}

TEST_F(TextServiceTest, BlankTextsComeBackUnchangedWithoutDecoding) {
  const std::vector<std::string> texts = {"", " ", "\t\n", "\u3000\u00a0"};
  const auto response = Translate(Request(texts));
  ASSERT_TRUE(response.ok());
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(response->results(i).has_status());
    EXPECT_EQ(response->results(i).text(), texts[static_cast<size_t>(i)]);
    EXPECT_EQ(response->results(i).finish_reason(), v1::FINISH_REASON_EMPTY);
    EXPECT_EQ(response->results(i).hypotheses_size(), 0);
    EXPECT_EQ(response->results(i).input_tokens(), 0);
  }
  EXPECT_TRUE(engine_->seen().empty());
}

TEST_F(TextServiceTest, EncodeRefusesABlankItemAndAnswersTheOthers) {
  v1::EncodeRequest request;
  request.set_language("en");
  request.add_items()->set_text("  ");
  request.add_items()->set_text("the standard library");
  request.mutable_options()->set_return_ids(true);
  const auto response = Encode(request);
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->results(0).status().code(), kInvalidArgument);
  EXPECT_EQ(response->results(0).embedding_size(), 0);
  EXPECT_FALSE(response->results(1).has_status());
  EXPECT_EQ(response->results(1).embedding_size(), 256);
  EXPECT_EQ(response->dimensions(), 256);
  EXPECT_EQ(response->results(1).language(), "en");
  const std::vector<int32_t> ids = Ids("en", "the standard library");
  EXPECT_THAT(response->results(1).ids(), ElementsAreArray(ids));
  EXPECT_EQ(response->results(1).embedding(0), static_cast<float>(ids.size()));
  EXPECT_EQ(rejections_.count(Reason::kValidation), 1);
  const JobPtr job = engine_->seen().front();
  EXPECT_EQ(job->task, Job::Task::kEncode);
  EXPECT_TRUE(job->normalize);
}

TEST_F(TextServiceTest, LanguagesMatchByAliasInAnyCaseAndTheReplyIsCanonical) {
  for (const auto& [source, target] : std::vector<std::pair<std::string, std::string>>{
           {"EN", "de"}, {"eng", "DEU_latn"}, {"en-us", "pt_br"}, {"en_GB", "zh-Hans"}}) {
    const auto response = Translate(Request({"a game"}, source, target));
    ASSERT_TRUE(response.ok()) << source << " " << target << ": " << response.status();
    EXPECT_EQ(response->results(0).source(), "en");
    EXPECT_EQ(response->results(0).target().size(), 2U);
  }
}

TEST_F(TextServiceTest, AnUnknownLanguageOfTheRequestFailsItAndOfAnItemOnlyTheItem) {
  const absl::Status status = Translate(Request({"a game"}, "en", "dx")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("target"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("dx"));
  EXPECT_EQ(ToProto(status).details_size(), 1);

  v1::TranslateRequest request = Request({"a game", "a game", "a game"});
  request.mutable_items(1)->set_target("dx");
  request.mutable_items(2)->set_target("fr");
  const auto response = Translate(request);
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->results(0).target(), "de");
  EXPECT_EQ(response->results(1).status().code(), kInvalidArgument);
  EXPECT_THAT(response->results(1).status().message(), HasSubstr("items[1].target"));
  EXPECT_EQ(response->results(2).target(), "fr");
  EXPECT_FALSE(response->results(2).has_status());
}

TEST_F(TextServiceTest, AHugeLanguageCodeIsRefusedInFewWords) {
  const absl::Status status = Translate(Request({"a game"}, std::string(1'000'000, 'e'))).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_LT(status.message().size(), 1100U);
}

TEST_F(TextServiceTest, AMissingLanguageIsNamed) {
  EXPECT_THAT(std::string(Translate(Request({"a game"}, "")).status().message()), HasSubstr("source"));
  EXPECT_THAT(std::string(Translate(Request({"a game"}, "en", "")).status().message()), HasSubstr("target"));
  v1::TranslateRequest request = Request({"a game", "a game"}, "en", "");
  request.mutable_items(0)->set_target("de");
  const auto response = Translate(request);
  ASSERT_TRUE(response.ok());
  EXPECT_FALSE(response->results(0).has_status());
  EXPECT_EQ(response->results(1).status().code(), kInvalidArgument);
}

TEST_F(TextServiceTest, AdaptersAreChosenByName) {
  v1::TranslateRequest request = Request({"a game"});
  request.set_source_adapter("none");
  ASSERT_TRUE(Translate(request).ok());
  EXPECT_EQ(engine_->seen().back()->source_adapter, nullptr);
  EXPECT_NE(engine_->seen().back()->target_adapter, nullptr);
  request.set_source_adapter("legal");
  EXPECT_TRUE(absl::IsNotFound(Translate(request).status()));
  request.set_source_adapter("");
  request.mutable_items(0)->set_target_adapter("legal");
  const auto response = Translate(request);
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->results(0).status().code(), kNotFound);
}

TEST_F(TextServiceTest, UntrainedDirectionsAreMarked) {
  EXPECT_TRUE(Translate(Request({"ein Spiel"}, "de", "fr"))->results(0).zero_shot());
  EXPECT_FALSE(Translate(Request({"ein Spiel"}, "de", "en"))->results(0).zero_shot());
}

TEST_F(TextServiceTest, InvalidUtf8FailsTheRequestAndNamesTheItem) {
  v1::TranslateRequest request = Request({"fine", "\xC3\x28"});
  const absl::Status status = Translate(request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("items[1].text"));
  v1::EncodeRequest encode;
  encode.set_language("en");
  encode.add_items()->set_text("\xF0\x9F\x98");
  EXPECT_TRUE(absl::IsInvalidArgument(Encode(encode).status()));
  EXPECT_TRUE(engine_->seen().empty());
}

TEST_F(TextServiceTest, NulIsText) {
  const auto response = Translate(Request({std::string("a\0game", 6)}));
  ASSERT_TRUE(response.ok());
  EXPECT_FALSE(response->results(0).has_status()) << response->results(0).status().message();
}

TEST_F(TextServiceTest, LimitsHoldForItemsAndCharacters) {
  const absl::Status status = Translate(Request(std::vector<std::string>(10'000, "x"))).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("10000"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("1024"));

  const auto response = Translate(Request({std::string(1'000'000, 'x'), "a game"}));
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->results(0).status().code(), kInvalidArgument);
  EXPECT_THAT(response->results(0).status().message(), HasSubstr("1000000"));
  EXPECT_THAT(response->results(0).status().message(), HasSubstr("32768"));
  EXPECT_FALSE(response->results(1).has_status());
}

TEST_F(TextServiceTest, TextsOverTheModelsLengthAreRefusedOrCutAsAsked) {
  std::string text;
  for (int i = 0; i < 1500; ++i) text += "game ";
  const size_t pieces = Ids("en", text).size() - 1;
  ASSERT_GT(pieces, 1024U);

  v1::TranslateRequest request = Request({text});
  auto response = Translate(request);
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->results(0).status().code(), kInvalidArgument);
  EXPECT_THAT(response->results(0).status().message(), HasSubstr(std::to_string(pieces + 1)));
  EXPECT_THAT(response->results(0).status().message(), HasSubstr("1024"));

  request.mutable_options()->set_truncate(true);
  request.mutable_options()->set_return_ids(true);
  response = Translate(request);
  ASSERT_TRUE(response.ok());
  const v1::TranslateResult& result = response->results(0);
  ASSERT_FALSE(result.has_status()) << result.status().message();
  EXPECT_TRUE(result.truncated());
  EXPECT_EQ(result.input_tokens(), 1024);
  std::vector<int32_t> expected = Ids("en", text);
  expected.resize(1023);
  expected.push_back(2);  // the end mark stays
  EXPECT_THAT(result.source_ids(), ElementsAreArray(expected));
}

TEST_F(TextServiceTest, ATextThatJustFitsIsNotCut) {
  std::string text = "game";
  while (Ids("en", text + " game").size() <= 1024) text += " game";
  ASSERT_EQ(Ids("en", text).size(), 1024U);
  const auto response = Translate(Request({text}));
  ASSERT_TRUE(response.ok());
  EXPECT_FALSE(response->results(0).has_status());
  EXPECT_FALSE(response->results(0).truncated());
}

TEST_F(TextServiceTest, IdsInsteadOfTextAreUsedAsTheyAre) {
  v1::TranslateRequest request = Request({});
  const std::vector<int32_t> ids = {500, 600, 3, 2};
  request.add_items()->mutable_source_ids()->Assign(ids.begin(), ids.end());
  v1::TranslateItem& both = *request.add_items();
  both.set_text("a game");
  both.add_source_ids(4);
  request.add_items()->add_source_ids(8000);  // one past the table
  for (int i = 0; i < 1025; ++i) {
    if (i == 0) request.add_items();
    request.mutable_items(3)->add_source_ids(5);
  }
  request.mutable_options()->set_truncate(true);  // ids are never cut
  const auto response = Translate(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(engine_->seen().front()->source_ids, ids);
  EXPECT_EQ(response->results(0).unknown_pieces(), 1);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(response->results(i).status().code(), kInvalidArgument) << i;
}

TEST_F(TextServiceTest, AJobThatCouldNeverRunIsRefusedAtTheDoor) {
  v1::TranslateRequest request = Request({"a game"});
  request.add_items()->add_source_ids(777);
  const auto response = Translate(request);
  ASSERT_TRUE(response.ok());
  EXPECT_FALSE(response->results(0).has_status());
  EXPECT_EQ(response->results(1).status().code(), kInvalidArgument);
  EXPECT_THAT(response->results(1).status().message(), HasSubstr("9 blocks"));
}

TEST_F(TextServiceTest, PrefixIdsAreRefusedByName) {
  v1::TranslateRequest request = Request({"a game"});
  request.mutable_items(0)->add_target_prefix_ids(5);
  const absl::Status status = Translate(request).status();
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("target_prefix_ids"));
}

TEST_F(TextServiceTest, AFullQueueIsOverloadWithADelay) {
  QueueLimits limits;
  limits.max_items = 4;
  TextServiceOptions options;
  options.limits.max_items = 4;
  Create(options, limits);
  engine_->set_mode(FakeEngine::Mode::kHold);
  Pending<v1::TranslateResponse> first, second;
  service_->Translate(std::make_unique<v1::TranslateRequest>(Request({"a", "b", "c"})), absl::InfiniteFuture(),
                      first.done());
  while (queue_->gauges().items < 3) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(service_->permits().items_in_use(), 3);
  service_->Translate(std::make_unique<v1::TranslateRequest>(Request({"d", "e"})), absl::InfiniteFuture(),
                      second.done());
  const absl::Status status = second.Get().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_GE(*RetryDelay(status), absl::Milliseconds(100));
  EXPECT_EQ(service_->permits().items_in_use(), 3);  // the refused ones are free again
  engine_->set_mode(FakeEngine::Mode::kAnswer);
  EXPECT_TRUE(first.Get().ok());
  EXPECT_EQ(service_->permits().items_in_use(), 0);
}

TEST_F(TextServiceTest, PermitsBoundWhatIsInFlight) {
  TextServiceOptions options;
  options.limits.max_items = 4;
  options.max_inflight_items = 4;
  Create(options, {});
  engine_->set_mode(FakeEngine::Mode::kRun);
  Pending<v1::TranslateResponse> first, second;
  service_->Translate(std::make_unique<v1::TranslateRequest>(Request({"a", "b", "c"})), absl::InfiniteFuture(),
                      first.done());
  ASSERT_TRUE(engine_->WaitForSeen(3));  // out of the queue, but still in flight
  service_->Translate(std::make_unique<v1::TranslateRequest>(Request({"d", "e"})), absl::InfiniteFuture(),
                      second.done());
  const absl::Status status = second.Get().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_TRUE(RetryDelay(status).has_value());
  engine_->set_mode(FakeEngine::Mode::kAnswer);
  EXPECT_TRUE(first.Get().ok());
}

TEST_F(TextServiceTest, ARequestThatCouldNeverBeQueuedIsNotCalledOverload) {
  QueueLimits limits;
  limits.max_tokens = 10;
  Create({}, limits);
  const absl::Status status =
      Translate(Request({"this is the standard library of the game", "one more of it"})).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("10"));
}

TEST_F(TextServiceTest, LimitsThatCannotHoldTogetherAreRefusedAtTheStart) {
  TextService::Parts parts;
  QueueLimits limits;
  limits.max_items = 10;
  JobQueue queue(limits);
  parts.queue = &queue;
  parts.pool = &pool_;
  parts.rejections = &rejections_;
  EXPECT_TRUE(absl::IsInvalidArgument(TextService::Create("demo", parts, {}).status()));
}

TEST_F(TextServiceTest, CancellingTakesWaitingJobsOutAtOnce) {
  engine_->set_mode(FakeEngine::Mode::kHold);
  Pending<v1::TranslateResponse> pending;
  const auto call = service_->Translate(std::make_unique<v1::TranslateRequest>(Request({"a", "b"})),
                                        absl::InfiniteFuture(), pending.done());
  while (queue_->gauges().items < 2) absl::SleepFor(absl::Milliseconds(1));
  call->Cancel(absl::CancelledError("the caller went away"));
  EXPECT_EQ(queue_->gauges().items, 0);
  EXPECT_EQ(queue_->gauges().tokens, 0);
  const absl::Status status = pending.Get().status();
  EXPECT_TRUE(absl::IsCancelled(status));
  EXPECT_EQ(status.message(), "the caller went away");
  EXPECT_EQ(service_->permits().items_in_use(), 0);
  call->Cancel(absl::CancelledError("again"));  // has no effect
  EXPECT_TRUE(engine_->seen().empty());
}

TEST_F(TextServiceTest, CancellingReachesRunningJobs) {
  engine_->set_mode(FakeEngine::Mode::kRun);
  Pending<v1::TranslateResponse> pending;
  const auto call = service_->Translate(std::make_unique<v1::TranslateRequest>(Request({"a", "b"})),
                                        absl::InfiniteFuture(), pending.done());
  ASSERT_TRUE(engine_->WaitForSeen(2));
  EXPECT_FALSE(pending.has());
  call->Cancel(absl::DeadlineExceededError("the deadline passed"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(pending.Get().status()));
}

TEST_F(TextServiceTest, AnExpiredCallIsNeverComputed) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(Translate(Request({"a"}), absl::Now() - absl::Seconds(1)).status()));
  EXPECT_TRUE(engine_->seen().empty());
  engine_->set_mode(FakeEngine::Mode::kHold);
  Pending<v1::TranslateResponse> pending;
  service_->Translate(std::make_unique<v1::TranslateRequest>(Request({"a"})), absl::Now() + absl::Milliseconds(50),
                      pending.done());
  absl::SleepFor(absl::Milliseconds(80));
  engine_->set_mode(FakeEngine::Mode::kAnswer);
  EXPECT_TRUE(absl::IsDeadlineExceeded(pending.Get().status()));
  EXPECT_TRUE(engine_->seen().empty());
}

TEST_F(TextServiceTest, AFaultOfTheEngineIsTheItemsOwn) {
  engine_->set_answer([](const Job& job) {
    JobResult result = FakeEngine::Echo(job, 256);
    if (job.target->code() == "fr") result.status = absl::InternalError("logits are not finite");
    if (job.target->code() == "es") result.hypotheses.clear();
    return result;
  });
  v1::TranslateRequest request = Request({"a game", "a game", "a game"});
  request.mutable_items(1)->set_target("fr");
  request.mutable_items(2)->set_target("es");
  const auto response = Translate(request);
  ASSERT_TRUE(response.ok());
  EXPECT_FALSE(response->results(0).has_status());
  for (int i = 1; i < 3; ++i) {
    EXPECT_EQ(response->results(i).status().code(), static_cast<int>(absl::StatusCode::kInternal));
    EXPECT_EQ(response->results(i).input_tokens(), 0);
    EXPECT_EQ(response->results(i).source(), "en");
  }
  EXPECT_EQ(rejections_.count(Reason::kInternal), 2);
}

TEST_F(TextServiceTest, ADrainingQueueIsUnavailable) {
  queue_->Drain();
  EXPECT_TRUE(absl::IsUnavailable(Translate(Request({"a game"})).status()));
}

TEST_F(TextServiceTest, TokenStatesAreReturnedAndBoundedByTheReplysSize) {
  v1::EncodeRequest request;
  request.set_language("en");
  request.add_items()->set_text("the standard library");
  request.mutable_options()->set_token_states(true);
  request.mutable_options()->set_normalize(false);
  auto response = Encode(request);
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->results(0).token_states_size(), response->results(0).input_tokens() * 256);
  EXPECT_FALSE(engine_->seen().front()->normalize);

  std::string text;
  for (int i = 0; i < 900; ++i) text += "game ";
  for (int i = 0; i < 8; ++i) request.add_items()->set_text(text);
  const absl::Status large = Encode(request).status();  // 8 x 900 x 1 KiB and more
  EXPECT_TRUE(absl::IsResourceExhausted(large)) << large;
  EXPECT_EQ(ReasonOf(large), Reason::kSize) << "not to be tried again as it is";
  EXPECT_EQ(engine_->seen().size(), 1U);
}

TEST_F(TextServiceTest, ManyCallersOverManySlicesLoseNothing) {
  constexpr int kCallers = 8, kCalls = 12;
  std::vector<std::thread> callers;
  std::atomic<int> good{0}, cancelled{0};
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = 0; i < kCalls; ++i) {
        std::vector<std::string> texts(static_cast<size_t>(1 + (caller * 31 + i * 17) % 200), "a game");
        Pending<v1::TranslateResponse> pending;
        const auto call = service_->Translate(std::make_unique<v1::TranslateRequest>(Request(texts)),
                                              absl::InfiniteFuture(), pending.done());
        if ((caller + i) % 3 == 0) call->Cancel(absl::CancelledError("left"));
        const auto response = pending.Get();
        if (response.ok()) {
          EXPECT_EQ(response->results_size(), static_cast<int>(texts.size()));
          ++good;
        } else {
          EXPECT_TRUE(absl::IsCancelled(response.status())) << response.status();
          ++cancelled;
        }
      }
    });
  }
  for (std::thread& thread : callers) thread.join();
  EXPECT_EQ(good + cancelled, kCallers * kCalls);
  EXPECT_GE(good, kCallers * kCalls * 2 / 3 - kCallers);
  EXPECT_EQ(service_->permits().items_in_use(), 0);
  EXPECT_EQ(service_->permits().bytes_in_use(), 0);
  EXPECT_EQ(queue_->gauges().items, 0);
}

}  // namespace
}  // namespace koine::server
