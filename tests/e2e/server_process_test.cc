// The real koine-server as a process: signals, folders that change under it, and its exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cpp/client.h"
#include "tests/support/model_copy.h"

namespace koine {
namespace {

using ::testing::HasSubstr;

class ServerProcess {
 public:
  explicit ServerProcess(std::vector<std::string> arguments) {
    log_ = absl::StrCat(::testing::TempDir(), "/koine_server_", getpid(), "_", ++started_, ".log");
    arguments.insert(arguments.begin(), absl::StrCat(KOINE_BUILD_DIR, "/bin/koine-server"));
    for (const char* argument :
         {"--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--drain-delay", "0.2", "--kv-cache-bytes", "8MiB"}) {
      arguments.push_back(argument);
    }
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      if (freopen(log_.c_str(), "w", stderr) == nullptr) _exit(126);
      execv(argv[0], argv.data());
      _exit(127);
    }
    grpc_ = WaitForPort("listening on 127\\.0\\.0\\.1:([0-9]+)");
    http_ = WaitForPort("HTTP on 127\\.0\\.0\\.1:([0-9]+)");
  }
  ~ServerProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    unlink(log_.c_str());
  }

  void Signal(int number) const { ASSERT_EQ(kill(pid_, number), 0); }
  // The exit code; 128 + the signal that ended it; -1 if it does not end.
  int Wait() {
    for (int i = 0; i < 3000; ++i) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    return -1;
  }
  std::string log() const {
    std::ostringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }
  bool WaitForLog(const std::string& text) const {
    for (int i = 0; i < 3000; ++i) {
      if (log().find(text) != std::string::npos) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }
  client::Client Connect() const {
    auto client = client::Client::Connect({.address = absl::StrCat("127.0.0.1:", grpc_)});
    EXPECT_TRUE(client.ok()) << client.status() << log();
    return *std::move(client);
  }
  int HttpCode(const std::string& path) const {
    const httplib::Result result = httplib::Client("127.0.0.1", http_).Get(path);
    return result ? result->status : -1;
  }
  std::string HttpBody(const std::string& path) const {
    const httplib::Result result = httplib::Client("127.0.0.1", http_).Get(path);
    return result ? result->body : "";
  }
  bool up() const { return grpc_ > 0 && http_ > 0; }

 private:
  int WaitForPort(const std::string& pattern) const {
    for (int i = 0; i < 3000; ++i) {
      const std::string text = log();
      std::smatch match;
      if (std::regex_search(text, match, std::regex(pattern))) return std::stoi(match[1]);
      if (waitpid(pid_, nullptr, WNOHANG) == pid_) break;
      absl::SleepFor(absl::Milliseconds(10));
    }
    ADD_FAILURE() << "the server did not start:\n" << log();
    return 0;
  }

  static inline int started_ = 0;
  std::string log_;
  pid_t pid_ = -1;
  int grpc_ = 0, http_ = 0;
};

absl::StatusOr<v1::TranslateResponse> Translate(const client::Client& client, const std::string& source,
                                                const std::string& target) {
  v1::TranslateRequest request;
  request.set_source(source);
  request.set_target(target);
  request.mutable_options()->set_max_tokens(8);
  request.add_items()->set_text("a small text");
  return client.Translate(request);
}

TEST(ServerProcessTest, ALanguageIsAddedAndRemovedUnderLoadAndSigtermEndsWithZero) {
  const testing::ModelCopy copy;
  ServerProcess server({"--model", copy.path().string(), "--language-memory", "64MiB", "--pin", "es"});
  ASSERT_TRUE(server.up());
  EXPECT_EQ(server.HttpCode("/livez"), 200);
  EXPECT_EQ(server.HttpCode("/readyz"), 200);
  const client::Client client = server.Connect();

  std::atomic<bool> stop{false};
  std::atomic<int64_t> answered{0};
  std::vector<std::thread> load;
  for (const char* target : {"fr", "ru"}) {
    load.emplace_back([&, target] {
      while (!stop.load()) {
        const auto response = Translate(client, "es", target);
        EXPECT_TRUE(response.ok()) << response.status();
        if (response.ok()) {
          EXPECT_FALSE(response->results(0).has_status());
        }
        answered.fetch_add(1);
      }
    });
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Translate(client, "xx", "fr").status()));
  v1::GetParameterStatsRequest checksums;
  checksums.set_checksums(true);
  const auto before = client.GetParameterStats(checksums);
  ASSERT_TRUE(before.ok()) << before.status();

