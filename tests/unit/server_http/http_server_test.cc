#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "server/metrics/metrics.h"
#include "tests/unit/server_rpc/served_model.h"

namespace koine::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class HttpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    HttpOptions options;
    options.listen = "127.0.0.1:0";
    options.request_timeout = absl::Seconds(1);
    auto http = HttpServer::Start(options);
    ASSERT_TRUE(http.ok()) << http.status();
    http_ = *std::move(http);
  }
  void TearDown() override { http_.reset(); }

  void Serve(const ServedModel::Options& options = {}) {
    served_ = std::make_unique<ServedModel>(options, &metrics_);
    HttpSources sources;
    sources.hosts = &served_->hosts();
    sources.ready = [this] { return served_->server().Ready(); };
    sources.metrics = [this] {
      return metrics_.Scrape(served_->server().facts(), served_->rejections(), served_->hosts());
    };
    http_->Attach(std::move(sources));
  }
  httplib::Client Client() const {
    httplib::Client client("127.0.0.1", http_->port());
    client.set_read_timeout(20);
    return client;
  }
  httplib::Result Get(const std::string& path) const { return Client().Get(path); }
  int Code(const std::string& path) const {
    const httplib::Result result = Get(path);
    return result ? result->status : -1;
  }
  static std::string Error(const httplib::Result& result) {
    if (!result) return "no answer";
    EXPECT_EQ(result->get_header_value("Content-Type"), "application/json");
    const json body = json::parse(result->body, nullptr, false);
    return body.is_object() && body.contains("error") ? body["error"].get<std::string>() : "not JSON: " + result->body;
  }

  // Sends bytes as they are and reads to the end.
  std::string Raw(const std::string& bytes) const {
    const int fd = Connect();
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
    std::string answer;
    char buffer[4096];
    for (ssize_t n; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;) answer.append(buffer, static_cast<size_t>(n));
    close(fd);
    return answer;
  }
  int Connect() const {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(http_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }

  Metrics metrics_{"1.2.3"};
  std::unique_ptr<ServedModel> served_;  // after the HTTP server's end
  std::unique_ptr<HttpServer> http_;
};

TEST_F(HttpTest, WhileLoadingItLivesButIsNotReady) {
  EXPECT_EQ(Code("/livez"), 200);
  const httplib::Result ready = Get("/readyz");
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->status, 503);
  EXPECT_EQ(Error(ready), "loading");
  EXPECT_EQ(ready->get_header_value("Retry-After"), "1");
  for (const char* path : {"/metrics", "/v1/parameters", "/v1/languages"}) EXPECT_EQ(Code(path), 503) << path;
}

TEST_F(HttpTest, ReadinessFollowsTheServersLife) {
  ServedModel::Options options;
  options.language_memory = 1 << 30;
  Serve(options);
  EXPECT_EQ(Error(Get("/readyz")), "loading") << "not told to serve yet";
  served_->server().SetServing();
  EXPECT_EQ(Code("/readyz"), 200);
  served_->copy().Add("keep", "ru");
  served_->copy().Remove("ru");
  served_->host().languages->Rescan();
  EXPECT_EQ(Code("/readyz"), 503) << "model.json lists ru";
  EXPECT_THAT(Error(Get("/readyz")), HasSubstr("m: ru;"));
  served_->copy().Add("ru", "keep");
  served_->host().languages->Rescan();
  EXPECT_EQ(Code("/readyz"), 200);
  std::thread drain([this] { served_->server().Drain(absl::Milliseconds(500), absl::Seconds(5)); });
  for (int i = 0; i < 1000 && Code("/readyz") == 200; ++i) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(Error(Get("/readyz")), "draining");
  EXPECT_EQ(Code("/livez"), 200);
  drain.join();
  EXPECT_EQ(Error(Get("/readyz")), "draining") << "until the very end";
}

