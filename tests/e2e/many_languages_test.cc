// Two hundred languages on one shared file: what they cost, and what a memory budget holds them to.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/engine.h"
#include "server/languages/language_store.h"
#include "tests/support/harness.h"
#include "tests/support/random_model.h"
#include "tests/support/store_client.h"

namespace koine {
namespace {

namespace fs = std::filesystem;
using testing::ResidentBySmaps;

constexpr int kLanguages = 200;

std::string Code(int i) { return absl::StrCat("l", i); }

class ManyLanguages : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new fs::path(fs::path(::testing::TempDir()) / "koine_many_languages");
    fs::remove_all(*folder_);
    const model_loader::ModelConfig config = testing::SmallConfig("many");
    testing::WriteRandomShared(folder_->string(), config, 1);
    for (int i = 0; i < kLanguages; ++i) {
      testing::WriteRandomLanguage(folder_->string(), config, {Code(i), {}, 1000}, testing::SmallTokenizer(),
                                   static_cast<unsigned>(i));
    }
  }
  static void TearDownTestSuite() {
    fs::remove_all(*folder_);
    delete folder_;
  }
  // Keeps the languages from 8 on out of the way, or brings them back.
  static void Hide(bool hide) {
    for (int i = 8; i < kLanguages; ++i) {
      const fs::path shown = *folder_ / "languages" / Code(i);
      const fs::path hidden = *folder_ / "languages" / absl::StrCat(".", Code(i));
      fs::rename(hide ? shown : hidden, hide ? hidden : shown);
    }
  }
  static std::shared_ptr<const model_loader::Model> Open() {
    auto model = model_loader::Model::Open(folder_->string(), {});
    EXPECT_TRUE(model.ok()) << model.status();
    return *model;
  }

  static fs::path* folder_;
};

fs::path* ManyLanguages::folder_ = nullptr;

TEST_F(ManyLanguages, ResidentBytesAreTheSharedOnesAndTheTables) {
  server::LanguageStore store(Open(), {});
  Hide(true);
  ASSERT_TRUE(store.Start().ok());
  const int64_t with_8 = ResidentBySmaps("koine:many:");
  const int64_t shared = store.model().shared_resident_bytes();
  const uint64_t checksum = store.model().shared_checksum();
  const void* address = store.model().shared_address();
  Hide(false);
  EXPECT_EQ(store.Rescan().added.size(), static_cast<size_t>(kLanguages - 8));
  const absl::Time limit = absl::Now() + absl::Seconds(120);
  while (store.counters().loads < kLanguages && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(10));
  ASSERT_EQ(store.counters().loads, kLanguages);

  int64_t languages = 0;
  int64_t later = 0;
  int64_t formula = 0;
  for (const server::LanguageInfo& info : store.List()) {
    ASSERT_EQ(info.state, server::LanguageState::kLoaded) << info.code;
    languages += info.loaded->resident_bytes();
    formula += int64_t{1000} * 32 * 4;  // rows * d_model * f32: each table
    if (std::stoi(info.code.substr(1)) >= 8) later += info.loaded->resident_bytes();
  }
  const int64_t with_200 = ResidentBySmaps("koine:many:");
  std::printf("8 languages %ld bytes, 200 languages %ld bytes, shared %ld bytes\n", static_cast<long>(with_8),
              static_cast<long>(with_200), static_cast<long>(shared));
  EXPECT_NEAR(static_cast<double>(with_200), static_cast<double>(shared + languages),
              0.03 * static_cast<double>(with_200));
  EXPECT_NEAR(static_cast<double>(languages), static_cast<double>(formula), 0.03 * static_cast<double>(formula));
  // Growing raised memory by the new ones' own bytes only.
  EXPECT_NEAR(static_cast<double>(with_200 - with_8), static_cast<double>(later), 0.03 * static_cast<double>(later));
  EXPECT_EQ(store.model().shared_checksum(), checksum);
  EXPECT_EQ(store.model().shared_address(), address);
}

