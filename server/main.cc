// koine-server: loads models, serves them, and ends in good order.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/matmul/matmul.h"
#include "model_loader/model/prompts.h"
#include "server/config/config.h"
#include "server/http/http_server.h"
#include "server/languages/language_store.h"
#include "server/metrics/metrics.h"
#include "server/net/listener.h"
#include "server/rpc/server.h"
#include "server/rpc/signals.h"
#include "server/schedule/queue.h"
#include "server/text/introspection.h"
#include "server/text/model_host.h"
#include "server/text/worker_pool.h"

namespace koine::server {
namespace {

// One line of JSON for each engine step. Thread-safe.
class TraceFile {
 public:
  explicit TraceFile(const std::string& path) : file_(path, std::ios::app) {}
  bool ok() const { return file_.good(); }

  void Write(const std::string& model, const StepTrace& step) {
    const nlohmann::json line = {{"time", absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch())},
                                 {"model", model},
                                 {"worker", step.worker},
                                 {"encoded_tokens", step.encoded_tokens},
                                 {"encoded_languages", step.encoded_languages},
                                 {"rows", step.rows},
                                 {"languages", step.languages},
                                 {"sentences", step.sentences},
                                 {"shared_products", step.shared_products},
                                 {"language_products", step.language_products},
                                 {"table_bytes", step.table_bytes},
                                 {"seconds", step.seconds},
                                 {"product_seconds", step.product_seconds}};
    const std::lock_guard<std::mutex> lock(mutex_);
    file_ << line.dump() << '\n' << std::flush;
  }

 private:
  std::mutex mutex_;
  std::ofstream file_;
};

absl::StatusOr<kernels::Precision> ChoosePrecision(PrecisionChoice choice) {
  if (choice == PrecisionChoice::kF32) return kernels::Precision::kF32;
  const absl::Status native = kernels::CheckPrecision(kernels::Precision::kBF16);
  if (native.ok()) return kernels::Precision::kBF16;
  if (choice == PrecisionChoice::kAuto) return kernels::Precision::kF32;
  return absl::FailedPreconditionError(absl::StrCat("--precision bf16: ", std::string(native.message())));
}

// Languages that --pin names for this model: CODE for every model, NAME=CODE for one.
std::vector<std::string> PinnedOf(const Config& config, const std::string& model) {
  std::vector<std::string> pinned;
  for (const std::string& pin : config.pinned) {
    const size_t equals = pin.find('=');
    if (equals == std::string::npos) {
      pinned.push_back(pin);
    } else if (pin.substr(0, equals) == model) {
      pinned.push_back(pin.substr(equals + 1));
    }
  }
  return pinned;
}

absl::Status CheckPins(const Config& config, const ModelHosts& hosts) {
  for (const std::string& pin : config.pinned) {
    const size_t equals = pin.find('=');
    if (equals == std::string::npos) continue;
    const absl::Status model = hosts.Find(pin.substr(0, equals)).status();
    if (!model.ok()) return absl::Status(model.code(), absl::StrCat("--pin ", pin, ": ", std::string(model.message())));
  }
  return absl::OkStatus();
}

std::string WithPort(const std::string& address, int port) {
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
}

// Requests would be refused one by one; the operator is told once.
void WarnOfSmallMemory(const ModelHost& host, int64_t budget) {
  if (budget == 0) return;
  std::vector<std::pair<int64_t, std::string>> sizes;
  for (const LanguageInfo& info : host.languages->List()) {
    if (info.state != LanguageState::kFailed) sizes.emplace_back(info.plan.memory_bytes(), info.code);
  }
  std::sort(sizes.begin(), sizes.end());
  // A translation needs two languages at once.
  const bool alone = sizes.empty() || sizes.front().first > budget || !host.model->config().translates;
  const size_t together = alone ? 1 : 2;
  int64_t least = 0;
  std::string codes;
  for (size_t i = 0; i < std::min(together, sizes.size()); ++i) {
    least += sizes[i].first;
    absl::StrAppend(&codes, i == 0 ? "" : " and ", sizes[i].second);
  }
  if (least > budget) {
    spdlog::warn("{}: --language-memory {} holds no {}: the smallest, {}, needs {} bytes", host.name, budget,
                 alone ? "language" : "pair of languages", codes, least);
  }
}

// OK if one sentence of the greatest length, searched greedily, fits into an engine's cache.
absl::Status CheckCacheHoldsLongest(const ModelHost& host, const Config& config) {
  const model_loader::ModelConfig& model = host.model->config();
  const kernels::KvShape shape = host.model->transformer().kv_shape();
  if (shape.layers == 0) return absl::OkStatus();  // it does not decode
  Job longest;
  longest.source_ids.resize(static_cast<size_t>(model.longest_source()));
  longest.search.beam_size = 1;
  longest.search.max_tokens = static_cast<int>(std::min<int64_t>(config.max_tokens, model.architecture.max_positions));
  if (host.engine->CheckFits(longest).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--kv-cache-bytes ", config.kv_cache_bytes, " does not hold one sentence of ", longest.tokens(),
                   " tokens and its translation of ", longest.search.max_tokens, "; the least is ",
                   KvBlocksFor(longest) * shape.block_floats() * static_cast<int64_t>(sizeof(float))));
}

