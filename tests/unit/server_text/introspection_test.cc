#include "server/text/introspection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/support/harness.h"

namespace koine::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Introspection : public ::testing::Test {
 protected:
  void SetUp() override {
    host_ = std::make_unique<ModelHost>();
    host_->name = "demo";
    auto model = model_loader::Model::Open(testing::SourcePath("deploy/demo_model"), {});
    ASSERT_TRUE(model.ok()) << model.status();
    host_->model = *std::move(model);
    host_->languages = std::make_unique<LanguageStore>(host_->model, LanguageStoreOptions{});
    ASSERT_TRUE(host_->languages->Start().ok());
    host_->queue = std::make_unique<JobQueue>(QueueLimits{});
    TextService::Parts parts;
    parts.queue = host_->queue.get();
    parts.pool = &pool_;
    parts.languages = host_->languages.get();
    parts.rejections = &rejections_;
    auto text = TextService::Create("demo", parts, {});
    ASSERT_TRUE(text.ok()) << text.status();
    host_->text = *std::move(text);
  }

  WorkerPool pool_{1};
  Rejections rejections_;
  std::unique_ptr<ModelHost> host_;
};

TEST_F(Introspection, LanguagesComeInTheModelsOrderWithTheirNames) {
  const v1::ListLanguagesResponse response = DescribeLanguages(*host_);
  EXPECT_EQ(response.model(), "demo");
  ASSERT_EQ(response.languages_size(), 8);
  const v1::Language& english = response.languages(0);
  EXPECT_EQ(english.code(), "en");
  EXPECT_EQ(english.name(), "English");
  EXPECT_EQ(english.script(), "Latn");
  EXPECT_EQ(english.direction(), "ltr");
  EXPECT_EQ(english.vocabulary(), 8000);
  EXPECT_EQ(english.state(), v1::LANGUAGE_STATE_LOADED);
  EXPECT_EQ(english.default_adapter(), "bottleneck");
  EXPECT_THAT(english.aliases(), ::testing::Contains("eng_Latn"));
  // Table 8000 x 256; on each of 6 layers a norm (2 x 256), down (32 x 256 + 32) and up (256 x 32 + 256).
  EXPECT_EQ(english.parameters(), 8000 * 256 + 6 * (2 * 256 + 32 * 256 + 32 + 256 * 32 + 256));
}

