#include "server/metrics/metrics.h"

#include <array>
#include <exception>
#include <sstream>
#include <utility>
#include <vector>

#include <prometheus/text_serializer.h>
#include <spdlog/spdlog.h>

namespace koine::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<std::pair<std::string, std::string>>;

// 1 ms to 65 s, doubling: 17 buckets tell a percentile within a factor of two, and much nearer by interpolation.
prometheus::Histogram::BucketBoundaries SecondsBuckets() {
  prometheus::Histogram::BucketBoundaries bounds;
  for (double bound = 0.001; bound < 100; bound *= 2) bounds.push_back(bound);
  return bounds;
}

// Methods that take time by their texts; of the others only requests are counted.
constexpr std::array<const char*, 2> kOperations = {"Translate", "Encode"};

constexpr std::array<std::pair<Stage, const char*>, 4> kStages = {
    std::pair(Stage::kTokenize, "tokenize"),
    {Stage::kLanguage, "language"},
    {Stage::kQueue, "queue"},
    {Stage::kCompute, "compute"},
};

// Collects metrics that are read and not fed.
class Reading {
 public:
  void Gauge(const char* name, const char* help, double value, const Labels& labels = {}) {
    Add(name, help, MetricType::Gauge, labels).gauge.value = value;
  }
  void Counter(const char* name, const char* help, int64_t value, const Labels& labels = {}) {
    Add(name, help, MetricType::Counter, labels).counter.value = static_cast<double>(value);
  }
  std::vector<MetricFamily> families() && { return std::move(families_); }

 private:
  ClientMetric& Add(const char* name, const char* help, MetricType type, const Labels& labels) {
    const auto [place, added] = places_.emplace(name, families_.size());
    if (added) {
      MetricFamily& family = families_.emplace_back();
      family.name = name;
      family.help = help;
      family.type = type;
    }
    ClientMetric& metric = families_[place->second].metric.emplace_back();
    for (const auto& [label, value] : labels) metric.label.push_back({label, value});
    return metric;
  }

  std::vector<MetricFamily> families_;
  std::map<std::string, size_t> places_;
};

int64_t Read(const std::atomic<int64_t>& counter) { return counter.load(std::memory_order_relaxed); }

void ReadModel(const ModelHost& host, Reading* out) {
  const Labels model = {{"model", host.name}};
  const auto with = [&host](const char* label, const std::string& value) {
    return Labels{{"model", host.name}, {label, value}};
  };
  const QueueGauges queue = host.queue->gauges();
  out->Gauge("koine_queue_depth", "Sentences that wait for a batch", static_cast<double>(queue.items), model);
  out->Gauge("koine_queue_tokens", "Source tokens that wait for a batch", static_cast<double>(queue.tokens), model);
  out->Gauge("koine_queue_oldest_seconds", "How long the oldest sentence has waited",
             absl::ToDoubleSeconds(queue.oldest), model);
  out->Gauge("koine_permits_in_use", "Sentences accepted and not yet answered",
             static_cast<double>(host.text->permits().items_in_use()), model);
  out->Gauge("koine_permits_limit", "Sentences that may be accepted at once",
             static_cast<double>(host.text->permits().max_items()), model);
  out->Gauge("koine_model_load_seconds", "How long loading the model took", host.load_seconds, model);

  std::map<LanguageState, int64_t> states = {{LanguageState::kCold, 0},
                                             {LanguageState::kLoading, 0},
                                             {LanguageState::kLoaded, 0},
                                             {LanguageState::kDraining, 0},
                                             {LanguageState::kFailed, 0}};
  int64_t language_bytes = 0;
  for (const LanguageInfo& info : host.languages->List()) {
    ++states[info.state];
    if (info.loaded != nullptr) language_bytes += info.loaded->mapped_bytes();
  }
  for (const auto& [state, count] : states) {
    out->Gauge("koine_languages", "Languages by state", static_cast<double>(count), with("state", Name(state)));
  }
  constexpr char kParameterBytes[] = "koine_parameter_bytes";
  constexpr char kParameterHelp[] = "Bytes of parameters mapped: once for all languages, and of loaded languages";
  out->Gauge(kParameterBytes, kParameterHelp, static_cast<double>(host.model->shared_mapped_bytes()),
             with("scope", "shared"));
  out->Gauge(kParameterBytes, kParameterHelp, static_cast<double>(language_bytes), with("scope", "language"));

  const LanguageStoreCounters languages = host.languages->counters();
  out->Gauge("koine_language_memory_used_bytes", "Bytes of languages that are loaded, loading or draining",
             static_cast<double>(languages.used_bytes), model);
  out->Gauge("koine_language_memory_budget_bytes", "Bytes that languages may take together; 0: no bound",
             static_cast<double>(languages.budget_bytes), model);
  out->Gauge("koine_language_waiting", "Requests that wait for a language", static_cast<double>(languages.waiting),
             model);
  out->Counter("koine_language_loads_total", "Languages loaded", languages.loads, model);
  out->Counter("koine_language_load_failures_total", "Languages that could not be loaded", languages.failures, model);
  out->Counter("koine_language_evictions_total", "Languages that left memory", languages.evictions, model);

  if (host.engine == nullptr) return;
  const EngineCounters& engine = host.engine->counters();
  out->Gauge("koine_live_jobs", "Sentences being computed", static_cast<double>(host.engine->live_jobs()), model);
  out->Counter("koine_steps_total", "Decoder steps", Read(engine.steps), model);
  out->Counter("koine_step_rows_total", "Hypotheses advanced, over all steps", Read(engine.step_rows), model);
  out->Counter("koine_step_languages_total", "Target languages in a step, over all steps", Read(engine.step_languages),
               model);
  out->Counter("koine_multiply_adds_total", "Multiply-adds of matrix products", Read(engine.multiply_adds), model);
  out->Counter("koine_table_bytes_total", "Bytes of output tables read", Read(engine.table_bytes), model);
}

