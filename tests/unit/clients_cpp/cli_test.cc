#include "clients/cli/cli.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "clients/cli/lines.h"
#include "tests/unit/clients_cpp/fake_server.h"

namespace koine::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FakeServer;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int code = -1;
  std::string out, err;
};

Outcome RunWithDescriptor(std::vector<std::string> arguments, int in, bool terminal = false) {
  std::vector<const char*> argv = {"koine"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out, err;
  Outcome outcome;
  outcome.code = RunCli(static_cast<int>(argv.size()), argv.data(), "1.2.3", {in, &out, &err, terminal});
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

// With `input` as standard input, written by a thread as another process would.
Outcome RunKoine(std::vector<std::string> arguments, const std::string& input = "") {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  std::thread writer([fd = ends[1], &input] {
    for (size_t at = 0; at < input.size();) {
      const ssize_t put = write(fd, input.data() + at, input.size() - at);
      if (put <= 0) break;
      at += static_cast<size_t>(put);
    }
    close(fd);
  });
  Outcome outcome = RunWithDescriptor(std::move(arguments), ends[0]);
  char rest[4096];
  while (read(ends[0], rest, sizeof(rest)) > 0) {
  }
  writer.join();
  close(ends[0]);
  return outcome;
}

std::vector<std::string> Translate(const FakeServer& server, std::vector<std::string> more = {}) {
  std::vector<std::string> all = {"translate", "--server", server.address(), "--from", "en", "--to", "de"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// --------------------------------------------------------------------------------------------------------- Arguments

TEST(CliTest, TextsBecomeOneRequestAndLinesInOrder) {
  FakeServer server;
  const Outcome run = RunKoine(Translate(server, {"one", "two", ""}));
  EXPECT_EQ(run.code, kOk) << run.err;
  EXPECT_EQ(run.out, "de:one\nde:two\n\n");
  EXPECT_EQ(run.err, "");
  ASSERT_EQ(server.service.translate_requests().size(), 1u);
  EXPECT_EQ(server.service.translate_requests()[0].source(), "en");
  EXPECT_FALSE(server.service.translate_requests()[0].options().has_length_penalty());
}

TEST(CliTest, TextsPassUntouchedWhateverTheyLookLike) {
  FakeServer server;
  // Brackets are a list to the argument parser, "stats" a command, "%s" a format.
  const std::vector<std::string> texts = {"[note]",
                                          "[a,b]",
                                          "stats",
                                          "{}",
                                          "%s",
                                          "a=b",
                                          "gr\xC3\xB6\xC3\x9F"
                                          "er",
                                          "'quoted'"};
  const Outcome run = RunKoine(Translate(server, texts));
  EXPECT_EQ(run.code, kOk) << run.err;
  ASSERT_EQ(server.service.translate_requests().size(), 1u);
  const auto request = server.service.translate_requests()[0];
  ASSERT_EQ(request.items_size(), static_cast<int>(texts.size()));
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(request.items(static_cast<int>(i)).text(), texts[i]);
  EXPECT_EQ(RunKoine(Translate(server, {"--", "--from"})).out, "de:--from\n");
}

TEST(CliTest, EveryOptionReachesTheRequest) {
  FakeServer server;
  const Outcome run = RunKoine(Translate(server, {"--beam",
                                                  "5",
                                                  "--num-hypotheses",
                                                  "2",
                                                  "--length-penalty",
                                                  "-0.5",
                                                  "--max-tokens",
                                                  "7",
                                                  "--min-tokens",
                                                  "2",
                                                  "--truncate",
                                                  "--early-stopping",
                                                  "--scores",
                                                  "--model",
                                                  "toy",
                                                  "--from-adapter",
                                                  "none",
                                                  "--to-adapter",
                                                  "legal",
                                                  "one",
                                                  ""}));
  EXPECT_EQ(run.code, kOk) << run.err;
  EXPECT_EQ(run.out, "1\t1\t-0.5000\tde:one\n1\t2\t-1.5000\tde:one!\n2\t1\t0.0000\t\n");
  const auto request = server.service.translate_requests().at(0);
  EXPECT_EQ(request.model(), "toy");
  EXPECT_EQ(request.source_adapter(), "none");
  EXPECT_EQ(request.target_adapter(), "legal");
  EXPECT_EQ(request.options().beam_size(), 5);
  EXPECT_EQ(request.options().num_hypotheses(), 2);
  EXPECT_EQ(request.options().length_penalty(), -0.5);
  EXPECT_EQ(request.options().max_tokens(), 7);
  EXPECT_EQ(request.options().min_tokens(), 2);
  EXPECT_TRUE(request.options().truncate());
  EXPECT_EQ(request.options().early_stopping(), v1::EARLY_STOPPING_TRUE);
  EXPECT_TRUE(request.options().return_scores());
}

TEST(CliTest, WhatIsNotGivenStaysSilent) {
  FakeServer server;
  ASSERT_EQ(RunKoine(Translate(server, {"one"})).code, kOk);
  const auto silent = server.service.translate_requests().at(0);
  EXPECT_FALSE(silent.options().has_early_stopping());
  EXPECT_FALSE(silent.options().has_min_tokens());
  EXPECT_EQ(silent.options().beam_size(), 0);
  EXPECT_EQ(silent.prompt(), "");
  ASSERT_EQ(
      RunKoine(Translate(server, {"--early-stopping=never", "--min-tokens", "0", "--prompt", "query", "one"})).code,
      kOk);
  const auto given = server.service.translate_requests().at(1);
  EXPECT_EQ(given.options().early_stopping(), v1::EARLY_STOPPING_NEVER);
  EXPECT_TRUE(given.options().has_min_tokens());
  EXPECT_EQ(given.prompt(), "query");
  ASSERT_EQ(RunKoine(Translate(server, {"--early-stopping=false", "one"})).code, kOk);
  EXPECT_TRUE(server.service.translate_requests().at(2).options().has_early_stopping());
  // Languages may be left out: models without any take none.
  ASSERT_EQ(RunKoine({"translate", "--server", server.address(), "one"}).code, kOk);
  EXPECT_EQ(server.service.translate_requests().at(3).source(), "");
}

TEST(CliTest, UsageErrorsAreOneLineAndCodeTwo) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"frobnicate"},
      {"translate", "--frob", "x"},
      {"translate", "--beam", "0", "x"},
      {"translate", "--num-hypotheses", "-1", "x"},
      {"translate", "--beam", "many", "x"},
      {"translate", "--early-stopping=always", "x"},
      {"translate", "--timeout", "soon", "x"},
      {"translate", "--timeout", "-1", "x"},
      {"translate", "--timeout", "nan", "x"},
      {"translate", "--timeout", "inf", "x"},
      {"translate", "--timeout", "-inf", "x"},
      {"translate", "--timeout", "1e300", "x"},
      {"translate", "--length-penalty", "nan", "x"},
      {"translate", "--beam", "4294967297", "x"},
      {"translate", "--beam", "1.5", "x"},
      {"admin", "load", "de", "--wait", "nan"},
      {"admin", "frobnicate"},
      {"translate", "--server", "", "x"},
      {"encode", "--cosine", "--json", "a", "b"},
      {"encode", "--cosine", "a"},
      {"translate", "--ids", "a"},
      {"detect", "text"},
      {"score", "--from", "en", "text"},
  };
  for (const auto& arguments : wrong) {
    const Outcome run = RunKoine(arguments);
    EXPECT_EQ(run.code, kUsage) << ::testing::PrintToString(arguments);
    EXPECT_EQ(run.out, "");
    EXPECT_THAT(run.err, ::testing::StartsWith("koine: "));
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
  EXPECT_THAT(RunKoine({"detect", "x"}).err, HasSubstr("version 1.2.3 does not offer"));
  EXPECT_THAT(RunKoine({"frobnicate"}).err, HasSubstr("unknown command or option frobnicate"));
  EXPECT_THAT(RunKoine({"admin", "frobnicate"}).err, HasSubstr("frobnicate"));
  EXPECT_THAT(RunKoine({"translate", "--beam", "4294967297", "x"}).err, HasSubstr("from 1 to 2147483647"));
}

TEST(CliTest, HelpAndVersionGoToStandardOutput) {
  const Outcome help = RunKoine({"--help"});
  EXPECT_EQ(help.code, kOk);
  for (const char* word : {"translate", "encode", "stats", "languages", "info", "detect", "score", "KOINE_SERVER",
                           "Exit codes: 0 ok; 1 an item failed; 2 usage; 3 server unreachable"}) {
    EXPECT_THAT(help.out, HasSubstr(word));
  }
  EXPECT_EQ(RunKoine({"--version"}).out, "koine 1.2.3\n");
  EXPECT_THAT(RunKoine({"translate", "--help"}).out, HasSubstr("--length-penalty"));
}

TEST(CliTest, ServerComesFromTheEnvironment) {
  FakeServer server;
  ASSERT_EQ(setenv("KOINE_SERVER", server.address().c_str(), 1), 0);
  const Outcome run = RunKoine({"translate", "--to", "de", "one"});
  unsetenv("KOINE_SERVER");
  EXPECT_EQ(run.out, "de:one\n") << run.err;
}

// ------------------------------------------------------------------------------------------------------------- Errors

TEST(CliTest, ExitCodesTellUnreachableFromRefused) {
  EXPECT_EQ(ExitCodeFor(absl::OkStatus()), kOk);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("")), kUnreachable);
  EXPECT_EQ(ExitCodeFor(absl::DeadlineExceededError("")), kUnreachable);
  EXPECT_EQ(ExitCodeFor(absl::InvalidArgumentError("")), kRefused);
  EXPECT_EQ(ExitCodeFor(absl::ResourceExhaustedError("")), kRefused);
}

