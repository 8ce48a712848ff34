// Samples that we make ourselves: they pass, every altered value fails, and files grow in one step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "model_loader/verify/verify.h"
#include "tests/support/random_model.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Samples : public ::testing::Test {
 protected:
  Samples() : folder_(fs::path(::testing::TempDir()) / ("samples_" + std::to_string(getpid()))) {
    fs::remove_all(folder_);
  }
  ~Samples() override { fs::remove_all(folder_); }

  // An encoder-decoder or an encoder with random weights and the languages de and fr.
  void Make(ModelKind kind) {
    ModelConfig config = koine::testing::SmallConfig("samples");
    config.kind = kind;
    if (kind == ModelKind::kEncoder) {
      config.translates = false;
      config.architecture.decoder_layers.clear();
      config.prompt.decoder_start.clear();
    }
    koine::testing::WriteRandomShared(folder_.string(), config, 1);
    AdapterConfig adapter;
    adapter.kind = AdapterKind::kBottleneck;
    adapter.rank = 4;
    unsigned seed = 2;
    for (const char* code : {"de", "fr"}) {
      koine::testing::WriteRandomLanguage(folder_.string(), config, {code, adapter}, koine::testing::SmallTokenizer(),
                                          seed++);
    }
  }
  std::shared_ptr<const Model> Load() const {
    auto model = Model::Load(folder_.string(), {});
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *model : nullptr;
  }
  json Read() const { return json::parse(std::ifstream(folder_ / "samples.json")); }
  void Write(const json& samples) const { std::ofstream(folder_ / "samples.json") << samples.dump(); }

  // Faults of all samples, or the error.
  std::string Faults() const {
    const auto reports = VerifyModel(folder_.string(), {});
    if (!reports.ok()) return std::string(reports.status().message());
    std::string all;
    for (const SampleReport& report : *reports) {
      for (const std::string& fault : report.faults) all += report.name + ": " + fault + "\n";
    }
    return all;
  }

  fs::path folder_;
};

// Every number of a sample, by its place.
std::vector<json::json_pointer> Numbers(const json& value, const json::json_pointer& at) {
  std::vector<json::json_pointer> found;
  if (value.is_number()) found.push_back(at);
  if (value.is_object()) {
    for (const auto& [key, element] : value.items()) {
      for (const auto& place : Numbers(element, at / key)) found.push_back(place);
    }
  }
  if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      for (const auto& place : Numbers(value[i], at / i)) found.push_back(place);
    }
  }
  return found;
}

TEST_F(Samples, PassAndFailAsSoonAsOneValueIsAnother) {
  Make(ModelKind::kEncoderDecoder);
  const auto model = Load();
  ASSERT_NE(model, nullptr);
  std::vector<Sample> samples;
  for (const auto& [from, to] : {std::pair("de", "fr"), {"fr", "de"}}) {
    auto sample = ComputeSample(*model, {from, to, "a b c", "", "", 6});
    ASSERT_TRUE(sample.ok()) << sample.status();
    EXPECT_EQ(sample->decoder_ids.size(), sample->greedy_ids.size() - 1);
    EXPECT_EQ(sample->logits_top.size(), sample->decoder_ids.size());
    EXPECT_EQ(sample->encoder_last_row.size(), 32U);
    EXPECT_EQ(sample->embedding.size(), 32U);
    EXPECT_EQ(sample->source_ids.back(), model->config().special_tokens.eos);
    // What was chosen is the best of the four.
    for (size_t i = 0; i < sample->decoder_ids.size(); ++i) {
      EXPECT_EQ(sample->logits_top[i].size(), 4U);
      EXPECT_EQ(sample->logits_top[i][0].id, sample->greedy_ids[i + 1]);
    }
    samples.push_back(*std::move(sample));
  }
  ASSERT_TRUE(AppendSamples(folder_.string(), samples).ok());
  EXPECT_EQ(Faults(), "");
  const json good = Read();
  ASSERT_EQ(good.size(), 2U);
  size_t altered = 0;
  for (const json::json_pointer& place : Numbers(good[1], json::json_pointer("/1"))) {
    const std::string text = place.to_string();
    if (text.find("max_steps") != std::string::npos) continue;  // a bound, not an answer
    json bad = good;
    // Ids move to another row of the table; values by ten times the tolerance. Sums have a wider one.
    if (bad[place].is_number_integer()) {
      bad[place] = (bad[place].get<int>() + 7) % 300;
    } else {
      bad[place] = bad[place].get<double>() + (text.find("sum") != std::string::npos ? 1e-2 : 1e-3);
    }
    Write(bad);
    EXPECT_THAT(Faults(), HasSubstr("sample 1")) << text;
    ++altered;
  }
  EXPECT_GT(altered, 80U);
}

