// The HTTP port: health, metrics, and what the server says about its models, for probes, scrapers and people.
//
//   GET /livez                      200 while the process runs
//   GET /readyz                     200, or 503 and why not: loading, draining, a language that must be there is not
//   GET /metrics                    server/metrics
//   GET /v1/parameters              GetParameterStatsResponse as proto3 JSON; ?model=NAME, ?checksums=1
//   GET /v1/languages               ListLanguagesResponse as proto3 JSON; ?model=NAME
//
// HEAD works wherever GET does; other methods are 405, other paths 404. Errors are {"error": "text"}. One request a
// connection, each with a thread of its own, so that probes are answered whatever the engines and slow callers do; no
// more than 256 connections at once, and what comes beyond is closed. Ranges are not looked at.
#ifndef KOINE_SERVER_HTTP_HTTP_SERVER_H_
#define KOINE_SERVER_HTTP_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace koine::server {

class ModelHosts;

struct HttpOptions {
  std::string listen = "0.0.0.0:8080";  // port 0: a free one
  // From the connection to the end of the request's header, however its bytes come; and of taking the answer.
  absl::Duration request_timeout = absl::Seconds(2);
  absl::Duration answer_timeout = absl::Seconds(5);
};

// What the routes read; all of it outlives the server, or is detached first.
struct HttpSources {
  const ModelHosts* hosts = nullptr;
  std::function<absl::Status()> ready;   // the error's text is /readyz's
  std::function<std::string()> metrics;  // empty: they could not be read
};

// Start, Attach and Stop from one thread.
class HttpServer {
 public:
  // Listens and answers at once: /livez as always, /readyz and all else with 503 "loading" until Attach. UNAVAILABLE if
  // it cannot listen, INVALID_ARGUMENT for an address that is none.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpOptions& options);
  ~HttpServer();  // Stop

  int port() const;
  void Attach(HttpSources sources);
  // Stops listening; answers that are under way end first.
  void Stop();

 private:
  struct State;
  explicit HttpServer(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_HTTP_HTTP_SERVER_H_
