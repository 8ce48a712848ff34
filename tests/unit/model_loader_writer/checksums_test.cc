// SHA256SUMS of model folders. The reference is sha256sum(1) of coreutils.
#include "model_loader/writer/checksums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/harness.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Checksums : public ::testing::Test {
 protected:
  Checksums() : folder_(fs::path(::testing::TempDir()) / absl::StrCat("koine_checksums_", getpid())) {
    fs::remove_all(folder_);
    Write("model.json", "{}");
    Write("shared.safetensors", std::string((size_t{3} << 20) + 17, 'x'));  // over several pieces
    Write("languages/de/language.safetensors", "");
    Write("samples.json", "[]");
    Write("README.md", "text");
    Write(".hidden/file", "no");
  }
  ~Checksums() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& bytes) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  std::string List() const {
    std::ostringstream text;
    text << std::ifstream(folder_ / kChecksumFile).rdbuf();
    return text.str();
  }
  ChecksumReport Check() const {
    const auto report = CheckChecksums(folder_.string());
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : ChecksumReport{};
  }
  int CoreutilsCheck() const {
    return std::system(absl::StrCat("cd '", folder_.string(), "' && sha256sum --check --strict --quiet ", kChecksumFile,
                                    " >/dev/null 2>&1")
                           .c_str());
  }

  const fs::path folder_;
};

TEST_F(Checksums, AreWhatSha256sumChecksAndNameOnlyTheModelsFiles) {
  ASSERT_TRUE(WriteChecksums(folder_.string()).ok());
  EXPECT_EQ(CoreutilsCheck(), 0) << List();
  const ChecksumReport report = Check();
  EXPECT_TRUE(report.present);
  EXPECT_EQ(report.files, 3);
  EXPECT_THAT(report.faults, IsEmpty());
  EXPECT_THAT(report.unknown, IsEmpty());
  for (const char* left_out : {"samples.json", "README.md", "hidden"}) EXPECT_THAT(List(), Not(HasSubstr(left_out)));
}

TEST_F(Checksums, TellWhichFilesDifferAreMissingOrNew) {
  ASSERT_TRUE(WriteChecksums(folder_.string()).ok());
  std::string weights((size_t{3} << 20) + 17, 'x');
  weights.back() = 'y';
  Write("shared.safetensors", weights);
  fs::remove(folder_ / "languages/de/language.safetensors");
  Write("languages/fr/language.json", "{}");
  const ChecksumReport report = Check();
  EXPECT_THAT(report.faults,
              ElementsAre("languages/de/language.safetensors: missing", "shared.safetensors: differs from SHA256SUMS"));
  EXPECT_THAT(report.unknown, ElementsAre("languages/fr/language.json"));
  EXPECT_NE(CoreutilsCheck(), 0);
}

TEST_F(Checksums, GrowWithAFolderThatHasThem) {
  ASSERT_TRUE(AddChecksums(folder_.string(), "languages").ok());
  EXPECT_FALSE(fs::exists(folder_ / kChecksumFile)) << "a folder without a list gets none";
  ASSERT_TRUE(WriteChecksums(folder_.string()).ok());
  Write("languages/de/adapters/law/adapter.json", "{}");
  EXPECT_THAT(Check().unknown, ElementsAre("languages/de/adapters/law/adapter.json"));
  ASSERT_TRUE(AddChecksums(folder_.string(), "languages/de/adapters/law").ok());
  EXPECT_THAT(Check().unknown, IsEmpty());
  EXPECT_EQ(Check().files, 4);
  EXPECT_EQ(CoreutilsCheck(), 0) << List();
}

TEST_F(Checksums, OfAFolderWithoutAListAreNotMissed) {
  EXPECT_FALSE(Check().present);
  EXPECT_THAT(Check().faults, IsEmpty());
}

TEST_F(Checksums, ReadNothingOutsideTheFolderAndNoListThatIsNone) {
  const std::string sum(64, 'a');
  for (const std::string& line :
       {sum + "  /etc/passwd", sum + "  ../other/file", sum + "  languages/../../file", sum + "  ", sum + " model.json",
        sum.substr(1) + "  model.json", std::string(64, 'g') + "  model.json", std::string("\\") + sum + "  model.json",
        std::string("version https://git-lfs.github.com/spec/v1"), std::string()}) {
    Write(kChecksumFile, absl::StrCat(sum, "  model.json\n", line, "\n"));
    const auto report = CheckChecksums(folder_.string());
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(report.status().message()), HasSubstr("SHA256SUMS: line 2")) << line;
  }
  // Binary mode and capital digits are sha256sum's too.
  Write(kChecksumFile, absl::StrCat(std::string(64, 'A'), " *model.json\n"));
  EXPECT_THAT(Check().faults, ElementsAre("model.json: differs from SHA256SUMS"));
}

TEST_F(Checksums, OfWhatIsNoFileAreNeverRead) {
  ASSERT_TRUE(WriteChecksums(folder_.string()).ok());
  // A pipe would hang, a device never end.
  fs::remove(folder_ / "model.json");
  ASSERT_EQ(mkfifo((folder_ / "model.json").c_str(), 0600), 0);
  fs::remove(folder_ / "shared.safetensors");
  fs::create_symlink("/dev/zero", folder_ / "shared.safetensors");
  EXPECT_THAT(Check().faults, ElementsAre("model.json: not a regular file", "shared.safetensors: not a regular file"));
  EXPECT_EQ(WriteChecksums(folder_.string()).code(), absl::StatusCode::kInvalidArgument);
  for (const bool pipe : {true, false}) {
    fs::remove(folder_ / kChecksumFile);
    if (pipe) {
      ASSERT_EQ(mkfifo((folder_ / kChecksumFile).c_str(), 0600), 0);
    } else {
      fs::create_symlink("/dev/zero", folder_ / kChecksumFile);
    }
    EXPECT_EQ(CheckChecksums(folder_.string()).status().code(), absl::StatusCode::kInvalidArgument);
  }
  fs::remove(folder_ / kChecksumFile);
  Write(kChecksumFile, "");
  EXPECT_THAT(std::string(CheckChecksums(folder_.string()).status().message()), HasSubstr("lists no file"));
}

TEST_F(Checksums, EndWhenTheirCallerSaysSo) {
  int asked = 0;
  const absl::Status status = WriteChecksums(
      folder_.string(), [&asked] { return ++asked < 3 ? absl::OkStatus() : absl::CancelledError("enough"); });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(fs::exists(folder_ / kChecksumFile));
}

TEST_F(Checksums, OfTheDemoModelAreThere) {
  const auto report = CheckChecksums(koine::testing::SourcePath("deploy/demo_model"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->files, 20);
  EXPECT_THAT(report->faults, IsEmpty());
  EXPECT_THAT(report->unknown, IsEmpty());
}

}  // namespace
}  // namespace koine::model_loader
