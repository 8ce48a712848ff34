#include "server/rpc/admin_service.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <spdlog/spdlog.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/text/introspection.h"
#include "server/text/utf8.h"

namespace koine::server {
namespace {

constexpr double kDefaultTimeout = 60;
constexpr double kLongestTimeout = 3600;

absl::StatusOr<absl::Time> DeadlineFor(double seconds, const grpc::CallbackServerContext& context) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > kLongestTimeout) {
    return InvalidField("timeout_seconds", absl::StrCat("must lie between 0 and ", kLongestTimeout));
  }
  return std::min(absl::Now() + absl::Seconds(seconds == 0 ? kDefaultTimeout : seconds), DeadlineOf(context));
}

// The language as it is now.
template <typename Reply>
absl::StatusOr<Reply> Answer(const ModelHost& host, const std::string& name, const absl::Status& status) {
  if (!status.ok()) return WithField(status, "language");
  const absl::StatusOr<std::string> code = host.languages->Find(name);
  if (!code.ok()) return absl::NotFoundError(absl::StrCat("language ", ForMessage(name), " has been removed"));
  Reply reply;
  reply.set_model(host.name);
  for (const LanguageInfo& info : host.languages->List()) {
    if (info.code == *code) *reply.mutable_language() = DescribeLanguage(info);
  }
  return reply;
}

}  // namespace

AdminService::AdminService(RpcContext* context, std::function<void()> changed)
    : context_(*context), changed_(std::move(changed)) {}

void AdminService::Run(UnaryReactor* reactor, std::function<void()> work) {
  if (waiting_.fetch_add(1) >= kMaxWaiting) {
    waiting_.fetch_sub(1);
    reactor->End(Overloaded(absl::StrCat(kMaxWaiting, " admin calls are under way"), absl::Seconds(1)));
    return;
  }
  pool_.Post([this, work = std::move(work)] {
    work();
    waiting_.fetch_sub(1);
  });
}

template <typename Reply, typename Request, typename Work>
grpc::ServerUnaryReactor* AdminService::Change(const char* method, grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer& request, grpc::ByteBuffer* reply,
                                               const Work& work) {
  Request message;
  bool go_on = false;
  UnaryReactor* reactor = UnaryReactor::Begin(&context_, method, context, request, reply, &message, &go_on);
  if (!go_on) return reactor;
  ModelHost* host = reactor->FindModel(message.model());
  if (host == nullptr) return reactor;
  const absl::StatusOr<absl::Time> deadline = DeadlineFor(message.timeout_seconds(), *context);
  if (!deadline.ok()) {
    reactor->End(deadline.status());
    return reactor;
  }
  Run(reactor, [this, reactor, host, deadline = *deadline, message = std::move(message), work] {
    const absl::Status status = work(*host->languages, message, deadline);
    changed_();
    reactor->EndWith(Answer<Reply>(*host, message.language(), status));
  });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::LoadLanguage(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  return Change<v1::LoadLanguageResponse, v1::LoadLanguageRequest>(
      "LoadLanguage", context, *request, reply,
      [](LanguageStore& languages, const v1::LoadLanguageRequest& message, absl::Time deadline) {
        return languages.Load(message.language(), message.pin(), deadline);
      });
}

grpc::ServerUnaryReactor* AdminService::UnloadLanguage(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  return Change<v1::UnloadLanguageResponse, v1::UnloadLanguageRequest>(
      "UnloadLanguage", context, *request, reply,
      [](LanguageStore& languages, const v1::UnloadLanguageRequest& message, absl::Time deadline) {
        return languages.Unload(message.language(), deadline);
      });
}

grpc::ServerUnaryReactor* AdminService::RescanLanguages(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  v1::RescanLanguagesRequest message;
  bool go_on = false;
  UnaryReactor* reactor = UnaryReactor::Begin(&context_, "RescanLanguages", context, *request, reply, &message, &go_on);
  if (!go_on) return reactor;
  std::vector<ModelHost*> hosts;
  if (message.model().empty()) {
    for (const auto& host : context_.hosts->all()) hosts.push_back(host.get());
  } else {
    ModelHost* host = reactor->FindModel(message.model());
    if (host == nullptr) return reactor;
    hosts.push_back(host);
  }
  Run(reactor, [this, reactor, hosts = std::move(hosts)] {
    v1::RescanLanguagesResponse response;
    for (ModelHost* host : hosts) *response.add_models() = Rescan(*host);
    changed_();
    reactor->EndWith<v1::RescanLanguagesResponse>(std::move(response));
  });
  return reactor;
}

grpc::ServerGenericBidiReactor* AbsentMethods::CreateReactor(grpc::GenericCallbackServerContext* context) {
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Reactor(const std::string& method) {
      const bool admin = absl::StartsWith(method, absl::StrCat("/", v1::Admin::service_full_name(), "/"));
      Finish({grpc::StatusCode::UNIMPLEMENTED,
              admin ? "the Admin service is off: start koine-server with --admin to have it"
                    : absl::StrCat("there is no method ", ForMessage(method))});
    }
    void OnDone() override { delete this; }
  };
  return new Reactor(context->method());
}

}  // namespace koine::server
