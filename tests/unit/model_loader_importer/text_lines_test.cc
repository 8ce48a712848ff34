// Lines of strangers' files.
#include "model_loader/importer/text_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> LinesOf(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  const absl::Status status = ForLines(stream, "it", [&lines](int64_t number, const std::string& line) {
    lines.push_back(line);
    EXPECT_EQ(number, static_cast<int64_t>(lines.size()));
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return lines;
}

std::string Fault(const std::string& text) {
  std::istringstream stream(text);
  const absl::Status status = ForLines(stream, "it", [](int64_t, const std::string&) { return absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(TextLines, EndWithEitherEndOrNone) {
  EXPECT_THAT(LinesOf(""), IsEmpty());
  EXPECT_THAT(LinesOf("\n"), ElementsAre(""));
  EXPECT_THAT(LinesOf("a\r\n\nb\rc\nd"), ElementsAre("a", "", "b\rc", "d"));
  EXPECT_THAT(LinesOf("a\n"), ElementsAre("a"));
  EXPECT_THAT(LinesOf("\xef\xbb\xbf"
                      "a\n\xef\xbb\xbf"
                      "b"),
              ElementsAre("a",
                          "\xef\xbb\xbf"
                          "b"));
}

TEST(TextLines, MayLieAcrossPiecesOfTheFile) {
  // Read in pieces of 64 KiB: lines of a length that does not divide it, with characters of several bytes.
  std::string text, line;
  for (int i = 0; i < 333; ++i) line += "\xe4\xb8\xad";
  for (int i = 0; i < 200; ++i) text += line + "\n";
  EXPECT_THAT(LinesOf(text), testing::AllOf(testing::SizeIs(200), testing::Each(line)));
  const std::string longest(size_t{4} << 20, 'a');
  EXPECT_THAT(LinesOf(longest), ElementsAre(longest));
}

TEST(TextLines, ThatAreNoTextAreNamed) {
  EXPECT_THAT(Fault("good\n\xc3\x28\n"), HasSubstr("it: line 2 is not UTF-8"));
  EXPECT_THAT(Fault("a\nb\n" + std::string((size_t{4} << 20) + 1, 'a')), HasSubstr("it: line 3 has over 4 MiB"));
}

TEST(TextLines, StopAtAnErrorOfTheirUser) {
  std::istringstream stream("a\nb\nc\n");
  int seen = 0;
  const absl::Status status = ForLines(stream, "it", [&seen](int64_t, const std::string&) {
    return ++seen == 2 ? absl::CancelledError("enough") : absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(seen, 2);
}

TEST(TextLines, AreReadFromRegularFilesOnly) {
  const fs::path folder = fs::path(testing::TempDir()) / absl::StrCat("koine_text_lines_", getpid());
  fs::create_directories(folder);
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", folder / "zeros");
  std::ofstream(folder / "file") << "a\n";
  const auto read = [&folder](const std::string& name) {
    return ForLinesOfFile((folder / name).string(), [](int64_t, const std::string&) { return absl::OkStatus(); });
  };
  EXPECT_TRUE(read("file").ok());
  EXPECT_EQ(read("none").code(), absl::StatusCode::kNotFound);
  for (const char* name : {"pipe", "zeros", "."}) {
    EXPECT_EQ(read(name).code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(read(name).message()), HasSubstr("not a regular file"));
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace koine::model_loader