TEST(CliTest, UnreachableServerIsNamed) {
  std::string address;
  {
    FakeServer server;
    address = server.address();
  }
  for (const char* command : {"translate", "encode", "stats", "languages", "info"}) {
    const Outcome run = RunKoine({command, "--server", address});
    EXPECT_EQ(run.code, kUnreachable);
    EXPECT_EQ(run.out, "");
    EXPECT_THAT(run.err, AllOf(HasSubstr(address), HasSubstr("refused")));
  }
}

TEST(CliTest, RefusalPrintsTheServersText) {
  FakeServer server;
  const Outcome run = RunKoine({"translate", "--server", server.address(), "--to", "xx", "one"});
  EXPECT_EQ(run.code, kRefused);
  EXPECT_EQ(run.err, "koine: INVALID_ARGUMENT: unknown target language \"xx\"; near: es, de\n");
  EXPECT_EQ(RunKoine({"info", "--server", server.address(), "--model", "other"}).code, kRefused);
  server.service.fault = [](const v1::TranslateRequest&) { return testing::FullServer(1); };
  EXPECT_THAT(RunKoine(Translate(server, {"one"})).err, HasSubstr("try again in 1ms"));
}

TEST(CliTest, NoAnswerInTimeIsCodeThree) {
  FakeServer server;
  server.service.fault = [](const v1::TranslateRequest&) {
    absl::SleepFor(absl::Milliseconds(600));
    return grpc::Status::OK;
  };
  const Outcome run = RunKoine(Translate(server, {"--timeout", "100ms", "one"}));
  EXPECT_EQ(run.code, kUnreachable);
  EXPECT_THAT(run.err, AllOf(HasSubstr(server.address()), HasSubstr("100ms")));
}

