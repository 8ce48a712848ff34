#include "server/config/config.h"

#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "server/net/address.h"

namespace koine::server {
namespace {

// "NAME=DIR" or "DIR". A '/' before the '=' belongs to a path.
absl::Status ParseModels(const std::vector<std::string>& values, std::vector<ModelSource>* models) {
  std::set<std::string> names;
  for (const std::string& value : values) {
    const size_t equals = value.find('=');
    ModelSource source;
    if (equals == std::string::npos || value.find('/') < equals) {
      source.directory = value;
    } else {
      source.name = value.substr(0, equals);
      source.directory = value.substr(equals + 1);
      if (source.name.empty())
        return absl::InvalidArgumentError(absl::StrCat("--model ", value, ": the name is empty"));
      if (!names.insert(source.name).second) {
        return absl::InvalidArgumentError(absl::StrCat("--model: two models are called ", source.name));
      }
    }
    if (source.directory.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--model ", value, ": the folder is missing"));
    }
    models->push_back(std::move(source));
  }
  return absl::OkStatus();
}

// The quota of cgroup v2 ("MAX PERIOD" or "max PERIOD"), else of v1 (two files); 0 if there is none.
double CgroupProcessors(const std::string& root) {
  double quota = 0, period = 0;
  std::string text;
  if (std::ifstream file(absl::StrCat(root, "/cpu.max")); file >> text >> period) {
    if (text == "max" || period <= 0 || !absl::SimpleAtod(text, &quota)) return 0;
    return quota / period;
  }
  std::ifstream quota_file(absl::StrCat(root, "/cpu/cpu.cfs_quota_us"));
  std::ifstream period_file(absl::StrCat(root, "/cpu/cpu.cfs_period_us"));
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0) return quota / period;
  return 0;
}

std::string Environment(const std::string& name) {
  return absl::StrCat("KOINE_", absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}})));
}