TEST_F(Introspection, TheModelTellsItsShapeAndTheServersLimits) {
  const v1::GetModelInfoResponse response = DescribeModel(*host_);
  EXPECT_EQ(response.name(), "koine-demo");
  EXPECT_THAT(response.tasks(), ElementsAre("translate", "encode"));
  EXPECT_EQ(response.architecture().kind(), "encoder-decoder");
  EXPECT_EQ(response.architecture().d_model(), 256);
  EXPECT_EQ(response.architecture().encoder_layers(), 4);
  EXPECT_EQ(response.architecture().decoder_layers(), 2);
  EXPECT_EQ(response.architecture().max_positions(), 1024);
  EXPECT_EQ(response.precision(), "f32");
  EXPECT_EQ(response.limits().max_items(), 1024);
  EXPECT_EQ(response.limits().queue_tokens(), 262'144);
  EXPECT_EQ(response.zero_shot_pairs_size(), 6);
  EXPECT_EQ(response.languages(), 8);
  EXPECT_EQ(response.pooling(), "mean");
  EXPECT_EQ(response.parameters(), DescribeParameters(*host_, false)->parameters());
}

TEST_F(Introspection, TheAccountAddsUpAndAgreesWithTheKernel) {
  const auto account = DescribeParameters(*host_, true);
  ASSERT_TRUE(account.ok()) << account.status();
  const v1::GetParameterStatsResponse& response = *account;
  ASSERT_EQ(response.owners_size(), 9);
  EXPECT_EQ(response.owners(0).owner(), "shared");
  EXPECT_TRUE(response.owners(0).shared());
  int64_t parameters = 0;
  for (const v1::OwnerParameters& owner : response.owners()) {
    int64_t of_owner = 0, bytes = 0;
    for (const v1::ComponentParameters& component : owner.components()) {
      of_owner += component.parameters();
      int64_t by_dtype = 0;
      for (const v1::DTypeCount& dtype : component.dtypes()) {
        EXPECT_EQ(dtype.dtype(), "BF16");
        EXPECT_EQ(dtype.bytes(), 2 * dtype.elements());
        by_dtype += dtype.bytes();
      }
      EXPECT_EQ(by_dtype, component.file_bytes());
      bytes += by_dtype;
    }
    EXPECT_EQ(of_owner, owner.parameters()) << owner.owner();
    EXPECT_EQ(bytes, owner.file_bytes()) << owner.owner();
    EXPECT_EQ(owner.checksum().size(), 16U);
    EXPECT_LE(owner.resident_bytes(), owner.mapped_bytes());
    // f32 copies of bf16 files, and padding.
    EXPECT_GT(owner.mapped_bytes(), owner.file_bytes());
    EXPECT_NEAR(static_cast<double>(owner.kernel_resident_bytes()), static_cast<double>(owner.resident_bytes()),
                0.03 * static_cast<double>(owner.resident_bytes()))
        << owner.owner();
    parameters += owner.parameters();
  }
  EXPECT_EQ(response.parameters(), parameters);
  EXPECT_EQ(response.shared_parameters() + response.language_parameters(), parameters);
  EXPECT_NE(response.owners(1).checksum(), response.owners(2).checksum());
  EXPECT_EQ(DescribeParameters(*host_, false)->owners(0).checksum(), "");
  EXPECT_EQ(DescribeParameters(*host_, true)->owners(0).checksum(), response.owners(0).checksum());
}

TEST_F(Introspection, FormulasStandBesideTheCountsAndAgree) {
  const auto account = DescribeParameters(*host_, false);
  ASSERT_TRUE(account.ok()) << account.status();
  for (const v1::OwnerParameters& owner : account->owners()) {
    EXPECT_EQ(owner.formula_parameters(), owner.parameters()) << owner.owner();
    EXPECT_EQ(owner.state(), v1::LANGUAGE_STATE_LOADED);
  }
  // The card of the model: 5,266,944 shared, 2,151,104 a language, 103,104 of it the adapter.
  EXPECT_EQ(account->shared_parameters(), 5'266'944);
  EXPECT_EQ(account->parameters(), 22'475'776);
  const v1::SharingAccount& sharing = account->sharing();
  EXPECT_EQ(sharing.languages(), 8);
  EXPECT_EQ(sharing.parameters(), 22'475'776);
  EXPECT_EQ(sharing.independent_parameters(), 8 * (5'266'944 + 2'151'104 - 103'104));
  EXPECT_DOUBLE_EQ(sharing.saving(), 1 - 22'475'776.0 / (8 * 7'314'944.0));
  // 8 blocks of 3 matrices of 256 x 256, or 4 with the output projection.
  EXPECT_EQ(sharing.attention_qkv(), 8 * 3 * 256 * 256);
  EXPECT_EQ(sharing.independent_attention_qkv(), 8 * 8 * 3 * 256 * 256);
  EXPECT_EQ(sharing.attention_qkvo(), 8 * 4 * 256 * 256);
  EXPECT_DOUBLE_EQ(sharing.attention_qkv_saving(), 0.875);
  EXPECT_DOUBLE_EQ(sharing.attention_qkvo_saving(), 0.875);
  EXPECT_EQ(account->next_language().parameters(), 2'151'104);
  EXPECT_NEAR(static_cast<double>(account->next_language().mapped_bytes()),
              static_cast<double>(host_->languages->counters().used_bytes) / 8, 1)
      << "tokenizer included, as the language memory counts";
  EXPECT_GT(account->next_language().mapped_bytes(), account->owners(1).mapped_bytes());
  EXPECT_THAT(account->room().basis(), ::testing::AnyOf("machine", "cgroup"));
  EXPECT_EQ(account->room().languages(), account->room().free_bytes() / account->next_language().mapped_bytes());
  ASSERT_EQ(account->plans_size(), 3);  // it has neither own heads nor own layers
  EXPECT_EQ(account->plans(0).plan(), "independent");
  EXPECT_EQ(account->plans(1).plan(), "shared");
  EXPECT_EQ(account->plans(1).parameters(), sharing.attention_qkv());
  EXPECT_DOUBLE_EQ(account->plans(1).saving(), 0.875);
  EXPECT_EQ(account->plans(2).plan(), "model");
}

TEST_F(Introspection, ColdLanguagesCountByTheirFilesAndHoldNoMemory) {
  LanguageStoreOptions options;
  options.memory_budget = 64 << 20;
  options.pinned = {"en"};
  host_->text.reset();
  host_->languages = std::make_unique<LanguageStore>(host_->model, options);
  ASSERT_TRUE(host_->languages->Start().ok());
  const auto account = DescribeParameters(*host_, true);
  ASSERT_TRUE(account.ok()) << account.status();
  ASSERT_EQ(account->owners_size(), 9);
  EXPECT_EQ(account->parameters(), 22'475'776) << "loaded or not";
  EXPECT_EQ(account->owners(1).state(), v1::LANGUAGE_STATE_LOADED);
  for (int i = 2; i < 9; ++i) {
    EXPECT_EQ(account->owners(i).state(), v1::LANGUAGE_STATE_COLD);
    EXPECT_EQ(account->owners(i).parameters(), 2'151'104);
    EXPECT_EQ(account->owners(i).resident_bytes(), 0);
    EXPECT_EQ(account->owners(i).mapped_bytes(), 0);
    EXPECT_EQ(account->owners(i).checksum(), "");
  }
  EXPECT_EQ(account->sharing().languages(), 1);
  EXPECT_EQ(account->room().basis(), "language_memory");
  EXPECT_EQ(account->room().free_bytes(), (64 << 20) - host_->languages->counters().used_bytes);
  EXPECT_EQ(account->next_language().mapped_bytes(), host_->languages->counters().used_bytes);
  EXPECT_EQ(account->room().languages(), account->room().free_bytes() / host_->languages->counters().used_bytes);
  const v1::ListLanguagesResponse list = DescribeLanguages(*host_);
  EXPECT_TRUE(list.languages(0).pinned());
  EXPECT_EQ(list.languages(0).loads(), 1);
  EXPECT_EQ(list.languages(1).state(), v1::LANGUAGE_STATE_COLD);
  EXPECT_EQ(list.languages(1).parameters(), 2'151'104);
  EXPECT_EQ(list.languages(1).name(), "German");

  ASSERT_TRUE(host_->languages->Unload("en", absl::InfiniteFuture()).ok());
  const auto empty = DescribeParameters(*host_, false);
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(empty->parameters(), 22'475'776);
  EXPECT_FALSE(empty->has_sharing()) << "there is nothing to compare";
  EXPECT_FALSE(empty->has_next_language());
  EXPECT_FALSE(empty->room().has_languages());
  EXPECT_EQ(empty->plans_size(), 0);
}

TEST_F(Introspection, ModelsAreFoundByNameAndTheOnlyOneWithout) {
  std::vector<std::unique_ptr<ModelHost>> one;
  one.push_back(std::move(host_));
  const ModelHosts single(std::move(one));
  EXPECT_TRUE(single.Find("").ok());
  EXPECT_TRUE(single.Find("demo").ok());
  const absl::Status unknown = single.Find("damo").status();
  EXPECT_TRUE(absl::IsNotFound(unknown));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("demo"));

  std::vector<std::unique_ptr<ModelHost>> two;
  for (const char* name : {"a", "b"}) {
    two.push_back(std::make_unique<ModelHost>());
    two.back()->name = name;
  }
  const ModelHosts several(std::move(two));
  EXPECT_EQ((*several.Find("b"))->name, "b");
  EXPECT_TRUE(absl::IsInvalidArgument(several.Find("").status()));
}

TEST_F(Introspection, TheServerTellsWhatWaitsAndWhatWasRefused) {
  auto job = testing::TranslateJob(*testing::LoadModel("deploy/demo_model", kernels::Precision::kF32), "en", "de",
                                   "one two three");
  job->done = [](JobResult) {};
  ASSERT_TRUE(host_->queue->Submit({job}).ok());
  rejections_.Count(absl::InvalidArgumentError("x"));
  const int64_t tokens = job->tokens();
  std::vector<std::unique_ptr<ModelHost>> hosts;
  hosts.push_back(std::move(host_));
  ServerFacts facts;
  facts.version = "9.9";
  facts.started = absl::Now() - absl::Seconds(5);
  facts.inflight_requests = 3;
  const ModelHosts all(std::move(hosts));
  const v1::GetServerStatsResponse response = DescribeServer(facts, rejections_, all);
  EXPECT_EQ(response.version(), "9.9");
  EXPECT_GE(response.uptime_seconds(), 5);
  EXPECT_GT(response.process_resident_bytes(), 10 << 20);
  EXPECT_EQ(response.inflight_requests(), 3);
  EXPECT_EQ(response.rejected().at("validation"), 1);
  EXPECT_EQ(response.rejected().at("overload"), 0);
  ASSERT_EQ(response.models_size(), 1);
  EXPECT_EQ(response.models(0).queue_items(), 1);
  EXPECT_EQ(response.models(0).queue_tokens(), tokens);
  EXPECT_EQ(response.models(0).queue_items_limit(), 4096);
  EXPECT_EQ(response.models(0).permits_in_use(), 0);
  const v1::LanguageStats& languages = response.models(0).languages();
  EXPECT_EQ(languages.loaded(), 8);
  EXPECT_EQ(languages.loads(), 8);
  EXPECT_EQ(languages.cold() + languages.failed() + languages.failures() + languages.evictions(), 0);
  EXPECT_GT(languages.used_bytes(), 8 * 2'151'104 * 4);
  EXPECT_EQ(languages.budget_bytes(), 0);
}

}  // namespace
}  // namespace koine::server
