// One RPC of any of our services, from its bytes to its status.
#ifndef KOINE_SERVER_RPC_UNARY_REACTOR_H_
#define KOINE_SERVER_RPC_UNARY_REACTOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/rpc/wire.h"
#include "server/text/fault.h"
#include "server/text/model_host.h"
#include "server/text/observer.h"

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

// What the services of one server share; outlives their RPCs.
struct RpcContext {
  const ModelHosts* hosts = nullptr;
  Rejections* rejections = nullptr;
  Observer* observer = nullptr;  // may be null
  int64_t max_items = 0;
  int64_t max_message_bytes = 0;
  Inflight inflight = {};
};

// Joins a text call with the cancellation of its RPC, whichever comes first.
class CallSlot {
 public:
  void Attach(std::shared_ptr<Call> call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  std::shared_ptr<Call> call_ ABSL_GUARDED_BY(mutex_);
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
};

// gRPC deletes it through OnDone, after Finish and after any OnCancel.
class UnaryReactor final : public grpc::ServerUnaryReactor {
 public:
  // Begins the RPC `op`: already finished (with an error) if the request is refused or malformed, which is what *go_on
  // says.
  static UnaryReactor* Begin(RpcContext* shared, const char* op, grpc::CallbackServerContext* context,
                             const grpc::ByteBuffer& bytes, grpc::ByteBuffer* reply, google::protobuf::Message* request,
                             bool* go_on);

  // The model that the request names. Otherwise the RPC ends, and the answer is null.
  ModelHost* FindModel(const std::string& name);

  // The one end of the RPC: any thread, once.
  void End(absl::Status status);

  template <typename Reply>
  void EndWith(const absl::StatusOr<Reply>& reply) {
    absl::Status status = reply.status();
    if (status.ok()) status = SerializeReply(*reply, shared_.max_message_bytes, reply_);
    End(std::move(status));
  }

  // To be kept by whoever attaches a call: the reactor may be gone by then.
  std::shared_ptr<CallSlot> slot() { return slot_; }

  void OnCancel() override;
  void OnDone() override;

 private:
  UnaryReactor(RpcContext* shared, const char* op, grpc::CallbackServerContext* context, grpc::ByteBuffer* reply)
      : shared_(*shared), op_(op), context_(*context), reply_(reply) {}

  RpcContext& shared_;
  const char* const op_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer* const reply_;
  const absl::Time arrival_ = absl::Now();
  std::string model_;  // of the server's models; empty until found
  const std::shared_ptr<CallSlot> slot_ = std::make_shared<CallSlot>();
};

}  // namespace koine::server

#endif  // KOINE_SERVER_RPC_UNARY_REACTOR_H_
