#include "clients/cpp/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/rpc/error_details.pb.h"
#include "koine/v1/koine.grpc.pb.h"

namespace koine::client {
namespace {

constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";

absl::Status MakeStatus(int code, const std::string& message, const google::rpc::Status& details) {
  // gRPC's and Abseil's codes are the same numbers, 0 to 16.
  const bool known = code >= 0 && code <= 16;
  absl::Status status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, message);
  if (status.ok()) return status;
  for (const google::protobuf::Any& detail : details.details()) {
    status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return status;
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  google::rpc::Status details;
  // Details that cannot be read are no reason to hide the error itself.
  if (!details.ParseFromString(status.error_details())) details.Clear();
  return MakeStatus(static_cast<int>(status.error_code()), status.error_message(), details);
}

std::chrono::system_clock::time_point DeadlineAfter(absl::Duration timeout) {
  if (timeout >= absl::Hours(24 * 365)) return std::chrono::system_clock::time_point::max();
  return absl::ToChronoTime(absl::Now() + timeout);
}

// A proxy from the environment cannot know this machine's loopback.
bool IsLoopback(absl::string_view address) {
  return absl::StartsWith(address, "localhost:") || absl::StartsWith(address, "127.") ||
         absl::StartsWith(address, "[::1]");
}

// What a call in flight needs. The context holds the channel, so a call is destroyed before its callback counts as
// ended: gRPC 1.51 releases the queue of the callbacks with the last reference to the channel, and must not do so on a
// thread that works off that very queue.
template <typename Request, typename Reply>
struct Call {
  grpc::ClientContext context;
  Request request;
  Reply reply;
};

}  // namespace

struct Client::State {
  ClientOptions options;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Koine::Stub> stub;
  std::unique_ptr<v1::Admin::Stub> admin;

  mutable std::mutex mutex;
  mutable std::condition_variable ended;
  mutable std::set<grpc::ClientContext*> in_flight;  // guarded by mutex
  mutable int64_t unfinished = 0;                    // callbacks that have not returned; guarded by mutex

  ~State() {
    std::unique_lock<std::mutex> lock(mutex);
    for (grpc::ClientContext* context : in_flight) context->TryCancel();
    ended.wait(lock, [this] { return unfinished == 0; });
  }

  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Run(grpc::Status (v1::Koine::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                            const Request& request) const {
    return RunOn(*stub, method, request);
  }

  template <typename Stub, typename Request, typename Reply>
  absl::StatusOr<Reply> RunOn(Stub& service, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                              const Request& request) const {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(options.timeout));
    Reply reply;
    if (absl::Status status = FromGrpc((service.*method)(&context, request, &reply)); !status.ok()) return status;
    return reply;
  }

