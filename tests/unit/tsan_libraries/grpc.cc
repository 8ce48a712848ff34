// gRPC 1.51: a batch of operations is started before it is complete, all uses of a callback call are before its OnDone,
// all calls of a server are before the end of its Shutdown; and within the library, what is pushed into a queue is
// pushed before it is popped, and the steps of a call follow each other.
#include <grpc/grpc.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <utility>

#include "absl/status/status.h"
#include "tests/unit/tsan_libraries/real.h"

using grpc::internal::ServerCallbackCall;
using grpc::internal::ServerReactor;
using koine::tsan::Acquire;
using koine::tsan::Release;

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t nops, void* tag, void* reserved) {
  Release(tag);
  return KOINE_REAL("grpc_call_start_batch", grpc_call_error, grpc_call*, const grpc_op*, size_t, void*, void*)(
      call, ops, nops, tag, reserved);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  const grpc_event event = KOINE_REAL("grpc_completion_queue_next", grpc_event, grpc_completion_queue*, gpr_timespec,
                                      void*)(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) Acquire(event.tag);
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag, gpr_timespec deadline, void* reserved) {
  const grpc_event event = KOINE_REAL("grpc_completion_queue_pluck", grpc_event, grpc_completion_queue*, void*,
                                      gpr_timespec, void*)(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) Acquire(event.tag);
  return event;
}

}  // extern "C"

// Inside libgrpc: the batch `tag` is complete. Whoever takes it from the queue, or runs it as a callback, comes after.
struct grpc_cq_completion;
void grpc_cq_end_op(grpc_completion_queue* queue, void* tag, absl::Status error,
                    void (*done)(void*, grpc_cq_completion*), void* done_argument, grpc_cq_completion* storage,
                    bool internal) {
  Acquire(tag);
  Release(tag);
  KOINE_REAL("_Z14grpc_cq_end_opP21grpc_completion_queuePvN4absl7debian36StatusEPFvS1_P18grpc_cq_completionES1_S6_b",
             void, grpc_completion_queue*, void*, absl::Status, void (*)(void*, grpc_cq_completion*), void*,
             grpc_cq_completion*, bool)
  (queue, tag, std::move(error), done, done_argument, storage, internal);
}

// A call counts what its OnCancel waits for (the handler's end, the cancellation) and its users, the last of whom
// schedules OnDone. Code in our binary (its headers are templates) counts where ThreadSanitizer sees it, code in
// libgrpc++ does not.
namespace {

// Stands for a reactor whose OnCancel is due: libgrpc++ lets go of the call right after it.
class Cancelled final : public ServerReactor {
 public:
  Cancelled(const ServerCallbackCall* call, ServerReactor* reactor) : call_(call), reactor_(reactor) {}
  void OnCancel() override {
    reactor_->OnCancel();
    Release(call_);
    delete this;
  }
  void OnDone() override {}

 private:
  const ServerCallbackCall* const call_;
  ServerReactor* const reactor_;
};

// The members of ServerCallbackCall, to find its counts.
struct CallLayout {
  void* virtual_table;
  std::atomic_int on_cancel_conditions_remaining;
  std::atomic_int callbacks_outstanding;
};
static_assert(sizeof(CallLayout) == sizeof(ServerCallbackCall));
const CallLayout* LayoutOf(const ServerCallbackCall* call) { return reinterpret_cast<const CallLayout*>(call); }

}  // namespace

void ServerCallbackCall::CallOnCancel(ServerReactor* reactor) {
  Acquire(&LayoutOf(this)->on_cancel_conditions_remaining);
  KOINE_REAL("_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE", void, ServerCallbackCall*,
             ServerReactor*)
  (this, new Cancelled(this, reactor));
}

void ServerCallbackCall::ScheduleOnDone(bool inline_ondone) {
  Acquire(this);
  Acquire(&LayoutOf(this)->callbacks_outstanding);
  KOINE_REAL("_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb", void, ServerCallbackCall*, bool)
  (this, inline_ondone);
}

