#include "clients/load/load.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <limits>
#include <mutex>
#include <random>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace koine::load {
namespace {

using client::Client;

// Requests are made before the clock starts: about 2,000 of them are enough that no batch of 64 sees the same texts
// soon again, and cost a few megabytes at most.
constexpr size_t kPreparedRequests = 2048;
// One connection carries many calls, but its bytes go through one thread at a time.
constexpr int kMaxConnections = 8;
// A client whose request failed waits so long before the next one: a server that refuses must not be hammered.
constexpr absl::Duration kPauseAfterError = absl::Milliseconds(20);

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct EngineTotals {
  int64_t steps = 0, rows = 0;
  double languages = 0;
};

absl::StatusOr<v1::ModelStats> StatsOf(const Client& client, const std::string& model) {
  const auto stats = client.GetServerStats();
  if (!stats.ok()) return stats.status();
  for (const v1::ModelStats& candidate : stats->models()) {
    if (model.empty() || candidate.model() == model) return candidate;
  }
  return absl::NotFoundError(absl::StrCat("the server has no model \"", model, "\""));
}

absl::StatusOr<EngineTotals> TotalsOf(const Client& client, const std::string& model) {
  const auto stats = StatsOf(client, model);
  if (!stats.ok()) return stats.status();
  const v1::EngineStats& engine = stats->engine();
  return EngineTotals{engine.steps(), engine.step_rows(),
                      engine.mean_step_languages() * static_cast<double>(engine.steps())};
}

// The clients of one run. Callbacks run on gRPC's threads; a client's own fields are touched only between its request
// and its answer, so by one thread at a time.
class ClosedLoop {
 public:
  ClosedLoop(const LoadOptions& options, std::vector<Client> connections, int clients)
      : options_(options), connections_(std::move(connections)), clients_(static_cast<size_t>(clients)) {}

  void Prepare(const Texts& texts) {
    std::mt19937_64 random(options_.seed);
    std::vector<Pair> pairs = options_.pairs;
    for (size_t i = 0; i < kPreparedRequests; ++i) {
      if (i % pairs.size() == 0) std::shuffle(pairs.begin(), pairs.end(), random);
      const Pair& pair = pairs[i % pairs.size()];
      const std::vector<std::string>& lines = texts.at(pair.source);
      const auto fill = [&](auto* request) {
        request->set_model(options_.model);
        for (int k = 0; k < options_.items; ++k) request->add_items()->set_text(lines[random() % lines.size()]);
      };
      if (options_.encode) {
        fill(&encodes_.emplace_back());
        encodes_.back().set_language(pair.source);
      } else {
        fill(&translates_.emplace_back());
        translates_.back().set_source(pair.source);
        translates_.back().set_target(pair.target);
        translates_.back().mutable_options()->set_beam_size(options_.beam);
      }
    }
  }

  void Start() {
    active_ = static_cast<int>(clients_.size());
    for (size_t i = 0; i < clients_.size(); ++i) Next(i);
  }
  void Measure(bool on) { measuring_.store(on); }
  // Before Start: exactly `count` requests are sent.
  void Allow(int64_t count) { allowed_.store(count); }

  // Starts clients again that paused. Returns when `until` has come, or earlier when all clients have ended.
  void RunUntil(absl::Time until) {
    while (absl::Now() < until) {
      std::vector<size_t> ready;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        // Not more often than the pause, so that every paused client has waited about that long.
        const absl::Duration wait = std::min(until - absl::Now(), kPauseAfterError);
        ended_.wait_for(lock, absl::ToChronoNanoseconds(std::max(wait, absl::ZeroDuration())),
                        [&] { return active_ == 0; });
        if (active_ == 0) return;
        ready.swap(paused_);
      }
      for (const size_t i : ready) Next(i);
    }
  }

  // No further request; waits for those in flight.
  void Stop() {
    stop_.store(true);
    RunUntil(absl::InfiniteFuture());
  }

