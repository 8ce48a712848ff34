#include "server/rpc/koine_service.h"

#include <memory>
#include <utility>

namespace koine::server {

KoineService::KoineService(RpcContext* context, WorkerPool* pool, std::string version)
    : context_(*context), pool_(*pool), version_(std::move(version)) {}

ServerFacts KoineService::facts() const {
  ServerFacts facts;
  facts.version = version_;
  facts.started = started_;
  facts.inflight_requests = context_.inflight.count();
  facts.finished_requests = context_.inflight.finished();
  facts.draining = draining_.load(std::memory_order_relaxed);
  return facts;
}

grpc::ServerUnaryReactor* KoineService::Translate(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* reply) {
  auto message = std::make_unique<v1::TranslateRequest>();
  bool go_on = false;
  UnaryReactor* reactor = UnaryReactor::Begin(&context_, "Translate", context, *request, reply, message.get(), &go_on);
  if (!go_on) return reactor;
  ModelHost* host = reactor->FindModel(message->model());
  if (host == nullptr) return reactor;
  const std::shared_ptr<CallSlot> slot = reactor->slot();
  slot->Attach(host->text->Translate(
      std::move(message), DeadlineOf(*context),
      [reactor](const absl::StatusOr<v1::TranslateResponse>& response) { reactor->EndWith(response); }));
  return reactor;
}

grpc::ServerUnaryReactor* KoineService::Encode(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* reply) {
  auto message = std::make_unique<v1::EncodeRequest>();
  bool go_on = false;
  UnaryReactor* reactor = UnaryReactor::Begin(&context_, "Encode", context, *request, reply, message.get(), &go_on);
  if (!go_on) return reactor;
  ModelHost* host = reactor->FindModel(message->model());
  if (host == nullptr) return reactor;
  const std::shared_ptr<CallSlot> slot = reactor->slot();
  slot->Attach(host->text->Encode(
      std::move(message), DeadlineOf(*context),
      [reactor](const absl::StatusOr<v1::EncodeResponse>& response) { reactor->EndWith(response); }));
  return reactor;
}

grpc::ServerUnaryReactor* KoineService::ListLanguages(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  v1::ListLanguagesRequest message;
  bool go_on = false;
  UnaryReactor* reactor = UnaryReactor::Begin(&context_, "ListLanguages", context, *request, reply, &message, &go_on);
  if (!go_on) return reactor;
  const ModelHost* host = reactor->FindModel(message.model());
  if (host != nullptr) reactor->EndWith<v1::ListLanguagesResponse>(DescribeLanguages(*host));
  return reactor;
}

grpc::ServerUnaryReactor* KoineService::GetModelInfo(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  v1::GetModelInfoRequest message;
  bool go_on = false;
  UnaryReactor* reactor = UnaryReactor::Begin(&context_, "GetModelInfo", context, *request, reply, &message, &go_on);
  if (!go_on) return reactor;
  const ModelHost* host = reactor->FindModel(message.model());
  if (host != nullptr) reactor->EndWith<v1::GetModelInfoResponse>(DescribeModel(*host));
  return reactor;
}

grpc::ServerUnaryReactor* KoineService::GetParameterStats(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  v1::GetParameterStatsRequest message;
  bool go_on = false;
  UnaryReactor* reactor =
      UnaryReactor::Begin(&context_, "GetParameterStats", context, *request, reply, &message, &go_on);
  if (!go_on) return reactor;
  ModelHost* host = reactor->FindModel(message.model());
  if (host == nullptr) return reactor;
  // It reads page tables and maybe all parameters: on a text worker, and one at a time, so that nobody can keep the
  // others from working on texts.
  if (account_running_.exchange(true)) {
    reactor->End(Overloaded("another GetParameterStats is under way", absl::Seconds(1)));
    return reactor;
  }
  pool_.Post([this, reactor, host, checksums = message.checksums()] {
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
  UnaryReactor* reactor = UnaryReactor::Begin(&context_, "GetServerStats", context, *request, reply, &message, &go_on);
  if (!go_on) return reactor;
  reactor->EndWith<v1::GetServerStatsResponse>(DescribeServer(facts(), *context_.rejections, *context_.hosts));
  return reactor;
}

}  // namespace koine::server
