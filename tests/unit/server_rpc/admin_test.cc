#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/unit/server_rpc/served_model.h"

namespace koine::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kRoom = 1 << 30;

class AdminTest : public ::testing::Test {
 protected:
  void Start(int64_t language_memory, bool admin = true) {
    ServedModel::Options options;
    options.language_memory = language_memory;
    options.admin = admin;
    served_ = std::make_unique<ServedModel>(options);
    served_->server().SetServing();
  }
  grpc::Status Load(const std::string& language, bool pin = false, double timeout = 0) {
    grpc::ClientContext context;
    v1::LoadLanguageRequest request;
    request.set_language(language);
    request.set_pin(pin);
    request.set_timeout_seconds(timeout);
    return served_->admin().LoadLanguage(&context, request, &loaded_);
  }
  grpc::Status Unload(const std::string& language, double timeout = 0) {
    grpc::ClientContext context;
    v1::UnloadLanguageRequest request;
    request.set_language(language);
    request.set_timeout_seconds(timeout);
    return served_->admin().UnloadLanguage(&context, request, &unloaded_);
  }
  v1::RescanLanguagesResponse Rescan(const std::string& model = "") {
    grpc::ClientContext context;
    v1::RescanLanguagesRequest request;
    request.set_model(model);
    v1::RescanLanguagesResponse response;
    const grpc::Status status = served_->admin().RescanLanguages(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.models_size(), 1);
    return response;
  }

  std::unique_ptr<ServedModel> served_;
  v1::LoadLanguageResponse loaded_;
  v1::UnloadLanguageResponse unloaded_;
};

