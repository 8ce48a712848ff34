#include "model_loader/peft/add_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "model_loader/accounting/account.h"
#include "model_loader/format/tensor_table.h"
#include "model_loader/model/model.h"
#include "model_loader/safetensors/safetensors.h"
#include "model_loader/verify/verify.h"
#include "tests/support/harness.h"
#include "tests/support/random_model.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A model in the shape of tests/data/hf-nllb, with random weights: d 64, 4 heads of 16, feed-forward 128, 2 + 2 layers.
ModelConfig NllbShape() {
  ModelConfig config = koine::testing::SmallConfig("nllb-shape");
  config.architecture.d_model = 64;
  config.architecture.d_head = 16;
  config.architecture.d_ffn = 128;
  config.architecture.attention_scale = 0.25F;
  config.architecture.embedding_scale = 8;
  return config;
}

class AddAdapter : public ::testing::Test {
 protected:
  AddAdapter() : root_(fs::path(::testing::TempDir()) / ("add_adapter_" + std::to_string(getpid()))) {
    fs::remove_all(root_);
    fs::create_directories(root_);
    model_ = (root_ / "model").string();
    const ModelConfig config = NllbShape();
    koine::testing::WriteRandomShared(model_, config, 1);
    const std::string tokenizer = koine::testing::SmallTokenizer();
    unsigned seed = 2;
    for (const char* code : {"de", "en", "fr"}) {
      koine::testing::WriteRandomLanguage(model_, config, {code, {}}, tokenizer, seed++);
    }
  }
  ~AddAdapter() override { fs::remove_all(root_); }

  static std::string Stored(const std::string& name) { return koine::testing::SourcePath("tests/data/" + name); }

  // A copy of a stored adapter whose configuration `change` alters.
  template <typename Change>
  std::string Altered(const std::string& stored, const Change& change) {
    const fs::path folder = root_ / ("adapter" + std::to_string(next_++));
    fs::create_directories(folder);
    fs::copy_file(Stored(stored) + "/adapter_model.safetensors", folder / "adapter_model.safetensors");
    fs::permissions(folder / "adapter_model.safetensors", fs::perms::owner_write, fs::perm_options::add);
    json config = json::parse(std::ifstream(Stored(stored) + "/adapter_config.json"));
    change(config);
    std::ofstream(folder / "adapter_config.json") << config.dump();
    return folder.string();
  }

  // Writes the adapter's tensors again; `change` may alter, drop (false) or rename each.
  template <typename Change>
  static void Rewrite(const std::string& folder, const Change& change) {
    const std::string path = folder + "/adapter_model.safetensors";
    SafetensorsWriter writer;
    {
      const auto file = SafetensorsFile::Open(path);
      ASSERT_TRUE(file.ok()) << file.status();
      for (const auto& [name, view] : (*file)->tensors()) {
        std::string renamed = name;
        std::vector<int64_t> shape = view.shape;
        std::vector<float> values(static_cast<size_t>(view.elements()));
        kernels::ConvertToF32(view.data.data(), view.dtype, view.elements(), values.data());
        if (change(renamed, shape, values)) {
          ASSERT_TRUE(writer.AddF32(renamed, view.dtype, shape, values).ok());
        }
      }
    }
    ASSERT_TRUE(writer.Write(path).ok());
  }

  std::string Fault(const std::string& adapter, const std::vector<std::string>& languages = {"de"}) {
    const auto report = AddPeftAdapter({model_, languages, adapter, "mine"});
    EXPECT_FALSE(report.ok());
    for (const char* code : {"de", "en", "fr"}) {
      EXPECT_FALSE(fs::exists(fs::path(model_) / "languages" / code / "adapters" / "mine")) << "nothing is written";
    }
    return std::string(report.status().message());
  }

  fs::path root_;
  std::string model_;
  int next_ = 0;
};

