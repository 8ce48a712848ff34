#include "server/rpc/unary_reactor.h"

#include <utility>

namespace koine::server {

bool Inflight::Begin() {
  absl::MutexLock lock(&mutex_);
  ++count_;
  return !refusing_;
}

void Inflight::End() {
  absl::MutexLock lock(&mutex_);
  --count_;
  ++finished_;
}

void Inflight::Refuse() {
  absl::MutexLock lock(&mutex_);
  refusing_ = true;
}

bool Inflight::WaitForNone(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return count_ == 0; };
  return mutex_.AwaitWithTimeout(absl::Condition(&none), timeout);
}

int64_t Inflight::count() const {
  absl::MutexLock lock(&mutex_);
  return count_;
}

int64_t Inflight::finished() const {
  absl::MutexLock lock(&mutex_);
  return finished_;
}

void CallSlot::Attach(std::shared_ptr<Call> call) {
  absl::Status cancelled;
  {
    absl::MutexLock lock(&mutex_);
    call_ = call;
    cancelled = cancelled_;
  }
  if (!cancelled.ok()) call->Cancel(cancelled);
}

void CallSlot::Cancel(const absl::Status& status) {
  std::shared_ptr<Call> call;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = status;
    call = call_;
  }
  if (call != nullptr) call->Cancel(status);
}

namespace {

// A call whose time is up this soon after it came has been ended by its deadline: gRPC carries timeouts, not instants,
// so ours is later than the caller's by what the request travelled.
constexpr absl::Duration kTravel = absl::Milliseconds(50);

absl::Status Departure(bool late) {
  return late ? absl::DeadlineExceededError("the deadline passed") : absl::CancelledError("the caller went away");
}

}  // namespace

UnaryReactor* UnaryReactor::Begin(RpcContext* shared, const char* op, grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer& bytes, grpc::ByteBuffer* reply,
                                  google::protobuf::Message* request, bool* go_on) {
  auto* reactor = new UnaryReactor(shared, op, context, reply);
  absl::Status status;
  if (!shared->inflight.Begin()) {
    status = absl::UnavailableError("the server is shutting down");
  } else if (!bytes.Valid()) {
    // The call ended before its message came.
    status = Departure(DeadlineOf(*context) - reactor->arrival_ <= kTravel);
  } else {
    status = ParseRequest(bytes, shared->max_items, request);
  }
  *go_on = status.ok();
  if (!status.ok()) reactor->End(std::move(status));
  return reactor;
}

ModelHost* UnaryReactor::FindModel(const std::string& name) {
  const absl::StatusOr<ModelHost*> host = shared_.hosts->Find(name);
  if (!host.ok()) {
    End(host.status());
    return nullptr;
  }
  model_ = (*host)->name;
  return *host;
}

void UnaryReactor::End(absl::Status status) {
  if (!status.ok()) {
    shared_.rejections->Count(status);
    AddRetryPushback(status, &context_);
  }
  // Before the answer: whoever has it finds it counted.
  if (shared_.observer != nullptr) {
    shared_.observer->RequestDone(model_, op_, status.code(), absl::Now() - arrival_);
  }
  Finish(ToGrpc(status));
}

void UnaryReactor::OnCancel() {
  // Both the caller's leaving and the passing of its deadline come here. gRPC carries timeouts, not instants, so our
  // deadline is later than the caller's by what the request travelled: who leaves in the last quarter ran out of time.
  const absl::Time deadline = DeadlineOf(context_);
  const bool late = deadline != absl::InfiniteFuture() && absl::Now() >= deadline - (deadline - arrival_) / 4;
  slot_->Cancel(Departure(late));
}

void UnaryReactor::OnDone() {
  Inflight& inflight = shared_.inflight;
  delete this;
  inflight.End();
}

}  // namespace koine::server
