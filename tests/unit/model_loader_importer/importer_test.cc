// The reference checkpoints through the importer: what comes out is what the checkpoint says.
#include "model_loader/importer/importer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "model_loader/checkpoint/checkpoint_tensors.h"
#include "model_loader/format/config.h"
#include "model_loader/safetensors/safetensors.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;

std::string Data(const std::string& name) { return absl::StrCat(KOINE_SOURCE_DIR, "/tests/data/", name); }

std::string Read(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

class Import8 : public testing::TestWithParam<std::string> {};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    static int made = 0;
    path_ = fs::path(testing::TempDir()) / absl::StrCat("koine_import_", getpid(), "_", ++made);
    fs::create_directories(path_);
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST_P(Import8, WritesWhatTheCheckpointHolds) {
  const TemporaryFolder temporary;
  ImportOptions options;
  options.folder = Data(GetParam());
  options.out = (temporary.path() / "model").string();
  const auto report = Import(options);
  ASSERT_TRUE(report.ok()) << report.status();
  const auto config = ParseModelConfig(Read(fs::path(options.out) / "model.json"), "model.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->name, GetParam());
  // Every number of the checkpoint is there, or named as dropped or not needed.
  const auto checkpoint = CheckpointTensors::Open(options.folder);
  ASSERT_TRUE(checkpoint.ok());
  int64_t theirs = 0;
  for (const auto& [name, tensor] : (*checkpoint)->tensors()) {
    const auto in = [&name = name](const std::vector<std::string>& list) {
      return std::find(list.begin(), list.end(), name) != list.end();
    };
    if (in(report->dropped) || in(report->ignored)) continue;
    if (in(report->tied) && name != report->tied.front()) continue;
    theirs += tensor.elements();
  }
  if (GetParam() == "hf-xlmr") theirs -= 64;                      // the token type, added to the positions
  if (GetParam() == "hf-bert") theirs += -2 * 64 + 48 * 64 + 48;  // and the dense layer from its own file
  EXPECT_EQ(report->parameters, theirs);
  const auto file = SafetensorsFile::Open((fs::path(options.out) / "shared.safetensors").string());
  ASSERT_TRUE(file.ok()) << file.status();
  int64_t ours = 0;
  for (const auto& [name, tensor] : (*file)->tensors()) ours += tensor.elements();
  EXPECT_EQ(ours, theirs);
  // Nothing is left beside it.
  EXPECT_EQ(std::distance(fs::directory_iterator(temporary.path()), fs::directory_iterator()), 1);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Import8,
                         testing::Values("hf-nllb", "hf-m2m100", "hf-mbart50", "hf-mt5", "hf-t5", "hf-marian",
                                         "hf-xlmr", "hf-bert"),
                         [](const auto& test) { return test.param.substr(3); });

}  // namespace
}  // namespace koine::model_loader
