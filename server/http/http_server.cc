#include "server/http/http_server.h"

#include <google/protobuf/util/json_util.h>
#include <httplib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "server/metrics/metrics.h"
#include "server/text/fault.h"
#include "server/text/introspection.h"
#include "server/text/model_host.h"

namespace koine::server {
namespace {

constexpr char kJson[] = "application/json";
// Connections that wait for a thread. Beyond it the listener stops accepting, and the kernel's backlog takes over.
constexpr size_t kWaitingConnections = 128;
// No route takes a body.
constexpr size_t kMaxBodyBytes = 4096;
constexpr std::array<const char*, 5> kRoutes = {"/livez", "/readyz", "/metrics", "/v1/parameters", "/v1/languages"};

// A bounded pool: httplib's own queues without end.
class BoundedQueue final : public httplib::TaskQueue {
 public:
  explicit BoundedQueue(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }

  // Blocks the listener, which is the only caller, while the queue is full.
  void enqueue(std::function<void()> task) override {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.size() < kWaitingConnections; });
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  // Runs what was accepted, so that its sockets are closed.
  void shutdown() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopped_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      changed_.notify_all();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

int HttpCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

void SetError(int code, const std::string& text, httplib::Response* response) {
  response->status = code;
  if (code == 429 || code == 503) response->set_header("Retry-After", "1");
  // What comes from a URL may be no UTF-8.
  response->set_content(
      nlohmann::json({{"error", text}}).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), kJson);
}

void SetMessage(const absl::StatusOr<std::unique_ptr<google::protobuf::Message>>& message,
                httplib::Response* response) {
  if (!message.ok()) return SetError(HttpCode(message.status()), std::string(message.status().message()), response);
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(**message, &json, options);
  if (!status.ok()) return SetError(500, "the answer cannot be written as JSON", response);
  response->set_content(json, kJson);
}

// "HOST:PORT"; an IPv6 host stands in brackets.
absl::Status SplitAddress(const std::string& listen, std::string* host, int* port) {
  const size_t colon = listen.rfind(':');
  if (colon == std::string::npos || !absl::SimpleAtoi(listen.substr(colon + 1), port) || *port < 0 || *port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("HTTP address ", listen, ": must be HOST:PORT"));
  }
  *host = std::string(absl::StripSuffix(absl::StripPrefix(listen.substr(0, colon), "["), "]"));
  if (host->empty()) *host = "0.0.0.0";
  return absl::OkStatus();
}

}  // namespace

struct HttpServer::State {
  httplib::Server server;
  int port = 0;
  std::thread listener;
  std::atomic<bool> account_running{false};  // one at a time: it may read every parameter byte

  absl::Mutex mutex;
  std::shared_ptr<const HttpSources> sources ABSL_GUARDED_BY(mutex);

  std::shared_ptr<const HttpSources> Sources() ABSL_LOCKS_EXCLUDED(mutex) {
    const absl::MutexLock lock(&mutex);
    return sources;
  }

  // Calls `work` with the sources, if they are there.
  template <typename Work>
  void WithSources(httplib::Response* response, const Work& work) {
    const std::shared_ptr<const HttpSources> present = Sources();
    if (present == nullptr) return SetError(503, "loading", response);
    work(*present);
  }