TEST_F(HttpTest, ParametersAreTheAccountAsJson) {
  Serve();
  const httplib::Result plain = Get("/v1/parameters");
  ASSERT_TRUE(plain);
  ASSERT_EQ(plain->status, 200) << plain->body;
  const json account = json::parse(plain->body);
  EXPECT_EQ(account["model"], "m");
  ASSERT_EQ(account["owners"].size(), 4U);
  EXPECT_EQ(account["owners"][0]["owner"], "shared");
  EXPECT_EQ(account["owners"][0]["checksum"], "");
  EXPECT_EQ(account["owners"][0]["parameters"], account["owners"][0]["formula_parameters"]);
  EXPECT_TRUE(account.contains("kernel_resident_bytes")) << "names as in the proto";
  EXPECT_EQ(
      json::parse(Get("/v1/parameters?model=m&checksums=1")->body)["owners"][0]["checksum"].get<std::string>().size(),
      16U);
  EXPECT_EQ(Code("/v1/parameters?checksums=yes"), 400);
  EXPECT_EQ(Code("/v1/parameters?model=other"), 404);
  EXPECT_THAT(Error(Get("/v1/parameters?model=other")), HasSubstr("other"));
  EXPECT_EQ(Code("/v1/parameters?model=%ff%fe"), 404) << "bytes that are no text are answered in JSON all the same";
  EXPECT_THAT(Error(Get("/v1/parameters?model=%ff%fe")), HasSubstr("no model"));
}

TEST_F(HttpTest, LanguagesComeWithTheirStates) {
  ServedModel::Options options;
  options.language_memory = 1 << 30;
  Serve(options);
  const json list = json::parse(Get("/v1/languages")->body);
  ASSERT_EQ(list["languages"].size(), 3U);
  EXPECT_EQ(list["languages"][0]["state"], "LANGUAGE_STATE_COLD");
  EXPECT_EQ(Code("/v1/languages?model=other"), 404);
}

TEST_F(HttpTest, MetricsAreText) {
  Serve();
  ASSERT_TRUE(served_->Translate("es", "fr").ok());
  const httplib::Result metrics = Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->status, 200);
  EXPECT_THAT(metrics->get_header_value("Content-Type"), HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(metrics->body, HasSubstr("koine_requests_total{code=\"OK\",model=\"m\",op=\"Translate\"} 1\n"));
}

TEST_F(HttpTest, HeadAnswersWithoutABody) {
  Serve();
  const httplib::Result head = Client().Head("/livez");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->status, 200);
  EXPECT_EQ(head->body, "");
  EXPECT_EQ(Client().Head("/nothing")->status, 404);
}

TEST_F(HttpTest, OtherPathsAndMethodsAreErrorsInJson) {
  Serve();
  for (const char* path : {"/", "/nothing", "/v1", "/livez/", "/v1/parameters/x", "/metrics%00"}) {
    const httplib::Result result = Get(path);
    ASSERT_TRUE(result) << path;
    EXPECT_EQ(result->status, 404) << path;
    EXPECT_THAT(Error(result), HasSubstr("/readyz")) << path;
  }
  httplib::Client client = Client();
  const httplib::Result posted = client.Post("/v1/parameters", "{}", "application/json");
  ASSERT_TRUE(posted);
  EXPECT_EQ(posted->status, 405);
  EXPECT_EQ(posted->get_header_value("Allow"), "GET, HEAD");
  EXPECT_THAT(Error(posted), HasSubstr("GET"));
  EXPECT_EQ(client.Delete("/livez")->status, 405);
  EXPECT_EQ(client.Put("/metrics", "x", "text/plain")->status, 405);
}