TEST(CliTest, FailedItemLeavesABlankLineAndTheOthers) {
  FakeServer server;
  const Outcome run = RunKoine(Translate(server, {"one", "bad", "two"}));
  EXPECT_EQ(run.code, kItemFailed);
  EXPECT_EQ(run.out, "de:one\n\nde:two\n");
  EXPECT_EQ(run.err, "koine: text 2: INVALID_ARGUMENT: 600 tokens, but the limit is 512\n");
}

TEST(CliTest, CutTranslationsAreSaid) {
  FakeServer server;
  const Outcome run = RunKoine(Translate(server, {"long"}));
  EXPECT_EQ(run.code, kOk);
  EXPECT_THAT(run.err, HasSubstr("text 1: the translation was cut at 3 tokens"));
}

TEST(CliTest, InvalidUtf8IsNotSent) {
  FakeServer server;
  EXPECT_EQ(RunKoine(Translate(server, {"ok", "\xC3\x28"})).code, kUsage);
  EXPECT_TRUE(server.service.translate_requests().empty());
  const Outcome lines = RunKoine(Translate(server), "one\n\xF0\x9F\x98\ntwo\n");
  EXPECT_EQ(lines.code, kItemFailed);
  EXPECT_EQ(lines.out, "de:one\n\nde:two\n");
  EXPECT_EQ(lines.err, "koine: line 2: INVALID_ARGUMENT: not valid UTF-8\n");
}