absl::StatusOr<std::unique_ptr<ModelHost>> LoadModel(const ModelSource& source, const Config& config,
                                                     kernels::Precision precision, WorkerPool* pool,
                                                     Rejections* rejections, Metrics* metrics, TraceFile* trace) {
  auto host = std::make_unique<ModelHost>();
  const absl::Time begin = absl::Now();
  model_loader::LoadOptions load;
  load.precision = precision;
  absl::StatusOr<std::shared_ptr<const model_loader::Model>> model = model_loader::Model::Open(source.directory, load);
  if (!model.ok()) return model.status();
  host->model = *std::move(model);
  host->name = source.name.empty() ? host->model->config().name : source.name;
  LanguageStoreOptions languages;
  languages.memory_budget = config.language_memory;
  languages.pinned = PinnedOf(config, host->name);
  languages.check = [model = host->model.get()](const model_loader::Language& language) {
    return model_loader::CheckPrompt(model->config(), language);
  };
  host->languages = std::make_unique<LanguageStore>(host->model, std::move(languages));
  absl::Status started = host->languages->Start();
  if (!started.ok()) return started;
  host->load_seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  WarnOfSmallMemory(*host, config.language_memory);

  QueueLimits queue;
  queue.max_items = config.queue_items;
  queue.max_tokens = config.queue_tokens;
  host->queue = std::make_unique<JobQueue>(queue);

  EngineOptions engine;
  engine.workers = config.workers;
  engine.threads = config.threads;
  engine.max_rows = config.max_batch_rows;
  engine.max_tokens = config.max_batch_tokens;
  engine.kv_cache_bytes = config.kv_cache_bytes;
  std::function<void(const StepTrace&)> on_step;
  if (trace != nullptr) on_step = [trace, name = host->name](const StepTrace& step) { trace->Write(name, step); };
  host->engine = std::make_unique<Engine>(host->model, host->queue.get(), engine, std::move(on_step));
  if (absl::Status holds = CheckCacheHoldsLongest(*host, config); !holds.ok()) return holds;

  TextServiceOptions text;
  text.limits.max_items = config.max_items;
  text.limits.max_characters = config.max_characters;
  text.limits.max_beams = config.max_beams;
  text.limits.max_tokens = config.max_tokens;
  text.limits.max_message_bytes = config.max_message_bytes;
  // The queue's worth, and what the engines may have taken out of it.
  text.max_inflight_items = config.queue_items + config.workers * config.max_batch_rows;
  text.max_inflight_bytes = config.inflight_bytes;
  TextService::Parts parts;
  parts.queue = host->queue.get();
  parts.pool = pool;
  parts.languages = host->languages.get();
  parts.rejections = rejections;
  parts.observer = metrics;
  parts.check_fits = [engine = host->engine.get()](const Job& job) { return engine->CheckFits(job); };
  absl::StatusOr<std::unique_ptr<TextService>> service = TextService::Create(host->name, std::move(parts), text);
  if (!service.ok()) return service.status();
  host->text = *std::move(service);
  return host;
}