TEST_F(Samples, OfEncodersHoldTheEncodersValuesAlone) {
  Make(ModelKind::kEncoder);
  const auto model = Load();
  ASSERT_NE(model, nullptr);
  const auto sample = ComputeSample(*model, {"fr", "", "a b c", "none"});
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_TRUE(sample->greedy_ids.empty());
  ASSERT_TRUE(AppendSamples(folder_.string(), {&*sample, 1}).ok());
  EXPECT_EQ(Faults(), "");
  json samples = Read();
  EXPECT_EQ(samples[0]["source_adapter"], "none");
  samples[0].erase("source_adapter");
  Write(samples);
  EXPECT_THAT(Faults(), HasSubstr("encoder_last_row")) << "the default adapter makes other values";
  EXPECT_THAT(std::string(ComputeSample(*model, {"fr", "de", "a"}).status().message()), HasSubstr("encoder"));
}

TEST_F(Samples, AreAddedBehindWhatIsThereAndNeverToSomethingElse) {
  Make(ModelKind::kEncoderDecoder);
  const auto model = Load();
  ASSERT_NE(model, nullptr);
  const auto sample = ComputeSample(*model, {"de", "fr", "a b", "", "", 3});
  ASSERT_TRUE(sample.ok()) << sample.status();
  ASSERT_TRUE(AppendSamples(folder_.string(), {&*sample, 1}).ok());
  json first = Read();
  first[0]["a note of somebody"] = {1, 2.5, "x"};
  Write(first);
  ASSERT_TRUE(AppendSamples(folder_.string(), {&*sample, 1}).ok());
  const json second = Read();
  ASSERT_EQ(second.size(), 2U);
  EXPECT_EQ(second[0], first[0]);
  EXPECT_EQ(Faults(), "");
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 3U) << "model.json, shared.safetensors, samples.json: nothing half-written stays";
  for (const char* other : {"{}", "[{\"source\": 3}]", "[", ""}) {
    std::ofstream(folder_ / "samples.json") << other;
    EXPECT_FALSE(AppendSamples(folder_.string(), {&*sample, 1}).ok()) << other;
    std::ostringstream kept;
    kept << std::ifstream(folder_ / "samples.json").rdbuf();
    EXPECT_EQ(kept.str(), other);
  }
}

TEST_F(Samples, TextsThatAreNoneAreRefused) {
  Make(ModelKind::kEncoderDecoder);
  const auto model = Load();
  ASSERT_NE(model, nullptr);
  const auto fault = [&](const SampleRequest& request) {
    const auto sample = ComputeSample(*model, request);
    EXPECT_EQ(sample.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(sample.status().message());
  };
  EXPECT_THAT(fault({"de", "fr", ""}), HasSubstr("blank"));
  EXPECT_THAT(fault({"de", "fr", " \t "}), HasSubstr("blank"));
  EXPECT_THAT(fault({"xx", "fr", "a"}), HasSubstr("xx"));
  EXPECT_THAT(fault({"de", "xx", "a"}), HasSubstr("xx"));
  EXPECT_THAT(fault({"de", "fr", "a\xc3("}), HasSubstr("UTF-8"));
  std::string longest;
  for (int i = 0; i < 200; ++i) longest += "a b ";
  EXPECT_THAT(fault({"de", "fr", longest}), AllOf(HasSubstr("tokens"), HasSubstr("128")));
}

}  // namespace
}  // namespace koine::model_loader