  void AddRoutes() {
    server.Get("/livez", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("{\"status\":\"ok\"}", kJson);
    });
    server.Get("/readyz", [this](const httplib::Request&, httplib::Response& response) {
      WithSources(&response, [&](const HttpSources& present) {
        const absl::Status ready = present.ready();
        if (!ready.ok()) return SetError(503, std::string(ready.message()), &response);
        response.set_content("{\"status\":\"ok\"}", kJson);
      });
    });
    server.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      WithSources(&response, [&](const HttpSources& present) {
        const std::string text = present.metrics();
        if (text.empty()) return SetError(500, "the metrics cannot be read", &response);
        response.set_content(text, Metrics::kContentType);
      });
    });
    server.Get("/v1/languages", [this](const httplib::Request& request, httplib::Response& response) {
      WithSources(&response, [&](const HttpSources& present) {
        const absl::StatusOr<ModelHost*> host = present.hosts->Find(request.get_param_value("model"));
        if (!host.ok()) return SetMessage(host.status(), &response);
        SetMessage(std::make_unique<v1::ListLanguagesResponse>(DescribeLanguages(**host)), &response);
      });
    });
    server.Get("/v1/parameters", [this](const httplib::Request& request, httplib::Response& response) {
      WithSources(&response, [&](const HttpSources& present) {
        const absl::StatusOr<ModelHost*> host = present.hosts->Find(request.get_param_value("model"));
        if (!host.ok()) return SetMessage(host.status(), &response);
        const std::string checksums = request.get_param_value("checksums");
        if (!checksums.empty() && checksums != "0" && checksums != "1") {
          return SetError(400, "checksums must be 0 or 1", &response);
        }
        if (account_running.exchange(true)) return SetError(429, "another account is under way", &response);
        absl::StatusOr<v1::GetParameterStatsResponse> account = DescribeParameters(**host, checksums == "1");
        account_running.store(false);
        if (!account.ok()) return SetMessage(account.status(), &response);
        SetMessage(std::make_unique<v1::GetParameterStatsResponse>(*std::move(account)), &response);
      });
    });
    server.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
      const bool known = std::find(kRoutes.begin(), kRoutes.end(), request.path) != kRoutes.end();
      if (!known || request.method == "GET" || request.method == "HEAD") {
        return httplib::Server::HandlerResponse::Unhandled;
      }
      // Before the body is read: the connection ends with this answer.
      response.set_header("Allow", "GET, HEAD");
      SetError(405, absl::StrCat(request.path, " takes GET and HEAD only"), &response);
      return httplib::Server::HandlerResponse::Handled;
    });
    // Only where nothing has answered with a text of its own.
    server.set_error_handler([](const httplib::Request&, httplib::Response& response) {
      if (!response.body.empty()) return;
      const int code = response.status;
      SetError(code,
               code == 404   ? "there is nothing here; see /livez, /readyz, /metrics, /v1/parameters, /v1/languages"
               : code == 413 ? "the body is too large"
               : code == 414 ? "the address is too long"
               : code == 400 ? "this is no HTTP request that the server understands"
                             : absl::StrCat("HTTP ", code),
               &response);
    });
    server.set_exception_handler(
        [](const httplib::Request& request, httplib::Response& response, std::exception_ptr exception) {
          try {
            std::rethrow_exception(exception);
          } catch (const std::exception& error) {
            spdlog::warn("http: {}: {}", request.path, error.what());
          } catch (...) {
            spdlog::warn("http: {}: unknown exception", request.path);
          }
          SetError(500, "internal error", &response);
        });
  }
};

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() { Stop(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpOptions& options) {
  std::string host;
  auto state = std::make_unique<State>();
  if (absl::Status status = SplitAddress(options.listen, &host, &state->port); !status.ok()) return status;
  httplib::Server& server = state->server;
  server.new_task_queue = [threads = options.threads] { return new BoundedQueue(threads); };
  // One request a connection: an idle connection would hold a thread.
  server.set_keep_alive_max_count(1);
  server.set_keep_alive_timeout(std::max<time_t>(1, absl::ToInt64Seconds(options.timeout)));
  server.set_read_timeout(absl::ToChronoMicroseconds(options.timeout));
  server.set_write_timeout(absl::ToChronoMicroseconds(options.timeout));
  server.set_payload_max_length(kMaxBodyBytes);
  // Without the library's SO_REUSEPORT: a second server on the same port is a mistake to report.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  state->AddRoutes();
  bool bound = false;
  if (state->port == 0) {
    state->port = server.bind_to_any_port(host);
    bound = state->port > 0;
  } else {
    bound = server.bind_to_port(host, state->port);
  }
  if (!bound) {
    return absl::UnavailableError(absl::StrCat("cannot listen for HTTP on ", options.listen,
                                               ": the address is in use, not of this machine, or not allowed"));
  }
  state->listener = std::thread([&server] { server.listen_after_bind(); });
  // httplib stops only what runs.
  while (!server.is_running()) std::this_thread::yield();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

int HttpServer::port() const { return state_->port; }

void HttpServer::Attach(HttpSources sources) {
  auto shared = std::make_shared<const HttpSources>(std::move(sources));
  const absl::MutexLock lock(&state_->mutex);
  state_->sources = std::move(shared);
}

void HttpServer::Stop() {
  if (!state_->listener.joinable()) return;
  state_->server.stop();
  state_->listener.join();
}

}  // namespace koine::server
