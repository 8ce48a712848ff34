#include "server/text/free_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace koine::server {
namespace {

namespace fs = std::filesystem;

class FreeMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / ("koine_free_memory_" + std::to_string(getpid()));
    fs::create_directories(root_ / "memory");
    Write("meminfo", "MemTotal:       32000000 kB\nMemAvailable:    1000000 kB\nMemAvailableX: 5 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void Write(const std::string& name, const std::string& text) const { std::ofstream(root_ / name) << text; }
  FreeMemory Read() const { return ReadFreeMemory(root_.string(), root_.string()); }

  fs::path root_;
};

TEST_F(FreeMemoryTest, WithoutAGroupItIsTheMachines) {
  EXPECT_EQ(Read().bytes, 1'024'000'000);
  EXPECT_STREQ(Read().basis, "machine");
}

TEST_F(FreeMemoryTest, AGroupsLimitCountsWhatCanBeDroppedAsFree) {
  Write("memory.max", "500000000\n");
  Write("memory.current", "400000000\n");
  Write("memory.stat", "anon 1\ninactive_file 50000000\nactive_file 7\n");
  EXPECT_EQ(Read().bytes, 150'000'000);
  EXPECT_STREQ(Read().basis, "cgroup");
}

TEST_F(FreeMemoryTest, AGroupWithoutALimitOrWithALargerOneIsTheMachines) {
  Write("memory.max", "max\n");
  Write("memory.current", "400000000\n");
  EXPECT_STREQ(Read().basis, "machine");
  Write("memory.max", "50000000000\n");
  EXPECT_STREQ(Read().basis, "machine");
  EXPECT_EQ(Read().bytes, 1'024'000'000);
}

TEST_F(FreeMemoryTest, AGroupOverItsLimitHasNothing) {
  Write("memory.max", "100\n");
  Write("memory.current", "400\n");
  EXPECT_EQ(Read().bytes, 0);
}

TEST_F(FreeMemoryTest, TheOlderFilesAreReadToo) {
  Write("memory/memory.limit_in_bytes", "600000000\n");
  Write("memory/memory.usage_in_bytes", "100000000\n");
  EXPECT_EQ(Read().bytes, 500'000'000);
  Write("memory/memory.limit_in_bytes", "9223372036854771712\n");  // its way to say that there is none
  EXPECT_STREQ(Read().basis, "machine");
}

TEST(FreeMemory, OfThisMachineIsSomething) { EXPECT_GT(ReadFreeMemory().bytes, 0); }

}  // namespace
}  // namespace koine::server
