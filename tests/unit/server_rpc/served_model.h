// A whole server in this process over a folder that the test may change: store, engine, text, RPC and metrics.
#ifndef KOINE_TESTS_UNIT_SERVER_RPC_SERVED_MODEL_H_
#define KOINE_TESTS_UNIT_SERVER_RPC_SERVED_MODEL_H_

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "koine/v1/koine.grpc.pb.h"
#include "server/rpc/server.h"
#include "tests/support/model_copy.h"

namespace koine::server {

class ServedModel {
 public:
  struct Options {
    int64_t language_memory = 0;
    bool admin = false;
    QueueLimits queue = {};
    bool engine_runs = true;  // false: jobs wait in the queue until the test starts host().engine
  };

  // Fails the test on errors. The model is called "m"; its languages are es, fr and ru.
  ServedModel(const Options& options, Observer* observer = nullptr) {
    auto host = std::make_unique<ModelHost>();
    host->name = "m";
    auto model = model_loader::Model::Open(copy_.path().string(), {});
    EXPECT_TRUE(model.ok()) << model.status();
    host->model = *std::move(model);
    LanguageStoreOptions languages;
    languages.memory_budget = options.language_memory;
    host->languages = std::make_unique<LanguageStore>(host->model, languages);
    const absl::Status started = host->languages->Start();
    EXPECT_TRUE(started.ok()) << started;
    host->queue = std::make_unique<JobQueue>(options.queue);
    EngineOptions engine;
    engine.kv_cache_bytes = 8 << 20;
    host->engine = std::make_unique<Engine>(host->model, host->queue.get(), engine);
    if (options.engine_runs) host->engine->Start();
    TextService::Parts parts;
    parts.queue = host->queue.get();
    parts.pool = &pool_;
    parts.languages = host->languages.get();
    parts.rejections = &rejections_;
    parts.observer = observer;
    TextServiceOptions text;
    text.limits.max_items = std::min<int64_t>(text.limits.max_items, options.queue.max_items);
    auto service = TextService::Create("m", std::move(parts), text);
    EXPECT_TRUE(service.ok()) << service.status();
    host->text = *std::move(service);
    std::vector<std::unique_ptr<ModelHost>> hosts;
    hosts.push_back(std::move(host));
    hosts_ = std::make_unique<ModelHosts>(std::move(hosts));
    RpcOptions rpc;
    rpc.listen = "127.0.0.1:0";
    rpc.admin = options.admin;
    rpc.version = "1.2.3";
    auto server = RpcServer::Start(rpc, hosts_.get(), &pool_, &rejections_, observer);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                         grpc::InsecureChannelCredentials(), arguments);
    koine_ = v1::Koine::NewStub(channel_);
    admin_ = v1::Admin::NewStub(channel_);
    health_ = grpc::health::v1::Health::NewStub(channel_);
  }

  const testing::ModelCopy& copy() const { return copy_; }
  ModelHost& host() const { return *hosts_->all().front(); }
  const ModelHosts& hosts() const { return *hosts_; }
  RpcServer& server() { return *server_; }
  Rejections& rejections() { return rejections_; }
  v1::Koine::Stub& koine() { return *koine_; }
  v1::Admin::Stub& admin() { return *admin_; }

  static v1::TranslateRequest Request(const std::string& source, const std::string& target, int items = 1) {
    v1::TranslateRequest request;
    request.set_source(source);
    request.set_target(target);
    request.mutable_options()->set_max_tokens(4);
    for (int i = 0; i < items; ++i) request.add_items()->set_text("a small text");
    return request;
  }
  grpc::Status Translate(const std::string& source, const std::string& target, int items = 1) {
    grpc::ClientContext context;
    v1::TranslateResponse response;
    return koine_->Translate(&context, Request(source, target, items), &response);
  }
  v1::Language Language(const std::string& code) {
    grpc::ClientContext context;
    v1::ListLanguagesResponse response;
    EXPECT_TRUE(koine_->ListLanguages(&context, {}, &response).ok());
    for (const v1::Language& language : response.languages()) {
      if (language.code() == code) return language;
    }
    return {};
  }
  bool Serving() {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse response;
    return health_->Check(&context, {}, &response).ok() &&
           response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  }

 private:
  testing::ModelCopy copy_;
  Rejections rejections_;
  WorkerPool pool_{2};
  std::unique_ptr<ModelHosts> hosts_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Koine::Stub> koine_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

}  // namespace koine::server

#endif  // KOINE_TESTS_UNIT_SERVER_RPC_SERVED_MODEL_H_
