// Models without languages, text prompts and a model's own defaults, over a real model folder and a fake engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "server/text/introspection.h"
#include "server/text/text_service.h"
#include "tests/support/random_model.h"
#include "tests/unit/server_text/fake_engine.h"

namespace koine::server {
namespace {

using ::testing::HasSubstr;

class NamelessTest : public ::testing::Test {
 protected:
  NamelessTest() : directory_(::testing::TempDir() + "/nameless_model") { std::filesystem::remove_all(directory_); }
  ~NamelessTest() override { std::filesystem::remove_all(directory_); }

  static model_loader::ModelConfig Config() {
    model_loader::ModelConfig config = koine::testing::SmallConfig("nameless");
    config.shared_embedding = true;
    config.pooling.dense = model_loader::PoolingDense{48, model_loader::DenseActivation::kTanh, true};
    config.prompts = {{"query", "query: "}, {"passage", "passage: "}};
    return config;
  }

  void Open(const model_loader::ModelConfig& config) {
    koine::testing::WriteRandomShared(directory_, config, 1, kernels::DType::kF32, koine::testing::SmallTokenizer());
    host_.name = "m";
    auto model = model_loader::Model::Open(directory_, {});
    ASSERT_TRUE(model.ok()) << model.status();
    host_.model = *std::move(model);
    host_.languages = std::make_unique<LanguageStore>(host_.model, LanguageStoreOptions());
    const absl::Status started = host_.languages->Start();
    ASSERT_TRUE(started.ok()) << started;
    host_.queue = std::make_unique<JobQueue>(QueueLimits{});
    engine_ = std::make_unique<FakeEngine>(host_.queue.get(), 48);
    TextService::Parts parts;
    parts.queue = host_.queue.get();
    parts.pool = &pool_;
    parts.languages = host_.languages.get();
    parts.rejections = &rejections_;
    auto service = TextService::Create("m", std::move(parts), {});
    ASSERT_TRUE(service.ok()) << service.status();
    host_.text = *std::move(service);
  }

  absl::StatusOr<v1::TranslateResponse> Translate(const v1::TranslateRequest& request) {
    absl::StatusOr<v1::TranslateResponse> answer = absl::UnknownError("none");
    absl::Notification done;
    host_.text->Translate(std::make_unique<v1::TranslateRequest>(request), absl::InfiniteFuture(),
                          [&](absl::StatusOr<v1::TranslateResponse> response) {
                            answer = std::move(response);
                            done.Notify();
                          });
    done.WaitForNotification();
    return answer;
  }
  absl::StatusOr<v1::EncodeResponse> Encode(const v1::EncodeRequest& request) {
    absl::StatusOr<v1::EncodeResponse> answer = absl::UnknownError("none");
    absl::Notification done;
    host_.text->Encode(std::make_unique<v1::EncodeRequest>(request), absl::InfiniteFuture(),
                       [&](absl::StatusOr<v1::EncodeResponse> response) {
                         answer = std::move(response);
                         done.Notify();
                       });
    done.WaitForNotification();
    return answer;
  }

  const std::string directory_;
  ModelHost host_;
  std::unique_ptr<FakeEngine> engine_;
  WorkerPool pool_{2};
  Rejections rejections_;

