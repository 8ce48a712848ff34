// A Koine service in this process whose translations are easy to predict, with faults on demand. It keeps the wire's
// rules that clients depend on (order, one result per item, blank texts unchanged); it has no model.
#ifndef KOINE_TESTS_UNIT_CLIENTS_CPP_FAKE_SERVER_H_
#define KOINE_TESTS_UNIT_CLIENTS_CPP_FAKE_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "koine/v1/koine.grpc.pb.h"

namespace koine::testing {

// A status with google.rpc.Status details, as the server sends it.
inline grpc::Status StatusWith(grpc::StatusCode code, const std::string& text,
                               const google::protobuf::Message& detail) {
  google::rpc::Status status;
  status.set_code(static_cast<int>(code));
  status.set_message(text);
  status.add_details()->PackFrom(detail);
  return grpc::Status(code, text, status.SerializeAsString());
}

inline grpc::Status FullServer(int milliseconds) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_nanos(milliseconds * 1000000);
  return StatusWith(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full", info);
}

// A function that a test may replace while the server asks it.
class Fault {
 public:
  using Function = std::function<grpc::Status(const v1::TranslateRequest&)>;
  Fault& operator=(Function function) {
    std::lock_guard<std::mutex> lock(mutex_);
    function_ = std::move(function);
    return *this;
  }
  grpc::Status operator()(const v1::TranslateRequest& request) const {
    Function function;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      function = function_;
    }
    return function ? function(request) : grpc::Status::OK;
  }

 private:
  mutable std::mutex mutex_;
  Function function_;
};

class FakeService final : public v1::Koine::Service {
 public:
  // Asked first on each Translate; anything but OK is the answer.
  Fault fault;

  grpc::Status Translate(grpc::ServerContext*, const v1::TranslateRequest* request,
                         v1::TranslateResponse* reply) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      translate_requests_.push_back(*request);
    }
    if (grpc::Status status = fault(*request); !status.ok()) return status;
    if (request->target() == "xx") {
      return {grpc::StatusCode::INVALID_ARGUMENT, "unknown target language \"xx\"; near: es, de"};
    }
    const int count = std::max(request->options().num_hypotheses(), 1);
    for (const v1::TranslateItem& item : request->items()) {
      v1::TranslateResult* result = reply->add_results();
      result->set_source(request->source());
      result->set_target(request->target());
      if (item.text().find_first_not_of(" \t") == std::string::npos) {
        result->set_text(item.text());
        result->set_finish_reason(v1::FINISH_REASON_EMPTY);
        continue;
      }
      if (item.text() == "bad") {
        result->mutable_status()->set_code(3);
        result->mutable_status()->set_message("600 tokens, but the limit is 512");
        google::rpc::BadRequest detail;
        detail.add_field_violations()->set_field("items");
        result->mutable_status()->add_details()->PackFrom(detail);
        continue;
      }
      for (int i = 0; i < count; ++i) {
        v1::Hypothesis* hypothesis = result->add_hypotheses();
        hypothesis->set_text(request->target() + ":" + item.text() + std::string(static_cast<size_t>(i), '!'));
        hypothesis->set_score(-0.5 - i);
        hypothesis->set_tokens(3);
      }
      result->set_text(result->hypotheses(0).text());
      result->set_finish_reason(item.text() == "long" ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_STOP);
      result->set_input_tokens(5);
      result->set_output_tokens(3);
      steps += 1;
      generated += 3;
    }
    return grpc::Status::OK;
  }

  grpc::Status Encode(grpc::ServerContext*, const v1::EncodeRequest* request, v1::EncodeResponse* reply) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      encode_requests_.push_back(*request);
    }
    reply->set_dimensions(2);
    for (const v1::EncodeItem& item : request->items()) {
      v1::EncodeResult* result = reply->add_results();
      if (item.text().empty()) {
        result->mutable_status()->set_code(3);
        result->mutable_status()->set_message("the text is blank");
        continue;
      }
      result->add_embedding(item.text() == "up" ? 0.0f : 1.0f);
      result->add_embedding(item.text() == "right" ? 0.0f : 0.125f);
      result->set_input_tokens(4);
    }
    return grpc::Status::OK;
  }

  grpc::Status ListLanguages(grpc::ServerContext*, const v1::ListLanguagesRequest*,
                             v1::ListLanguagesResponse* reply) override {
    for (const char* code : {"en", "de", "zh"}) {
      v1::Language* language = reply->add_languages();
      language->set_code(code);
      language->set_name(code);
      language->set_native_name("\xE4\xB8\xAD\xE6\x96\x87");
      language->set_vocabulary(8000);
      language->set_parameters(1234567);
      language->set_state(v1::LANGUAGE_STATE_COLD);
      language->add_aliases(std::string(code) + "_XX");
    }
    reply->mutable_languages(1)->set_state(v1::LANGUAGE_STATE_FAILED);
    reply->mutable_languages(1)->set_failure("its table is short");
    reply->mutable_languages(2)->set_pinned(true);
    return grpc::Status::OK;
  }

  grpc::Status GetModelInfo(grpc::ServerContext*, const v1::GetModelInfoRequest* request,
                            v1::GetModelInfoResponse* reply) override {
    if (!request->model().empty() && request->model() != "toy") {
      return {grpc::StatusCode::NOT_FOUND, "no model \"" + request->model() + "\""};
    }
    reply->set_model("toy");
    reply->set_precision("f32");
    reply->set_parameters(7654321);
    reply->mutable_limits()->set_max_items(1024);
    return grpc::Status::OK;
  }

  grpc::Status GetParameterStats(grpc::ServerContext*, const v1::GetParameterStatsRequest*,
                                 v1::GetParameterStatsResponse* reply) override {
    reply->set_model("toy");
    for (const char* name : {"shared", "de"}) {
      v1::OwnerParameters* owner = reply->add_owners();
      owner->set_owner(name);
      owner->set_parameters(3000000);
      owner->set_file_bytes(12000000);
      owner->set_resident_bytes(12058624);
      v1::ComponentParameters* component = owner->add_components();
      component->set_component("embedding");
      component->set_parameters(3000000);
      component->set_file_bytes(12000000);
      component->add_dtypes()->set_dtype("F32");
    }
    reply->set_parameters(6000000);
    reply->mutable_owners(0)->set_formula_parameters(3000001);
    reply->mutable_owners(1)->set_state(v1::LANGUAGE_STATE_DRAINING);
    v1::SharingAccount* sharing = reply->mutable_sharing();
    sharing->set_languages(100);
    sharing->set_independent_parameters(9000000);
    sharing->set_saving(0.333);
    sharing->set_independent_attention_qkv(3774873600);
    sharing->set_attention_qkvo(50331648);
    reply->mutable_next_language()->set_parameters(2151104);
    reply->mutable_next_language()->set_mapped_bytes(int64_t{3} << 20);
    reply->mutable_room()->set_languages(1234);
    reply->mutable_room()->set_basis("cgroup");
    v1::PlanParameters* plan = reply->add_plans();
    plan->set_plan("shared");
    plan->set_parameters(37748736);
    plan->set_saving(0.99);
    plan->set_formula("L*H*d*(2*d_k + d_v)");
    return grpc::Status::OK;
  }

  grpc::Status GetServerStats(grpc::ServerContext*, const v1::GetServerStatsRequest*,
                              v1::GetServerStatsResponse* reply) override {
    reply->set_version("9.8.7");
    (*reply->mutable_rejected())["overload"] = 2;
    v1::ModelStats* model = reply->add_models();
    model->set_model("toy");
    model->mutable_languages()->set_loaded(20);
    model->mutable_languages()->set_cold(180);
    model->mutable_languages()->set_evictions(4321);
    model->mutable_languages()->set_budget_bytes(int64_t{5} << 30);
    model->mutable_engine()->set_workers(2);
    model->mutable_engine()->set_threads(1);
    // Every step has 4 rows of 2 languages.
    const int64_t n = steps;
    model->mutable_engine()->set_steps(n);
    model->mutable_engine()->set_step_rows(4 * n);
    model->mutable_engine()->set_mean_step_languages(n > 0 ? 2 : 0);
    model->mutable_engine()->set_generated_tokens(generated);
    return grpc::Status::OK;
  }

  std::vector<v1::TranslateRequest> translate_requests() {
    std::lock_guard<std::mutex> lock(mutex_);
    return translate_requests_;
  }
  std::vector<v1::EncodeRequest> encode_requests() {
    std::lock_guard<std::mutex> lock(mutex_);
    return encode_requests_;
  }

  std::atomic<int64_t> steps{0};
  std::atomic<int64_t> generated{0};

 private:
  std::mutex mutex_;
  std::vector<v1::TranslateRequest> translate_requests_;
  std::vector<v1::EncodeRequest> encode_requests_;
};