// A server counts its calls, and Shutdown waits for the count. Both functions are private.
namespace grpc {
void ServerCallIsOver(Server* server) asm("_ZN4grpc6Server23UnrefWithPossibleNotifyEv");
void ServerCallIsOver(Server* server) {
  Release(server);
  KOINE_REAL("_ZN4grpc6Server23UnrefWithPossibleNotifyEv", void, Server*)(server);
}

void WaitForServerCalls(Server* server) asm("_ZN4grpc6Server18UnrefAndWaitLockedEv");
void WaitForServerCalls(Server* server) {
  KOINE_REAL("_ZN4grpc6Server18UnrefAndWaitLockedEv", void, Server*)(server);
  Acquire(server);
}
}  // namespace grpc

// Within the library: errors go from timers and transports to callers by a lock-free queue and by the call's combiner,
// which lets one thread at a time work on a call. None of this is in public headers.
struct grpc_closure;
namespace grpc_core {

struct Queue;
struct Node;
void Push(Queue* queue, Node* node) asm("_ZN9grpc_core32MultiProducerSingleConsumerQueue4PushEPNS0_4NodeE");
void Push(Queue* queue, Node* node) {
  Release(node);
  KOINE_REAL("_ZN9grpc_core32MultiProducerSingleConsumerQueue4PushEPNS0_4NodeE", void, Queue*, Node*)(queue, node);
}
Node* PopAndCheckEnd(Queue* queue,
                     bool* empty) asm("_ZN9grpc_core32MultiProducerSingleConsumerQueue14PopAndCheckEndEPb");
Node* PopAndCheckEnd(Queue* queue, bool* empty) {
  Node* node = KOINE_REAL("_ZN9grpc_core32MultiProducerSingleConsumerQueue14PopAndCheckEndEPb", Node*, Queue*, bool*)(
      queue, empty);
  if (node != nullptr) Acquire(node);
  return node;
}

struct CallCombiner;
// What the thread that works on the call did so far is before what the next one does.
template <typename Step>
void OneAtATime(const CallCombiner* combiner, const Step& step) {
  Release(combiner);
  step();
  Acquire(combiner);
}
void Start(CallCombiner* combiner, grpc_closure* closure, absl::Status error, const char* file, int line,
           const char* reason) asm("_ZN9grpc_core12CallCombiner5StartEP12grpc_closureN4absl7debian36StatusEPKciS7_");
void Start(CallCombiner* combiner, grpc_closure* closure, absl::Status error, const char* file, int line,
           const char* reason) {
  OneAtATime(combiner, [&] {
    KOINE_REAL("_ZN9grpc_core12CallCombiner5StartEP12grpc_closureN4absl7debian36StatusEPKciS7_", void, CallCombiner*,
               grpc_closure*, absl::Status, const char*, int, const char*)
    (combiner, closure, std::move(error), file, line, reason);
  });
}
void Stop(CallCombiner* combiner, const char* file, int line,
          const char* reason) asm("_ZN9grpc_core12CallCombiner4StopEPKciS2_");
void Stop(CallCombiner* combiner, const char* file, int line, const char* reason) {
  OneAtATime(combiner, [&] {
    KOINE_REAL("_ZN9grpc_core12CallCombiner4StopEPKciS2_", void, CallCombiner*, const char*, int, const char*)
    (combiner, file, line, reason);
  });
}
void SetNotifyOnCancel(CallCombiner* combiner,
                       grpc_closure* closure) asm("_ZN9grpc_core12CallCombiner17SetNotifyOnCancelEP12grpc_closure");
void SetNotifyOnCancel(CallCombiner* combiner, grpc_closure* closure) {
  OneAtATime(combiner, [&] {
    KOINE_REAL("_ZN9grpc_core12CallCombiner17SetNotifyOnCancelEP12grpc_closure", void, CallCombiner*, grpc_closure*)
    (combiner, closure);
  });
}
void Cancel(CallCombiner* combiner,
            absl::Status error) asm("_ZN9grpc_core12CallCombiner6CancelEN4absl7debian36StatusE");
void Cancel(CallCombiner* combiner, absl::Status error) {
  OneAtATime(combiner, [&] {
    KOINE_REAL("_ZN9grpc_core12CallCombiner6CancelEN4absl7debian36StatusE", void, CallCombiner*, absl::Status)
    (combiner, std::move(error));
  });
}

}  // namespace grpc_core