  void TearDown() override {
    host_.text.reset();
    engine_.reset();
    host_.queue.reset();
    host_.languages.reset();
  }
};

v1::EncodeRequest Texts(const std::string& text, const std::string& prompt = "") {
  v1::EncodeRequest request;
  request.set_prompt(prompt);
  request.mutable_options()->set_return_ids(true);
  request.add_items()->set_text(text);
  return request;
}

TEST_F(NamelessTest, RequestsLeaveLanguagesOut) {
  Open(Config());
  v1::TranslateRequest request;
  request.mutable_options()->set_return_ids(true);
  request.add_items()->set_text("a small text");
  const auto translated = Translate(request);
  ASSERT_TRUE(translated.ok()) << translated.status();
  EXPECT_EQ(translated->results(0).status().code(), 0);
  EXPECT_EQ(translated->results(0).source(), "");
  EXPECT_GT(translated->results(0).source_ids_size(), 1);
  const auto encoded = Encode(Texts("a small text"));
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  EXPECT_EQ(encoded->dimensions(), 48);
  EXPECT_EQ(encoded->results(0).embedding_size(), 48);

  // Naming one is a mistake that the answer explains, in the request and in an item.
  request.set_source("en");
  const absl::Status named = Translate(request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(named));
  EXPECT_THAT(std::string(named.message()), HasSubstr("this model has no languages"));
  request.clear_source();
  request.mutable_items(0)->set_target("de");
  const auto item = Translate(request);
  ASSERT_TRUE(item.ok()) << item.status();
  EXPECT_THAT(item->results(0).status().message(), HasSubstr("this model has no languages"));
}

TEST_F(NamelessTest, ListsAndStatisticsHaveNoLanguages) {
  Open(Config());
  EXPECT_EQ(DescribeLanguages(host_).languages_size(), 0);
  const v1::GetModelInfoResponse info = DescribeModel(host_);
  EXPECT_EQ(info.languages(), 0);
  EXPECT_EQ(info.embedding_size(), 48);
  EXPECT_EQ(info.prompts().at("query"), "query: ");
  EXPECT_EQ(info.default_prompt(), "");
  EXPECT_FALSE(info.generation().has_beam_size());
  const auto parameters = DescribeParameters(host_, false);
  ASSERT_TRUE(parameters.ok()) << parameters.status();
  ASSERT_EQ(parameters->owners_size(), 1);
  EXPECT_EQ(parameters->owners(0).parameters(), parameters->owners(0).formula_parameters());
  EXPECT_GT(parameters->owners(0).tokenizer_bytes(), 0);
  EXPECT_EQ(info.parameters(), parameters->parameters());
}

TEST_F(NamelessTest, ALanguageFolderThatComesMakesLanguagesRequired) {
  Open(Config());
  koine::testing::WriteRandomLanguage(directory_, Config(), {"xx", {}, 310}, "", 2);
  const RescanResult found = host_.languages->Rescan();
  EXPECT_THAT(found.added, ::testing::ElementsAre("xx"));
  const absl::Status missing = Encode(Texts("a small text")).status();
  EXPECT_THAT(std::string(missing.message()), HasSubstr("language"));
  EXPECT_TRUE(absl::IsInvalidArgument(missing)) << missing;
}

TEST_F(NamelessTest, PromptsGoBeforeTheTextAndCountAsTokens) {
  model_loader::ModelConfig config = Config();
  config.default_prompt = "passage";
  Open(config);
  const auto ids = [&](const std::string& text, const std::string& prompt) {
    const auto answer = Encode(Texts(text, prompt));
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? std::vector<int32_t>(answer->results(0).ids().begin(), answer->results(0).ids().end())
                       : std::vector<int32_t>();
  };
  EXPECT_EQ(ids("a small text", "query"), ids("query: a small text", "none"));
  EXPECT_EQ(ids("a small text", ""), ids("passage: a small text", "none"));
  EXPECT_NE(ids("a small text", ""), ids("a small text", "none"));
  const absl::Status unknown = Encode(Texts("a", "search")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(unknown));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("it has passage, query"));
  v1::TranslateRequest request;
  request.set_prompt("query");
  request.mutable_options()->set_return_ids(true);
  request.add_items()->set_text("a small text");
  const auto translated = Translate(request);
  ASSERT_TRUE(translated.ok()) << translated.status();
  EXPECT_EQ(
      std::vector<int32_t>(translated->results(0).source_ids().begin(), translated->results(0).source_ids().end()),
      ids("query: a small text", "none"));
}

TEST_F(NamelessTest, TheModelsOwnDefaultsAndLimitsReachTheSearch) {
  model_loader::ModelConfig config = Config();
  config.generation.beam_size = 3;
  config.generation.max_tokens = 17;
  config.generation.early_stopping = kernels::EarlyStopping::kNever;
  config.generation.forced_end = true;
  config.generation.suppressed = {"<pad>", "<no such piece>"};
  config.max_source_tokens = 6;
  Open(config);
  v1::TranslateRequest request;
  request.add_items()->set_text("a b");
  ASSERT_TRUE(Translate(request).ok());
  const JobPtr job = engine_->seen().at(0);
  EXPECT_EQ(job->search.beam_size, 3);
  EXPECT_EQ(job->search.max_tokens, 17);
  EXPECT_EQ(job->search.early_stopping, kernels::EarlyStopping::kNever);
  EXPECT_TRUE(job->search.forced_end);
  EXPECT_THAT(job->search.suppressed, ::testing::ElementsAre(0));
  EXPECT_EQ(DescribeModel(host_).generation().early_stopping(), v1::EARLY_STOPPING_NEVER);
  EXPECT_EQ(DescribeModel(host_).limits().max_source_tokens(), 6);

  request.mutable_items(0)->set_text("one two three four five six seven eight nine");
  const auto refused = Translate(request);
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_THAT(refused->results(0).status().message(), HasSubstr("the model reads at most 6"));
  request.mutable_options()->set_truncate(true);
  const auto cut = Translate(request);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_TRUE(cut->results(0).truncated());
  EXPECT_EQ(cut->results(0).input_tokens(), 6);
}

TEST_F(NamelessTest, AnEncoderRefusesToTranslate) {
  model_loader::ModelConfig config = Config();
  config.kind = model_loader::ModelKind::kEncoder;
  config.translates = false;
  config.architecture.decoder_layers.clear();
  config.prompt.decoder_start.clear();
  Open(config);
  EXPECT_TRUE(Encode(Texts("a small text")).ok());
  v1::TranslateRequest request;
  request.add_items()->set_text("a small text");
  const absl::Status refused = Translate(request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("does not translate"));
}

}  // namespace
}  // namespace koine::server
