#include "clients/cpp/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "google/rpc/error_details.pb.h"
#include "tests/unit/clients_cpp/fake_server.h"

namespace koine::client {
namespace {

using testing::FakeServer;
using ::testing::HasSubstr;

v1::TranslateRequest Ask(const std::vector<std::string>& texts) {
  v1::TranslateRequest request;
  request.set_source("en");
  request.set_target("de");
  for (const std::string& text : texts) request.add_items()->set_text(text);
  return request;
}

absl::StatusOr<Client> ConnectTo(const FakeServer& server, absl::Duration timeout = absl::Seconds(20)) {
  ClientOptions options;
  options.address = server.address();
  options.timeout = timeout;
  return Client::Connect(options);
}

TEST(ClientTest, EveryMethodReachesItsCounterpart) {
  FakeServer server;
  const auto client = ConnectTo(server);
  ASSERT_TRUE(client.ok()) << client.status();

  const auto translated = client->Translate(Ask({"one", "", "two"}));
  ASSERT_TRUE(translated.ok()) << translated.status();
  ASSERT_EQ(translated->results_size(), 3);
  EXPECT_EQ(translated->results(0).text(), "de:one");
  EXPECT_EQ(translated->results(1).finish_reason(), v1::FINISH_REASON_EMPTY);
  EXPECT_EQ(translated->results(2).text(), "de:two");

  v1::EncodeRequest encode;
  encode.add_items()->set_text("up");
  const auto encoded = client->Encode(encode);
  ASSERT_TRUE(encoded.ok());
  EXPECT_THAT(encoded->results(0).embedding(), ::testing::ElementsAre(0.0f, 0.125f));

  EXPECT_EQ(client->ListLanguages()->languages_size(), 3);
  EXPECT_EQ(client->GetModelInfo()->model(), "toy");
  EXPECT_EQ(client->GetParameterStats()->owners_size(), 2);
  EXPECT_EQ(client->GetServerStats()->version(), "9.8.7");
}

TEST(ClientTest, ErrorsKeepCodeTextAndDetails) {
  FakeServer server;
  const auto client = ConnectTo(server);
  ASSERT_TRUE(client.ok());

  v1::GetModelInfoRequest unknown;
  unknown.set_model("other");
  const absl::Status not_found = client->GetModelInfo(unknown).status();
  EXPECT_EQ(not_found.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(not_found.message(), "no model \"other\"");
  EXPECT_FALSE(RetryDelay(not_found).has_value());

  server.service.fault = [](const v1::TranslateRequest&) { return testing::FullServer(250); };
  const absl::Status full = client->Translate(Ask({"one"})).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(), "the queue is full");
  ASSERT_TRUE(RetryDelay(full).has_value());
  EXPECT_EQ(*RetryDelay(full), absl::Milliseconds(250));
}

TEST(ClientTest, AllCodesMapToTheirNamesakes) {
  FakeServer server;
  const auto client = ConnectTo(server);
  ASSERT_TRUE(client.ok());
  for (int code = 1; code <= 16; ++code) {
    server.service.fault = [code](const v1::TranslateRequest&) {
      return grpc::Status(static_cast<grpc::StatusCode>(code), "text of " + std::to_string(code));
    };
    const absl::Status status = client->Translate(Ask({"one"})).status();
    EXPECT_EQ(static_cast<int>(status.code()), code);
    EXPECT_EQ(status.message(), "text of " + std::to_string(code));
  }
  // Both families of names, where a wrong table would show.
  EXPECT_EQ(static_cast<int>(absl::StatusCode::kUnavailable), static_cast<int>(grpc::StatusCode::UNAVAILABLE));
  EXPECT_EQ(static_cast<int>(absl::StatusCode::kUnimplemented), static_cast<int>(grpc::StatusCode::UNIMPLEMENTED));
}

TEST(ClientTest, UnreadableDetailsDoNotHideTheError) {
  FakeServer server;
  const auto client = ConnectTo(server);
  ASSERT_TRUE(client.ok());
  server.service.fault = [](const v1::TranslateRequest&) {
    return grpc::Status(grpc::StatusCode::INTERNAL, "broken", "\xff\xff\xff not a message");
  };
  const absl::Status status = client->Translate(Ask({"one"})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "broken");
}

TEST(ClientTest, ItemStatusCarriesTheDetails) {
  FakeServer server;
  const auto client = ConnectTo(server);
  ASSERT_TRUE(client.ok());
  const auto reply = client->Translate(Ask({"good", "bad"}));
  ASSERT_TRUE(reply.ok());
  EXPECT_TRUE(ItemStatus(reply->results(0).status()).ok());
  const absl::Status bad = ItemStatus(reply->results(1).status());
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad.message()), HasSubstr("600"));
  EXPECT_TRUE(bad.GetPayload("type.googleapis.com/google.rpc.BadRequest").has_value());
  google::rpc::Status future;
  future.set_code(99);
  EXPECT_EQ(ItemStatus(future).code(), absl::StatusCode::kUnknown);
}

