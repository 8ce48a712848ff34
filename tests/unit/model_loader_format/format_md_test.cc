// The JSON examples of FORMAT.md are what the parsers accept, and its smallest model has the tensors it lists.
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model_loader/format/config.h"
#include "model_loader/format/tensor_table.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {
namespace {

std::vector<std::string> Examples() {
  std::ifstream in(KOINE_SOURCE_DIR "/model_loader/format/FORMAT.md");
  EXPECT_TRUE(in.good());
  std::ostringstream whole;
  whole << in.rdbuf();
  const std::string text = whole.str();
  std::vector<std::string> examples;
  const std::string open = "```json\n";
  for (size_t at = text.find(open); at != std::string::npos; at = text.find(open, at)) {
    at += open.size();
    examples.push_back(text.substr(at, text.find("```", at) - at));
  }
  return examples;
}

TEST(FormatMd, ExamplesAreAccepted) {
  const std::vector<std::string> examples = Examples();
  ASSERT_EQ(examples.size(), 4U) << "model.json, language.json, a sample, the smallest model";
  const auto model = ParseModelConfig(examples[0], "FORMAT.md");
  EXPECT_TRUE(model.ok()) << model.status();
  const auto language = ParseLanguageConfig(examples[1], "FORMAT.md");
  EXPECT_TRUE(language.ok()) << language.status();
  EXPECT_TRUE(nlohmann::json::accept(examples[2]));
  const auto tiny = ParseModelConfig(examples[3], "FORMAT.md");
  ASSERT_TRUE(tiny.ok()) << tiny.status();
  std::set<std::string> names;
  for (const TensorSpec& spec : SharedTensors(*tiny)) names.insert(spec.name);
  EXPECT_THAT(
      names, testing::UnorderedElementsAre("encoder.positions.weight", "encoder.layers.0.self_attn.q.weight",
                                           "encoder.layers.0.self_attn.k.weight", "encoder.layers.0.self_attn.v.weight",
                                           "encoder.layers.0.self_attn.o.weight",
                                           "encoder.layers.0.self_attn_norm.weight", "encoder.layers.0.ffn_norm.weight",
                                           "encoder.layers.0.ffn.up.weight", "encoder.layers.0.ffn.down.weight"));
}

}  // namespace
}  // namespace koine::model_loader
