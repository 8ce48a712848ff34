// The HTTP port: health, metrics, and what the server says about its models, for probes, scrapers and people.
//
//   GET /livez                      200 while the process runs
//   GET /readyz                     200, or 503 and why not: loading, draining, a language that must be there is not
//   GET /metrics                    server/metrics
//   GET /v1/parameters              GetParameterStatsResponse as proto3 JSON; ?model=NAME, ?checksums=1
//   GET /v1/languages               ListLanguagesResponse as proto3 JSON; ?model=NAME
//
// HEAD works wherever GET does; other methods are 405, other paths 404. Errors are {"error": "text"}. One request a
// connection; threads of its own, so that probes are answered whatever the engines do.
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
  int threads = 4;
  // Of one request, from the connection to the end of its header, and of writing the answer. A caller that is slower
  // holds one of the threads that long.
  absl::Duration timeout = absl::Seconds(5);
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
  // Stops listening and joins its threads.
  void Stop();

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_HTTP_HTTP_SERVER_H_
