#include "server/languages/language_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/support/harness.h"

namespace koine::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A copy of plan-00 (languages es, fr, ru) that tests add to, break and remove from.
class LanguageStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) / (std::string("koine_store_") + info->name());
    fs::remove_all(folder_);
    fs::copy(koine::testing::SourcePath("tests/data/plans/plan-00"), folder_, fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
    }
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path Folder(const std::string& code) const { return folder_ / "languages" / code; }
  // A language folder like es under another code, appearing at once.
  void AddLanguage(const std::string& code) const {
    const fs::path hidden = Folder("." + code);
    fs::copy(Folder("es"), hidden, fs::copy_options::recursive);
    std::stringstream text;
    text << std::ifstream(hidden / "language.json").rdbuf();
    std::string json = text.str();
    json.replace(json.find("\"code\": \"es\""), 12, "\"code\": \"" + code + "\"");
    std::ofstream(hidden / "language.json") << json;
    fs::rename(hidden, Folder(code));
  }
  void Open(const LanguageStoreOptions& options) {
    auto model = model_loader::Model::Open(folder_.string(), {});
    ASSERT_TRUE(model.ok()) << model.status();
    store_ = std::make_unique<LanguageStore>(*model, options);
  }
  // Adds aa, bb, ... like es (es, fr and ru differ in size) and tells the bytes of each.
  int64_t AddEqualLanguages(const std::vector<std::string>& codes) const {
    for (const std::string& code : codes) AddLanguage(code);
    auto model = model_loader::Model::Open(folder_.string(), {});
    return (*model)->PlanLanguage("es")->memory_bytes();
  }
  absl::StatusOr<std::vector<LanguageLease>> Get(const std::vector<std::string>& codes,
                                                 absl::Duration timeout = absl::Seconds(20)) {
    absl::StatusOr<std::vector<LanguageLease>> result = absl::UnknownError("never called");
    absl::Notification done;
    store_->Acquire(codes, absl::Now() + timeout, [&](absl::StatusOr<std::vector<LanguageLease>> leases) {
      result = std::move(leases);
      done.Notify();
    });
    done.WaitForNotification();
    return result;
  }
  LanguageInfo Info(const std::string& code) const {
    for (LanguageInfo& info : store_->List()) {
      if (info.code == code) return info;
    }
    return {};
  }

  fs::path folder_;
  std::unique_ptr<LanguageStore> store_;
};

TEST_F(LanguageStoreTest, WithoutABudgetEverythingIsLoadedBeforeTheStartReturns) {
  Open({});
  ASSERT_TRUE(store_->Start().ok());
  EXPECT_THAT(store_->missing(), IsEmpty());
  for (const LanguageInfo& info : store_->List()) EXPECT_EQ(info.state, LanguageState::kLoaded) << info.code;
  bool called = false;
  EXPECT_EQ(store_->Acquire({"es", "fr", "es"}, absl::InfiniteFuture(),
                            [&](auto leases) {
                              ASSERT_TRUE(leases.ok());
                              ASSERT_EQ(leases->size(), 3U);
                              EXPECT_EQ((*leases)[0]->code(), "es");
                              EXPECT_EQ((*leases)[1]->code(), "fr");
                              EXPECT_EQ((*leases)[0].get(), (*leases)[2].get());
                              called = true;
                            }),
            0U);
  EXPECT_TRUE(called) << "loaded languages are leased before Acquire returns";
}

TEST_F(LanguageStoreTest, LoadsOnFirstUseAndEvictsTheLeastRecentlyUsed) {
  const int64_t one = AddEqualLanguages({"aa", "bb"});
  Open({.memory_budget = 2 * one});
  ASSERT_TRUE(store_->Start().ok());
  EXPECT_THAT(store_->missing(), IsEmpty()) << "cold languages can be served";
  EXPECT_EQ(store_->counters().loads, 0);
  ASSERT_TRUE(Get({"es"}).ok());
  ASSERT_TRUE(Get({"aa"}).ok());
  ASSERT_TRUE(Get({"es"}).ok());
  EXPECT_EQ(store_->counters().loads, 2);
  ASSERT_TRUE(Get({"bb"}).ok());
  EXPECT_EQ(Info("aa").state, LanguageState::kCold) << "the least recently used one goes";
  EXPECT_EQ(Info("es").state, LanguageState::kLoaded);
  EXPECT_EQ(store_->counters().evictions, 1);
  EXPECT_LE(store_->counters().used_bytes, 2 * one);
}

