#include "server/rpc/koine_service.h"

#include <memory>
#include <utility>

#include "server/rpc/wire.h"

namespace koine::server {
namespace {

// Joins a text call with the cancellation of its RPC, whichever comes first.
class CallSlot {
 public:
  void Attach(std::shared_ptr<Call> call) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::Status cancelled;
    {
      absl::MutexLock lock(&mutex_);
      call_ = call;
      cancelled = cancelled_;
    }
    if (!cancelled.ok()) call->Cancel(cancelled);
  }

  void Cancel(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::shared_ptr<Call> call;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = status;
      call = call_;
    }
    if (call != nullptr) call->Cancel(status);
  }

 private:
  absl::Mutex mutex_;
  std::shared_ptr<Call> call_ ABSL_GUARDED_BY(mutex_);
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

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

// One RPC. gRPC deletes it through OnDone, after Finish and after any OnCancel.
class KoineService::Reactor final : public grpc::ServerUnaryReactor {
 public:
  Reactor(KoineService* service, grpc::CallbackServerContext* context, grpc::ByteBuffer* reply)
      : service_(*service), context_(*context), reply_(reply) {}

  // The one end of the RPC: any thread, once.
  void End(absl::Status status) {
    if (!status.ok()) {
      service_.rejections_.Count(status);
      AddRetryPushback(status, &context_);
    }
    Finish(ToGrpc(status));
  }

  template <typename Reply>
  void EndWith(const absl::StatusOr<Reply>& reply) {
    absl::Status status = reply.status();
    if (status.ok()) status = SerializeReply(*reply, service_.max_message_bytes_, reply_);
    End(std::move(status));
  }

  // To be kept by whoever attaches a call: the reactor may be gone by then.
  std::shared_ptr<CallSlot> slot() { return slot_; }

  void OnCancel() override {
    // Both the caller's leaving and the passing of its deadline come here.
    slot_->Cancel(absl::Now() >= DeadlineOf(context_) ? absl::DeadlineExceededError("the deadline passed")
                                                      : absl::CancelledError("the caller went away"));
  }

  void OnDone() override {
    Inflight& inflight = service_.inflight_;
    delete this;
    inflight.End();
  }

 private:
  KoineService& service_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer* const reply_;
  const std::shared_ptr<CallSlot> slot_ = std::make_shared<CallSlot>();
};

KoineService::KoineService(const ModelHosts* hosts, WorkerPool* pool, Rejections* rejections, std::string version)
    : hosts_(*hosts),
      pool_(*pool),
      rejections_(*rejections),
      version_(std::move(version)),
      max_items_(hosts->all().front()->text->options().limits.max_items),
      max_message_bytes_(hosts->all().front()->text->options().limits.max_message_bytes) {}

KoineService::Reactor* KoineService::Begin(grpc::CallbackServerContext* context, const grpc::ByteBuffer& bytes,
                                           grpc::ByteBuffer* reply, google::protobuf::Message* request, bool* go_on) {
  auto* reactor = new Reactor(this, context, reply);
  absl::Status status = inflight_.Begin() ? ParseRequest(bytes, max_items_, request)
                                          : absl::UnavailableError("the server is shutting down");
  *go_on = status.ok();
  if (!status.ok()) reactor->End(std::move(status));
  return reactor;
}

grpc::ServerUnaryReactor* KoineService::Translate(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* reply) {
  auto message = std::make_unique<v1::TranslateRequest>();
  bool go_on = false;
  Reactor* reactor = Begin(context, *request, reply, message.get(), &go_on);
  if (!go_on) return reactor;
  const absl::StatusOr<ModelHost*> host = hosts_.Find(message->model());
  if (!host.ok()) {
    reactor->End(host.status());
    return reactor;
  }
  const std::shared_ptr<CallSlot> slot = reactor->slot();
  slot->Attach((*host)->text->Translate(
      std::move(message), DeadlineOf(*context),
      [reactor](const absl::StatusOr<v1::TranslateResponse>& response) { reactor->EndWith(response); }));
  return reactor;
}

grpc::ServerUnaryReactor* KoineService::Encode(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* reply) {
  auto message = std::make_unique<v1::EncodeRequest>();
  bool go_on = false;
  Reactor* reactor = Begin(context, *request, reply, message.get(), &go_on);
  if (!go_on) return reactor;
  const absl::StatusOr<ModelHost*> host = hosts_.Find(message->model());
  if (!host.ok()) {
    reactor->End(host.status());
    return reactor;
  }
  const std::shared_ptr<CallSlot> slot = reactor->slot();
  slot->Attach((*host)->text->Encode(
      std::move(message), DeadlineOf(*context),
      [reactor](const absl::StatusOr<v1::EncodeResponse>& response) { reactor->EndWith(response); }));
  return reactor;
}

grpc::ServerUnaryReactor* KoineService::ListLanguages(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  v1::ListLanguagesRequest message;
  bool go_on = false;
  Reactor* reactor = Begin(context, *request, reply, &message, &go_on);
  if (!go_on) return reactor;
  const absl::StatusOr<ModelHost*> host = hosts_.Find(message.model());
  if (host.ok()) {
    reactor->EndWith<v1::ListLanguagesResponse>(DescribeLanguages(**host));
  } else {
    reactor->End(host.status());
  }
  return reactor;
}

grpc::ServerUnaryReactor* KoineService::GetModelInfo(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  v1::GetModelInfoRequest message;
  bool go_on = false;
  Reactor* reactor = Begin(context, *request, reply, &message, &go_on);
  if (!go_on) return reactor;
  const absl::StatusOr<ModelHost*> host = hosts_.Find(message.model());
  if (host.ok()) {
    reactor->EndWith<v1::GetModelInfoResponse>(DescribeModel(**host));
  } else {
    reactor->End(host.status());
  }
  return reactor;
}

grpc::ServerUnaryReactor* KoineService::GetParameterStats(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  v1::GetParameterStatsRequest message;
  bool go_on = false;
  Reactor* reactor = Begin(context, *request, reply, &message, &go_on);
  if (!go_on) return reactor;
  const absl::StatusOr<ModelHost*> host = hosts_.Find(message.model());
  if (!host.ok()) {
    reactor->End(host.status());
    return reactor;
  }
  // It reads page tables and maybe all parameters: on a text worker, and one at a time, so that nobody can keep the
  // others from working on texts.
  if (account_running_.exchange(true)) {
    reactor->End(Overloaded("another GetParameterStats is under way", absl::Seconds(1)));
    return reactor;
  }
  pool_.Post([this, reactor, host = *host, checksums = message.checksums()] {
    const absl::StatusOr<v1::GetParameterStatsResponse> response = DescribeParameters(*host, checksums);
    account_running_.store(false);
    reactor->EndWith(response);
  });
  return reactor;
}

grpc::ServerUnaryReactor* KoineService::GetServerStats(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  v1::GetServerStatsRequest message;
  bool go_on = false;
  Reactor* reactor = Begin(context, *request, reply, &message, &go_on);
  if (!go_on) return reactor;
  ServerFacts facts;
  facts.version = version_;
  facts.started = started_;
  facts.inflight_requests = inflight_.count();
  facts.finished_requests = inflight_.finished();
  facts.draining = draining_.load(std::memory_order_relaxed);
  reactor->EndWith<v1::GetServerStatsResponse>(DescribeServer(facts, rejections_, hosts_));
  return reactor;
}

}  // namespace koine::server