absl::Status Serve(const Config& config, StopSignals* signals) {
  const absl::StatusOr<kernels::Precision> precision = ChoosePrecision(config.precision);
  if (!precision.ok()) return precision.status();
  std::unique_ptr<TraceFile> trace;
  if (!config.trace_file.empty()) {
    trace = std::make_unique<TraceFile>(config.trace_file);
    if (!trace->ok())
      return absl::NotFoundError(absl::StrCat("--trace-file ", config.trace_file, ": cannot be written"));
  }

  spdlog::info("up to {} open files", RaiseFileLimit());

  // First of all: probes are answered while models load.
  std::unique_ptr<HttpServer> http;
  if (!config.http.empty()) {
    HttpOptions http_options;
    http_options.listen = config.http;
    absl::StatusOr<std::unique_ptr<HttpServer>> started = HttpServer::Start(http_options);
    if (!started.ok()) return started.status();
    http = *std::move(started);
    spdlog::info("HTTP on {}", WithPort(config.http, http->port()));
  }

  Rejections rejections;
  Metrics metrics(KOINE_VERSION);
  WorkerPool pool(config.text_workers);
  std::vector<std::unique_ptr<ModelHost>> loaded;
  for (const ModelSource& source : config.models) {
    absl::StatusOr<std::unique_ptr<ModelHost>> host =
        LoadModel(source, config, *precision, &pool, &rejections, &metrics, trace.get());
    if (!host.ok()) {
      return absl::Status(host.status().code(), absl::StrCat("cannot load the model in ", source.directory, ": ",
                                                             std::string(host.status().message())));
    }
    for (const auto& other : loaded) {
      if (other->name == (*host)->name) {
        return absl::InvalidArgumentError(
            absl::StrCat("two models are called ", other->name, ": give them names with --model NAME=FOLDER"));
      }
    }
    const std::vector<LanguageInfo> languages = (*host)->languages->List();
    const auto in_memory = std::count_if(languages.begin(), languages.end(),
                                         [](const LanguageInfo& info) { return info.loaded != nullptr; });
    for (const LanguageInfo& info : languages) {
      if (info.state != LanguageState::kFailed) continue;
      spdlog::warn("{}: language {} is broken: {}", (*host)->name, info.code, std::string(info.failure.message()));
    }
    spdlog::info("loaded {} ({} languages, {} in memory, {}) from {} in {:.2f} s", (*host)->name, languages.size(),
                 in_memory, kernels::Name(*precision), source.directory, (*host)->load_seconds);
    loaded.push_back(*std::move(host));
  }
  const ModelHosts hosts(std::move(loaded));
  if (absl::Status pins = CheckPins(config, hosts); !pins.ok()) return pins;
  for (const auto& host : hosts.all()) host->engine->Start();

  RpcOptions options;
  options.listen = config.listen;
  options.max_message_bytes = config.max_message_bytes;
  options.reflection = config.reflection;
  options.admin = config.admin;
  options.max_connection_age = config.max_connection_age;
  options.version = KOINE_VERSION;
  absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start(options, &hosts, &pool, &rejections, &metrics);
  if (!server.ok()) return server.status();
  signals->Arm();
  (*server)->SetServing();
  if (http != nullptr) {
    HttpSources sources;
    sources.hosts = &hosts;
    sources.ready = [rpc = server->get()] { return rpc->Ready(); };
    sources.metrics = [&, rpc = server->get()] { return metrics.Scrape(rpc->facts(), rejections, hosts); };
    http->Attach(std::move(sources));
  }
  spdlog::info("listening on {} ({} workers, {} threads each, {})", WithPort(config.listen, (*server)->port()),
               config.workers, config.threads, kernels::MatmulBackend());

  while (true) {
    // The pause bounds how late health learns of a language that broke when it was loaded.
    const StopSignals::Event event = signals->Wait(absl::Milliseconds(500));
    if (event == StopSignals::Event::kStop) break;
    if (event == StopSignals::Event::kRescan) {
      for (const auto& host : hosts.all()) Rescan(*host);
    }
    (*server)->UpdateHealth();
  }
  spdlog::info("stopping: serving on for {}, then up to {} for calls in flight",
               absl::FormatDuration(config.drain_delay), absl::FormatDuration(config.drain_timeout));
  const bool clean = (*server)->Drain(config.drain_delay, config.drain_timeout);
  if (clean) {
    spdlog::info("stopped");
  } else {
    spdlog::warn("stopped; calls still in flight were ended");
  }
  // Until here probes are told that it drains.
  if (http != nullptr) http->Stop();
  server->reset();
  pool.Stop();
  return absl::OkStatus();
}

int Main(int argc, const char* const* argv) {
  StopSignals signals;  // first of all: no thread may run before it
  const ParsedConfig parsed = ParseConfig(argc, argv, KOINE_VERSION);
  if (parsed.exit) {
    (parsed.exit_code == 0 ? std::cout : std::cerr) << parsed.text << std::flush;
    return parsed.exit_code;
  }
  const Config& config = parsed.config;
  spdlog::set_default_logger(spdlog::stderr_color_mt("koine"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
  spdlog::set_level(spdlog::level::from_str(config.log_level));
  if (config.healthcheck) {
    const absl::Status health = CheckHealth(config.listen, absl::Seconds(3));
    if (health.ok()) return 0;
    std::cerr << "koine-server: " << health.message() << "\n";
    return 1;
  }
  const absl::Status status = Serve(config, &signals);
  if (status.ok()) return 0;
  std::cerr << "koine-server: " << status.message() << "\n";
  return 1;
}

}  // namespace
}  // namespace koine::server

int main(int argc, char** argv) { return koine::server::Main(argc, argv); }
