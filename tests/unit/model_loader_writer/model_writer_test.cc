// Folders and files that appear at once, whoever else writes at the same time.
#include "model_loader/writer/model_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Folders : public ::testing::Test {
 protected:
  Folders() : folder_(fs::path(::testing::TempDir()) / absl::StrCat("koine_folders_", getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Folders() override { fs::remove_all(folder_); }

  fs::path Goal() const { return folder_ / "model"; }
  fs::path Half() const { return folder_ / ".model.part"; }
  // Two files, the second of which says that the first is there.
  static absl::Status Fill(const std::string& folder) {
    std::ofstream(folder + "/a") << "1";
    std::this_thread::yield();
    std::ofstream(folder + "/b") << (fs::exists(folder + "/a") ? "whole" : "torn");
    return absl::OkStatus();
  }

  const fs::path folder_;
};

TEST_F(Folders, OfManyWritersOneSucceedsAndItsFolderIsWhole) {
  for (int round = 0; round < 50; ++round) {
    fs::remove_all(Goal());
    std::atomic<int> succeeded{0}, refused{0};
    std::vector<std::thread> writers;
    for (int i = 0; i < 4; ++i) {
      writers.emplace_back([&] {
        const absl::Status status = WriteFolder(Goal().string(), &Fill);
        if (status.ok()) ++succeeded;
        if (absl::IsAlreadyExists(status)) ++refused;
      });
    }
    for (std::thread& writer : writers) writer.join();
    EXPECT_EQ(succeeded, 1);
    EXPECT_EQ(refused, 3);
    std::string said;
    std::ifstream(Goal() / "b") >> said;
    EXPECT_EQ(said, "whole");
    EXPECT_TRUE(fs::exists(Goal() / "a"));
    EXPECT_FALSE(fs::exists(Half()));
  }
}

TEST_F(Folders, ThatAnotherProcessIsWritingAreLeftAlone) {
  fs::create_directories(Half());
  std::ofstream(Half() / "theirs") << "1";
  const int theirs = open(Half().c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(theirs, LOCK_EX), 0);
  const absl::Status status = WriteFolder(Goal().string(), &Fill);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model is being written by another process"));
  EXPECT_TRUE(fs::exists(Half() / "theirs"));
  // Its end gives the folder free, whatever it left.
  close(theirs);
  EXPECT_TRUE(WriteFolder(Goal().string(), &Fill).ok());
  EXPECT_FALSE(fs::exists(Goal() / "theirs"));
}

TEST_F(Folders, AreRemovedWhereFillingThemFails) {
  EXPECT_EQ(WriteFolder(Goal().string(), [](const std::string&) { return absl::CancelledError("enough"); }).code(),
            absl::StatusCode::kCancelled);
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_THROW((void)WriteFolder(Goal().string(), [](const std::string&) -> absl::Status { throw std::bad_alloc(); }),
               std::bad_alloc);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(Folders, AreLockedForChangesOfOneFile) {
  std::ofstream(folder_ / "model.json") << "{}";
  const std::string counter = (folder_ / "count").string();
  std::ofstream(counter) << 0;
  std::vector<std::thread> adders;
  for (int i = 0; i < 4; ++i) {
    adders.emplace_back([&] {
      for (int k = 0; k < 50; ++k) {
        const FolderLock lock(folder_.string());
        int count = 0;
        std::ifstream(counter) >> count;
        EXPECT_TRUE(WriteSmallFile(counter, absl::StrCat(count + 1)).ok());
      }
    });
  }
  for (std::thread& adder : adders) adder.join();
  int count = 0;
  std::ifstream(counter) >> count;
  EXPECT_EQ(count, 200);
}

}  // namespace
}  // namespace koine::model_loader
