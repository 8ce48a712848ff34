#include "server/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace koine::server {
namespace {

using ::testing::HasSubstr;

ParsedConfig Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "koine-server");
  return ParseConfig(static_cast<int>(arguments.size()), arguments.data(), "1.2.3");
}

class ConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("koine_config_test_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_ / "cpu");
  }
  void TearDown() override {
    for (const std::string& name : variables_) unsetenv(name.c_str());
    std::filesystem::remove_all(folder_);
  }
  void Set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    variables_.push_back(name);
  }
  std::string Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ / name;
    std::ofstream(path) << text;
    return path;
  }

  std::filesystem::path folder_;
  std::vector<std::string> variables_;
};

TEST_F(ConfigTest, DefaultsAreTheDocumentedOnes) {
  const ParsedConfig parsed = Parse({"--model", "some/folder"});
  ASSERT_FALSE(parsed.exit) << parsed.text;
  const Config& config = parsed.config;
  ASSERT_EQ(config.models.size(), 1U);
  EXPECT_EQ(config.models[0].name, "");
  EXPECT_EQ(config.models[0].directory, "some/folder");
  EXPECT_EQ(config.precision, PrecisionChoice::kAuto);
  EXPECT_EQ(config.workers, AvailableProcessors());
  EXPECT_EQ(config.threads, 1);
  EXPECT_EQ(config.max_items, 1024);
  EXPECT_EQ(config.max_characters, 32'768);
  EXPECT_EQ(config.max_beams, 32);
  EXPECT_EQ(config.max_tokens, 1024);
  EXPECT_EQ(config.max_message_bytes, 4 << 20);
  EXPECT_EQ(config.queue_items, 4096);
  EXPECT_EQ(config.queue_tokens, 262'144);
  EXPECT_EQ(config.listen, "0.0.0.0:50051");
  EXPECT_EQ(config.http, "0.0.0.0:8080");
  EXPECT_EQ(config.language_memory, 0);
  EXPECT_TRUE(config.pinned.empty());
  EXPECT_FALSE(config.admin);
  EXPECT_TRUE(config.reflection);
  EXPECT_EQ(config.drain_delay, absl::Seconds(5));
  EXPECT_EQ(config.drain_timeout, absl::Seconds(30));
}

TEST_F(ConfigTest, EveryFlagArrives) {
  const ParsedConfig parsed = Parse({"--model",
                                     "a=x/y",
                                     "--model",
                                     "z/b=c",
                                     "--precision",
                                     "bf16",
                                     "--workers",
                                     "3",
                                     "--threads",
                                     "2",
                                     "--max-batch-rows",
                                     "128",
                                     "--max-batch-tokens",
                                     "500",
                                     "--kv-cache-bytes",
                                     "512MiB",
                                     "--max-items",
                                     "7",
                                     "--max-characters",
                                     "99",
                                     "--max-beams",
                                     "5",
                                     "--max-tokens",
                                     "77",
                                     "--queue-items",
                                     "50",
                                     "--queue-tokens",
                                     "6000",
                                     "--max-message-bytes",
                                     "1MB",
                                     "--text-workers",
                                     "4",
                                     "--drain-delay",
                                     "0.5",
                                     "--drain-timeout",
                                     "2",
                                     "--no-reflection",
                                     "--log-level",
                                     "debug",
                                     "--trace-file",
                                     "t.jsonl",
                                     "--listen",
                                     "127.0.0.1:0",
                                     "--max-connection-age",
                                     "60",
                                     "--inflight-bytes",
                                     "2GiB",
                                     "--http",
                                     "127.0.0.1:0",
                                     "--language-memory",
                                     "3GiB",
                                     "--pin",
                                     "de",
                                     "--pin",
                                     "a=fr",
                                     "--admin"});
  ASSERT_FALSE(parsed.exit) << parsed.text;
  const Config& config = parsed.config;
  EXPECT_EQ(config.http, "127.0.0.1:0");
  EXPECT_EQ(config.language_memory, int64_t{3} << 30);
  EXPECT_THAT(config.pinned, ::testing::ElementsAre("de", "a=fr"));
  EXPECT_TRUE(config.admin);
  ASSERT_EQ(config.models.size(), 2U);
  EXPECT_EQ(config.models[0].name, "a");
  EXPECT_EQ(config.models[0].directory, "x/y");
  EXPECT_EQ(config.models[1].name, "");  // the '=' lies inside a path
  EXPECT_EQ(config.models[1].directory, "z/b=c");
  EXPECT_EQ(config.precision, PrecisionChoice::kBF16);
  EXPECT_EQ(config.workers, 3);
  EXPECT_EQ(config.threads, 2);
  EXPECT_EQ(config.max_batch_rows, 128);
  EXPECT_EQ(config.max_batch_tokens, 500);
  EXPECT_EQ(config.kv_cache_bytes, int64_t{512} << 20);
  EXPECT_EQ(config.max_items, 7);
  EXPECT_EQ(config.max_characters, 99);
  EXPECT_EQ(config.max_beams, 5);
  EXPECT_EQ(config.max_tokens, 77);
  EXPECT_EQ(config.queue_items, 50);
  EXPECT_EQ(config.queue_tokens, 6000);
  EXPECT_EQ(config.max_message_bytes, 1'000'000);
  EXPECT_EQ(config.inflight_bytes, int64_t{2} << 30);
  EXPECT_EQ(config.text_workers, 4);
  EXPECT_EQ(config.drain_delay, absl::Milliseconds(500));
  EXPECT_EQ(config.drain_timeout, absl::Seconds(2));
  EXPECT_EQ(config.max_connection_age, absl::Seconds(60));
  EXPECT_FALSE(config.reflection);
  EXPECT_EQ(config.log_level, "debug");
  EXPECT_EQ(config.trace_file, "t.jsonl");
  EXPECT_EQ(config.listen, "127.0.0.1:0");
}

TEST_F(ConfigTest, TheCommandLineWinsOverTheFileAndTheFileOverTheEnvironment) {
  const std::string file = Write("koine.toml",
                                 "model = [\"one=a/b\", \"c\"]\nmax-items = 30\nmax-beams = 3\n"
                                 "reflection = false\nkv-cache-bytes = \"64MiB\"\n");
  Set("KOINE_MAX_ITEMS", "10");
  Set("KOINE_MAX_BEAMS", "10");
  Set("KOINE_MAX_TOKENS", "10");
  const ParsedConfig parsed = Parse({"--config", file.c_str(), "--max-items", "20"});
  ASSERT_FALSE(parsed.exit) << parsed.text;
  EXPECT_EQ(parsed.config.max_items, 20);
  EXPECT_EQ(parsed.config.max_beams, 3);
  EXPECT_EQ(parsed.config.max_tokens, 10);
  EXPECT_FALSE(parsed.config.reflection);
  EXPECT_EQ(parsed.config.kv_cache_bytes, 64 << 20);
  ASSERT_EQ(parsed.config.models.size(), 2U);
  EXPECT_EQ(parsed.config.models[0].name, "one");
}

TEST_F(ConfigTest, TheEnvironmentAloneIsEnough) {
  Set("KOINE_MODEL", "one=a/b;c/d");
  Set("KOINE_REFLECTION", "false");
  Set("KOINE_KV_CACHE_BYTES", "1GiB");
  const ParsedConfig parsed = Parse({});
  ASSERT_FALSE(parsed.exit) << parsed.text;
  ASSERT_EQ(parsed.config.models.size(), 2U);
  EXPECT_EQ(parsed.config.models[1].directory, "c/d");
  EXPECT_FALSE(parsed.config.reflection);

  Set("KOINE_CONFIG", Write("env.toml", "max-items = 30\n"));
  EXPECT_EQ(Parse({}).config.max_items, 30);
  Set("KOINE_CONFIG", (folder_ / "absent.toml").string());
  EXPECT_EQ(Parse({}).exit_code, 2);
}

TEST_F(ConfigTest, MistakesAreNamed) {
  const std::pair<std::vector<const char*>, const char*> mistakes[] = {
      {{}, "--model"},
      {{"--model", "a", "--bogus", "1"}, "--bogus"},
      {{"--model", "a", "--max-beams", "many"}, "--max-beams"},
      {{"--model", "a", "--max-beams", "0"}, "--max-beams"},
      {{"--model", "a", "--kv-cache-bytes", "12parsecs"}, "--kv-cache-bytes"},
      {{"--model", "a", "--drain-delay", "-1"}, "--drain-delay"},
      {{"--model", "a", "--precision", "f64"}, "--precision"},
      {{"--model", "=a"}, "name is empty"},
      {{"--model", "a="}, "folder is missing"},
      {{"--model", "n=a", "--model", "n=b"}, "two models are called n"},
      {{"--model", "a", "--precision", "int8"}, "int8"},
      {{"--model", "a", "--language-memory", "-1"}, "--language-memory"},
      {{"--model", "a", "--listen", "127.0.0.1:99999"}, "--listen: address \"127.0.0.1:99999\": the port must be"},
      {{"--model", "a", "--listen", "nonsense"}, "--listen: address \"nonsense\": must be HOST:PORT"},
      {{"--model", "a", "--http", "localhost"}, "--http: address \"localhost\""},
      {{"--healthcheck", "--listen", "x:y"}, "--listen"},
      {{"--model", "a", "--workers", "1.5"}, "--workers: must be a whole number from 0 to 1024, not 1.5"},
      {{"--model", "a", "--max-tokens", "4294967297"}, "--max-tokens: must be a whole number"},
  };
  for (const auto& [arguments, expected] : mistakes) {
    const ParsedConfig parsed = Parse(arguments);
    EXPECT_TRUE(parsed.exit) << expected;
    EXPECT_EQ(parsed.exit_code, 2) << expected;
    EXPECT_THAT(parsed.text, HasSubstr(expected));
    EXPECT_EQ(std::count(parsed.text.begin(), parsed.text.end(), '\n'), 1) << parsed.text;
  }
}

TEST_F(ConfigTest, SecondsAreFiniteNumbers) {
  for (const char* flag : {"--drain-delay", "--drain-timeout", "--max-connection-age"}) {
    for (const char* value : {"nan", "NaN", "-nan", "inf", "infinity", "-inf", "1e300", "86401", "-0.1", "x", ""}) {
      const ParsedConfig parsed = Parse({"--model", "a", flag, value});
      EXPECT_EQ(parsed.exit_code, 2) << flag << " " << value;
      EXPECT_THAT(parsed.text, HasSubstr(flag));
    }
    EXPECT_FALSE(Parse({"--model", "a", flag, "0.25"}).exit);
  }
  Set("KOINE_DRAIN_DELAY", "nan");
  EXPECT_EQ(Parse({"--model", "a"}).exit_code, 2);
}

TEST_F(ConfigTest, OffSwitchesHttpOffAndZeroTheLanguageBudget) {
  const ParsedConfig parsed = Parse({"--model", "a", "--http", "off", "--language-memory", "0"});
  ASSERT_FALSE(parsed.exit) << parsed.text;
  EXPECT_EQ(parsed.config.http, "");
  EXPECT_EQ(parsed.config.language_memory, 0);
}

TEST_F(ConfigTest, LanguageOptionsComeFromTheEnvironmentAndTheFile) {
  Set("KOINE_PIN", "de;fr");
  Set("KOINE_LANGUAGE_MEMORY", "1GiB");
  const std::string file = Write("koine.toml", "admin = true\nhttp = \"127.0.0.1:9\"\nlanguage-memory = \"2GiB\"\n");
  const ParsedConfig parsed = Parse({"--model", "a", "--config", file.c_str()});
  ASSERT_FALSE(parsed.exit) << parsed.text;
  EXPECT_THAT(parsed.config.pinned, ::testing::ElementsAre("de", "fr"));
  EXPECT_TRUE(parsed.config.admin);
  EXPECT_EQ(parsed.config.http, "127.0.0.1:9");
  EXPECT_EQ(parsed.config.language_memory, int64_t{2} << 30) << "the file wins over the environment";
}

TEST_F(ConfigTest, AnUnknownKeyOfTheFileIsAnError) {
  const std::string file = Write("koine.toml", "max-itmes = 30\n");
  const ParsedConfig parsed = Parse({"--model", "a", "--config", file.c_str()});
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_THAT(parsed.text, HasSubstr("max-itmes"));
  EXPECT_EQ(Parse({"--model", "a", "--config", "/nonexistent.toml"}).exit_code, 2);
}

TEST_F(ConfigTest, LimitsThatCannotHoldTogetherAreAllReported) {
  const ParsedConfig parsed =
      Parse({"--model", "a", "--max-batch-rows", "8", "--queue-items", "100", "--inflight-bytes", "1MiB"});
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_THAT(parsed.text, HasSubstr("--max-beams 32 is more than --max-batch-rows 8"));
  EXPECT_THAT(parsed.text, HasSubstr("--max-items 1024 is more than --queue-items 100"));
  EXPECT_THAT(parsed.text, HasSubstr("--max-message-bytes"));
}

TEST_F(ConfigTest, HelpNamesEveryOptionAndItsVariable) {
  const ParsedConfig parsed = Parse({"--help"});
  EXPECT_TRUE(parsed.exit);
  EXPECT_EQ(parsed.exit_code, 0);
  for (const char* name : {"--model", "--precision", "--workers", "--threads", "--listen", "--max-batch-rows",
                           "--drain-delay", "--config", "KOINE_MAX_BATCH_ROWS", "KOINE_LISTEN", "--healthcheck"}) {
    EXPECT_THAT(parsed.text, HasSubstr(name));
  }
  EXPECT_EQ(Parse({"--version"}).text, "koine-server 1.2.3\n");
}

TEST_F(ConfigTest, AHealthCheckNeedsNoModel) {
  const ParsedConfig parsed = Parse({"--healthcheck"});
  EXPECT_FALSE(parsed.exit) << parsed.text;
  EXPECT_TRUE(parsed.config.healthcheck);
}

TEST_F(ConfigTest, ProcessorsAreThoseOfTheMaskAndTheQuota) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  const int mask = CPU_COUNT(&set);
  EXPECT_EQ(AvailableProcessors((folder_ / "none").string()), mask);
  Write("cpu.max", "max 100000\n");
  EXPECT_EQ(AvailableProcessors(folder_.string()), mask);
  Write("cpu.max", "50000 100000\n");  // half a processor
  EXPECT_EQ(AvailableProcessors(folder_.string()), 1);
  Write("cpu.max", "150000 100000\n");
  EXPECT_EQ(AvailableProcessors(folder_.string()), std::min(mask, 2));
  Write("cpu.max", "99900000 100000\n");
  EXPECT_EQ(AvailableProcessors(folder_.string()), mask);
  std::filesystem::remove(folder_ / "cpu.max");
  Write("cpu/cpu.cfs_quota_us", "100000\n");  // version 1
  Write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(AvailableProcessors(folder_.string()), 1);
  Write("cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(AvailableProcessors(folder_.string()), mask);
}

}  // namespace
}  // namespace koine::server
