// The operators' service, and what stands in its place where it is off.
#ifndef KOINE_SERVER_RPC_ADMIN_SERVICE_H_
#define KOINE_SERVER_RPC_ADMIN_SERVICE_H_

#include <atomic>
#include <functional>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "koine/v1/koine.grpc.pb.h"
#include "server/rpc/unary_reactor.h"
#include "server/text/worker_pool.h"

namespace koine::server {

using RawAdmin = v1::Admin::WithRawCallbackMethod_LoadLanguage<v1::Admin::WithRawCallbackMethod_UnloadLanguage<
    v1::Admin::WithRawCallbackMethod_RescanLanguages<v1::Admin::Service>>>;

// Its calls wait, so they have threads of their own; no more of them may wait than kMaxWaiting.
class AdminService final : public RawAdmin {
 public:
  static constexpr int kThreads = 2;
  static constexpr int kMaxWaiting = 16;

  // `context` outlives the service. `changed` is called after each call that may have changed what is ready.
  AdminService(RpcContext* context, std::function<void()> changed);

  grpc::ServerUnaryReactor* LoadLanguage(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* UnloadLanguage(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* RescanLanguages(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* reply) override;

 private:
  // A call that does `work` to one language of one model, and answers what that language is afterwards.
  template <typename Reply, typename Request, typename Work>
  grpc::ServerUnaryReactor* Change(const char* method, grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer& request, grpc::ByteBuffer* reply, const Work& work);
  // Runs `work`, which ends the reactor, on the service's threads.
  void Run(UnaryReactor* reactor, std::function<void()> work);

  RpcContext& context_;
  const std::function<void()> changed_;
  std::atomic<int> waiting_{0};
  WorkerPool pool_{kThreads};
};

// Answers methods that no service has, with UNIMPLEMENTED: those of Admin with how to switch it on.
class AbsentMethods final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_RPC_ADMIN_SERVICE_H_
