#include "clients/load/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/unit/clients_cpp/fake_server.h"

namespace koine::load {
namespace {

using ::testing::ElementsAre;
using testing::FakeServer;
using ::testing::HasSubstr;

TEST(LoadTest, PairsAreCodesWithAHyphenOrAnArrowBetween) {
  EXPECT_THAT(*ParsePairs("en-de"), ElementsAre(Pair{"en", "de"}));
  EXPECT_THAT(*ParsePairs("en-de, fr-en,pt_BR-zh"),
              ElementsAre(Pair{"en", "de"}, Pair{"fr", "en"}, Pair{"pt_BR", "zh"}));
  EXPECT_THAT(*ParsePairs("zh-Hans>en,de>pt-BR"), ElementsAre(Pair{"zh-Hans", "en"}, Pair{"de", "pt-BR"}));
  for (const char* bad : {"", "en", "en-", "-de", "zh-Hans-en", "en-de,", "a>b>c", ">"}) {
    EXPECT_EQ(ParsePairs(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(LoadTest, AllPairsAreOrderedAndNeverTheSameTwice) {
  EXPECT_THAT(AllPairs({"a", "b", "c"}), ElementsAre(Pair{"a", "b"}, Pair{"a", "c"}, Pair{"b", "a"}, Pair{"b", "c"},
                                                     Pair{"c", "a"}, Pair{"c", "b"}));
  EXPECT_EQ(AllPairs(std::vector<std::string>{"a", "b", "c", "d", "e", "f", "g", "h"}).size(), 56u);
}

TEST(LoadTest, ClientNumbersAreListed) {
  EXPECT_THAT(*ParseClients("1,8,64"), ElementsAre(1, 8, 64));
  for (const char* bad : {"", "0", "-1", "1,", "x", "10001", "1.5"}) EXPECT_FALSE(ParseClients(bad).ok()) << bad;
}

TEST(LoadTest, PercentileIsTheNearestRank) {
  EXPECT_EQ(Percentile({}, 0.5), 0);
  EXPECT_EQ(Percentile({7}, 0.5), 7);
  EXPECT_EQ(Percentile({7}, 0.99), 7);
  EXPECT_EQ(Percentile({1, 2}, 0.5), 1);
  std::vector<double> ten, hundred;
  for (int i = 1; i <= 10; ++i) ten.push_back(i);
  for (int i = 1; i <= 100; ++i) hundred.push_back(i);
  EXPECT_EQ(Percentile(ten, 0.5), 5);
  EXPECT_EQ(Percentile(ten, 0.9), 9);
  EXPECT_EQ(Percentile(ten, 0.99), 10);
  EXPECT_EQ(Percentile(hundred, 0.99), 99);
  EXPECT_EQ(Percentile(hundred, 1), 100);
  // At least that share of the values lies at or under it, and of none before it.
  for (double share : {0.01, 0.25, 0.5, 0.77, 0.9, 0.999}) {
    const double p = Percentile(hundred, share);
    EXPECT_GE(p / 100, share - 1e-9);
    EXPECT_LT((p - 1) / 100, share);
  }
}

TEST(LoadTest, TextsAreReadByLanguage) {
  const std::string path = ::testing::TempDir() + "koine_load_test.jsonl";
  std::ofstream(path)
      << "{\"id\": 5, \"en\": \"one\", \"de\": \"eins\"}\n\n{\"id\": 6, \"en\": \"two\", \"de\": \" \"}\n";
  const auto texts = ReadTexts(path);
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_THAT(texts->at("en"), ElementsAre("one", "two"));
  EXPECT_THAT(texts->at("de"), ElementsAre("eins"));
  EXPECT_EQ(texts->count("id"), 0u);
  std::ofstream(path) << "{\"en\": \"one\"}\n{\"en\": \n";
  EXPECT_THAT(std::string(ReadTexts(path).status().message()), HasSubstr(":2: not a JSON object"));
  std::ofstream(path) << "\n";
  EXPECT_FALSE(ReadTexts(path).ok());
  EXPECT_EQ(ReadTexts(path + ".absent").status().code(), absl::StatusCode::kNotFound);
  std::remove(path.c_str());
}

LoadOptions OptionsFor(const FakeServer& server) {
  LoadOptions options;
  options.client.address = server.address();
  options.client.timeout = absl::Seconds(20);
  options.pairs = {{"en", "de"}, {"de", "zh"}};
  options.warmup_seconds = 0;
  return options;
}

const Texts& SomeTexts() {
  static const Texts& texts = *new Texts{{"en", {"one", "two", "three"}}, {"de", {"eins", "zwei"}}};
  return texts;
}

TEST(LoadTest, SendsExactlyTheRequestsAskedForAndCountsThem) {
  FakeServer server;
  LoadOptions options = OptionsFor(server);
  options.requests = 101;
  options.items = 3;
  options.beam = 4;
  const auto result = RunLoad(options, SomeTexts(), 7);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->clients, 7);
  EXPECT_EQ(result->requests, 101);
  EXPECT_EQ(result->items, 303);
  EXPECT_EQ(result->source_tokens, 303 * 5);
  EXPECT_EQ(result->target_tokens, 303 * 3);
  EXPECT_TRUE(result->errors.empty());
  EXPECT_GT(result->p50, 0);
  EXPECT_LE(result->p50, result->p90);
  EXPECT_LE(result->p90, result->p99);
  EXPECT_LE(result->p99, result->max);
  EXPECT_LE(result->max, result->seconds);
  EXPECT_EQ(result->steps, 303);
  EXPECT_NEAR(result->rows_per_step, 4, 1e-9);
  EXPECT_NEAR(result->languages_per_step, 2, 1e-9);

  const auto requests = server.service.translate_requests();
  ASSERT_EQ(requests.size(), 101u);
  std::set<std::string> pairs;
  for (const auto& request : requests) {
    pairs.insert(request.source() + request.target());
    EXPECT_EQ(request.options().beam_size(), 4);
    ASSERT_EQ(request.items_size(), 3);
    for (const auto& item : request.items()) {
      EXPECT_THAT(SomeTexts().at(request.source()), ::testing::Contains(item.text()));
    }
  }
  EXPECT_THAT(pairs, ElementsAre("dezh", "ende"));
}

TEST(LoadTest, KeepsAsManyRequestsInFlightAsThereAreClients) {
  for (const int clients : {1, 3}) {
    FakeServer server;
    std::atomic<int> now{0}, most{0};
    server.service.fault = [&](const v1::TranslateRequest&) {
      const int mine = ++now;
      int seen = most;
      while (seen < mine && !most.compare_exchange_weak(seen, mine)) {
      }
      absl::SleepFor(absl::Milliseconds(20));
      --now;
      return grpc::Status::OK;
    };
    LoadOptions options = OptionsFor(server);
    options.seconds = 0.5;
    options.warmup_seconds = 0.1;
    const auto result = RunLoad(options, SomeTexts(), clients);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(most, clients);
    EXPECT_GE(result->p50, 0.02);
    EXPECT_NEAR(result->seconds, 0.5, 0.2);
    // Answers of the warm-up and of the drain do not count.
    EXPECT_LT(static_cast<size_t>(result->requests), server.service.translate_requests().size());
  }
}

TEST(LoadTest, EncodeUsesTheSources) {
  FakeServer server;
  LoadOptions options = OptionsFor(server);
  options.encode = true;
  options.requests = 20;
  const auto result = RunLoad(options, SomeTexts(), 2);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->requests, 20);
  EXPECT_EQ(result->source_tokens, 80);
  EXPECT_EQ(result->target_tokens, 0);
  std::set<std::string> languages;
  for (const auto& request : server.service.encode_requests()) languages.insert(request.language());
  EXPECT_THAT(languages, ElementsAre("de", "en"));
}

TEST(LoadTest, ErrorsAreCountedByCodeAndDoNotStopTheRun) {
  FakeServer server;
  std::atomic<int> calls{0};
  server.service.fault = [&](const v1::TranslateRequest&) {
    return calls++ % 2 == 0 ? testing::FullServer(1) : grpc::Status::OK;
  };
  LoadOptions options = OptionsFor(server);
  options.requests = 40;
  options.pairs = {{"en", "de"}};
  const auto result = RunLoad(options, {{"en", {"bad"}}}, 4);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->requests, 20);
  EXPECT_EQ(result->items, 0);
  EXPECT_EQ(result->errors.at("RESOURCE_EXHAUSTED"), 20);
  EXPECT_EQ(result->errors.at("item INVALID_ARGUMENT"), 20);
  EXPECT_THAT(ErrorText(*result), HasSubstr("20 x RESOURCE_EXHAUSTED"));
}

TEST(LoadTest, MissingTextsAndServersAreErrors) {
  LoadOptions options;
  {
    FakeServer server;
    options = OptionsFor(server);
    options.pairs.push_back({"fr", "en"});
    EXPECT_THAT(std::string(RunLoad(options, SomeTexts(), 1).status().message()), HasSubstr("\"fr\""));
    options.pairs.clear();
    EXPECT_FALSE(RunLoad(options, SomeTexts(), 1).ok());
  }
  options.pairs = {{"en", "de"}};
  EXPECT_EQ(RunLoad(options, SomeTexts(), 1).status().code(), absl::StatusCode::kUnavailable);
}

TEST(LoadTest, EnvironmentNamesMachineServerAndModel) {
  FakeServer server;
  const auto client = client::Client::Connect(OptionsFor(server).client);
  ASSERT_TRUE(client.ok());
  auto environment = ReadEnvironment(*client, "");
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_GT(environment->cores, 0);
  for (const std::string& word : std::vector<std::string>{"9.8.7", "toy", "f32", "2 workers x 1", server.address()}) {
    EXPECT_THAT(EnvironmentText(*environment), HasSubstr(word));
  }
  environment->assertions = true;
  EXPECT_THAT(EnvironmentText(*environment), HasSubstr("WARNING"));
  EXPECT_EQ(ToJson(*environment)["server_version"], "9.8.7");
  EXPECT_EQ(ReadEnvironment(*client, "other").status().code(), absl::StatusCode::kNotFound);
}

TEST(LoadTest, TableColumnsStandUnderTheirTitles) {
  LoadResult result;
  result.clients = 64;
  result.seconds = 2;
  result.requests = 10;
  result.target_tokens = 3000;
  result.p99 = 0.1234;
  result.errors["UNAVAILABLE"] = 3;
  const std::string head = ResultHead(), line = ResultLine(result);
  EXPECT_EQ(head.size(), line.size());
  for (const char* title : {"requests/s", "target tokens/s", "p99 ms", "errors"}) {
    const size_t end = head.find(title) + std::string(title).size();
    EXPECT_NE(line[end - 1], ' ') << title;
    EXPECT_TRUE(line[end] == ' ' || line[end] == '\n') << title;
  }
  EXPECT_THAT(line, ::testing::AllOf(HasSubstr(" 5.00 "), HasSubstr(" 1500.0 "), HasSubstr(" 123.4 ")));
  EXPECT_EQ(ToJson(result)["target_tokens_per_second"], 1500);
}

}  // namespace
}  // namespace koine::load