// The table. Values of `config` before parsing are the defaults.
class Table {
 public:
  explicit Table(Config* config)
      : config_(*config),
        app_("Koine: serves shared-attention multilingual models."),
        drain_delay_(absl::ToDoubleSeconds(config->drain_delay)),
        drain_timeout_(absl::ToDoubleSeconds(config->drain_timeout)) {
    app_.name("koine-server");
    app_.option_defaults()->always_capture_default();
    // The file is read before the environment, so the variable that names it is taken here.
    const char* file = std::getenv("KOINE_CONFIG");
    const std::string default_file = file == nullptr ? "" : file;
    app_.set_config("--config", default_file, "Configuration file (TOML or INI): one key for each option",
                    !default_file.empty());
    app_.allow_config_extras(CLI::config_extras_mode::error);
    app_.get_formatter()->column_width(34);
    app_.set_version_flag("--version", "");

    const std::string models = "Model";
    Add("model", models_, "Folder of a model, or NAME=FOLDER; may be repeated (';' between several in KOINE_MODEL)")
        ->delimiter(';')
        ->group(models);
    Add("precision", precision_, "What products compute in; auto: bf16 where the processor has it, else f32")
        ->check(CLI::IsMember({"auto", "f32", "bf16", "int8"}))
        ->group(models);

    Bytes("language-memory", config_.language_memory,
          "Memory of loaded languages, for each model; languages load at their first request and the least recently "
          "used give way. 0: no bound, all load before the first request",
          0)
        ->group(models);
    Add("pin", config_.pinned,
        "Language to load at the start and never evict; may be repeated (';' between several in KOINE_PIN). With "
        "several models: NAME=CODE")
        ->delimiter(';')
        ->group(models);

    const std::string engine = "Engine (speed and memory, never results)";
    Number("workers", config_.workers, 0, 1024, "Engine threads; 0: processors / threads")->group(engine);
    Number("threads", config_.threads, 0, 1024, "Threads of each worker's products; 0: 1")->group(engine);
    Number("max-batch-rows", config_.max_batch_rows, 1, 4096, "Hypotheses that one step advances at most")
        ->group(engine);
    Number("max-batch-tokens", config_.max_batch_tokens, 1, 1 << 20, "Source tokens that one admission encodes at most")
        ->group(engine);
    Bytes("kv-cache-bytes", config_.kv_cache_bytes, "Cached keys and values of each worker at most")->group(engine);
    Number("text-workers", config_.text_workers, 1, 256, "Threads that tokenise and detokenise")->group(engine);

    const std::string limits = "Limits";
    Number("max-items", config_.max_items, 1, 1 << 20, "Items of one request")->group(limits);
    Number("max-characters", config_.max_characters, 1, 1 << 26, "Characters of one text")->group(limits);
    Number("max-beams", config_.max_beams, 1, 1024, "Largest beam_size")->group(limits);
    Number("max-tokens", config_.max_tokens, 1, 1 << 20, "Largest max_tokens")->group(limits);
    Bytes("max-message-bytes", config_.max_message_bytes, "Size of a request and of a reply")->group(limits);
    Number("queue-items", config_.queue_items, 1, 1 << 24, "Sentences that may wait, for each model")->group(limits);
    Number("queue-tokens", config_.queue_tokens, 1, 1 << 30, "Source tokens that may wait, for each model")
        ->group(limits);
    Bytes("inflight-bytes", config_.inflight_bytes, "Bytes of requests in flight, for each model")->group(limits);

    const std::string serving = "Serving";
    Add("listen", config_.listen, "Address of the gRPC port, HOST:PORT; port 0 takes a free one")->group(serving);
    Flag("reflection", config_.reflection, "Server reflection; --no-reflection switches it off")->group(serving);
    Seconds("max-connection-age", max_connection_age_,
            "Age at which connections are renewed, so that new servers get traffic; 0: never")
        ->group(serving);
    Seconds("drain-delay", drain_delay_, "After a stop signal: how long to serve on while balancers notice")
        ->group(serving);
    Seconds("drain-timeout", drain_timeout_, "Then: how long calls in flight may take to finish")->group(serving);
    Add("http", config_.http,
        "Address of the HTTP port (health, metrics, parameters); port 0 takes a free one, off switches it off")
        ->group(serving);
    Flag("admin", config_.admin, "Let callers load, unload and rescan languages (service koine.v1.Admin)")
        ->group(serving);

    const std::string watching = "Watching";
    Add("log-level", config_.log_level, "Lowest level that is logged, to standard error")
        ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
        ->group(watching);
    Add("trace-file", config_.trace_file, "Write one line of JSON for each engine step to this file")->group(watching);
    app_.add_flag("--healthcheck", config_.healthcheck,
                  "Ask the server on --listen's port for its health, and exit with 0 if it serves")
        ->group(watching);
  }

  CLI::App& app() { return app_; }

  // After parsing.
  absl::Status Settle() {
    if (config_.http == "off") config_.http.clear();
    if (precision_ == "int8") {
      return absl::UnimplementedError("--precision int8 is not implemented in this version: take auto, f32 or bf16");
    }
    config_.precision = precision_ == "f32"    ? PrecisionChoice::kF32
                        : precision_ == "bf16" ? PrecisionChoice::kBF16
                                               : PrecisionChoice::kAuto;
    config_.max_connection_age = absl::Seconds(max_connection_age_);
    config_.drain_delay = absl::Seconds(drain_delay_);
    config_.drain_timeout = absl::Seconds(drain_timeout_);
    if (config_.threads == 0) config_.threads = 1;
    if (config_.workers == 0) config_.workers = std::max(1, AvailableProcessors() / config_.threads);
    absl::Status status = ParseModels(models_, &config_.models);
    if (!status.ok()) return status;
    for (const auto& [flag, address] : {std::pair("--listen", &config_.listen), std::pair("--http", &config_.http)}) {
      if (address == &config_.http && address->empty()) continue;  // off
      status = ParseAddress(*address).status();
      if (!status.ok()) return absl::Status(status.code(), absl::StrCat(flag, ": ", std::string(status.message())));
    }
    if (config_.healthcheck) return status;
    if (config_.models.empty()) return absl::InvalidArgumentError("--model is missing: name the folder of a model");
    return CheckConfig(config_);
  }

 private:
  template <typename T>
  CLI::Option* Add(const std::string& name, T& value, const std::string& description) {
    return app_.add_option(absl::StrCat("--", name), value, description)->envname(Environment(name));
  }