TEST_F(LanguageStoreTest, LeasedLanguagesAreNeverEvictedAndRequestsWaitForRoom) {
  Open({.memory_budget = AddEqualLanguages({"aa"})});
  ASSERT_TRUE(store_->Start().ok());
  auto lease = Get({"es"});
  ASSERT_TRUE(lease.ok());
  const auto late = Get({"aa"}, absl::Milliseconds(50));
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ((*lease)[0]->code(), "es") << "still mapped";
  absl::Notification done;
  absl::Status status = absl::UnknownError("");
  EXPECT_NE(store_->Acquire({"aa"}, absl::InfiniteFuture(),
                            [&](auto leases) {
                              status = leases.status();
                              done.Notify();
                            }),
            0U);
  EXPECT_FALSE(done.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  lease->clear();
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(LanguageStoreTest, WhatCanNeverFitIsRefusedAtOnce) {
  const int64_t one = AddEqualLanguages({"aa"});
  Open({.memory_budget = one + one / 2, .pinned = {"es"}});
  ASSERT_TRUE(store_->Start().ok());
  const auto refused = Get({"aa"});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("aa"));
  EXPECT_TRUE(Get({"es"}).ok());
}

TEST_F(LanguageStoreTest, CancelEndsTheWaitAtOnce) {
  Open({.memory_budget = AddEqualLanguages({"aa"})});
  ASSERT_TRUE(store_->Start().ok());
  auto lease = Get({"es"});
  absl::Status status;
  const uint64_t ticket =
      store_->Acquire({"aa"}, absl::InfiniteFuture(), [&](auto leases) { status = leases.status(); });
  ASSERT_NE(ticket, 0U);
  store_->Cancel(ticket, absl::CancelledError("gone"));
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  store_->Cancel(ticket, absl::CancelledError("again"));  // no effect
  EXPECT_EQ(store_->counters().waiting, 0);
}

TEST_F(LanguageStoreTest, StopEndsWaitingRequests) {
  Open({.memory_budget = AddEqualLanguages({"aa"})});
  ASSERT_TRUE(store_->Start().ok());
  auto lease = Get({"es"});
  absl::Status status;
  store_->Acquire({"aa"}, absl::InfiniteFuture(), [&](auto leases) { status = leases.status(); });
  store_->Stop();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  lease->clear();
}

TEST_F(LanguageStoreTest, AFolderCopiedInIsServedAndARemovedOneDrains) {
  Open({});
  ASSERT_TRUE(store_->Start().ok());
  const uint64_t checksum = store_->model().shared_checksum();
  const void* address = store_->model().shared_address();
  EXPECT_FALSE(store_->Find("xx").ok());
  AddLanguage("xx");
  const RescanResult added = store_->Rescan();
  EXPECT_THAT(added.added, ElementsAre("xx"));
  EXPECT_THAT(added.removed, IsEmpty());
  ASSERT_TRUE(store_->Find("XX").ok());
  auto lease = Get({"xx"});
  ASSERT_TRUE(lease.ok()) << lease.status();
  fs::remove_all(Folder("xx"));
  EXPECT_THAT(store_->Rescan().removed, ElementsAre("xx"));
  EXPECT_FALSE(store_->Find("xx").ok());
  EXPECT_EQ(Get({"xx"}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ((*lease)[0]->tokenizer().size(), 310) << "whoever has it keeps it";
  const int64_t used = store_->counters().used_bytes;
  lease->clear();
  EXPECT_LT(store_->counters().used_bytes, used);
  EXPECT_EQ(store_->model().shared_checksum(), checksum);
  EXPECT_EQ(store_->model().shared_address(), address);
}

TEST_F(LanguageStoreTest, AChangedFolderIsReplacedForNewRequestsOnly) {
  Open({});
  ASSERT_TRUE(store_->Start().ok());
  auto before = Get({"fr"});
  ASSERT_TRUE(before.ok());
  std::ofstream(Folder("fr") / "note.txt") << "changed";
  EXPECT_THAT(store_->Rescan().replaced, ElementsAre("fr"));
  auto after = Get({"fr"});
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_NE((*before)[0].get(), (*after)[0].get());
  EXPECT_EQ((*before)[0]->checksum(), (*after)[0]->checksum());
}

TEST_F(LanguageStoreTest, ABrokenFolderHarmsNobodyAndIsMendedByARescan) {
  Open({});
  ASSERT_TRUE(store_->Start().ok());
  AddLanguage("xx");
  const fs::path file = Folder("xx") / "language.safetensors";
  const auto size = fs::file_size(file);
  fs::resize_file(file, size / 2);
  const RescanResult broken = store_->Rescan();
  ASSERT_EQ(broken.broken.size(), 1U);
  EXPECT_EQ(broken.broken[0].first, "xx");
  EXPECT_EQ(Info("xx").state, LanguageState::kFailed);
  const auto refused = Get({"xx"});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("language.safetensors"));
  for (const char* code : {"es", "fr", "ru"}) EXPECT_TRUE(Get({code}).ok()) << code;
  EXPECT_THAT(store_->missing(), IsEmpty()) << "model.json does not list it";
  fs::copy_file(Folder("es") / "language.safetensors", file, fs::copy_options::overwrite_existing);
  EXPECT_THAT(store_->Rescan().replaced, ElementsAre("xx"));
  EXPECT_TRUE(Get({"xx"}).ok());
}

TEST_F(LanguageStoreTest, FilesHalfWrittenUnderARunningLanguageKeepTheOldOneServed) {
  Open({});
  ASSERT_TRUE(store_->Start().ok());
  const fs::path file = Folder("fr") / "language.safetensors";
  const auto size = fs::file_size(file);
  fs::resize_file(file, size / 2);
  EXPECT_EQ(store_->Rescan().broken.size(), 1U);
  EXPECT_TRUE(Get({"fr"}).ok());
  EXPECT_THAT(store_->missing(), IsEmpty());
}

TEST_F(LanguageStoreTest, AStartWithABrokenListedLanguageServesTheOthersAndIsNotReady) {
  fs::resize_file(Folder("fr") / "language.safetensors", 100);
  for (const int64_t budget : {int64_t{0}, int64_t{1} << 40}) {
    Open({.memory_budget = budget});
    ASSERT_TRUE(store_->Start().ok());
    EXPECT_THAT(store_->missing(), ElementsAre("fr"));
    for (const char* code : {"es", "ru"}) EXPECT_TRUE(Get({code}).ok()) << code;
    const absl::Status refused = Get({"fr"}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("language.safetensors"));
  }
}

TEST_F(LanguageStoreTest, AFaultFoundOnlyWhenLoadingDegradesTheStartToo) {
  LanguageStoreOptions options;
  options.check = [](const model_loader::Language& language) {
    return language.code() == "ru" ? absl::FailedPreconditionError("no prompt for ru") : absl::OkStatus();
  };
  Open(options);
  ASSERT_TRUE(store_->Start().ok());
  EXPECT_THAT(store_->missing(), ElementsAre("ru"));
  EXPECT_THAT(std::string(Get({"ru"}).status().message()), HasSubstr("no prompt for ru"));
  EXPECT_TRUE(Get({"es"}).ok());
}

TEST_F(LanguageStoreTest, APinnedLanguageThatIsBrokenIsMissingUntilItIsMended) {
  AddLanguage("xx");
  const fs::path file = Folder("xx") / "language.safetensors";
  fs::resize_file(file, 100);
  Open({.memory_budget = int64_t{1} << 40, .pinned = {"xx"}});
  ASSERT_TRUE(store_->Start().ok());
  EXPECT_THAT(store_->missing(), ElementsAre("xx")) << "nobody lists it, but it was asked for";
  store_->Rescan();
  EXPECT_THAT(store_->missing(), ElementsAre("xx"));
  fs::copy_file(Folder("es") / "language.safetensors", file, fs::copy_options::overwrite_existing);
  store_->Rescan();
  EXPECT_THAT(store_->missing(), IsEmpty());
  EXPECT_TRUE(Info("xx").pinned);
  Open({.pinned = {"nobody"}});
  EXPECT_FALSE(store_->Start().ok());
}

TEST_F(LanguageStoreTest, AStartWithoutOneUsableListedLanguageIsAnError) {
  AddLanguage("xx");
  for (const char* code : {"es", "fr", "ru"}) fs::resize_file(Folder(code) / "language.safetensors", 100);
  Open({});
  absl::Status status = store_->Start();
  EXPECT_FALSE(status.ok()) << "xx alone is not what the model promises";
  EXPECT_THAT(std::string(status.message()), HasSubstr("language.safetensors"));
  for (const char* code : {"es", "fr", "ru", "xx"}) fs::remove_all(Folder(code));
  Open({});
  status = store_->Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no language folder"));
  const LanguageStoreOptions none{.check = [](const auto&) { return absl::FailedPreconditionError("none fits"); }};
  fs::copy(koine::testing::SourcePath("tests/data/plans/plan-00/languages"), folder_ / "languages",
           fs::copy_options::recursive);
  Open(none);
  EXPECT_THAT(std::string(store_->Start().message()), HasSubstr("none fits"));
}

TEST_F(LanguageStoreTest, AnAliasOfAnotherLanguageMakesTheNewcomerFail) {
  AddLanguage("xx");
  std::stringstream text;
  text << std::ifstream(Folder("xx") / "language.json").rdbuf();
  std::string json = text.str();
  json.replace(json.find("\"aliases\": []"), 13, "\"aliases\": [\"same\"]");
  std::ofstream(Folder("xx") / "language.json") << json;
  AddLanguage("yy");
  json.replace(json.find("\"code\": \"xx\""), 12, "\"code\": \"yy\"");
  std::ofstream(Folder("yy") / "language.json") << json;
  Open({});
  ASSERT_TRUE(store_->Start().ok());
  EXPECT_EQ(*store_->Find("same"), "xx");
  EXPECT_TRUE(Get({"xx"}).ok());
  EXPECT_EQ(Get({"yy"}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(LanguageStoreTest, LoadPinsAndUnloadDrains) {
  const int64_t one = AddEqualLanguages({"aa", "bb"});
  Open({.memory_budget = 2 * one});
  ASSERT_TRUE(store_->Start().ok());
  ASSERT_TRUE(store_->Load("es", true, absl::Now() + absl::Seconds(20)).ok());
  for (const char* code : {"aa", "bb", "aa", "bb"}) ASSERT_TRUE(Get({code}).ok());
  EXPECT_EQ(Info("es").state, LanguageState::kLoaded);
  EXPECT_TRUE(Info("es").pinned);
  auto lease = Get({"es"});
  EXPECT_EQ(store_->Unload("es", absl::Now() + absl::Milliseconds(20)).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Info("es").state, LanguageState::kDraining);
  lease->clear();
  EXPECT_TRUE(store_->Unload("es", absl::Now() + absl::Seconds(20)).ok());
  EXPECT_EQ(Info("es").state, LanguageState::kCold);
  EXPECT_EQ(store_->Unload("nobody", absl::InfiniteFuture()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LanguageStoreTest, ManyThreadsUnderATightBudgetAllGetWhatTheyAskFor) {
  const std::vector<std::string> codes = {"es", "aa", "bb", "cc", "dd", "ee", "ff", "gg", "hh", "ii"};
  const int64_t one = AddEqualLanguages({codes.begin() + 1, codes.end()});
  Open({.memory_budget = 3 * one});
  ASSERT_TRUE(store_->Start().ok());
  std::atomic<int> granted{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 generator(t);
      for (int i = 0; i < 100; ++i) {
        // Two languages each: four threads want up to eight where three fit.
        auto leases = Get({codes[generator() % codes.size()], codes[generator() % codes.size()]});
        if (leases.ok()) ++granted;
        if (store_->counters().used_bytes > 3 * one) over = true;
      }
    });
  }
  for (int i = 0; i < 20; ++i) store_->Rescan();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(granted.load(), 400);
  EXPECT_FALSE(over.load());
  EXPECT_EQ(store_->counters().waiting, 0);
}

}  // namespace
}  // namespace koine::server