TEST_F(AddAdapter, RegistersUnderEveryLanguageWithTheFilesOwnNumbers) {
  const auto report = AddPeftAdapter({model_, {"DE", "fr"}, Stored("hf-nllb-lora-fr") + "/", ""});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->name, "hf-nllb-lora-fr");
  EXPECT_THAT(report->languages, ElementsAre("de", "fr"));
  EXPECT_EQ(report->pairs, 32);
  EXPECT_EQ(report->smallest_rank, 8);
  EXPECT_EQ(report->largest_rank, 8);
  const auto model = Model::Load(model_, {});
  ASSERT_TRUE(model.ok()) << model.status();
  const auto stored = SafetensorsFile::Open(Stored("hf-nllb-lora-fr") + "/adapter_model.safetensors");
  ASSERT_TRUE(stored.ok());
  for (const char* code : {"de", "fr"}) {
    const auto adapter = (*(*model)->FindLanguage(code))->FindAdapter("hf-nllb-lora-fr");
    ASSERT_TRUE(adapter.ok()) << adapter.status();
    EXPECT_EQ((*adapter)->config().rank, 8);
    EXPECT_EQ((*adapter)->config().alpha, 8);
    EXPECT_TRUE((*adapter)->config().rank_stabilised);
    EXPECT_TRUE((*adapter)->config().pairs.empty());
    const auto file =
        SafetensorsFile::Open(model_ + "/languages/" + code + "/adapters/hf-nllb-lora-fr/adapter.safetensors");
    ASSERT_TRUE(file.ok());
    EXPECT_EQ((*file)->tensors().size(), 64U);
    const auto equal = [&](const char* ours, const std::string& theirs) {
      const TensorView *a = (*file)->Find(ours), *b = (*stored)->Find("base_model.model.model." + theirs + ".weight");
      ASSERT_TRUE(a != nullptr && b != nullptr) << ours;
      EXPECT_EQ(a->data, b->data) << ours;
      EXPECT_EQ(a->shape, b->shape) << ours;
    };
    equal("encoder.layers.0.self_attn.q.lora.a", "encoder.layers.0.self_attn.q_proj.lora_A");
    equal("encoder.layers.1.self_attn.o.lora.b", "encoder.layers.1.self_attn.out_proj.lora_B");
    equal("decoder.layers.1.cross_attn.k.lora.b", "decoder.layers.1.encoder_attn.k_proj.lora_B");
    equal("decoder.layers.0.ffn.up.lora.b", "decoder.layers.0.fc1.lora_B");
    equal("decoder.layers.0.ffn.down.lora.a", "decoder.layers.0.fc2.lora_A");
  }
  EXPECT_TRUE((*(*model)->FindLanguage("en"))->adapter_names().empty());
  const Account account = AccountOf(**model).value();
  int found = 0;
  for (const OwnerAccount& owner : account.languages) {
    if (owner.adapter.empty()) continue;
    ++found;
    EXPECT_EQ(owner.total.parameters, report->parameters);
    EXPECT_EQ(owner.total.bytes, report->bytes);
    EXPECT_EQ(owner.formula, report->parameters);
  }
  EXPECT_EQ(found, 2);
}

