#include "server/http/http_server.h"

#include <google/protobuf/util/json_util.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include <spdlog/spdlog.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/metrics/metrics.h"
#include "server/net/listener.h"
#include "server/text/fault.h"
#include "server/text/introspection.h"
#include "server/text/model_host.h"

namespace koine::server {
namespace {

constexpr char kJson[] = "application/json";
// Connections at once, each with a thread of its own that mostly sleeps. Beyond it new ones are closed.
constexpr size_t kMaxConnections = 256;
// Descriptors left to others, fewer than the gRPC port leaves: probes are answered when callers have taken the rest.
constexpr int kReservedFiles = 16;
// No route takes a body.
constexpr size_t kMaxBodyBytes = 4096;
constexpr std::array<const char*, 5> kRoutes = {"/livez", "/readyz", "/metrics", "/v1/parameters", "/v1/languages"};

// A connection whose caller has until one instant to send its request, and from the first byte of the answer on so long
// to take it: however the bytes drip, a connection ends.
class TimedStream final : public httplib::Stream {
 public:
  TimedStream(int fd, absl::Duration request, absl::Duration answer)
      : fd_(fd), request_end_(absl::Now() + request), answer_(answer) {}

  bool is_readable() const override { return read_ < filled_ || Wait(POLLIN, request_end_); }
  bool is_writable() const override { return Wait(POLLOUT, std::min(answer_end_, absl::Now() + answer_)); }

  // httplib asks for single bytes.
  ssize_t read(char* to, size_t size) override {
    if (read_ == filled_) {
      if (!Wait(POLLIN, request_end_)) return -1;
      const ssize_t n = recv(fd_, buffer_.data(), buffer_.size(), 0);
      if (n <= 0) return n;
      read_ = 0;
      filled_ = static_cast<size_t>(n);
    }
    size = std::min(size, filled_ - read_);
    std::copy_n(buffer_.begin() + static_cast<std::ptrdiff_t>(read_), size, to);
    read_ += size;
    return static_cast<ssize_t>(size);
  }

  // All or nothing.
  ssize_t write(const char* from, size_t size) override {
    answer_end_ = std::min(answer_end_, absl::Now() + answer_);
    for (size_t sent = 0; sent < size;) {
      if (!Wait(POLLOUT, answer_end_)) return -1;
      const ssize_t n = send(fd_, from + sent, size - sent, MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return -1;
      if (n > 0) sent += static_cast<size_t>(n);
    }
    return static_cast<ssize_t>(size);
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override { get_remote_ip_and_port(ip, port); }
  socket_t socket() const override { return fd_; }

 private:
  bool Wait(short events, absl::Time end) const {  // NOLINT(google-runtime-int): poll's type
    while (true) {
      const int64_t left = absl::ToInt64Milliseconds(end - absl::Now());
      if (left <= 0) return false;
      pollfd waiting = {fd_, events, 0};
      const int n = poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left, 1 << 20)));
      if (n > 0) return true;
      if (n < 0 && errno != EINTR) return false;
    }
  }

  const int fd_;
  const absl::Time request_end_;
  const absl::Duration answer_;
  absl::Time answer_end_ = absl::InfiniteFuture();
  std::array<char, 4096> buffer_ = {};
  size_t read_ = 0, filled_ = 0;
};

// httplib as parser and router; it neither listens nor has threads.
class Router final : public httplib::Server {
 public:
  void Answer(httplib::Stream* stream) {
    bool closed = false;
    // No answer of ours has parts worth asking for.
    process_request(*stream, true, closed, [](httplib::Request& request) { request.ranges.clear(); });
  }
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

// A body is never read, but its length must make sense: a proxy in front may see another end of the request.
bool LengthMakesSense(const httplib::Request& request) {
  const size_t lengths = request.get_header_value_count("Content-Length");
  if (lengths == 0) return true;
  uint64_t length = 0;
  const std::string text = request.get_header_value("Content-Length");
  return lengths == 1 && text.find_first_not_of("0123456789") == std::string::npos && absl::SimpleAtoi(text, &length);
}

}  // namespace

struct HttpServer::State {
  Router server;
  HttpOptions options;
  std::unique_ptr<Listener> listener;
  std::atomic<bool> account_running{false};  // one at a time: it may read every parameter byte

  absl::Mutex mutex;
  std::shared_ptr<const HttpSources> sources ABSL_GUARDED_BY(mutex);
  std::set<int> connections ABSL_GUARDED_BY(mutex);

  // Answers one request and closes the connection, on a thread of its own, which holds the state.
  static void Connection(const std::shared_ptr<State>& state, int fd) ABSL_LOCKS_EXCLUDED(state->mutex) {
    TimedStream stream(fd, state->options.request_timeout, state->options.answer_timeout);
    state->server.Answer(&stream);
    const absl::MutexLock lock(&state->mutex);
    // Under the lock: until it is gone the number stays this connection's.
    shutdown(fd, SHUT_RDWR);
    close(fd);
    state->connections.erase(fd);
  }

  static void Begin(const std::shared_ptr<State>& state, int fd) ABSL_LOCKS_EXCLUDED(state->mutex) {
    {
      const absl::MutexLock lock(&state->mutex);
      if (state->connections.size() < kMaxConnections) {
        try {
          std::thread([state, fd] { Connection(state, fd); }).detach();
          state->connections.insert(fd);
          return;
        } catch (const std::system_error&) {  // no more threads
        }
      }
    }
    close(fd);
  }

  // Whoever still sends its request gets no answer; answers under way end.
  void EndConnections() ABSL_LOCKS_EXCLUDED(mutex) {
    const absl::MutexLock lock(&mutex);
    for (const int fd : connections) shutdown(fd, SHUT_RD);
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return connections.empty(); };
    mutex.Await(absl::Condition(&none));
  }

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
    server.set_payload_max_length(kMaxBodyBytes);
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
      if (!LengthMakesSense(request)) {
        SetError(400, "Content-Length is no length", &response);
        return httplib::Server::HandlerResponse::Handled;
      }
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

HttpServer::HttpServer(std::shared_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() { Stop(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpOptions& options) {
  const absl::StatusOr<Address> address = ParseAddress(options.listen);
  if (!address.ok()) return address.status();
  absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::Bind(*address, kReservedFiles);
  if (!listener.ok()) {
    return absl::Status(listener.status().code(), absl::StrCat("HTTP: ", std::string(listener.status().message())));
  }
  auto state = std::make_shared<State>();
  state->options = options;
  state->AddRoutes();
  state->listener = *std::move(listener);
  // The listener is the state's own and stops before it.
  state->listener->Accept([weak = std::weak_ptr<State>(state)](int fd) { State::Begin(weak.lock(), fd); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

int HttpServer::port() const { return state_->listener->port(); }

void HttpServer::Attach(HttpSources sources) {
  auto shared = std::make_shared<const HttpSources>(std::move(sources));
  const absl::MutexLock lock(&state_->mutex);
  state_->sources = std::move(shared);
}

void HttpServer::Stop() {
  state_->listener->Stop();
  state_->EndConnections();
}

}  // namespace koine::server
