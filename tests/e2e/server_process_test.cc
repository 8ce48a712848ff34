// The real koine-server as a process: signals, folders that change under it, and its exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cpp/client.h"
#include "tests/support/model_copy.h"
#include "tests/support/random_model.h"

namespace koine {
namespace {

namespace fs = std::filesystem;
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
  // Addresses at which the process has mapped memory whose name ends so.
  std::string Mapping(const std::string& name) const {
    std::ifstream maps(absl::StrCat("/proc/", pid_, "/maps"));
    std::string found;
    for (std::string line; std::getline(maps, line);) {
      if (line.find(absl::StrCat("/memfd:", name, " ")) != std::string::npos) {
        absl::StrAppend(&found, line.substr(0, line.find(' ')), " ");
      }
    }
    return found;
  }

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

TEST(ServerProcessTest, Language201JoinsUnderLoadAndTheSharedBytesStayWhereAndWhatTheyAre) {
  constexpr int kLanguages = 200;
  const auto code = [](int i) { return absl::StrCat("l", i); };
  const fs::path folder = fs::path(::testing::TempDir()) / absl::StrCat("koine_language_201_", getpid());
  const model_loader::ModelConfig config = testing::SmallConfig("many");
  testing::WriteRandomShared(folder.string(), config, 1);
  for (int i = 0; i <= kLanguages; ++i) {
    testing::WriteRandomLanguage(folder.string(), config, {code(i), {}, 0}, testing::SmallTokenizer(),
                                 static_cast<unsigned>(i));
  }
  const fs::path newcomer = folder / "languages" / code(kLanguages);
  const fs::path elsewhere = folder / "newcomer";
  fs::rename(newcomer, elsewhere);

  ServerProcess server({"--model", folder.string()});
  ASSERT_TRUE(server.up());
  const client::Client client = server.Connect();
  v1::GetParameterStatsRequest checksums;
  checksums.set_checksums(true);
  const auto before = client.GetParameterStats(checksums);
  ASSERT_TRUE(before.ok()) << before.status();
  const std::string mapping = server.Mapping("koine:many:shared");
  ASSERT_FALSE(mapping.empty());

  std::atomic<bool> stop{false};
  std::atomic<int64_t> answered{0}, failed{0};
  std::vector<std::thread> load;
  for (unsigned c = 0; c < 4; ++c) {
    load.emplace_back([&, c] {
      std::mt19937 generator(c);
      while (!stop.load()) {
        const auto response = Translate(client, code(static_cast<int>(generator() % kLanguages)),
                                        code(static_cast<int>(generator() % kLanguages)));
        const bool good = response.ok() && !response->results(0).has_status();
        if (!good && failed.fetch_add(1) == 0) ADD_FAILURE() << response.status();
        answered.fetch_add(1);
      }
    });
  }
  while (answered.load() < 100) absl::SleepFor(absl::Milliseconds(1));

  const absl::Time start = absl::Now();
  const fs::path hidden = folder / "languages" / absl::StrCat(".", code(kLanguages));
  fs::copy(elsewhere, hidden, fs::copy_options::recursive);
  const absl::Time copied = absl::Now();
  fs::rename(hidden, newcomer);
  server.Signal(SIGHUP);
  absl::StatusOr<v1::TranslateResponse> first = absl::UnknownError("none");
  while (absl::Now() < start + absl::Seconds(60)) {
    first = Translate(client, code(kLanguages), code(0));
    if (!absl::IsInvalidArgument(first.status())) break;  // until the rescan: no such language
    absl::SleepFor(absl::Milliseconds(1));
  }
  const absl::Time served = absl::Now();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(first->results(0).has_status());

  const int64_t target = answered.load() + 100;
  while (answered.load() < target) absl::SleepFor(absl::Milliseconds(1));
  stop.store(true);
  for (std::thread& thread : load) thread.join();
  EXPECT_EQ(failed.load(), 0);
  const auto after = client.GetParameterStats(checksums);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->owners_size(), before->owners_size() + 1);
  EXPECT_EQ(after->owners(0).checksum(), before->owners(0).checksum());
  EXPECT_EQ(after->owners(0).mapped_bytes(), before->owners(0).mapped_bytes());
  EXPECT_EQ(server.Mapping("koine:many:shared"), mapping);
  std::printf(
      "language 201: first answer %.1f ms after the rename (%.1f ms after the copy began); %ld requests beside it, %ld "
      "failed; shared bytes at %schecksum %s, before and after\n",
      absl::ToDoubleMilliseconds(served - copied), absl::ToDoubleMilliseconds(served - start),
      static_cast<long>(answered.load()), static_cast<long>(failed.load()), mapping.c_str(),
      after->owners(0).checksum().c_str());
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.log();
  fs::remove_all(folder);
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
