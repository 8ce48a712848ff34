// Holds the tensor table against model folders that were not written by this code: tests/data/plans (by PyTorch) and
// the demo model. Names and shapes must match exactly, and the elements per owner must be those of plans/index.json.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model_loader/format/config.h"
#include "model_loader/format/tensor_table.h"
#include "model_loader/safetensors/safetensors.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::set<std::string> Names(const std::vector<TensorSpec>& specs, bool required_only) {
  std::set<std::string> names;
  for (const TensorSpec& spec : specs) {
    if (spec.required || !required_only) names.insert(spec.name);
  }
  return names;
}

// Parameters of a file by its list; 0 and a test failure if the file does not match.
int64_t CheckedParameters(const fs::path& path, const std::vector<TensorSpec>& specs, int64_t* vocabulary) {
  const auto file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return 0;
  const absl::Status status = CheckTensors(**file, specs, vocabulary);
  EXPECT_TRUE(status.ok()) << status;
  std::map<std::string, const TensorSpec*> by_name;
  for (const TensorSpec& spec : specs) {
    EXPECT_TRUE(by_name.emplace(spec.name, &spec).second) << spec.name << " is listed twice";
  }
  int64_t parameters = 0;
  for (const auto& [name, tensor] : (*file)->tensors()) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      ADD_FAILURE() << path << " holds " << name << ", which is not listed";
      continue;
    }
    if (found->second->component != Component::kVocabularyIds) parameters += tensor.elements();
  }
  return parameters;
}

struct Folder {
  ModelConfig config;
  std::map<std::string, LanguageConfig> languages;
};

Folder ReadFolder(const fs::path& path) {
  Folder folder;
  const auto config = ParseModelConfig(ReadFile(path / "model.json"), path / "model.json");
  EXPECT_TRUE(config.ok()) << config.status();
  if (config.ok()) folder.config = *config;
  for (const auto& entry : fs::directory_iterator(path / "languages")) {
    const fs::path json = entry.path() / "language.json";
    const auto language = ParseLanguageConfig(ReadFile(json), json);
    EXPECT_TRUE(language.ok()) << language.status();
    if (language.ok()) folder.languages[entry.path().filename()] = *language;
  }
  return folder;
}

class Plans : public testing::TestWithParam<int> {};

TEST_P(Plans, FilesMatchTheTensorTableAndTheIndexCountsTheSameParameters) {
  const fs::path root = fs::path(KOINE_SOURCE_DIR) / "tests/data/plans";
  const nlohmann::json index = nlohmann::json::parse(ReadFile(root / "index.json"));
  const nlohmann::json& plan = index.at(static_cast<size_t>(GetParam()));
  const fs::path path = root / plan.at("plan").get<std::string>();
  const Folder folder = ReadFolder(path);
  EXPECT_EQ(folder.config.languages, plan.at("languages").get<std::vector<std::string>>());
  ASSERT_EQ(folder.languages.size(), folder.config.languages.size());

  int64_t vocabulary = -1;
  EXPECT_EQ(CheckedParameters(path / "shared.safetensors", SharedTensors(folder.config), &vocabulary),
            plan.at("parameters").at("shared").get<int64_t>());
  EXPECT_EQ(vocabulary, 0) << "no table is shared in these plans";
  for (const auto& [code, language] : folder.languages) {
    EXPECT_EQ(code, language.code);
    EXPECT_EQ(CheckedParameters(path / "languages" / code / "language.safetensors",
                                LanguageTensors(folder.config, language.adapter), &vocabulary),
              plan.at("parameters").at(code).get<int64_t>())
        << code;
    EXPECT_GT(vocabulary, 0);
  }
}

TEST_P(Plans, ConfigurationsSurviveWritingAndReading) {
  const fs::path root = fs::path(KOINE_SOURCE_DIR) / "tests/data/plans";
  const nlohmann::json index = nlohmann::json::parse(ReadFile(root / "index.json"));
  const Folder folder = ReadFolder(root / index.at(static_cast<size_t>(GetParam())).at("plan").get<std::string>());
  const std::string text = ToJson(folder.config);
  const auto again = ParseModelConfig(text, "again");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ToJson(*again), text);
  EXPECT_EQ(again->architecture.encoder_layers, folder.config.architecture.encoder_layers);
  EXPECT_EQ(again->architecture.attention_scale, folder.config.architecture.attention_scale);
  EXPECT_EQ(again->architecture.norm_eps, folder.config.architecture.norm_eps);
  EXPECT_EQ(Names(SharedTensors(*again), false), Names(SharedTensors(folder.config), false));
  for (const auto& [code, language] : folder.languages) {
    const auto twin = ParseLanguageConfig(ToJson(language), "again");
    ASSERT_TRUE(twin.ok()) << twin.status();
    EXPECT_EQ(ToJson(*twin), ToJson(language));
    EXPECT_EQ(Names(LanguageTensors(*again, twin->adapter), false),
              Names(LanguageTensors(folder.config, language.adapter), false));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Plans, testing::Range(0, 18));

TEST(PlanFolders, AreEighteen) {
  const nlohmann::json index =
      nlohmann::json::parse(ReadFile(fs::path(KOINE_SOURCE_DIR) / "tests/data/plans/index.json"));
  EXPECT_EQ(index.size(), 18U);
}

TEST(DemoModel, FilesMatchTheTensorTable) {
  const fs::path path = fs::path(KOINE_SOURCE_DIR) / "deploy/demo_model";
  ASSERT_TRUE(fs::exists(path / "model.json")) << path;
  const Folder folder = ReadFolder(path);
  EXPECT_EQ(folder.languages.size(), 8U);
  EXPECT_EQ(folder.config.zero_shot_pairs.size(), 6U);
  int64_t vocabulary = -1;
  int64_t parameters = CheckedParameters(path / "shared.safetensors", SharedTensors(folder.config), &vocabulary);
  for (const auto& [code, language] : folder.languages) {
    parameters += CheckedParameters(path / "languages" / code / "language.safetensors",
                                    LanguageTensors(folder.config, language.adapter), &vocabulary);
    EXPECT_EQ(vocabulary, 8000) << code;
  }
  // The model card says 22.5 million.
  EXPECT_NEAR(static_cast<double>(parameters), 22.5e6, 0.05e6);
}

}  // namespace
}  // namespace koine::model_loader