TEST(ClientTest, ConnectNamesTheAddressThatCannotBeReached) {
  std::string address;
  {
    FakeServer server;
    address = server.address();
  }
  ClientOptions options;
  options.address = address;
  const absl::Time start = absl::Now();
  const absl::Status refused = Client::Connect(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(address));
  EXPECT_LT(absl::Now() - start, absl::Seconds(9)) << "a refused connection must not wait for the timeout";
  options.address = "";
  EXPECT_EQ(Client::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ClientTest, TimeoutEndsACall) {
  FakeServer server;
  const auto client = ConnectTo(server, absl::Milliseconds(100));
  ASSERT_TRUE(client.ok());
  server.service.fault = [](const v1::TranslateRequest&) {
    absl::SleepFor(absl::Milliseconds(600));
    return grpc::Status::OK;
  };
  EXPECT_EQ(client->Translate(Ask({"slow"})).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ClientTest, InfiniteTimeoutIsNone) {
  FakeServer server;
  const auto client = ConnectTo(server, absl::InfiniteDuration());
  ASSERT_TRUE(client.ok());
  EXPECT_TRUE(client->Translate(Ask({"one"})).ok());
}

TEST(ClientTest, MessageLimitIsAnError) {
  FakeServer server;
  ClientOptions options;
  options.address = server.address();
  options.max_message_bytes = 2000;
  const auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok());
  EXPECT_TRUE(client->Translate(Ask({std::string(500, 'x')})).ok());
  // The request would fit, the reply (text twice) does not.
  EXPECT_EQ(client->Translate(Ask({std::string(1500, 'x')})).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(client->Translate(Ask({std::string(2500, 'x')})).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(client->Translate(Ask({"still there"})).ok());
}

TEST(ClientTest, AsyncCallsAnswerOnce) {
  FakeServer server;
  std::vector<std::promise<absl::StatusOr<v1::TranslateResponse>>> promises(100);
  const auto client = ConnectTo(server);
  ASSERT_TRUE(client.ok());
  for (size_t i = 0; i < promises.size(); ++i) {
    client->TranslateAsync(Ask({std::to_string(i)}), [&promise = promises[i]](auto reply) {
      promise.set_value(std::move(reply));  // a second call would throw
    });
  }
  for (size_t i = 0; i < promises.size(); ++i) {
    const auto reply = promises[i].get_future().get();
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->results(0).text(), "de:" + std::to_string(i));
  }
}

TEST(ClientTest, LastCopyCancelsCallsInFlightAndWaitsForTheirCallbacks) {
  FakeServer server;
  server.service.fault = [](const v1::TranslateRequest&) {
    absl::SleepFor(absl::Milliseconds(300));
    return grpc::Status::OK;
  };
  std::atomic<int> ended{0}, cancelled{0};
  {
    const auto client = ConnectTo(server);
    ASSERT_TRUE(client.ok());
    for (int i = 0; i < 5; ++i) {
      client->TranslateAsync(Ask({"slow"}), [&](auto reply) {
        cancelled += absl::IsCancelled(reply.status());
        absl::SleepFor(absl::Milliseconds(20));
        ++ended;
      });
    }
  }
  EXPECT_EQ(ended, 5);
  EXPECT_EQ(cancelled, 5);
}

TEST(ClientTest, ClientMayGoRightAfterItsLastAnswer) {
  // The callback's thread is still on its way out of gRPC then.
  FakeServer server;
  for (int i = 0; i < 200; ++i) {
    const auto client = ConnectTo(server);
    ASSERT_TRUE(client.ok());
    std::promise<void> answered;
    client->TranslateAsync(Ask({"one"}), [&](auto reply) {
      EXPECT_TRUE(reply.ok());
      answered.set_value();
    });
    answered.get_future().wait();
  }
}

TEST(ClientTest, AsyncErrorsArrive) {
  FakeServer server;
  const auto client = ConnectTo(server);
  ASSERT_TRUE(client.ok());
  std::promise<absl::Status> failed;
  v1::TranslateRequest request = Ask({"one"});
  request.set_target("xx");
  client->TranslateAsync(request, [&](auto reply) { failed.set_value(reply.status()); });
  EXPECT_THAT(std::string(failed.get_future().get().message()), HasSubstr("near: es, de"));
  std::promise<absl::StatusOr<v1::EncodeResponse>> encoded;
  v1::EncodeRequest encode;
  encode.add_items()->set_text("right");
  client->EncodeAsync(encode, [&](auto reply) { encoded.set_value(std::move(reply)); });
  EXPECT_THAT(encoded.get_future().get()->results(0).embedding(), ::testing::ElementsAre(1.0f, 0.0f));
}

TEST(ClientTest, ThreadsMayShareOneClient) {
  FakeServer server;
  const auto client = ConnectTo(server);
  ASSERT_TRUE(client.ok());
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, copy = *client, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string text = std::to_string(t) + "/" + std::to_string(i);
        const auto reply = copy.Translate(Ask({text}));
        right += reply.ok() && reply->results(0).text() == "de:" + text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 400);
}

}  // namespace
}  // namespace koine::client