  // After Stop (or when all have ended).
  void Collect(LoadResult* result) const {
    std::vector<double> latencies;
    for (const OneClient& client : clients_) {
      latencies.insert(latencies.end(), client.latencies.begin(), client.latencies.end());
      result->items += client.items;
      result->source_tokens += client.source_tokens;
      result->target_tokens += client.target_tokens;
      for (const auto& [code, count] : client.errors) result->errors[code] += count;
    }
    std::sort(latencies.begin(), latencies.end());
    result->requests = static_cast<int64_t>(latencies.size());
    if (latencies.empty()) return;
    double sum = 0;
    for (const double latency : latencies) sum += latency;
    result->mean = sum / static_cast<double>(latencies.size());
    result->p50 = Percentile(latencies, 0.5);
    result->p90 = Percentile(latencies, 0.9);
    result->p99 = Percentile(latencies, 0.99);
    result->max = latencies.back();
  }

 private:
  struct OneClient {
    std::vector<double> latencies;
    int64_t items = 0, source_tokens = 0, target_tokens = 0;
    std::map<std::string, int64_t> errors;
  };

  void Next(size_t i) {
    if (stop_.load() || allowed_.fetch_sub(1) <= 0) {
      End();
      return;
    }
    const size_t turn = static_cast<size_t>(next_.fetch_add(1)) % kPreparedRequests;
    const Client& connection = connections_[i % connections_.size()];
    const absl::Time start = absl::Now();
    if (options_.encode) {
      connection.EncodeAsync(encodes_[turn],
                             [this, i, start](absl::StatusOr<v1::EncodeResponse> reply) { Answered(i, start, reply); });
    } else {
      connection.TranslateAsync(translates_[turn], [this, i, start](absl::StatusOr<v1::TranslateResponse> reply) {
        Answered(i, start, reply);
      });
    }
  }

  template <typename Reply>
  void Answered(size_t i, absl::Time start, const absl::StatusOr<Reply>& reply) {
    if (measuring_.load()) Record(&clients_[i], absl::ToDoubleSeconds(absl::Now() - start), reply);
    if (reply.ok()) {
      Next(i);
      return;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    paused_.push_back(i);
  }

  template <typename Reply>
  void Record(OneClient* client, double latency, const absl::StatusOr<Reply>& reply) const {
    if (!reply.ok()) {
      ++client->errors[absl::StatusCodeToString(reply.status().code())];
      return;
    }
    client->latencies.push_back(latency);
    for (const auto& result : reply->results()) {
      if (result.status().code() != 0) {
        ++client->errors[absl::StrCat("item ", absl::StatusCodeToString(client::ItemStatus(result.status()).code()))];
        continue;
      }
      ++client->items;
      client->source_tokens += result.input_tokens();
      if constexpr (std::is_same_v<Reply, v1::TranslateResponse>) client->target_tokens += result.output_tokens();
    }
  }

  void End() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--active_ == 0) ended_.notify_all();
  }

  // Constant once started.
  const LoadOptions& options_;
  const std::vector<Client> connections_;
  std::vector<v1::TranslateRequest> translates_;
  std::vector<v1::EncodeRequest> encodes_;

  std::vector<OneClient> clients_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> allowed_{std::numeric_limits<int64_t>::max()};  // requests still to send
  std::atomic<bool> measuring_{false};
  std::atomic<bool> stop_{false};

  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<size_t> paused_;  // guarded by mutex_
  int active_ = 0;              // guarded by mutex_
};

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::pair<std::string, std::string> entry = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(entry.first) == "model name") {
      return std::string(absl::StripAsciiWhitespace(entry.second));
    }
  }
  return "unknown";
}

}  // namespace

absl::StatusOr<std::vector<Pair>> ParsePairs(absl::string_view text) {
  std::vector<Pair> pairs;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const char separator = part.find('>') != absl::string_view::npos ? '>' : '-';
    const std::vector<std::string> codes = absl::StrSplit(absl::StripAsciiWhitespace(part), separator);
    if (codes.size() != 2 || codes[0].empty() || codes[1].empty()) {
      return absl::InvalidArgumentError(absl::StrCat("not a pair of languages: \"", part,
                                                     "\" (write en-de, or zh-Hans>de where a code has a hyphen)"));
    }
    pairs.push_back({codes[0], codes[1]});
  }
  return pairs;
}