// Knows de; its folder is fine, and that of xx is broken.
class FakeAdmin final : public v1::Admin::Service {
 public:
  grpc::Status LoadLanguage(grpc::ServerContext*, const v1::LoadLanguageRequest* request,
                            v1::LoadLanguageResponse* reply) override {
    if (request->language() != "de") return {grpc::StatusCode::INVALID_ARGUMENT, "language: unknown"};
    reply->mutable_language()->set_code("de");
    reply->mutable_language()->set_state(v1::LANGUAGE_STATE_LOADED);
    reply->mutable_language()->set_pinned(request->pin());
    reply->mutable_language()->set_memory_bytes(1536);
    return grpc::Status::OK;
  }
  grpc::Status UnloadLanguage(grpc::ServerContext*, const v1::UnloadLanguageRequest* request,
                              v1::UnloadLanguageResponse* reply) override {
    if (request->timeout_seconds() > 0) return {grpc::StatusCode::DEADLINE_EXCEEDED, "still used"};
    reply->mutable_language()->set_code(request->language());
    reply->mutable_language()->set_state(v1::LANGUAGE_STATE_COLD);
    return grpc::Status::OK;
  }
  grpc::Status RescanLanguages(grpc::ServerContext*, const v1::RescanLanguagesRequest* request,
                               v1::RescanLanguagesResponse* reply) override {
    v1::ModelRescan* model = reply->add_models();
    model->set_model("toy");
    model->add_added("de");
    model->add_added("fr");
    if (request->model() == "broken") {
      v1::BrokenLanguage* broken = model->add_broken();
      broken->set_language("xx");
      broken->set_failure("language.json: no code");
    }
    return grpc::Status::OK;
  }
};

// Listens on a port of this machine that the system picks.
class FakeServer {
 public:
  explicit FakeServer(bool with_admin = false) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    if (with_admin) builder.RegisterService(&admin);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~FakeServer() { Stop(); }
  void Stop() {
    if (server_) server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
    server_.reset();
  }
  const std::string& address() const { return address_; }

  FakeService service;
  FakeAdmin admin;

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace koine::testing

#endif  // KOINE_TESTS_UNIT_CLIENTS_CPP_FAKE_SERVER_H_
