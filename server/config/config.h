// What an operator may set: one table for flags, environment and configuration file.
//
// Every option NAME is `--NAME` on the command line, `NAME = value` in the file given by --config (TOML or INI), and
// KOINE_NAME (upper case, '_' for '-') in the environment. Where several set it, the command line wins over the file,
// and the file over the environment. Unknown flags and unknown keys are errors. Nothing else in the server reads the
// environment.
#ifndef KOINE_SERVER_CONFIG_CONFIG_H_
#define KOINE_SERVER_CONFIG_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace koine::server {

struct ModelSource {
  std::string name;  // empty: the name in model.json
  std::string directory;
};

enum class PrecisionChoice : uint8_t { kAuto, kF32, kBF16 };

struct Config {
  std::vector<ModelSource> models;
  PrecisionChoice precision = PrecisionChoice::kAuto;
  int64_t language_memory = 0;      // bytes of loaded languages, for each model; 0: no bound
  std::vector<std::string> pinned;  // languages never to be evicted

  // Engine. workers * threads is meant to be the number of processors; both are settled (never 0) after parsing.
  int workers = 0;
  int threads = 0;
  int64_t max_batch_rows = 64;
  int64_t max_batch_tokens = 4096;
  int64_t kv_cache_bytes = int64_t{1} << 30;  // of each worker

  // Limits of one request, and of what may wait.
  int64_t max_items = 1024;
  int64_t max_characters = 32'768;
  int max_beams = 32;
  int max_tokens = 1024;
  int64_t max_message_bytes = 4 << 20;
  int64_t queue_items = 4096;
  int64_t queue_tokens = 262'144;
  int64_t inflight_bytes = 256 << 20;
  int text_workers = 2;

  // Serving.
  std::string listen = "0.0.0.0:50051";
  std::string http = "0.0.0.0:8080";  // empty after parsing where it was "off"
  bool admin = false;
  bool reflection = true;
  absl::Duration max_connection_age = absl::ZeroDuration();  // 0: for ever
  absl::Duration drain_delay = absl::Seconds(5);
  absl::Duration drain_timeout = absl::Seconds(30);

  std::string log_level = "info";
  std::string trace_file;
  bool healthcheck = false;
};

struct ParsedConfig {
  // True: print `text` (to standard output if exit_code is 0, else to standard error) and exit.
  bool exit = false;
  int exit_code = 0;
  std::string text;
  Config config;
};

// Parses the command line, the file that it names, and the environment. Never exits and never throws.
ParsedConfig ParseConfig(int argc, const char* const* argv, const std::string& version);

// INVALID_ARGUMENT naming every pair of limits that cannot hold together.
absl::Status CheckConfig(const Config& config);

// Processors this process may really use, at least 1: its affinity mask, and the processor quota of its control group
// (rounded up). `cgroup_root` is "/sys/fs/cgroup", but for tests.
int AvailableProcessors(const std::string& cgroup_root = "/sys/fs/cgroup");

}  // namespace koine::server

#endif  // KOINE_SERVER_CONFIG_CONFIG_H_