std::vector<Pair> AllPairs(const std::vector<std::string>& languages) {
  std::vector<Pair> pairs;
  for (const std::string& source : languages) {
    for (const std::string& target : languages) {
      if (source != target) pairs.push_back({source, target});
    }
  }
  return pairs;
}

absl::StatusOr<std::vector<int>> ParseClients(absl::string_view text) {
  std::vector<int> all;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int count = 0;
    if (!absl::SimpleAtoi(part, &count) || count < 1 || count > 10000) {
      return absl::InvalidArgumentError(absl::StrCat("not a number of clients from 1 to 10000: \"", part, "\""));
    }
    all.push_back(count);
  }
  return all;
}

double Percentile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  // The small subtraction keeps 0.9 * 10 at the ninth value whatever the product rounds to.
  const double rank = std::ceil(share * static_cast<double>(sorted.size()) - 1e-9);
  const size_t index = rank < 1 ? 0 : static_cast<size_t>(rank) - 1;
  return sorted[std::min(index, sorted.size() - 1)];
}

absl::StatusOr<Texts> ReadTexts(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  Texts texts;
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": not a JSON object"));
    }
    for (const auto& [key, value] : object.items()) {
      if (!value.is_string()) continue;
      const std::string& text = value.get_ref<const std::string&>();
      if (!absl::StripAsciiWhitespace(text).empty()) texts[key].push_back(text);
    }
  }
  if (texts.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " has no texts"));
  return texts;
}

absl::StatusOr<LoadResult> RunLoad(const LoadOptions& options, const Texts& texts, int clients) {
  if (options.pairs.empty()) return absl::InvalidArgumentError("no pairs of languages");
  for (const Pair& pair : options.pairs) {
    const auto found = texts.find(pair.source);
    if (found == texts.end() || found->second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("no texts of language \"", pair.source, "\""));
    }
  }
  std::vector<Client> connections;
  client::ClientOptions connection_options = options.client;
  connection_options.own_connection = true;
  for (int i = 0; i < std::min(clients, kMaxConnections); ++i) {
    auto connection = Client::Connect(connection_options);
    if (!connection.ok()) return connection.status();
    connections.push_back(*std::move(connection));
  }
  const Client control = connections.front();

  LoadResult result;
  result.clients = clients;
  const absl::Duration warmup = absl::Seconds(options.warmup_seconds);
  if (options.requests > 0 && warmup > absl::ZeroDuration()) {
    // A fixed number of requests is counted from the first to the last, so the warm-up is a run of its own.
    ClosedLoop loop(options, connections, clients);
    loop.Prepare(texts);
    loop.Start();
    loop.RunUntil(absl::Now() + warmup);
    loop.Stop();
  }

  ClosedLoop loop(options, std::move(connections), clients);
  loop.Prepare(texts);
  if (options.requests == 0) {
    loop.Start();
    loop.RunUntil(absl::Now() + warmup);
  }
  const absl::StatusOr<EngineTotals> before = TotalsOf(control, options.model);
  const double cpu = CpuSeconds();
  const absl::Time start = absl::Now();
  loop.Measure(true);
  if (options.requests > 0) {
    loop.Allow(options.requests);
    loop.Start();
    loop.RunUntil(absl::InfiniteFuture());
  } else {
    loop.RunUntil(start + absl::Seconds(options.seconds));
  }
  loop.Measure(false);
  result.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  result.client_cpu_seconds = CpuSeconds() - cpu;
  const absl::StatusOr<EngineTotals> after = TotalsOf(control, options.model);
  loop.Stop();
  loop.Collect(&result);
  if (!before.ok()) return before.status();
  if (!after.ok()) return after.status();
  result.steps = after->steps - before->steps;
  if (result.steps > 0) {
    const double steps = static_cast<double>(result.steps);
    result.rows_per_step = static_cast<double>(after->rows - before->rows) / steps;
    result.languages_per_step = (after->languages - before->languages) / steps;
  }
  return result;
}

