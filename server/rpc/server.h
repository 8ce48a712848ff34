// The listening gRPC server: the service, health and reflection, from start to an orderly end.
#ifndef KOINE_SERVER_RPC_SERVER_H_
#define KOINE_SERVER_RPC_SERVER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/net/listener.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/koine_service.h"
#include "server/text/observer.h"

namespace koine::server {

struct RpcOptions {
  std::string listen = "0.0.0.0:50051";  // port 0: a free one
  int64_t max_message_bytes = 4 << 20;   // received; replies are bounded by the text service's limits
  bool reflection = true;
  bool admin = false;                                        // the service koine.v1.Admin
  absl::Duration max_connection_age = absl::ZeroDuration();  // 0: no bound
  std::string version;
};

// Start, SetServing and Drain from one thread.
class RpcServer {
 public:
  // Listens and answers at once; health says NOT_SERVING until SetServing. UNAVAILABLE if it cannot listen,
  // INVALID_ARGUMENT for an address that is none.
  // The arguments outlive the server; `observer` may be null.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const RpcOptions& options, const ModelHosts* hosts,
                                                          WorkerPool* pool, Rejections* rejections,
                                                          Observer* observer = nullptr);
  // Ends at once what Drain has not ended.
  ~RpcServer();

  int port() const { return listener_->port(); }
  // From now on health says SERVING while every model's languages are ready (ModelHosts::Ready). Asks them now; so do
  // admin calls when they have ended, and UpdateHealth.
  void SetServing();
  void UpdateHealth() ABSL_LOCKS_EXCLUDED(health_mutex_);  // thread-safe

  // OK while it serves and is ready; otherwise why not. Thread-safe.
  absl::Status Ready() const;
  ServerFacts facts() const { return service_.facts(); }

  // The orderly end, once:
  //   health NOT_SERVING -> serve on for `delay`, so that balancers notice -> refuse new calls with UNAVAILABLE
  //   -> wait for calls in flight up to `timeout` -> end the rest with UNAVAILABLE, and the engines -> stop listening.
  // True if no call had to be ended.
  bool Drain(absl::Duration delay, absl::Duration timeout);

 private:
  RpcServer(const RpcOptions& options, const ModelHosts* hosts, WorkerPool* pool, Rejections* rejections,
            Observer* observer);
  void StopEngines(absl::Time deadline);

  const ModelHosts& hosts_;
  RpcContext context_;
  KoineService service_;
  std::unique_ptr<AdminService> admin_;  // null: off
  AbsentMethods absent_;
  std::atomic<bool> serving_{false};
  absl::Mutex health_mutex_;
  bool healthy_ ABSL_GUARDED_BY(health_mutex_) = false;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  std::unique_ptr<Listener> listener_;  // after what it hands connections to
  std::unique_ptr<grpc::Server> server_;
};

// Asks `listen`'s port on this machine for the health of the whole server. OK if it says SERVING.
absl::Status CheckHealth(const std::string& listen, absl::Duration timeout);

}  // namespace koine::server

#endif  // KOINE_SERVER_RPC_SERVER_H_