// --------------------------------------------------------------------------------------------------- Standard input

TEST(CliTest, LinesAreAnsweredInOrderWithBlankOnesKept) {
  FakeServer server;
  // Later requests are answered first.
  std::atomic<int> calls{0};
  server.service.fault = [&](const v1::TranslateRequest&) {
    absl::SleepFor(absl::Milliseconds(calls++ % 4 == 0 ? 60 : 1));
    return grpc::Status::OK;
  };
  std::string input, want;
  for (int i = 0; i < 1000; ++i) {
    const bool blank = i % 7 == 3;
    absl::StrAppend(&input, blank ? "" : absl::StrCat("line ", i), "\n");
    absl::StrAppend(&want, blank ? "" : absl::StrCat("de:line ", i), "\n");
  }
  const Outcome run = RunKoine(Translate(server), input);
  EXPECT_EQ(run.code, kOk) << run.err;
  EXPECT_EQ(run.out, want);
  int most = 0;
  for (const auto& request : server.service.translate_requests()) most = std::max(most, request.items_size());
  EXPECT_EQ(most, kLinesPerRequest);
  EXPECT_LE(server.service.translate_requests().size(), 1000u / kLinesPerRequest + 10);
}

TEST(CliTest, LastLineNeedsNoLineFeedAndCarriageReturnsStay) {
  FakeServer server;
  EXPECT_EQ(RunKoine(Translate(server), "one\r\ntwo").out, "de:one\r\nde:two\n");
  EXPECT_EQ(RunKoine(Translate(server), "").out, "");
  EXPECT_EQ(RunKoine(Translate(server), "\n").out, "\n");
  EXPECT_EQ(RunKoine(Translate(server), std::string("a\0b\n", 4)).out, std::string("de:a\0b\n", 7));
}

TEST(CliTest, ALineIsAnsweredBeforeTheNextIsWritten) {
  FakeServer server;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::thread writer([&] {
    for (const char* line : {"one\n", "two\n"}) {
      EXPECT_EQ(write(ends[1], line, 4), 4);
      // The next line waits until this one has been asked; a client that waits for a full batch never asks.
      const size_t want = line[0] == 'o' ? 1 : 2;
      for (int i = 0; i < 500 && server.service.translate_requests().size() < want; ++i) {
        absl::SleepFor(absl::Milliseconds(10));
      }
      EXPECT_EQ(server.service.translate_requests().size(), want);
    }
    close(ends[1]);
  });
  const Outcome run = RunWithDescriptor(Translate(server), ends[0]);
  writer.join();
  close(ends[0]);
  EXPECT_EQ(run.out, "de:one\nde:two\n");
}

TEST(CliTest, BusyServerIsAskedAgain) {
  FakeServer server;
  std::atomic<int> calls{0};
  server.service.fault = [&](const v1::TranslateRequest&) {
    return calls++ < 3 ? testing::FullServer(5) : grpc::Status::OK;
  };
  const Outcome run = RunKoine(Translate(server), "one\ntwo\n");
  EXPECT_EQ(run.code, kOk) << run.err;
  EXPECT_EQ(run.out, "de:one\nde:two\n");
  EXPECT_EQ(calls, 4);
}