  copy.Add("xx", "es");
  server.Signal(SIGHUP);
  EXPECT_TRUE(server.WaitForLog("added xx;")) << server.log();
  const auto translated = Translate(client, "xx", "fr");
  ASSERT_TRUE(translated.ok()) << translated.status();
  EXPECT_EQ(translated->results(0).text(), Translate(client, "es", "fr")->results(0).text());
  const auto after = client.GetParameterStats(checksums);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->owners(0).checksum(), before->owners(0).checksum()) << "the shared part is as it was";
  EXPECT_EQ(after->owners(0).mapped_bytes(), before->owners(0).mapped_bytes());

  copy.Remove("xx");
  server.Signal(SIGHUP);
  EXPECT_TRUE(server.WaitForLog("removed xx")) << server.log();
  EXPECT_TRUE(absl::IsInvalidArgument(Translate(client, "xx", "fr").status()));
  stop.store(true);
  for (std::thread& thread : load) thread.join();
  EXPECT_GT(answered.load(), 10);
  EXPECT_THAT(server.HttpBody("/metrics"), HasSubstr("koine_languages{model=\"plan-0\",state=\"loaded\"} 3\n"));

  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.log();
  EXPECT_THAT(server.log(), HasSubstr("stopped"));
}

TEST(ServerProcessTest, HealthIsTrueOnlyWhileListedLanguagesCanBeServed) {
  const testing::ModelCopy copy;
  ServerProcess server({"--model", copy.path().string(), "--language-memory", "64MiB"});
  ASSERT_TRUE(server.up());
  copy.Add("keep", "ru");
  copy.Remove("ru");
  server.Signal(SIGHUP);
  EXPECT_TRUE(server.WaitForLog("not ready")) << server.log();
  EXPECT_EQ(server.HttpCode("/readyz"), 503);
  EXPECT_EQ(server.HttpCode("/livez"), 200);
  copy.Add("ru", "keep");
  server.Signal(SIGHUP);
  for (int i = 0; i < 1000 && server.HttpCode("/readyz") != 200; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(server.HttpCode("/readyz"), 200);
  server.Signal(SIGINT);
  EXPECT_EQ(server.Wait(), 0) << server.log();
}

TEST(ServerProcessTest, AListedLanguageThatBreaksWhenItIsLoadedMakesItNotReady) {
  const testing::ModelCopy copy;
  ServerProcess server({"--model", copy.path().string(), "--language-memory", "64MiB"});
  ASSERT_TRUE(server.up());
  const client::Client client = server.Connect();
  copy.Break("ru");
  EXPECT_EQ(Translate(client, "ru", "fr").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(server.WaitForLog("not ready")) << server.log();
  EXPECT_TRUE(Translate(client, "es", "fr").ok()) << "the others go on";
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
}

TEST(ServerProcessTest, AdminIsOffUnlessSwitchedOn) {
  const testing::ModelCopy copy;
  v1::LoadLanguageRequest load;
  load.set_language("es");
  {
    ServerProcess server({"--model", copy.path().string(), "--language-memory", "64MiB"});
    ASSERT_TRUE(server.up());
    const absl::Status status = server.Connect().LoadLanguage(load).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr("--admin"));
  }
  ServerProcess server({"--model", copy.path().string(), "--language-memory", "64MiB", "--admin"});
  ASSERT_TRUE(server.up());
  const auto loaded = server.Connect().LoadLanguage(load);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->language().state(), v1::LANGUAGE_STATE_LOADED);
}

}  // namespace
}  // namespace koine
