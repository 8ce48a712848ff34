#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
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
  EXPECT_EQ(writer.AddF32("a", DType::kI8, {2}, two).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.AddF32Rows("a", DType::kI32, {2}, nullptr).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.AddView("a", DType::kI8, {2}, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.AddF32("", DType::kF32, {2}, two).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.AddF32("a\xff", DType::kF32, {2}, two).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.AddF32("__metadata__", DType::kF32, {2}, two).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(writer.AddF32("a", DType::kF32, {2}, two).ok());
  EXPECT_EQ(writer.AddF32("a", DType::kF32, {2}, two).code(), absl::StatusCode::kInvalidArgument);
}

// All bits of the type against a reading by ldexp, and against the nearest of all values for what lies between.
TEST(Float16, ConvertsEveryValueAndRoundsToTheNearest) {
  std::vector<std::pair<double, uint16_t>> finite;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const int exponent = (half >> 10) & 0x1f, mantissa = half & 0x3ff;
    const double sign = (half & 0x8000) != 0 ? -1 : 1;
    const float value = kernels::FromFloat16(half);
    if (exponent == 0x1f) {
      EXPECT_TRUE(mantissa != 0 ? std::isnan(value) : std::isinf(value)) << bits;
      EXPECT_TRUE(mantissa != 0 || std::signbit(value) == (sign < 0)) << bits;
      EXPECT_EQ(std::isnan(kernels::FromFloat16(kernels::ToFloat16(value))), mantissa != 0);
    } else {
      const double expected =
          sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
      EXPECT_EQ(value, expected) << bits;
      EXPECT_EQ(kernels::ToFloat16(value), half) << bits;
      if (sign > 0) finite.emplace_back(expected, half);
    }
  }
  for (size_t i = 0; i + 1 < finite.size(); ++i) {
    const double middle = (finite[i].first + finite[i + 1].first) / 2;
    const auto at = static_cast<float>(middle);  // exact: one more bit than the type has
    EXPECT_EQ(kernels::ToFloat16(std::nextafterf(at, 0)), finite[i].second);
    EXPECT_EQ(kernels::ToFloat16(std::nextafterf(at, INFINITY)), finite[i + 1].second);
    EXPECT_EQ(kernels::ToFloat16(at) % 2, 0) << "a tie goes to the even one";
  }
  EXPECT_EQ(kernels::ToFloat16(65519.996F), 0x7bff);
  EXPECT_EQ(kernels::ToFloat16(65520.0F), 0x7c00);
}

TEST_F(Writer, StreamsRowsAndViewsIntoTheFileThatCopiesGive) {
  const int64_t rows = 1000, width = 2501;  // 10 MB of F32: three pieces, the last one short
  std::vector<float> values(static_cast<size_t>(rows * width));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 977) - 400.0F;
  const auto bytes = absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SafetensorsWriter copied, streamed;
    ASSERT_TRUE(copied.AddF32("m", dtype, {rows, width}, values).ok());
    ASSERT_TRUE(copied.AddF32("scalar", dtype, {}, {3.0F}).ok());
    ASSERT_TRUE(copied.Add("raw", DType::kF32, {rows, width}, bytes).ok());
    ASSERT_TRUE(copied.AddF32("none", dtype, {0, 3}, {}).ok());
    int64_t next = 0, ended = 0;
    const auto source = [&](int64_t first, int64_t count, absl::Span<float> chunk) {
      EXPECT_EQ(first, next);
      EXPECT_EQ(chunk.size(), static_cast<size_t>(count * width));
      EXPECT_LE(chunk.size() * kernels::SizeOf(dtype), SafetensorsWriter::kChunkBytes);
      std::copy_n(values.begin() + first * width, count * width, chunk.begin());
      next += count;
      return absl::OkStatus();
    };
    ASSERT_TRUE(streamed.AddF32Rows("m", dtype, {rows, width}, source, [&] { ended = next; }).ok());
    ASSERT_TRUE(streamed
                    .AddF32Rows("scalar", dtype, {},
                                [](int64_t, int64_t, absl::Span<float> chunk) {
                                  EXPECT_EQ(chunk.size(), 1U);
                                  chunk[0] = 3.0F;
                                  return absl::OkStatus();
                                })
                    .ok());
    ASSERT_TRUE(streamed.AddView("raw", DType::kF32, {rows, width}, bytes).ok());
    ASSERT_TRUE(streamed
                    .AddF32Rows("none", dtype, {0, 3},
                                [](int64_t, int64_t, absl::Span<float>) {
                                  ADD_FAILURE() << "a tensor without elements has nothing to fill";
                                  return absl::OkStatus();
                                })
                    .ok());
    EXPECT_EQ(streamed.data_bytes(), copied.data_bytes());
    ASSERT_TRUE(copied.Write(Path("copied")).ok());
    ASSERT_TRUE(streamed.Write(Path("streamed")).ok());
    EXPECT_EQ(next, rows);
    EXPECT_EQ(ended, rows) << "told when the last row was in the file";
    EXPECT_EQ(ReadFile(Path("copied")), ReadFile(Path("streamed")));
  }
}