TEST_F(HttpTest, LongLinesLargeBodiesAndNonsenseAreRefusedAndTheServerGoesOn) {
  Serve();
  const std::string long_address = Raw("GET /" + std::string(10'000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(long_address.substr(0, 13), HasSubstr("414"));
  const std::string big_header =
      Raw("GET /livez HTTP/1.1\r\nHost: x\r\nX-Big: " + std::string(100'000, 'b') + "\r\n\r\n");
  EXPECT_THAT(big_header.substr(0, 13), HasSubstr("400"));
  EXPECT_THAT(Raw("POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\nabc").substr(0, 13),
              ::testing::AnyOf(HasSubstr("413"), HasSubstr("404")));
  Raw(std::string("\x16\x03\x01\x00\xff\x00garbage\r\n\r\n", 16));
  Raw("\r\n\r\n");
  EXPECT_EQ(Code("/livez"), 200);
}

TEST_F(HttpTest, ProbesAreAnsweredWhileTheEnginesAreBusyAndCallersAreSlow) {
  ServedModel::Options options;
  options.engine_runs = false;
  Serve(options);
  served_->server().SetServing();
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) callers.emplace_back([this] { EXPECT_TRUE(served_->Translate("es", "fr", 16).ok()); });
  for (int i = 0; i < 10'000 && served_->host().queue->gauges().items < 8 * 16; ++i) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_EQ(served_->host().queue->gauges().items, 8 * 16);
  served_->host().engine->Start();
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(Code("/readyz"), 200);
    EXPECT_EQ(Code("/livez"), 200);
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_F(HttpTest, SilentAndDrippingCallersDelayNobodyAndAreCutOff) {
  std::vector<int> silent, dripping;
  for (int i = 0; i < 100; ++i) silent.push_back(Connect());
  for (int i = 0; i < 30; ++i) dripping.push_back(Connect());
  std::atomic<bool> stop{false};
  std::thread drip([&] {
    for (size_t n = 0; !stop.load(); ++n) {
      // A header that never ends.
      const char byte = "GET /livez HTTP/1.1\r\nX: aaaaaaaa"[std::min<size_t>(n, 30)];
      for (const int fd : dripping) send(fd, &byte, 1, MSG_NOSIGNAL);
      absl::SleepFor(absl::Milliseconds(20));
    }
  });
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 20; ++i) {
    const absl::Time asked = absl::Now();
    EXPECT_EQ(Code("/livez"), 200);
    EXPECT_LT(absl::Now() - asked, absl::Seconds(1));
  }
  for (const std::vector<int>* callers : {&silent, &dripping}) {
    for (const int fd : *callers) {
      const timeval patience = {10, 0};
      setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
      char buffer[512];
      ssize_t n = 0;
      while ((n = recv(fd, buffer, sizeof(buffer), 0)) > 0) continue;
      EXPECT_FALSE(n < 0 && errno == EAGAIN) << "still open";
    }
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(8)) << "the time of a request is one second";
  stop.store(true);
  drip.join();
  for (const int fd : silent) close(fd);
  for (const int fd : dripping) close(fd);
}

TEST_F(HttpTest, ConnectionsBeyondTheBoundAreClosedAndTheServerRecovers) {
  std::vector<int> held;
  for (int i = 0; i < 300; ++i) held.push_back(Connect());
  int closed = 0;
  for (const int fd : held) {
    char byte = 0;
    if (recv(fd, &byte, 1, MSG_DONTWAIT) == 0) ++closed;
  }
  for (int i = 0; i < 1000 && closed == 0; ++i) {
    absl::SleepFor(absl::Milliseconds(1));
    char byte = 0;
    if (recv(held.back(), &byte, 1, MSG_DONTWAIT) == 0) ++closed;
  }
  EXPECT_GT(closed, 0);
  for (const int fd : held) close(fd);
  int code = 0;
  for (int i = 0; i < 3000 && (code = this->Code("/livez")) != 200; ++i) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(code, 200);
}

TEST_F(HttpTest, LengthsThatAreNoneAreRefusedAndRangesIgnored) {
  for (const char* length :
       {"-1", "+1", "x", "99999999999999999999", "1\r\nContent-Length: 1", "1\r\nContent-Length: 2"}) {
    const std::string answer =
        Raw(absl::StrCat("GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: ", length, "\r\n\r\n"));
    EXPECT_THAT(answer.substr(0, 13), HasSubstr("400")) << length;
  }
  EXPECT_THAT(Raw("GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").substr(0, 13), HasSubstr("200"));
  const std::string part = Raw("GET /livez HTTP/1.1\r\nHost: x\r\nRange: bytes=0-3\r\n\r\n");
  EXPECT_THAT(part.substr(0, 13), HasSubstr("200"));
  EXPECT_THAT(part, HasSubstr("{\"status\":\"ok\"}"));
}

TEST_F(HttpTest, ManyCallersAtOnceAllGetAnswers) {
  Serve();
  served_->server().SetServing();
  std::vector<std::thread> callers;
  std::atomic<int> ok{0};
  for (int t = 0; t < 16; ++t) {
    callers.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const char* paths[] = {"/livez", "/readyz", "/metrics", "/v1/languages"};
        if (Code(paths[(t + i) % 4]) == 200) ok.fetch_add(1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(ok.load(), 16 * 20);
}

TEST_F(HttpTest, AddressesThatAreNoneAndPortsInUseAreErrors) {
  for (const char* address : {"", "localhost", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1"}) {
    HttpOptions options;
    options.listen = address;
    EXPECT_TRUE(absl::IsInvalidArgument(HttpServer::Start(options).status())) << address;
  }
  HttpOptions options;
  options.listen = absl::StrCat("127.0.0.1:", http_->port());
  const absl::Status taken = HttpServer::Start(options).status();
  EXPECT_TRUE(absl::IsUnavailable(taken)) << taken;
  EXPECT_THAT(std::string(taken.message()), HasSubstr(options.listen));
}

}  // namespace
}  // namespace koine::server
