#include "server/rpc/server.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/harness.h"
#include "tests/unit/server_text/fake_engine.h"

namespace koine::server {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;

// A server on a free port, whose one model is answered by a fake engine or by a real one.
class ServerTest : public ::testing::Test {
 protected:
  void Start(bool real_engine = false, RpcOptions rpc = {}, QueueLimits queue = {}, TextServiceOptions text = {}) {
    auto host = std::make_unique<ModelHost>();
    host->name = "demo";
    host->model = testing::LoadModel("deploy/demo_model", kernels::Precision::kF32);
    ASSERT_NE(host->model, nullptr);
    host->languages = std::make_unique<LanguageStore>(host->model, LanguageStoreOptions{});
    ASSERT_TRUE(host->languages->Start().ok());
    host->queue = std::make_unique<JobQueue>(queue);
    queue_ = host->queue.get();
    if (real_engine) {
      host->engine = std::make_unique<Engine>(host->model, queue_, EngineOptions{});
      host->engine->Start();
    } else {
      fake_ = std::make_unique<FakeEngine>(queue_);
    }
    TextService::Parts parts;
    parts.queue = queue_;
    parts.pool = &pool_;
    parts.languages = host->languages.get();
    parts.rejections = &rejections_;
    auto service = TextService::Create("demo", std::move(parts), text);
    ASSERT_TRUE(service.ok()) << service.status();
    host->text = *std::move(service);
    std::vector<std::unique_ptr<ModelHost>> hosts;
    hosts.push_back(std::move(host));
    hosts_ = std::make_unique<ModelHosts>(std::move(hosts));
    rpc.listen = "127.0.0.1:0";
    rpc.version = "1.2.3";
    rpc.max_message_bytes = text.limits.max_message_bytes;
    auto server = RpcServer::Start(rpc, hosts_.get(), &pool_, &rejections_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    address_ = absl::StrCat("127.0.0.1:", server_->port());
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::Koine::NewStub(channel_);
  }

  void TearDown() override {
    server_.reset();
    fake_.reset();
  }

  static v1::TranslateRequest Request(int items = 1, const std::string& text = "the standard library") {
    v1::TranslateRequest request;
    request.set_source("en");
    request.set_target("de");
    for (int i = 0; i < items; ++i) request.add_items()->set_text(text);
    return request;
  }

  grpc::Status Translate(const v1::TranslateRequest& request, v1::TranslateResponse* response,
                         grpc::ClientContext* context = nullptr) {
    grpc::ClientContext own;
    if (context == nullptr) context = &own;
    return stub_->Translate(context, request, response);
  }
  grpc::Status Translate(const v1::TranslateRequest& request) {
    v1::TranslateResponse response;
    return Translate(request, &response);
  }

  // The status of a call of any method with any bytes.
  grpc::Status CallRaw(const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::Status status;
    absl::Notification done;
    stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &response, [&](grpc::Status result) {
      status = std::move(result);
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  }

  HealthCheckResponse::ServingStatus HealthOf(const std::string& service) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const grpc::Status status = Health::NewStub(channel_)->Check(&context, request, &response);
    return status.ok() ? response.status() : HealthCheckResponse::UNKNOWN;
  }

  v1::GetServerStatsResponse Stats() {
    grpc::ClientContext context;
    v1::GetServerStatsResponse response;
    const grpc::Status status = stub_->GetServerStats(&context, {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  // A call ends for the server a moment after its caller has the answer, also the one that asks.
  v1::GetServerStatsResponse StatsOfAQuietServer() {
    v1::GetServerStatsResponse stats = Stats();
    for (int i = 0; i < 1000 && stats.inflight_requests() > 1; ++i) {
      absl::SleepFor(absl::Milliseconds(5));
      stats = Stats();
    }
    return stats;
  }

  bool WaitForQueue(int64_t items) {
    for (int i = 0; i < 10'000; ++i) {
      if (queue_->gauges().items == items) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }

  template <typename Detail>
  static bool DetailOf(const grpc::Status& status, Detail* detail) {
    google::rpc::Status proto;
    return proto.ParseFromString(status.error_details()) && proto.code() == static_cast<int>(status.error_code()) &&
           proto.details_size() == 1 && proto.details(0).UnpackTo(detail);
  }

  WorkerPool pool_{2};
  Rejections rejections_;
  JobQueue* queue_ = nullptr;
  std::unique_ptr<ModelHosts> hosts_;
  std::unique_ptr<FakeEngine> fake_;  // before the hosts: it uses their queue
  std::unique_ptr<RpcServer> server_;
  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Koine::Stub> stub_;
};

TEST_F(ServerTest, AnswersEveryMethod) {
  Start(true);
  v1::TranslateResponse translated;
  ASSERT_TRUE(Translate(Request(3), &translated).ok());
  ASSERT_EQ(translated.results_size(), 3);
  EXPECT_FALSE(translated.results(0).text().empty());
  EXPECT_EQ(translated.results(0).text(), translated.results(2).text());
  {
    grpc::ClientContext context;
    v1::EncodeRequest request;
    request.set_language("de");
    request.add_items()->set_text("die Standardbibliothek");
    v1::EncodeResponse response;
    ASSERT_TRUE(stub_->Encode(&context, request, &response).ok());
    double norm = 0;
    for (const float value : response.results(0).embedding()) norm += static_cast<double>(value) * value;
    EXPECT_NEAR(norm, 1, 1e-5);
  }
  {
    grpc::ClientContext context;
    v1::ListLanguagesResponse response;
    ASSERT_TRUE(stub_->ListLanguages(&context, {}, &response).ok());
    EXPECT_EQ(response.languages_size(), 8);
  }
  {
    grpc::ClientContext context;
    v1::GetModelInfoResponse response;
    ASSERT_TRUE(stub_->GetModelInfo(&context, {}, &response).ok());
    EXPECT_EQ(response.model(), "demo");
  }
  {
    grpc::ClientContext context;
    v1::GetParameterStatsResponse response;
    ASSERT_TRUE(stub_->GetParameterStats(&context, {}, &response).ok());
    EXPECT_EQ(response.owners_size(), 9);
  }
  const v1::GetServerStatsResponse stats = StatsOfAQuietServer();
  EXPECT_EQ(stats.version(), "1.2.3");
  EXPECT_EQ(stats.inflight_requests(), 1);  // itself
  EXPECT_GE(stats.finished_requests(), 4);
  EXPECT_EQ(stats.models(0).engine().finished(), 4);
  EXPECT_FALSE(stats.draining());
}

TEST_F(ServerTest, BadInputIsInvalidArgumentWithBadRequestAndTheServerGoesOn) {
  Start();
  v1::TranslateRequest request = Request();
  request.mutable_items(0)->set_text("\xC3\x28");
  grpc::Status status = Translate(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "items[0].text: is not valid UTF-8");
  google::rpc::BadRequest bad_request;
  ASSERT_TRUE(DetailOf(status, &bad_request));
  EXPECT_EQ(bad_request.field_violations(0).field(), "items[0].text");

  status = CallRaw("/koine.v1.Koine/Translate", "\xFF\xFF\xFF");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  status = CallRaw("/koine.v1.Koine/GetModelInfo", std::string("\x0A\x02\xC3\x28", 4));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "model: is not valid UTF-8");

  request = Request();
  request.set_target("dx");
  status = Translate(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("dx"));
  EXPECT_EQ(Translate(Request(10'000, "x")).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = Request();
  request.mutable_options()->set_beam_size(33);
  EXPECT_EQ(Translate(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = Request();
  request.mutable_options()->set_split_sentences(true);
  EXPECT_EQ(Translate(request).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  request = Request();
  request.set_model("other");
  EXPECT_EQ(Translate(request).error_code(), grpc::StatusCode::NOT_FOUND);
  // An error that quotes a huge text still arrives as what it is.
  request = Request();
  request.set_model(std::string(1'000'000, '\x01') + "é");
  EXPECT_EQ(Translate(request).error_code(), grpc::StatusCode::NOT_FOUND);

  EXPECT_TRUE(Translate(Request()).ok());
  const v1::GetServerStatsResponse stats = Stats();
  EXPECT_EQ(stats.rejected().at("validation"), 6);
  EXPECT_EQ(stats.rejected().at("not_found"), 2);
  EXPECT_EQ(stats.rejected().at("unimplemented"), 1);
  EXPECT_EQ(stats.models(0).permits_in_use(), 0);
}

TEST_F(ServerTest, MessagesAndRepliesOverTheSizeAreRefusedWithoutARetryHint) {
  TextServiceOptions text;
  text.limits.max_message_bytes = 20'000;
  Start(false, {}, {}, text);
  grpc::Status status = Translate(Request(1, std::string(30'000, 'x')));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);

  v1::TranslateRequest request = Request(100);
  request.mutable_options()->set_beam_size(8);
  request.mutable_options()->set_num_hypotheses(8);
  status = Translate(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("20000"));
  google::rpc::RetryInfo retry;
  EXPECT_FALSE(DetailOf(status, &retry));
  EXPECT_TRUE(Translate(Request()).ok());
}

TEST_F(ServerTest, OverloadAnswersAtOnceWithRetryInfoAndTheTrailer) {
  QueueLimits queue;
  queue.max_items = 2;
  TextServiceOptions text;
  text.limits.max_items = 2;
  Start(false, {}, queue, text);
  fake_->set_mode(FakeEngine::Mode::kHold);
  grpc::ClientContext waiting;
  v1::TranslateResponse answer;
  const v1::TranslateRequest two = Request(2);
  absl::Notification answered;
  grpc::Status first;
  stub_->async()->Translate(&waiting, &two, &answer, [&](grpc::Status status) {
    first = std::move(status);
    answered.Notify();
  });
  ASSERT_TRUE(WaitForQueue(2));

  grpc::ClientContext context;
  v1::TranslateResponse response;
  const grpc::Status status = Translate(Request(1), &response, &context);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(DetailOf(status, &retry));
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, trailers.end());
  EXPECT_EQ(std::stoll(std::string(pushback->second.data(), pushback->second.size())),
            retry.retry_delay().seconds() * 1000 + retry.retry_delay().nanos() / 1'000'000);
  EXPECT_EQ(rejections_.count(Reason::kOverload), 1);

  fake_->set_mode(FakeEngine::Mode::kAnswer);
  answered.WaitForNotification();
  EXPECT_TRUE(first.ok());
}

TEST_F(ServerTest, ACallerThatLeavesTakesItsJobsAlong) {
  Start();
  fake_->set_mode(FakeEngine::Mode::kHold);
  grpc::ClientContext context;
  v1::TranslateResponse response;
  std::thread caller(
      [&] { EXPECT_EQ(Translate(Request(5), &response, &context).error_code(), grpc::StatusCode::CANCELLED); });
  ASSERT_TRUE(WaitForQueue(5));
  context.TryCancel();
  EXPECT_TRUE(WaitForQueue(0));  // although the engine takes nothing
  caller.join();
  EXPECT_TRUE(fake_->seen().empty());
}

TEST_F(ServerTest, ADeadlineThatPassesTakesTheJobsAlong) {
  Start();
  fake_->set_mode(FakeEngine::Mode::kHold);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  v1::TranslateResponse response;
  EXPECT_EQ(Translate(Request(5), &response, &context).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(WaitForQueue(0));
  EXPECT_TRUE(fake_->seen().empty());
}

TEST_F(ServerTest, ManyImpatientCallersLeaveNothingBehind) {
  Start(true);
  std::vector<std::thread> callers;
  for (int t = 0; t < 8; ++t) {
    callers.emplace_back([this, t] {
      for (int i = 0; i < 40; ++i) {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(1 + (t + i) % 7));
        v1::TranslateResponse response;
        const grpc::Status status = Translate(Request(4), &response, &context);
        EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
            << status.error_code() << " " << status.error_message();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(rejections_.count(Reason::kInternal), 0) << "whoever left before the message came is no fault of ours";
  EXPECT_TRUE(Translate(Request()).ok());
  const v1::GetServerStatsResponse stats = StatsOfAQuietServer();
  EXPECT_EQ(stats.inflight_requests(), 1);
  EXPECT_EQ(stats.models(0).permits_in_use(), 0);
  EXPECT_EQ(stats.models(0).queue_items(), 0);
  EXPECT_EQ(stats.models(0).live_jobs(), 0);
}

TEST_F(ServerTest, ACallThatEndsBeforeItsMessageCameIsTheCallersOwn) {
  Start();
  grpc::GenericStub stub(channel_);
  for (const bool deadline : {false, true}) {
    grpc::ClientContext context;
    if (deadline) context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(20));
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, "/koine.v1.Koine/Translate", &queue);
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(nullptr);
    ASSERT_TRUE(queue.Next(&tag, &ok));
    if (!deadline) {
      absl::SleepFor(absl::Milliseconds(50));  // the header travels
      context.TryCancel();
    }
    grpc::Status status;
    call->Finish(&status, nullptr);
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(status.error_code(), deadline ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc::StatusCode::CANCELLED);
    const Reason reason = deadline ? Reason::kDeadline : Reason::kCancelled;
    for (int i = 0; i < 5000 && rejections_.count(reason) == 0; ++i) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(rejections_.count(reason), 1);
  }
  EXPECT_EQ(rejections_.count(Reason::kInternal), 0);
}

TEST_F(ServerTest, HealthFollowsTheServersLife) {
  Start();
  EXPECT_EQ(HealthOf(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(CheckHealth(address_, absl::Seconds(5)).ok());
  server_->SetServing();
  EXPECT_EQ(HealthOf(""), HealthCheckResponse::SERVING);
  EXPECT_EQ(HealthOf("koine.v1.Koine"), HealthCheckResponse::SERVING);
  EXPECT_EQ(HealthOf("some.Other"), HealthCheckResponse::UNKNOWN);
  EXPECT_TRUE(CheckHealth(address_, absl::Seconds(5)).ok());
  EXPECT_TRUE(CheckHealth(absl::StrCat("0.0.0.0:", server_->port()), absl::Seconds(5)).ok());
  server_->Drain(absl::ZeroDuration(), absl::Seconds(1));
  EXPECT_FALSE(CheckHealth(address_, absl::Seconds(2)).ok());
}

TEST_F(ServerTest, ReflectionIsThereAndCanBeSwitchedOff) {
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  Start();
  EXPECT_NE(CallRaw(method, "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  // What reflection lists it can also describe.
  for (const char* name : {"koine.v1.Koine", "grpc.health.v1.Health"}) {
    EXPECT_NE(google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name), nullptr) << name;
  }
  TearDown();
  RpcOptions off;
  off.reflection = false;
  Start(false, off);
  EXPECT_EQ(CallRaw(method, "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(Translate(Request()).ok());
}

TEST_F(ServerTest, APortInUseIsAnErrorWithItsAddress) {
  Start();
  RpcOptions options;
  options.listen = address_;
  const auto second = RpcServer::Start(options, hosts_.get(), &pool_, &rejections_);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address_));
}

TEST_F(ServerTest, DrainServesOnThenRefusesThenFinishesWhatItHas) {
  Start();
  server_->SetServing();
  fake_->set_mode(FakeEngine::Mode::kRun);
  std::atomic<bool> drained{false}, clean{false};
  grpc::Status early;
  std::thread before([&] { early = Translate(Request(2)); });
  ASSERT_TRUE(fake_->WaitForSeen(2));
  std::thread drain([&] {
    clean = server_->Drain(absl::Milliseconds(400), absl::Seconds(30));
    drained = true;
  });
  while (HealthOf("") != HealthCheckResponse::NOT_SERVING) absl::SleepFor(absl::Milliseconds(2));
  EXPECT_TRUE(Stats().draining());  // during the delay calls are still answered
  grpc::Status refused;
  do {
    grpc::ClientContext context;
    v1::GetServerStatsResponse response;
    refused = stub_->GetServerStats(&context, {}, &response);
    absl::SleepFor(absl::Milliseconds(5));
  } while (refused.ok());
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(refused.error_message(), "the server is shutting down");
  EXPECT_FALSE(drained);
  fake_->set_mode(FakeEngine::Mode::kAnswer);
  drain.join();
  before.join();
  EXPECT_TRUE(early.ok()) << early.error_message();
  EXPECT_TRUE(clean);
}

TEST_F(ServerTest, DrainEndsWhatDoesNotFinishInTime) {
  Start(true);
  server_->SetServing();
  v1::TranslateRequest request = Request(300, "this package contains the standard libraries of the system");
  request.mutable_options()->set_beam_size(16);
  request.mutable_options()->set_min_tokens(500);
  request.mutable_options()->set_max_tokens(1000);
  grpc::Status status;
  std::thread caller([&] { status = Translate(request); });
  while (hosts_->all()[0]->engine->live_jobs() == 0) absl::SleepFor(absl::Milliseconds(1));
  const absl::Time begin = absl::Now();
  EXPECT_FALSE(server_->Drain(absl::ZeroDuration(), absl::Milliseconds(100)));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_EQ(status.error_message(), "the server is shutting down");
}

TEST_F(ServerTest, AnOpenHealthWatchDoesNotHoldUpTheEnd) {
  Start();
  server_->SetServing();
  grpc::ClientContext context;
  const auto stub = Health::NewStub(channel_);
  const auto watch = stub->Watch(&context, HealthCheckRequest());
  HealthCheckResponse seen;
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), HealthCheckResponse::SERVING);
  std::thread drain([&] { EXPECT_TRUE(server_->Drain(absl::ZeroDuration(), absl::Seconds(30))); });
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), HealthCheckResponse::NOT_SERVING);
  const absl::Time begin = absl::Now();
  drain.join();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  context.TryCancel();
}

}  // namespace
}  // namespace koine::server