  // `start` is a method of stub->async().
  template <typename Request, typename Reply, typename Start>
  void RunAsync(Start start, const Request& request, ReplyCallback<Reply> done) const {
    auto* call = new Call<Request, Reply>();  // owned by the callback
    call->context.set_deadline(DeadlineAfter(options.timeout));
    call->request = request;
    {
      std::lock_guard<std::mutex> lock(mutex);
      in_flight.insert(&call->context);
      ++unfinished;
    }
    start(
        &call->context, &call->request, &call->reply, [this, call, done = std::move(done)](const grpc::Status& status) {
          absl::StatusOr<Reply> reply = status.ok() ? absl::StatusOr<Reply>(std::move(call->reply)) : FromGrpc(status);
          {
            std::lock_guard<std::mutex> lock(mutex);
            in_flight.erase(&call->context);
          }
          delete call;
          done(std::move(reply));
          std::lock_guard<std::mutex> lock(mutex);
          if (--unfinished == 0) ended.notify_all();
        });
  }
};

absl::StatusOr<Client> Client::Connect(const ClientOptions& options) {
  if (options.address.empty()) return absl::InvalidArgumentError("the server's address is empty");
  auto state = std::make_shared<State>();
  state->options = options;

  grpc::ChannelArguments arguments;
  const int max_bytes = options.max_message_bytes > std::numeric_limits<int>::max()
                            ? -1  // gRPC's "no limit"
                            : static_cast<int>(std::max<int64_t>(options.max_message_bytes, 0));
  arguments.SetMaxReceiveMessageSize(max_bytes);
  arguments.SetMaxSendMessageSize(max_bytes);
  arguments.SetUserAgentPrefix("koine-client");
  if (options.own_connection) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (IsLoopback(options.address)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  state->channel = grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
  state->stub = v1::Koine::NewStub(state->channel);
  state->admin = v1::Admin::NewStub(state->channel);

  const auto deadline = DeadlineAfter(options.connect_timeout);
  for (grpc_connectivity_state now = state->channel->GetState(true); now != GRPC_CHANNEL_READY;
       now = state->channel->GetState(true)) {
    if (now == GRPC_CHANNEL_TRANSIENT_FAILURE || now == GRPC_CHANNEL_SHUTDOWN) {
      // A call on a failed channel fails at once and says what the connection died of.
      grpc::ClientContext context;
      context.set_deadline(DeadlineAfter(absl::Seconds(1)));
      v1::GetServerStatsResponse reply;
      const grpc::Status why = state->stub->GetServerStats(&context, {}, &reply);
      if (why.ok()) break;  // it has come up meanwhile
      return absl::UnavailableError(absl::StrCat("cannot reach ", options.address, ": ", why.error_message()));
    }
    if (!state->channel->WaitForStateChange(now, deadline)) {
      return absl::UnavailableError(absl::StrCat("cannot reach ", options.address, ": no connection within ",
                                                 absl::FormatDuration(options.connect_timeout)));
    }
  }
  return Client(std::move(state));
}

absl::StatusOr<v1::TranslateResponse> Client::Translate(const v1::TranslateRequest& request) const {
  return state_->Run(&v1::Koine::Stub::Translate, request);
}

absl::StatusOr<v1::EncodeResponse> Client::Encode(const v1::EncodeRequest& request) const {
  return state_->Run(&v1::Koine::Stub::Encode, request);
}

absl::StatusOr<v1::ListLanguagesResponse> Client::ListLanguages(const v1::ListLanguagesRequest& request) const {
  return state_->Run(&v1::Koine::Stub::ListLanguages, request);
}

absl::StatusOr<v1::GetModelInfoResponse> Client::GetModelInfo(const v1::GetModelInfoRequest& request) const {
  return state_->Run(&v1::Koine::Stub::GetModelInfo, request);
}

absl::StatusOr<v1::GetParameterStatsResponse> Client::GetParameterStats(
    const v1::GetParameterStatsRequest& request) const {
  return state_->Run(&v1::Koine::Stub::GetParameterStats, request);
}

absl::StatusOr<v1::GetServerStatsResponse> Client::GetServerStats(const v1::GetServerStatsRequest& request) const {
  return state_->Run(&v1::Koine::Stub::GetServerStats, request);
}

absl::StatusOr<v1::LoadLanguageResponse> Client::LoadLanguage(const v1::LoadLanguageRequest& request) const {
  return state_->RunOn(*state_->admin, &v1::Admin::Stub::LoadLanguage, request);
}

absl::StatusOr<v1::UnloadLanguageResponse> Client::UnloadLanguage(const v1::UnloadLanguageRequest& request) const {
  return state_->RunOn(*state_->admin, &v1::Admin::Stub::UnloadLanguage, request);
}

absl::StatusOr<v1::RescanLanguagesResponse> Client::RescanLanguages(const v1::RescanLanguagesRequest& request) const {
  return state_->RunOn(*state_->admin, &v1::Admin::Stub::RescanLanguages, request);
}

void Client::TranslateAsync(const v1::TranslateRequest& request, ReplyCallback<v1::TranslateResponse> done) const {
  state_->RunAsync([this](auto... arguments) { state_->stub->async()->Translate(std::move(arguments)...); }, request,
                   std::move(done));
}

void Client::EncodeAsync(const v1::EncodeRequest& request, ReplyCallback<v1::EncodeResponse> done) const {
  state_->RunAsync([this](auto... arguments) { state_->stub->async()->Encode(std::move(arguments)...); }, request,
                   std::move(done));
}

const ClientOptions& Client::options() const { return state_->options; }

absl::Status ItemStatus(const google::rpc::Status& status) {
  return MakeStatus(status.code(), status.message(), status);
}

std::optional<absl::Duration> RetryDelay(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryInfoUrl);
  google::rpc::RetryInfo info;
  if (!payload.has_value() || !info.ParseFromString(std::string(*payload)) || !info.has_retry_delay()) {
    return std::nullopt;
  }
  return absl::Seconds(info.retry_delay().seconds()) + absl::Nanoseconds(info.retry_delay().nanos());
}

}  // namespace koine::client