TEST_F(AdminTest, IsOffUnlessSwitchedOnAndSaysHow) {
  Start(kRoom, false);
  const grpc::Status status = Load("es");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--admin"));
  EXPECT_EQ(Unload("es").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(served_->Language("es").state(), v1::LANGUAGE_STATE_COLD);
  EXPECT_TRUE(served_->Translate("es", "fr").ok()) << "the others go on";
}

TEST_F(AdminTest, LoadsPinsAndUnloads) {
  Start(kRoom);
  ASSERT_EQ(served_->Language("es").state(), v1::LANGUAGE_STATE_COLD);
  EXPECT_GT(served_->Language("es").memory_bytes(), 0);
  grpc::Status status = Load("ES", true);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(loaded_.model(), "m");
  EXPECT_EQ(loaded_.language().code(), "es");
  EXPECT_EQ(loaded_.language().state(), v1::LANGUAGE_STATE_LOADED);
  EXPECT_TRUE(loaded_.language().pinned());
  EXPECT_EQ(loaded_.language().loads(), 1);
  status = Unload("es");
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(unloaded_.language().state(), v1::LANGUAGE_STATE_COLD);
  EXPECT_FALSE(unloaded_.language().pinned());
  EXPECT_TRUE(served_->Translate("es", "fr").ok()) << "the next request loads it again";
}

TEST_F(AdminTest, MistakesAreNamed) {
  Start(kRoom);
  const grpc::Status unknown = Load("zz");
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(unknown.error_message(), HasSubstr("zz"));
  EXPECT_EQ(Unload("zz").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Load("es", false, -1).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Load("es", false, 1e9).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  v1::LoadLanguageRequest request;
  request.set_model("other");
  request.set_language("es");
  EXPECT_EQ(served_->admin().LoadLanguage(&context, request, &loaded_).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(AdminTest, ABrokenLanguageCannotBeLoaded) {
  Start(kRoom);
  served_->copy().Break("ru");
  const grpc::Status status = Load("ru");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(served_->Language("ru").state(), v1::LANGUAGE_STATE_FAILED);
  EXPECT_THAT(served_->Language("ru").failure(), HasSubstr("safetensors"));
}

TEST_F(AdminTest, UnloadWaitsForRequestsThatUseTheLanguage) {
  Start(0);
  absl::StatusOr<std::vector<LanguageLease>> held = absl::UnknownError("none");
  served_->host().languages->Acquire(
      {"es"}, absl::InfiniteFuture(),
      [&](absl::StatusOr<std::vector<LanguageLease>> leases) { held = std::move(leases); });
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(Unload("es", 0.05).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(served_->Language("es").state(), v1::LANGUAGE_STATE_DRAINING);
  grpc::Status status;
  std::thread unload([&] { status = Unload("es", 30); });
  absl::SleepFor(absl::Milliseconds(50));
  held->clear();
  unload.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(served_->Language("es").state(), v1::LANGUAGE_STATE_COLD);
  EXPECT_TRUE(served_->Serving()) << "what was unloaded by hand comes back with the next request";
}

TEST_F(AdminTest, RescanAddsReplacesAndRemoves) {
  Start(kRoom);
  EXPECT_EQ(served_->Translate("xx", "fr").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  served_->copy().Add("xx", "es");
  v1::RescanLanguagesResponse found = Rescan();
  EXPECT_EQ(found.models(0).model(), "m");
  EXPECT_THAT(found.models(0).added(), ElementsAre("xx"));
  EXPECT_THAT(found.models(0).removed(), IsEmpty());
  EXPECT_TRUE(served_->Translate("xx", "fr").ok());
  served_->copy().Remove("xx");
  EXPECT_THAT(Rescan("m").models(0).removed(), ElementsAre("xx"));
  EXPECT_EQ(served_->Translate("xx", "fr").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  served_->copy().Add("yy", "es");
  served_->copy().Break("yy");
  found = Rescan();
  ASSERT_EQ(found.models(0).broken_size(), 1);
  EXPECT_EQ(found.models(0).broken(0).language(), "yy");
  EXPECT_FALSE(found.models(0).broken(0).failure().empty());
  EXPECT_TRUE(served_->Translate("es", "fr").ok());
}

TEST_F(AdminTest, HealthFollowsTheLanguagesThatTheModelLists) {
  Start(kRoom);
  EXPECT_TRUE(served_->Serving());
  EXPECT_TRUE(served_->server().Ready().ok());
  served_->copy().Add("keep", "ru");
  served_->copy().Remove("ru");
  Rescan();
  EXPECT_FALSE(served_->Serving()) << "model.json lists ru";
  EXPECT_THAT(std::string(served_->server().Ready().message()), HasSubstr("m"));
  EXPECT_TRUE(served_->Translate("es", "fr").ok()) << "not ready is no reason to refuse what can be done";
  served_->copy().Add("ru", "keep");
  Rescan();
  EXPECT_TRUE(served_->Serving());
}

TEST_F(AdminTest, WhatCanNeverFitIsRefusedAtOnce) {
  Start(1);
  const grpc::Status status = Load("es");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
}

TEST_F(AdminTest, AStopEndsAdminCallsThatWait) {
  int64_t largest = 0;
  {
    const testing::ModelCopy copy;
    const auto model = model_loader::Model::Open(copy.path().string(), {});
    for (const char* code : {"es", "fr", "ru"}) {
      largest = std::max(largest, (*model)->PlanLanguage(code)->memory_bytes());
    }
  }
  Start(largest);
  std::vector<LanguageLease> held;
  absl::Notification got;
  served_->host().languages->Acquire({"es"}, absl::InfiniteFuture(),
                                     [&](absl::StatusOr<std::vector<LanguageLease>> leases) {
                                       if (leases.ok()) held = *std::move(leases);
                                       got.Notify();
                                     });
  got.WaitForNotification();
  ASSERT_EQ(held.size(), 1U);
  grpc::Status status;
  std::thread load([&] { status = Load("ru"); });
  for (int i = 0; i < 20'000 && served_->host().languages->counters().waiting == 0; ++i) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_FALSE(served_->server().Drain(absl::ZeroDuration(), absl::Milliseconds(100)));
  load.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
}

}  // namespace
}  // namespace koine::server
