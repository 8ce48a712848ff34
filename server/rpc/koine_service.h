// The gRPC service: callbacks that parse, hand over to the text services, and finish. No callback ever blocks.
#ifndef KOINE_SERVER_RPC_KOINE_SERVICE_H_
#define KOINE_SERVER_RPC_KOINE_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <string>

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "koine/v1/koine.grpc.pb.h"
#include "server/text/fault.h"
#include "server/text/introspection.h"
#include "server/text/model_host.h"
#include "server/text/worker_pool.h"

namespace koine::server {

// RPCs that have begun and not ended. Thread-safe.
class Inflight {
 public:
  // False while draining: the RPC counts all the same, until End.
  bool Begin() ABSL_LOCKS_EXCLUDED(mutex_);
  void End() ABSL_LOCKS_EXCLUDED(mutex_);
  // No RPC is accepted from now on.
  void Refuse() ABSL_LOCKS_EXCLUDED(mutex_);
  // True as soon as none is in flight, false after `timeout`.
  bool WaitForNone(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t count() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t finished() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable absl::Mutex mutex_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  bool refusing_ ABSL_GUARDED_BY(mutex_) = false;
};

// All methods are taken raw, so that every malformed request is answered by us.
using RawKoine = v1::Koine::WithRawCallbackMethod_Translate<
    v1::Koine::WithRawCallbackMethod_Encode<v1::Koine::WithRawCallbackMethod_ListLanguages<
        v1::Koine::WithRawCallbackMethod_GetModelInfo<v1::Koine::WithRawCallbackMethod_GetParameterStats<
            v1::Koine::WithRawCallbackMethod_GetServerStats<v1::Koine::Service>>>>>>;

class KoineService final : public RawKoine {
 public:
  // What the service works with; all outlive it.
  KoineService(const ModelHosts* hosts, WorkerPool* pool, Rejections* rejections, std::string version);

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

  Inflight& inflight() { return inflight_; }
  void set_draining() { draining_.store(true, std::memory_order_relaxed); }

 private:
  class Reactor;
  // A reactor that has begun: already finished (with an error) if the request is refused or malformed, which is what
  // *go_on says.
  Reactor* Begin(grpc::CallbackServerContext* context, const grpc::ByteBuffer& bytes, grpc::ByteBuffer* reply,
                 google::protobuf::Message* request, bool* go_on);

  const ModelHosts& hosts_;
  WorkerPool& pool_;
  Rejections& rejections_;
  const std::string version_;
  const absl::Time started_ = absl::Now();
  const int64_t max_items_;
  const int64_t max_message_bytes_;
  Inflight inflight_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> account_running_{false};
};

}  // namespace koine::server

#endif  // KOINE_SERVER_RPC_KOINE_SERVICE_H_