TEST_F(Writer, FailingSourcesEndTheWriteByName) {
  SafetensorsWriter writer;
  ASSERT_TRUE(
      writer
          .AddRows("bad.weight", DType::kI8, {3},
                   [](int64_t, int64_t, absl::Span<uint8_t>) { return absl::DataLossError("the source is gone"); })
          .ok());
  const absl::Status status = writer.Write(Path("x"));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr(Path("x")), testing::HasSubstr("bad.weight"),
                             testing::HasSubstr("the source is gone")));
  EXPECT_EQ(Count(), 0U);
}

TEST_F(Writer, ValuesTooLargeForF16AreNamedNotMadeInfinite) {
  SafetensorsWriter writer;
  EXPECT_TRUE(writer.AddF32("fits", DType::kF16, {2}, {65504.0F, INFINITY}).ok());
  const absl::Status at_once = writer.AddF32("large", DType::kF16, {2}, {1.0F, 7e4F});
  EXPECT_EQ(at_once.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(at_once.message()), testing::AllOf(testing::HasSubstr("large"), testing::HasSubstr("70000")));
  ASSERT_TRUE(writer
                  .AddF32Rows("later", DType::kF16, {1},
                              [](int64_t, int64_t, absl::Span<float> chunk) {
                                chunk[0] = -7e4F;
                                return absl::OkStatus();
                              })
                  .ok());
  const absl::Status status = writer.Write(Path("x"));
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("later"));
}

int64_t PeakKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6));
  }
  return -1;
}

TEST_F(Writer, HoldsABufferNotTheFile) {
  SafetensorsWriter writer;
  const int64_t rows = 3 << 10, width = 64 << 10;  // 192 MiB, more than a window on its way to the disk
  for (const char* name : {"a", "b"}) {
    ASSERT_TRUE(writer
                    .AddRows(name, DType::kI8, {rows / 2, width},
                             [](int64_t first, int64_t, absl::Span<uint8_t> chunk) {
                               std::fill(chunk.begin(), chunk.end(), static_cast<uint8_t>(first));
                               return absl::OkStatus();
                             })
                    .ok());
  }
  const int64_t before = PeakKilobytes();
  ASSERT_GT(before, 0);
  ASSERT_TRUE(writer.Write(Path("x")).ok());
  EXPECT_LT(PeakKilobytes() - before, 16 << 10);
  EXPECT_GT(fs::file_size(Path("x")), 192U << 20);
  const auto file = SafetensorsFile::Open(Path("x"));
  ASSERT_TRUE(file.ok());
  const auto data = (*file)->Find("b")->data;
  for (int64_t row = 0; row < rows / 2; ++row) {
    // Rows of one piece hold the number of its first.
    const int64_t piece = static_cast<int64_t>(SafetensorsWriter::kChunkBytes) / width;
    ASSERT_EQ(data[static_cast<size_t>(row * width)], static_cast<uint8_t>(row / piece * piece)) << row;
  }
  (*file)->DropPages(data);
  EXPECT_EQ(data[0], 0) << "dropped pages can be read again";
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
