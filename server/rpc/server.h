// The listening gRPC server: the service, health and reflection, from start to an orderly end.
#ifndef KOINE_SERVER_RPC_SERVER_H_
#define KOINE_SERVER_RPC_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include <grpcpp/server.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/rpc/koine_service.h"

namespace koine::server {

struct RpcOptions {
  std::string listen = "0.0.0.0:50051";  // port 0: a free one
  int64_t max_message_bytes = 4 << 20;   // received; replies are bounded by the text service's limits
  bool reflection = true;
  absl::Duration max_connection_age = absl::ZeroDuration();  // 0: no bound
  std::string version;
};

// Start, SetServing and Drain from one thread.
class RpcServer {
 public:
  // Listens and answers at once; health says NOT_SERVING until SetServing. UNAVAILABLE if it cannot listen.
  // The arguments outlive the server.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const RpcOptions& options, const ModelHosts* hosts,
                                                          WorkerPool* pool, Rejections* rejections);
  // Ends at once what Drain has not ended.
  ~RpcServer();

  int port() const { return port_; }
  void SetServing();

  // The orderly end, once:
  //   health NOT_SERVING -> serve on for `delay`, so that balancers notice -> refuse new calls with UNAVAILABLE
  //   -> wait for calls in flight up to `timeout` -> end the rest (UNAVAILABLE where they wait, CANCELLED where they
  //   run) and the engines -> stop listening.
  // True if no call had to be ended.
  bool Drain(absl::Duration delay, absl::Duration timeout);

 private:
  RpcServer(const ModelHosts* hosts, WorkerPool* pool, Rejections* rejections, const std::string& version);
  void StopEngines(absl::Time deadline);

  const ModelHosts& hosts_;
  KoineService service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Asks `listen`'s port on this machine for the health of the whole server. OK if it says SERVING.
absl::Status CheckHealth(const std::string& listen, absl::Duration timeout);

}  // namespace koine::server

#endif  // KOINE_SERVER_RPC_SERVER_H_