  template <typename T>
  CLI::Option* Number(const std::string& name, T& value, int64_t low, int64_t high, const std::string& description) {
    // CLI11's own check calls what is no whole number out of range.
    const auto check = [low, high](const std::string& text) {
      int64_t number = 0;
      if (absl::SimpleAtoi(text, &number) && number >= low && number <= high) return std::string();
      return absl::StrCat("must be a whole number from ", low, " to ", high, ", not ", text);
    };
    return Add(name, value, description)->check(CLI::Validator(check, absl::StrCat("[", low, "..", high, "]")));
  }

  CLI::Option* Seconds(const std::string& name, double& value, const std::string& description) {
    // CLI11's own check lets NaN pass.
    const auto check = [](const std::string& text) {
      double seconds = 0;
      if (absl::SimpleAtod(text, &seconds) && seconds >= 0 && seconds <= 86'400) return std::string();
      return absl::StrCat("must be a number of seconds from 0 to 86400, not ", text);
    };
    return Add(name, value, description)->check(CLI::Validator(check, ""))->type_name("SECONDS");
  }

  // Accepts 4194304, 4MiB, 4MB (10^6).
  CLI::Option* Bytes(const std::string& name, int64_t& value, const std::string& description, int64_t least = 1) {
    return Add(name, value, description)
        ->transform(CLI::AsSizeValue(true))
        ->check(CLI::Range(least, int64_t{1} << 50).description(""))
        ->type_name("BYTES");
  }

  CLI::Option* Flag(const std::string& name, bool& value, const std::string& description) {
    return app_.add_flag(absl::StrCat("--", name, ",!--no-", name), value, description)->envname(Environment(name));
  }

  Config& config_;
  CLI::App app_;
  std::vector<std::string> models_;
  std::string precision_ = "auto";
  double max_connection_age_ = 0, drain_delay_, drain_timeout_;
};

}  // namespace

absl::Status CheckConfig(const Config& config) {
  std::vector<std::string> faults;
  const auto require = [&faults](const char* small, int64_t value, const char* large, int64_t bound, const char* why) {
    if (value <= bound) return;
    faults.push_back(absl::StrCat("--", small, " ", value, " is more than --", large, " ", bound, ": ", why));
  };
  require("max-beams", config.max_beams, "max-batch-rows", config.max_batch_rows,
          "a beam search of that width would never fit into a step");
  require("max-items", config.max_items, "queue-items", config.queue_items,
          "a request of that many items would always be refused");
  require("max-message-bytes", config.max_message_bytes, "inflight-bytes", config.inflight_bytes,
          "a request of that size would always be refused");
  require("max-batch-tokens", config.max_batch_tokens, "queue-tokens", config.queue_tokens, "a batch would never fill");
  require("max-message-bytes", config.max_message_bytes, "(largest message)", std::numeric_limits<int32_t>::max(),
          "gRPC counts in 32 bits");
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(faults, "; "));
}

int AvailableProcessors(const std::string& cgroup_root) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int allowed = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const double quota = CgroupProcessors(cgroup_root);
  if (quota <= 0) return std::max(1, allowed);
  return std::max(1, std::min(allowed, static_cast<int>(std::ceil(quota))));
}

ParsedConfig ParseConfig(int argc, const char* const* argv, const std::string& version) {
  ParsedConfig parsed;
  const auto exit_with = [&parsed](int code, std::string text) {
    parsed.exit = true;
    parsed.exit_code = code;
    parsed.text = std::move(text);
  };
  try {
    Table table(&parsed.config);
    try {
      table.app().parse(argc, argv);
    } catch (const CLI::CallForVersion&) {
      exit_with(0, absl::StrCat("koine-server ", version, "\n"));
      return parsed;
    } catch (const CLI::CallForHelp&) {
      exit_with(0, table.app().help());
      return parsed;
    } catch (const CLI::ParseError& error) {
      exit_with(2, absl::StrCat("koine-server: ", error.what(), "\n"));
      return parsed;
    }
    const absl::Status status = table.Settle();
    if (!status.ok()) exit_with(2, absl::StrCat("koine-server: ", std::string(status.message()), "\n"));
  } catch (const std::exception& error) {
    exit_with(2, absl::StrCat("koine-server: ", error.what(), "\n"));
  }
  return parsed;
}

}  // namespace koine::server
