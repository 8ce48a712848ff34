#include "tests/support/model_copy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/harness.h"

namespace koine::testing {

namespace fs = std::filesystem;

ModelCopy::ModelCopy(const std::string& relative) {
  static std::atomic<int> next{0};
  path_ = fs::path(::testing::TempDir()) /
          ("koine_model_" + std::to_string(getpid()) + "_" + std::to_string(next.fetch_add(1)));
  fs::remove_all(path_);
  fs::copy(SourcePath(relative), path_, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(path_)) {
    fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
  }
}

ModelCopy::~ModelCopy() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void ModelCopy::Add(const std::string& code, const std::string& like) const {
  const fs::path hidden = Language("." + code);
  fs::remove_all(hidden);
  fs::copy(Language(like), hidden, fs::copy_options::recursive);
  nlohmann::json json = nlohmann::json::parse(std::ifstream(hidden / "language.json"));
  json["code"] = code;
  json["aliases"] = nlohmann::json::array();
  std::ofstream(hidden / "language.json") << json.dump();
  fs::rename(hidden, Language(code));
}

void ModelCopy::Remove(const std::string& code) const { fs::remove_all(Language(code)); }

void ModelCopy::Break(const std::string& code) const {
  const fs::path tensors = Language(code) / "language.safetensors";
  ASSERT_TRUE(fs::exists(tensors)) << tensors;
  fs::resize_file(tensors, fs::file_size(tensors) - 4);
}

}  // namespace koine::testing
