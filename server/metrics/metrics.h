// What the server counts, in the text format of Prometheus.
//
// Base units (seconds, bytes), `_total` on counters, labels model, op, code, reason, stage, state, scope and direction
// only: never a text, a caller or a language pair. Histograms and counters of requests are fed as requests end; all
// that has a home elsewhere (queues, engines, language stores) is read there when somebody scrapes.
#ifndef KOINE_SERVER_METRICS_METRICS_H_
#define KOINE_SERVER_METRICS_METRICS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "server/text/introspection.h"
#include "server/text/model_host.h"
#include "server/text/observer.h"

namespace koine::server {

// Thread-safe. A fault inside never reaches a request: it is logged, and that sample is lost.
class Metrics final : public Observer {
 public:
  explicit Metrics(std::string version);

  void RequestDone(absl::string_view model, absl::string_view op, absl::StatusCode code,
                   absl::Duration total) noexcept override;
  void ItemDone(absl::string_view op, absl::Duration queued, absl::Duration computed, int64_t tokens_in,
                int64_t tokens_out) noexcept override;
  void Cancelled(Stage stage) noexcept override;

  // All metrics as text. Never throws; a fault gives an empty text.
  std::string Scrape(const ServerFacts& facts, const Rejections& rejections, const ModelHosts& hosts) const noexcept;

  // The content type of Scrape's text.
  static constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

 private:
  using Histograms = std::map<std::string, prometheus::Histogram*, std::less<>>;
  static prometheus::Histogram* Find(const Histograms& histograms, absl::string_view op);

  const std::string version_;
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>* requests_ = nullptr;
  Histograms request_seconds_, queue_seconds_, compute_seconds_;  // by op; filled once
  prometheus::Counter* tokens_in_ = nullptr;
  prometheus::Counter* tokens_out_ = nullptr;
  std::map<Stage, prometheus::Counter*> cancelled_;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_METRICS_METRICS_H_