TEST(CliTest, RefusalEndsTheRunAfterTheLinesBeforeIt) {
  FakeServer server;
  server.service.fault = [](const v1::TranslateRequest& request) {
    for (const auto& item : request.items()) {
      if (item.text() == "stop") return grpc::Status(grpc::StatusCode::NOT_FOUND, "adapter went away");
    }
    return grpc::Status::OK;
  };
  std::string input;
  for (int i = 0; i < kLinesPerRequest; ++i) input += "x\n";
  input += "stop\n";
  for (int i = 0; i < 500; ++i) input += "y\n";
  const Outcome run = RunKoine(Translate(server), input);
  EXPECT_EQ(run.code, kRefused);
  EXPECT_THAT(run.err, HasSubstr("adapter went away"));
  EXPECT_THAT(run.out, AllOf(::testing::StartsWith("de:x\n"), Not(HasSubstr("de:y"))));
}

TEST(CliTest, LongInputShowsProgressOnATerminalOnly) {
  FakeServer server;
  server.service.fault = [&](const v1::TranslateRequest&) {
    absl::SleepFor(absl::Milliseconds(350));
    return grpc::Status::OK;
  };
  std::string input;
  for (int i = 0; i < 32 * kLinesPerRequest; ++i) input += "x\n";
  char name[] = "/tmp/koine-cli-test-XXXXXX";
  const int file = mkstemp(name);
  ASSERT_GE(file, 0);
  unlink(name);
  ASSERT_EQ(write(file, input.data(), input.size()), static_cast<ssize_t>(input.size()));
  lseek(file, 0, SEEK_SET);
  const Outcome shown = RunWithDescriptor(Translate(server), file, true);
  EXPECT_THAT(shown.err, AllOf(HasSubstr("lines/s"), HasSubstr("of about 2048 lines")));
  EXPECT_THAT(shown.err, ::testing::EndsWith("\r\033[K"));
  EXPECT_EQ(std::count(shown.out.begin(), shown.out.end(), '\n'), 32 * kLinesPerRequest);
  lseek(file, 0, SEEK_SET);
  EXPECT_EQ(RunWithDescriptor(Translate(server), file, false).err, "");
  close(file);
}

TEST(LineReaderTest, LinesOverTheLimitAreCutAndCounted) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string input = "12345\n123456\n\n12345678901234567890\nx";
  ASSERT_EQ(write(ends[1], input.data(), input.size()), static_cast<ssize_t>(input.size()));
  close(ends[1]);
  LineReader reader(ends[0], 5);
  while (!reader.at_end()) ASSERT_TRUE(reader.Read().ok());
  close(ends[0]);
  ASSERT_EQ(reader.lines().size(), 5u);
  const std::vector<std::string> texts = {"12345", "12345", "", "12345", "x"};
  const std::vector<bool> cut = {false, true, false, true, false};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(reader.lines()[i].text, texts[i]);
    EXPECT_EQ(reader.lines()[i].too_long, cut[i]);
    EXPECT_EQ(reader.lines()[i].number, static_cast<int64_t>(i) + 1);
  }
}

TEST(LineReaderTest, UnreadableInputIsAnError) { EXPECT_FALSE(LineReader(-1, 10).Read().ok()); }

