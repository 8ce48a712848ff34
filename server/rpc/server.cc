#include "server/rpc/server.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace koine::server {
namespace {

// How long Shutdown may take once no call is in flight: an open health Watch keeps it waiting for all of it.
constexpr absl::Duration kShutdown = absl::Milliseconds(500);
// How long ended calls may take to be answered: a decoding step and the text worker behind it.
constexpr absl::Duration kEnding = absl::Seconds(5);
constexpr int kHandshakeMs = 20'000;
// Descriptors that connections leave to model files, probes and what the libraries open for a moment.
constexpr int kReservedFiles = 64;

// libprotobuf reports every text that is not UTF-8, and gRPC every connection that breaks: faults of callers, which
// they are told, and no news for the operator.
void LogProtobuf(google::protobuf::LogLevel /*level*/, const char* /*file*/, int /*line*/, const std::string& message) {
  spdlog::debug("protobuf: {}", message);
}

void LogGrpc(gpr_log_func_args* arguments) {
  if (arguments->severity == GPR_LOG_SEVERITY_ERROR) {
    spdlog::warn("grpc: {}", arguments->message);
  } else {
    spdlog::debug("grpc: {}", arguments->message);
  }
}

// The reflection library registers itself for every server as soon as it is linked; this takes it out again.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(),
                                  [](const std::unique_ptr<grpc::ServerBuilderPlugin>& plugin) {
                                    return absl::StrContains(plugin->name(), "reflection");
                                  }),
                   plugins->end());
  }
};

std::chrono::system_clock::time_point After(absl::Duration duration) {
  return std::chrono::system_clock::now() + absl::ToChronoMilliseconds(duration);
}

}  // namespace

RpcServer::RpcServer(const RpcOptions& options, const ModelHosts* hosts, WorkerPool* pool, Rejections* rejections,
                     Observer* observer)
    : hosts_(*hosts), service_(&context_, pool, options.version) {
  const RequestLimits& limits = hosts->all().front()->text->options().limits;
  context_.hosts = hosts;
  context_.rejections = rejections;
  context_.observer = observer;
  context_.max_items = limits.max_items;
  context_.max_message_bytes = limits.max_message_bytes;
  if (options.admin) admin_ = std::make_unique<AdminService>(&context_, [this] { UpdateHealth(); });
}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcOptions& options, const ModelHosts* hosts,
                                                            WorkerPool* pool, Rejections* rejections,
                                                            Observer* observer) {
  google::protobuf::SetLogHandler(&LogProtobuf);
  gpr_set_log_function(&LogGrpc);
  // Reflection lists the health service; naming its messages links their descriptors, without which listing tools fail.
  grpc::health::v1::HealthCheckRequest::descriptor();
  grpc::EnableDefaultHealthCheckService(true);
  if (options.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  const absl::StatusOr<Address> address = ParseAddress(options.listen);
  if (!address.ok()) return address.status();
  std::unique_ptr<RpcServer> server(new RpcServer(options, hosts, pool, rejections, observer));
  absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::Bind(*address, kReservedFiles);
  if (!listener.ok()) return listener.status();
  server->listener_ = *std::move(listener);
  grpc::ServerBuilder builder;
  if (!options.reflection) builder.SetOption(std::make_unique<WithoutReflection>());
  // A connection that says nothing gives its descriptor back (gRPC's default is two minutes).
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  if (options.max_connection_age > absl::ZeroDuration()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                               static_cast<int>(absl::ToInt64Milliseconds(options.max_connection_age)));
  }
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(-1);  // SerializeReply holds the limit, with a text
  server->connections_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
  builder.RegisterService(&server->service_);
  if (server->admin_ != nullptr) builder.RegisterService(server->admin_.get());
  builder.RegisterCallbackGenericService(&server->absent_);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) return absl::InternalError("gRPC does not start");
  auto* health = server->server_->GetHealthCheckService();
  health->SetServingStatus(v1::Koine::service_full_name(), false);
  health->SetServingStatus("", false);
  server->listener_->Accept([connections = server->connections_.get()](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    connections->HandleNewConnection(&connection);
  });
  return server;
}

RpcServer::~RpcServer() {
  if (server_ == nullptr) return;
  StopEngines(absl::InfinitePast());
  listener_->Stop();
  server_->Shutdown(After(kShutdown));
  server_->Wait();
}

void RpcServer::SetServing() {
  serving_.store(true);
  UpdateHealth();
}

void RpcServer::UpdateHealth() {
  const absl::MutexLock lock(&health_mutex_);
  if (!serving_.load()) return;
  const absl::Status ready = hosts_.Ready();
  if (ready.ok() == healthy_) return;
  healthy_ = ready.ok();
  // After the health service's Shutdown this changes nothing.
  auto* health = server_->GetHealthCheckService();
  health->SetServingStatus(v1::Koine::service_full_name(), healthy_);
  health->SetServingStatus("", healthy_);
  if (healthy_) {
    spdlog::info("ready");
  } else {
    spdlog::warn("not ready: {}", std::string(ready.message()));
  }
}

absl::Status RpcServer::Ready() const {
  if (service_.facts().draining) return absl::UnavailableError("draining");
  if (!serving_.load()) return absl::UnavailableError("loading");
  return hosts_.Ready();
}

void RpcServer::StopEngines(absl::Time deadline) {
  for (const auto& host : hosts_.all()) {
    // Calls that wait for a language end first, so that they submit nothing any more.
    host->languages->Stop();
    host->queue->Drain();
    if (deadline == absl::InfinitePast()) host->queue->Abort(absl::UnavailableError("the server is shutting down"));
    if (host->engine != nullptr) host->engine->Stop(deadline);
  }
}

bool RpcServer::Drain(absl::Duration delay, absl::Duration timeout) {
  service_.set_draining();
  server_->GetHealthCheckService()->Shutdown();  // every service NOT_SERVING, for good
  absl::SleepFor(delay);
  context_.inflight.Refuse();
  const bool clean = context_.inflight.WaitForNone(timeout);
  StopEngines(clean ? absl::InfiniteFuture() : absl::InfinitePast());
  if (!clean) context_.inflight.WaitForNone(kEnding);
  listener_->Stop();
  server_->Shutdown(After(kShutdown));
  server_->Wait();
  server_.reset();
  return clean;
}

absl::Status CheckHealth(const std::string& listen, absl::Duration timeout) {
  absl::StatusOr<Address> parsed = ParseAddress(listen);
  if (!parsed.ok()) return parsed.status();
  if (parsed->host.empty() || parsed->host == "0.0.0.0") parsed->host = "127.0.0.1";
  if (parsed->host == "::") parsed->host = "::1";
  const std::string address = parsed->ToString();
  auto stub = grpc::health::v1::Health::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(After(timeout));
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, grpc::health::v1::HealthCheckRequest(), &response);
  if (!status.ok()) return absl::UnavailableError(absl::StrCat(address, ": ", status.error_message()));
  if (response.status() != grpc::health::v1::HealthCheckResponse::SERVING) {
    return absl::UnavailableError(absl::StrCat(address, " is up, but not serving"));
  }
  return absl::OkStatus();
}

}  // namespace koine::server