TEST_F(ManyLanguages, TenThousandRequestsUnderABudgetForTwenty) {
  const auto model = Open();
  const int64_t one = model->PlanLanguage(Code(0))->memory_bytes();
  const int64_t mapped = model->PlanLanguage(Code(0))->mapped_bytes;
  server::LanguageStore store(model, {.memory_budget = 20 * one});
  ASSERT_TRUE(store.Start().ok());
  server::JobQueue queue({});
  server::Engine engine(model, &queue, {});
  engine.Start();
  const int64_t shared = ResidentBySmaps("koine:many:shared");
  // Loading goes through the kernel, which a sanitizer makes ten times slower; a tenth still evicts more than 1,000.
  const int requests = std::getenv("KOINE_SANITIZER") == nullptr ? 10'000 : 1'000;
  std::atomic<int> next{0};
  std::atomic<int> failed{0};
  std::atomic<bool> running{true};
  int64_t most = 0;
  std::thread sampler([&] {
    while (running.load()) {
      most = std::max(most, ResidentBySmaps("koine:many:"));
      absl::SleepFor(absl::Milliseconds(5));
    }
  });
  std::vector<std::thread> clients;
  for (unsigned c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 generator(c);
      while (next.fetch_add(1) < requests) {
        const std::string source = Code(static_cast<int>(generator() % kLanguages));
        const std::string target = Code(static_cast<int>(generator() % kLanguages));
        const auto result = testing::TranslateIds(store, queue, source, target, {10, 20, 30}, 2);
        if (!result.status.ok() && failed.fetch_add(1) == 0) ADD_FAILURE() << result.status;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  running.store(false);
  sampler.join();
  engine.Stop();
  EXPECT_EQ(failed.load(), 0);
  EXPECT_GT(store.counters().evictions, 1000) << "the budget was never felt";
  const double bound = static_cast<double>(shared) + 20.0 * static_cast<double>(mapped) * 1.05;
  std::printf("most resident %ld bytes, bound %.0f; %ld loads, %ld evictions\n", static_cast<long>(most), bound,
              static_cast<long>(store.counters().loads), static_cast<long>(store.counters().evictions));
  EXPECT_LE(static_cast<double>(most), bound);
  // All but what is loaded now has really gone.
  int64_t loaded = 0;
  for (const server::LanguageInfo& info : store.List()) {
    if (info.loaded != nullptr) loaded += info.loaded->resident_bytes();
  }
  EXPECT_NEAR(static_cast<double>(ResidentBySmaps("koine:many:") - shared), static_cast<double>(loaded),
              0.03 * static_cast<double>(loaded));
}

TEST_F(ManyLanguages, WorkPerTokenDoesNotDependOnTheirNumber) {
  for (const int languages : {1, 10, 100}) {
    server::LanguageStore store(Open(), {});
    ASSERT_TRUE(store.Start().ok());
    server::JobQueue queue({});
    server::Engine engine(std::shared_ptr<const model_loader::Model>(&store.model(), [](const auto*) {}), &queue,
                          {.max_rows = 128});
    engine.Start();
    std::vector<std::thread> clients;
    for (int c = 0; c < 4; ++c) {
      clients.emplace_back([&, c] {
        for (int i = c; i < 100; i += 4) {
          testing::TranslateIds(store, queue, Code(i % languages), Code((i + 1) % languages), {10, 20, 30}, 5);
        }
      });
    }
    for (std::thread& client : clients) client.join();
    engine.Stop();
    const double per_row = static_cast<double>(engine.counters().multiply_adds.load()) /
                           static_cast<double>(engine.counters().step_rows.load());
    std::printf("N = %d: %.1f multiply-adds of matrix products per decoded token\n", languages, per_row);
    // Two layers of q k v (3 d²), o, cross q, cross o (d² each), up and down (2 d d_ffn); and the table.
    EXPECT_EQ(per_row, 2 * (6 * 32 * 32 + 2 * 32 * 64) + 1000 * 32);
  }
}

}  // namespace
}  // namespace koine