TEST(LineReaderTest, Utf8IsTakenExactlyAsTheStandardHasIt) {
  for (const char* good : {"", "abc", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xC3\x28", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "a\xE4\xB8", "\xF0\x9F\x98", "\xE4\xB8z"}) {
    EXPECT_FALSE(IsUtf8(bad)) << bad;
  }
}

// ------------------------------------------------------------------------------------------------------------- Output

TEST(CliTest, JsonIsOneObjectPerRequestOrLine) {
  FakeServer server;
  const Outcome one = RunKoine(Translate(server, {"--json", "--ids", "one", "bad"}));
  EXPECT_TRUE(server.service.translate_requests().back().options().return_ids());
  EXPECT_EQ(one.code, kItemFailed);
  const auto reply = nlohmann::json::parse(one.out);
  EXPECT_EQ(reply["results"][0]["text"], "de:one");
  EXPECT_EQ(reply["results"][0]["finish_reason"], "FINISH_REASON_STOP");
  EXPECT_EQ(reply["results"][0]["truncated"], false);  // defaults are printed
  EXPECT_EQ(reply["results"][1]["status"]["code"], 3);
  EXPECT_EQ(reply["results"][1]["status"]["details"][0]["field_violations"][0]["field"], "items");

  const Outcome lines = RunKoine(Translate(server, {"--json"}), "one\n\xFF\n\nbad\n");
  EXPECT_EQ(lines.code, kItemFailed);
  std::vector<std::string> objects = absl::StrSplit(lines.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(objects.size(), 4u);
  EXPECT_EQ(nlohmann::json::parse(objects[0])["text"], "de:one");
  EXPECT_EQ(nlohmann::json::parse(objects[1])["status"]["message"], "not valid UTF-8");
  EXPECT_EQ(nlohmann::json::parse(objects[2])["finish_reason"], "FINISH_REASON_EMPTY");
  EXPECT_EQ(nlohmann::json::parse(objects[3])["status"]["code"], 3);
}

TEST(CliTest, EncodePrintsNumbersThatReadBackExactly) {
  FakeServer server;
  const Outcome run = RunKoine({"encode", "--server", server.address(), "--language", "en", "up", "right", "both"});
  EXPECT_EQ(run.code, kOk) << run.err;
  EXPECT_EQ(run.out, "0 0.125\n1 0\n1 0.125\n");
  EXPECT_EQ(server.service.encode_requests().at(0).language(), "en");
  EXPECT_FALSE(server.service.encode_requests().at(0).options().has_normalize());
  RunKoine({"encode", "--server", server.address(), "--no-normalize", "--truncate", "--adapter", "none", "up"});
  const auto second = server.service.encode_requests().at(1);
  EXPECT_TRUE(second.options().has_normalize());
  EXPECT_FALSE(second.options().normalize());
  EXPECT_TRUE(second.options().truncate());
  EXPECT_EQ(second.adapter(), "none");
  const Outcome lines = RunKoine({"encode", "--server", server.address()}, "up\n\nright\n");
  EXPECT_EQ(lines.code, kItemFailed);
  EXPECT_EQ(lines.out, "0 0.125\n\n1 0\n");
}

TEST(CliTest, CosineComparesAllPairs) {
  FakeServer server;
  const Outcome run = RunKoine({"encode", "--server", server.address(), "--cosine", "up", "right"});
  EXPECT_EQ(run.code, kOk) << run.err;
  EXPECT_EQ(run.out,
            "        1       2  text\n"
            "1  1.0000  0.0000  up\n"
            "2  0.0000  1.0000  right\n");
  EXPECT_EQ(RunKoine({"encode", "--server", server.address(), "--cosine"}, "up\nright\n").out, run.out);
}

TEST(CliTest, StatsLanguagesAndInfoPrintTablesAndJson) {
  FakeServer server;
  const Outcome stats = RunKoine({"stats", "--server", server.address()});
  EXPECT_EQ(stats.code, kOk) << stats.err;
  for (const char* word : {"3,000,000",
                           "50.0 %",
                           "11.4 MiB",
                           "11.5 MiB",
                           "embedding",
                           "37,748,736",
                           "99.0 %",
                           "9.8.7",
                           "3,000,001",
                           "draining",
                           "100 independent",
                           "33.3 %",
                           "3,774,873,600",
                           "50,331,648",
                           "One more language: 2,151,104",
                           "3.0 MiB",
                           "Room for 1,234 more",
                           "control group",
                           "20, 180 cold",
                           "4,321 evictions",
                           "of 5.0 GiB",
                           "rejected, overload",
                           "2 x 1"}) {
    EXPECT_THAT(stats.out, HasSubstr(word));
  }
  EXPECT_THAT(RunKoine({"stats", "--server", server.address(), "--parameters"}).out, Not(HasSubstr("9.8.7")));
  EXPECT_THAT(RunKoine({"stats", "--server", server.address(), "--engine"}).out, Not(HasSubstr("37,748,736")));
  const std::string json = RunKoine({"stats", "--server", server.address(), "--json"}).out;
  const std::vector<std::string> objects = absl::StrSplit(json, '\n', absl::SkipEmpty());
  ASSERT_EQ(objects.size(), 2u);
  EXPECT_EQ(nlohmann::json::parse(objects[0])["owners"][1]["owner"], "de");
  EXPECT_EQ(nlohmann::json::parse(objects[1])["version"], "9.8.7");

  EXPECT_THAT(RunKoine({"languages", "--server", server.address()}).out,
              AllOf(HasSubstr("1,234,567"), HasSubstr("zh_XX"), HasSubstr("\xE4\xB8\xAD\xE6\x96\x87\n"),
                    HasSubstr("cold, pinned"), HasSubstr("failed"), HasSubstr("\nde: its table is short\n")));
  EXPECT_EQ(nlohmann::json::parse(
                RunKoine({"languages", "--json", "--server", server.address()}).out)["languages"][2]["code"],
            "zh");
  EXPECT_THAT(RunKoine({"info", "--server", server.address()}).out, HasSubstr("7,654,321"));
  EXPECT_EQ(
      nlohmann::json::parse(RunKoine({"info", "--json", "--server", server.address()}).out)["limits"]["max_items"],
      "1024");  // int64 is a string in the JSON mapping
}

TEST(CliTest, AdminLoadsUnloadsAndRescans) {
  FakeServer server(true);
  const auto admin = [&](std::vector<std::string> more) {
    std::vector<std::string> all = {"admin"};
    all.insert(all.end(), more.begin(), more.end());
    all.insert(all.end(), {"--server", server.address()});
    return RunKoine(all);
  };
  EXPECT_EQ(admin({"load", "de"}).out, "de: loaded, 1.5 KiB\n");
  EXPECT_EQ(admin({"load", "--pin", "de"}).out, "de: loaded, pinned, 1.5 KiB\n");
  EXPECT_EQ(admin({"unload", "fr"}).out, "fr: cold, 0 B\n");
  const Outcome slow = admin({"unload", "--wait", "3", "fr"});
  EXPECT_EQ(slow.code, kUnreachable);
  EXPECT_THAT(slow.err, HasSubstr("still used"));
  const Outcome unknown = admin({"load", "zz"});
  EXPECT_EQ(unknown.code, kRefused);
  EXPECT_THAT(unknown.err, HasSubstr("language: unknown"));
  const Outcome rescan = admin({"rescan"});
  EXPECT_EQ(rescan.code, kOk);
  EXPECT_EQ(rescan.out, "model     toy\nadded     de fr\nreplaced  none\nremoved   none\n");
  const Outcome broken = admin({"rescan", "--model", "broken"});
  EXPECT_EQ(broken.code, kItemFailed);
  EXPECT_THAT(broken.out, HasSubstr("broken, xx  language.json: no code\n"));
  EXPECT_EQ(nlohmann::json::parse(admin({"rescan", "--json"}).out)["models"][0]["added"][1], "fr");
  EXPECT_EQ(admin({}).code, kUsage);
  EXPECT_EQ(admin({"load"}).code, kUsage);
}

TEST(CliTest, AdminOfAServerThatHasNoneIsRefused) {
  FakeServer server;
  EXPECT_EQ(RunKoine({"admin", "rescan", "--server", server.address()}).code, kRefused);
}

TEST(CliTest, OutputThatCannotBeWrittenIsAnError) {
  FakeServer server;
  const std::vector<std::string> arguments = Translate(server, {"one"});
  std::vector<const char*> argv = {"koine"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out, err;
  out.setstate(std::ios::badbit);
  EXPECT_EQ(RunCli(static_cast<int>(argv.size()), argv.data(), "1", {0, &out, &err, false}), kItemFailed);
  EXPECT_EQ(err.str(), "koine: cannot write the output\n");
}

}  // namespace
}  // namespace koine::cli
