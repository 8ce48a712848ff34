#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model_loader/safetensors/safetensors.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;
using kernels::DType;

class Writer : public testing::Test {
 protected:
  Writer() {
    std::string pattern = testing::TempDir() + "writerXXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~Writer() override { fs::remove_all(directory_); }
  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  size_t Count() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }
  std::string directory_;
};

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST_F(Writer, WritesWhatTheReaderReads) {
  SafetensorsWriter writer;
  ASSERT_TRUE(writer.AddF32("w", DType::kF32, {2, 2}, {1.0F, -2.5F, 3e-40F, 4.0F}).ok());
  ASSERT_TRUE(writer.AddF32("h", DType::kBF16, {3}, {1.0F, 1.00390625F, -0.0F}).ok());
  const uint8_t ids[] = {7, 0, 0, 0, 255, 255, 255, 255};
  ASSERT_TRUE(writer.Add("ids", DType::kI32, {2}, ids).ok());
  ASSERT_TRUE(writer.Add("none", DType::kF16, {0}, {}).ok());
  ASSERT_TRUE(writer.Write(Path("a.safetensors")).ok());

  const auto file = SafetensorsFile::Open(Path("a.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->tensors().size(), 4U);
  float values[4];
  kernels::ConvertToF32((*file)->Find("w")->data.data(), DType::kF32, 4, values);
  EXPECT_THAT(values, testing::ElementsAre(1.0F, -2.5F, 3e-40F, 4.0F));
  kernels::ConvertToF32((*file)->Find("h")->data.data(), DType::kBF16, 3, values);
  EXPECT_EQ(values[0], 1.0F);
  EXPECT_EQ(values[1], 1.0F) << "1 + 2^-8 lies between two bf16 values and goes to the even one";
  EXPECT_TRUE(std::signbit(values[2]));
  EXPECT_THAT((*file)->Find("ids")->data, testing::ElementsAreArray(ids));
}

// The layout by an independent reading: JSON by nlohmann, offsets by hand.
TEST_F(Writer, LaysTensorsOutInNameOrderBehindAPaddedHeader) {
  SafetensorsWriter writer;
  ASSERT_TRUE(writer.AddF32("b", DType::kF32, {1}, {2.0F}).ok());
  ASSERT_TRUE(writer.AddF32("a", DType::kF32, {1}, {1.0F}).ok());
  ASSERT_TRUE(writer.Write(Path("x")).ok());
  const std::string bytes = ReadFile(Path("x"));
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0U);
  ASSERT_EQ(bytes.size(), 8 + length + 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  EXPECT_EQ(header.at("a").at("data_offsets"), nlohmann::json({0, 4}));
  EXPECT_EQ(header.at("b").at("data_offsets"), nlohmann::json({4, 8}));
  EXPECT_EQ(header.at("b").at("dtype"), "F32");
  float values[2];
  std::memcpy(values, bytes.data() + 8 + length, 8);
  EXPECT_EQ(values[0], 1.0F);
  EXPECT_EQ(values[1], 2.0F);
}

TEST_F(Writer, RefusesTensorsThatContradictThemselves) {
  SafetensorsWriter writer;
  const std::vector<float> two = {1, 2};
  EXPECT_EQ(writer.AddF32("a", DType::kF32, {3}, two).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.AddF32("a", DType::kF32, {-2}, two).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.AddF32("a", DType::kF32, {int64_t{1} << 62, 4}, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.AddF32("a", DType::kF16, {2}, two).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.AddF32("", DType::kF32, {2}, two).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.AddF32("a\xff", DType::kF32, {2}, two).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.AddF32("__metadata__", DType::kF32, {2}, two).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(writer.AddF32("a", DType::kF32, {2}, two).ok());
  EXPECT_EQ(writer.AddF32("a", DType::kF32, {2}, two).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Writer, ReplacesAnOldFileInOneStep) {
  SafetensorsWriter first, second;
  ASSERT_TRUE(first.AddF32("a", DType::kF32, {1}, {1.0F}).ok());
  ASSERT_TRUE(second.AddF32("b", DType::kF32, {1}, {2.0F}).ok());
  ASSERT_TRUE(first.Write(Path("x")).ok());
  const auto old = SafetensorsFile::Open(Path("x"));
  ASSERT_TRUE(old.ok());
  ASSERT_TRUE(second.Write(Path("x")).ok());
  EXPECT_EQ((*old)->Find("a")->data[3], 0x3f) << "an open reader keeps the file it opened";
  const auto renewed = SafetensorsFile::Open(Path("x"));
  ASSERT_TRUE(renewed.ok());
  EXPECT_NE((*renewed)->Find("b"), nullptr);
  EXPECT_EQ(Count(), 1U) << "no temporary file stays";
}

TEST_F(Writer, GivesFilesTheModeOfAnyNewFile) {
  const mode_t mask = umask(027);
  SafetensorsWriter writer;
  const absl::Status status = writer.Write(Path("x"));
  umask(mask);
  ASSERT_TRUE(status.ok()) << status;
  struct stat info = {};
  ASSERT_EQ(stat(Path("x").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0640U);
}

TEST_F(Writer, LeavesNothingBehindOnFailure) {
  SafetensorsWriter writer;
  ASSERT_TRUE(writer.Add("a", DType::kI8, {1 << 20}, std::vector<uint8_t>(1 << 20)).ok());
  EXPECT_EQ(writer.Write(Path("no/such/folder/x")).code(), absl::StatusCode::kNotFound);

  // A full disk, played by a limit on file sizes.
  ASSERT_NE(std::signal(SIGXFSZ, SIG_IGN), SIG_ERR);
  struct rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  struct rlimit small = old;
  small.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = writer.Write(Path("x"));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(Path("x")));
  EXPECT_EQ(Count(), 0U);

  fs::create_directory(Path("folder"));
  EXPECT_FALSE(writer.Write(Path("folder")).ok()) << "a folder stands in the way";
  EXPECT_EQ(Count(), 1U);
}

}  // namespace
}  // namespace koine::model_loader