TEST_F(AddAdapter, ExistingNamesUnknownLanguagesAndBadNamesAreRefused) {
  ASSERT_TRUE(AddPeftAdapter({model_, {"fr"}, Stored("hf-nllb-lora-de"), "mine"}).ok());
  const auto taken = AddPeftAdapter({model_, {"de", "fr"}, Stored("hf-nllb-lora-de"), "mine"});
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(fs::exists(model_ + "/languages/de/adapters/mine"));
  const auto unknown = AddPeftAdapter({model_, {"de", "xx"}, Stored("hf-nllb-lora-de"), "other"});
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("xx"));
  for (const char* name : {"none", "a/b", "..", "-x"}) {
    EXPECT_THAT(std::string(AddPeftAdapter({model_, {"de"}, Stored("hf-nllb-lora-de"), name}).status().message()),
                HasSubstr("--name"));
  }
  EXPECT_EQ(AddPeftAdapter({model_, {"de"}, Stored("hf-nllb"), "other"}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(AddAdapter, FeaturesInTheConfigurationOrTheTensorsAreRefusedByName) {
  EXPECT_THAT(
      Fault(Altered("hf-nllb-lora-de",
                    [](json& config) {
                      config["use_dora"] = true;
                      config["bias"] = "all";
                      config["modules_to_save"] = {"lm_head"};
                    })),
      AllOf(HasSubstr("adapter_config.json"), HasSubstr("use_dora"), HasSubstr("bias"), HasSubstr("modules_to_save")));
  const std::string folder = Altered("hf-nllb-lora-de", [](json&) {});
  const std::map<std::string, std::string> renames = {
      {"encoder.layers.0.self_attn.q_proj.lora_A.weight", "encoder.layers.0.self_attn.q_proj.lora_magnitude_vector"},
      {"encoder.layers.0.self_attn.v_proj.lora_A.weight", "encoder.layers.0.self_attn.v_proj.lora_B.bias"},
      {"encoder.layers.1.self_attn.q_proj.lora_A.weight", "shared.lora_embedding_A"},
      {"encoder.layers.1.self_attn.v_proj.lora_A.weight", "encoder.layers.1.fc1.bias"},
      {"decoder.layers.0.self_attn.q_proj.lora_A.weight", "shared.lora_A.weight"},
      {"decoder.layers.0.self_attn.q_proj.lora_B.weight", "shared.lora_B.weight"},
      {"decoder.layers.0.self_attn.v_proj.lora_A.weight", "decoder.layers.7.self_attn.v_proj.lora_A.weight"}};
  Rewrite(folder, [&](std::string& name, auto&, auto&) {
    const std::string prefix = "base_model.model.model.";
    const auto found = renames.find(name.substr(prefix.size()));
    if (found != renames.end()) name = prefix + found->second;
    return true;
  });
  const std::string fault = Fault(folder);
  EXPECT_THAT(fault, AllOf(HasSubstr("DoRA"), HasSubstr("lora_B.bias"), HasSubstr("lora_embedding_A"),
                           HasSubstr("layers.1.fc1.bias"), HasSubstr("embedding table or the output")));
  EXPECT_THAT(fault, AllOf(HasSubstr("decoder.layers.7.self_attn.v_proj: the model has no such projection"),
                           HasSubstr("encoder.layers.0.self_attn.q_proj: lora_A is missing")));
}

TEST_F(AddAdapter, ShapesTypesValuesAndTargetsAreHeldAgainstTheModel) {
  const std::string folder = Altered("hf-nllb-lora-de", [](json& config) { config["target_modules"] = {"q_proj"}; });
  Rewrite(folder, [](const std::string& name, std::vector<int64_t>& shape, std::vector<float>& values) {
    if (name.find("encoder.layers.0.self_attn.q_proj.lora_A") != std::string::npos) std::swap(shape[0], shape[1]);
    if (name.find("encoder.layers.1.self_attn.q_proj.lora_B") != std::string::npos) values[7] = NAN;
    return true;
  });
  EXPECT_THAT(Fault(folder), AllOf(HasSubstr("lora_A is [64, 4], not [4, 64]"), HasSubstr("lora_B holds a NaN"),
                                   HasSubstr("v_proj: has an update, but target_modules")));
  EXPECT_THAT(Fault(Altered("hf-nllb-lora-de", [](json& config) { config["r"] = 2; })),
              HasSubstr("lora_A is [4, 64], not [2, 64]"));
  // Another model: narrower.
  ModelConfig narrow = koine::testing::SmallConfig("narrow");
  const std::string other = (root_ / "narrow").string();
  koine::testing::WriteRandomShared(other, narrow, 1);
  koine::testing::WriteRandomLanguage(other, narrow, {"de", {}}, koine::testing::SmallTokenizer(), 2);
  EXPECT_THAT(std::string(AddPeftAdapter({other, {"de"}, Stored("hf-nllb-lora-de"), "x"}).status().message()),
              HasSubstr("not [4, 32]"));
}

TEST_F(AddAdapter, TruncatedAndForeignFilesAreNamed) {
  const std::string folder = Altered("hf-nllb-lora-de", [](json&) {});
  const fs::path file = fs::path(folder) / "adapter_model.safetensors";
  const auto size = fs::file_size(file);
  for (const auto left : {size - 1, size / 2, uintmax_t{9}, uintmax_t{0}}) {
    fs::resize_file(file, left);
    EXPECT_THAT(Fault(folder), HasSubstr("adapter_model.safetensors"));
  }
  fs::remove(file);
  EXPECT_THAT(Fault(folder), HasSubstr("no weights"));
  std::ofstream(fs::path(folder) / "adapter_config.json") << "{\"peft_type\": ";
  EXPECT_THAT(Fault(folder), HasSubstr("adapter_config.json"));
}

// One adapter told in two ways: per-module ranks and alphas, and the same sums with one rank and alpha for all, where
// the shorter pairs are filled up with zeros and the factors are in lora_B. They must answer alike.
TEST_F(AddAdapter, RanksAndAlphasOfSingleModulesComputeWhatFoldedOnesDo) {
  const std::string with_patterns = Altered("hf-nllb-lora-de", [](json& config) {
    config["r"] = 3;
    config["lora_alpha"] = 5;
    config["rank_pattern"] = {{"v_proj", 7}, {"^model.encoder.layers.0.self_attn.q_proj", 1}};
    config["alpha_pattern"] = {{"encoder_attn.v_proj", 2.5}};
  });
  const std::string folded = Altered("hf-nllb-lora-de", [](json& config) {
    config["r"] = 7;
    config["lora_alpha"] = 7;
  });
  std::mt19937 generator(5);
  std::normal_distribution<float> normal(0, 0.2F);
  const auto rank_of = [](const std::string& name) {
    return name.find("v_proj") != std::string::npos                                    ? 7
           : name.find("model.encoder.layers.0.self_attn.q_proj") != std::string::npos ? 1
                                                                                       : 3;
  };
  const auto alpha_of = [](const std::string& name) {
    return name.find("encoder_attn.v_proj") != std::string::npos ? 2.5F : 5.0F;
  };
  std::map<std::string, std::vector<float>> drawn;
  Rewrite(with_patterns, [&](const std::string& name, std::vector<int64_t>& shape, std::vector<float>& values) {
    const bool a = name.find("lora_A") != std::string::npos;
    shape[a ? 0 : 1] = rank_of(name);
    values.resize(static_cast<size_t>(shape[0] * shape[1]));
    for (float& value : values) value = normal(generator);
    drawn[name] = values;
    return true;
  });
  Rewrite(folded, [&](const std::string& name, std::vector<int64_t>& shape, std::vector<float>& values) {
    const bool a = name.find("lora_A") != std::string::npos;
    const size_t rank = static_cast<size_t>(rank_of(name));
    const std::vector<float>& from = drawn[name];
    shape[a ? 0 : 1] = 7;
    values.assign(static_cast<size_t>(shape[0] * shape[1]), 0.0F);
    const float factor = a ? 1.0F : alpha_of(name) / static_cast<float>(rank);
    const size_t rows = a ? rank : static_cast<size_t>(shape[0]), columns = from.size() / rows;
    for (size_t row = 0; row < rows; ++row) {
      for (size_t i = 0; i < columns; ++i) {
        values[row * (a ? columns : 7) + i] = factor * from[row * columns + i];
      }
    }
    return true;
  });
  const auto patterned = AddPeftAdapter({model_, {"de", "en"}, with_patterns, "patterned"});
  ASSERT_TRUE(patterned.ok()) << patterned.status();
  EXPECT_EQ(patterned->smallest_rank, 1);
  EXPECT_EQ(patterned->largest_rank, 7);
  ASSERT_TRUE(AddPeftAdapter({model_, {"de", "en"}, folded, "folded"}).ok());
  const auto model = Model::Load(model_, {});
  ASSERT_TRUE(model.ok()) << model.status();
  const Account account = AccountOf(**model).value();
  for (const OwnerAccount& owner : account.languages) {
    EXPECT_EQ(owner.formula, owner.total.parameters) << owner.owner << " " << owner.adapter;
  }
  // What one answers is the other's sample. An empty sample of the same shape gives the differences as its faults.
  const auto rows = [&](const std::string& adapter) {
    Sample sample;
    sample.source = "de";
    sample.target = "en";
    sample.source_adapter = sample.target_adapter = adapter;
    sample.source_ids = {5, 9, 30, 2};
    sample.decoder_ids = {1, 8, 17};
    sample.logits_sum = {0, 0, 0};
    const auto report = VerifySample(**model, sample, 0, {1e-4});
    EXPECT_TRUE(report.ok()) << report.status();
    return *report;
  };
  const double difference = rows("patterned").sums;
  EXPECT_NEAR(difference, rows("folded").sums, 1.0) << "in units of the tolerance of a sum";
  EXPECT_GT(std::abs(difference - rows("none").sums), 100) << "the adapters do something";
}

}  // namespace
}  // namespace koine::model_loader
