// The gRPC service: callbacks that parse, hand over to the text services, and finish. No callback ever blocks.
#ifndef KOINE_SERVER_RPC_KOINE_SERVICE_H_
#define KOINE_SERVER_RPC_KOINE_SERVICE_H_

#include <atomic>
#include <string>

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/time/time.h"
#include "koine/v1/koine.grpc.pb.h"
#include "server/rpc/unary_reactor.h"
#include "server/text/introspection.h"
#include "server/text/worker_pool.h"

namespace koine::server {

// All methods are taken raw, so that every malformed request is answered by us.
using RawKoine = v1::Koine::WithRawCallbackMethod_Translate<
    v1::Koine::WithRawCallbackMethod_Encode<v1::Koine::WithRawCallbackMethod_ListLanguages<
        v1::Koine::WithRawCallbackMethod_GetModelInfo<v1::Koine::WithRawCallbackMethod_GetParameterStats<
            v1::Koine::WithRawCallbackMethod_GetServerStats<v1::Koine::Service>>>>>>;

class KoineService final : public RawKoine {
 public:
  // Both outlive the service.
  KoineService(RpcContext* context, WorkerPool* pool, std::string version);

  grpc::ServerUnaryReactor* Translate(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* Encode(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* ListLanguages(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* GetParameterStats(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* GetServerStats(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* reply) override;

  void set_draining() { draining_.store(true, std::memory_order_relaxed); }
  ServerFacts facts() const;

 private:
  RpcContext& context_;
  WorkerPool& pool_;
  const std::string version_;
  const absl::Time started_ = absl::Now();
  std::atomic<bool> draining_{false};
  std::atomic<bool> account_running_{false};
};

}  // namespace koine::server

#endif  // KOINE_SERVER_RPC_KOINE_SERVICE_H_