absl::StatusOr<Environment> ReadEnvironment(const Client& client, const std::string& model) {
  Environment environment;
  environment.cpu = CpuModel();
  environment.cores = static_cast<int>(std::thread::hardware_concurrency());
#ifndef NDEBUG
  environment.assertions = true;
#endif
  environment.address = client.options().address;
  v1::GetModelInfoRequest request;
  request.set_model(model);
  const auto info = client.GetModelInfo(request);
  if (!info.ok()) return info.status();
  environment.model = info->model();
  environment.precision = info->precision();
  environment.backend = info->matmul_backend();
  environment.languages = info->languages();
  environment.parameters = info->parameters();
  const auto server = client.GetServerStats();
  if (!server.ok()) return server.status();
  environment.server_version = server->version();
  const auto stats = StatsOf(client, info->model());
  if (!stats.ok()) return stats.status();
  environment.workers = stats->engine().workers();
  environment.threads = stats->engine().threads();
  return environment;
}

std::string EnvironmentText(const Environment& e) {
  std::string out = absl::StrFormat(
      "CPU          %s, %d cores (of this machine)\n"
      "server       %s, version %s, %d workers x %d threads\n"
      "model        %s, %s (%s), %d languages, %d parameters\n",
      e.cpu, e.cores, e.address, e.server_version, e.workers, e.threads, e.model, e.precision, e.backend, e.languages,
      e.parameters);
  if (e.assertions)
    absl::StrAppend(&out, "WARNING      built with assertions: numbers are worse than they should be\n");
  return out;
}

std::string ResultHead() {
  return "clients  requests/s  items/s  target tokens/s  source tokens/s  p50 ms  p90 ms  p99 ms  max ms  rows/step  "
         "languages/step  errors\n";
}

std::string ResultLine(const LoadResult& r) {
  const auto rate = [&](int64_t count) { return r.seconds > 0 ? static_cast<double>(count) / r.seconds : 0; };
  int64_t errors = 0;
  for (const auto& [code, count] : r.errors) errors += count;
  return absl::StrFormat("%7d  %10.2f  %7.2f  %15.1f  %15.1f  %6.1f  %6.1f  %6.1f  %6.1f  %9.2f  %14.2f  %6d\n",
                         r.clients, rate(r.requests), rate(r.items), rate(r.target_tokens), rate(r.source_tokens),
                         r.p50 * 1e3, r.p90 * 1e3, r.p99 * 1e3, r.max * 1e3, r.rows_per_step, r.languages_per_step,
                         errors);
}

std::string ErrorText(const LoadResult& r) {
  std::string out;
  for (const auto& [code, count] : r.errors) {
    absl::StrAppend(&out, "         ", r.clients, " clients: ", count, " x ", code, "\n");
  }
  return out;
}

nlohmann::json ToJson(const Environment& e) {
  return {{"cpu", e.cpu},
          {"cores", e.cores},
          {"assertions", e.assertions},
          {"address", e.address},
          {"server_version", e.server_version},
          {"model", e.model},
          {"precision", e.precision},
          {"matmul_backend", e.backend},
          {"workers", e.workers},
          {"threads", e.threads},
          {"languages", e.languages},
          {"parameters", e.parameters}};
}

nlohmann::json ToJson(const LoadResult& r) {
  const auto rate = [&](int64_t count) { return r.seconds > 0 ? static_cast<double>(count) / r.seconds : 0; };
  return {{"clients", r.clients},
          {"seconds", r.seconds},
          {"requests", r.requests},
          {"items", r.items},
          {"source_tokens", r.source_tokens},
          {"target_tokens", r.target_tokens},
          {"requests_per_second", rate(r.requests)},
          {"items_per_second", rate(r.items)},
          {"source_tokens_per_second", rate(r.source_tokens)},
          {"target_tokens_per_second", rate(r.target_tokens)},
          {"latency_seconds", {{"mean", r.mean}, {"p50", r.p50}, {"p90", r.p90}, {"p99", r.p99}, {"max", r.max}}},
          {"errors", r.errors},
          {"steps", r.steps},
          {"rows_per_step", r.rows_per_step},
          {"languages_per_step", r.languages_per_step},
          {"client_cpu_seconds", r.client_cpu_seconds}};
}

}  // namespace koine::load