template <typename Work>
void Guarded(const Work& work) noexcept {
  try {
    work();
  } catch (const std::exception& error) {
    try {
      spdlog::warn("metrics: {}", error.what());
    } catch (...) {  // the log is no reason to fail either
    }
  }
}

}  // namespace

Metrics::Metrics(std::string version) : version_(std::move(version)) {
  requests_ =
      &prometheus::BuildCounter().Name("koine_requests_total").Help("Requests that have ended").Register(registry_);
  const auto histograms = [this](const char* name, const char* help) {
    auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
    Histograms by_op;
    for (const char* op : kOperations) by_op[op] = &family.Add({{"op", op}}, SecondsBuckets());
    return by_op;
  };
  request_seconds_ = histograms("koine_request_seconds", "From the arrival of a request to its answer");
  queue_seconds_ = histograms("koine_queue_seconds", "Waiting of a sentence for room in a batch");
  compute_seconds_ = histograms("koine_compute_seconds", "From a sentence's first computation to its last");
  auto& tokens = prometheus::BuildCounter()
                     .Name("koine_tokens_total")
                     .Help("Tokens of answered sentences, read and generated")
                     .Register(registry_);
  tokens_in_ = &tokens.Add({{"direction", "in"}});
  tokens_out_ = &tokens.Add({{"direction", "out"}});
  auto& cancelled = prometheus::BuildCounter()
                        .Name("koine_cancelled_total")
                        .Help("Requests whose caller left or whose deadline passed, by where they were")
                        .Register(registry_);
  for (const auto& [stage, name] : kStages) cancelled_[stage] = &cancelled.Add({{"stage", name}});
}

prometheus::Histogram* Metrics::Find(const Histograms& histograms, absl::string_view op) {
  const auto found = histograms.find(std::string_view(op.data(), op.size()));
  return found == histograms.end() ? nullptr : found->second;
}

void Metrics::RequestDone(absl::string_view model, absl::string_view op, absl::StatusCode code,
                          absl::Duration total) noexcept {
  Guarded([&] {
    requests_->Add({{"model", std::string(model)}, {"op", std::string(op)}, {"code", absl::StatusCodeToString(code)}})
        .Increment();
    if (prometheus::Histogram* seconds = Find(request_seconds_, op)) seconds->Observe(absl::ToDoubleSeconds(total));
  });
}

void Metrics::ItemDone(absl::string_view op, absl::Duration queued, absl::Duration computed, int64_t tokens_in,
                       int64_t tokens_out) noexcept {
  Guarded([&] {
    if (prometheus::Histogram* seconds = Find(queue_seconds_, op)) seconds->Observe(absl::ToDoubleSeconds(queued));
    if (prometheus::Histogram* seconds = Find(compute_seconds_, op)) seconds->Observe(absl::ToDoubleSeconds(computed));
    tokens_in_->Increment(static_cast<double>(tokens_in));
    tokens_out_->Increment(static_cast<double>(tokens_out));
  });
}

void Metrics::Cancelled(Stage stage) noexcept {
  Guarded([&] { cancelled_.at(stage)->Increment(); });
}

std::string Metrics::Scrape(const ServerFacts& facts, const Rejections& rejections,
                            const ModelHosts& hosts) const noexcept {
  std::string text;
  Guarded([&] {
    Reading reading;
    reading.Gauge("koine_build_info", "1, with the version", 1, {{"version", version_}});
    reading.Gauge("koine_inflight", "RPCs that have begun and not ended", static_cast<double>(facts.inflight_requests));
    reading.Gauge("koine_draining", "1 while the server finishes what it has before it stops", facts.draining ? 1 : 0);
    reading.Gauge("process_resident_memory_bytes", "Resident set size", static_cast<double>(ProcessResidentBytes()));
    reading.Gauge("process_start_time_seconds", "Start, since the Unix epoch",
                  absl::ToDoubleSeconds(facts.started - absl::UnixEpoch()));
    for (int i = 0; i < kReasons; ++i) {
      const auto reason = static_cast<Reason>(i);
      reading.Counter("koine_rejected_total", "Requests and items refused or ended, by reason",
                      rejections.count(reason), {{"reason", std::string(Name(reason))}});
    }
    for (const auto& host : hosts.all()) ReadModel(*host, &reading);
    std::vector<MetricFamily> families = registry_.Collect();
    std::vector<MetricFamily> read = std::move(reading).families();
    families.insert(families.end(), read.begin(), read.end());
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, families);
    text = out.str();
  });
  return text;
}

}  // namespace koine::server
