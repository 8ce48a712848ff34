#include "model_loader/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "model_loader/safetensors/safetensors.h"
#include "model_loader/verify/verify.h"
#include "tests/support/harness.h"
#include "tests/support/random_model.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;
using kernels::DType;
using kernels::Precision;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ReadAll(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

void WriteAll(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

void Replace(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = ReadAll(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << path << " has no " << from;
  WriteAll(path, text.replace(at, from.size(), to));
}

// A copy of a small plan that the test may break. Languages of plan-00: es, fr, ru.
class ModelFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) / (std::string("koine_model_") + info->name());
    fs::remove_all(folder_);
    fs::copy(koine::testing::SourcePath("tests/data/plans/plan-00"), folder_, fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
    }
  }
  void TearDown() override { fs::remove_all(folder_); }

  absl::StatusOr<std::shared_ptr<const Model>> Load() const { return Model::Load(folder_.string(), {}); }
  std::string Fault() const {
    const auto model = Load();
    EXPECT_FALSE(model.ok()) << "the folder was accepted";
    return std::string(model.status().message());
  }
  fs::path Language(const std::string& code) const { return folder_ / "languages" / code; }

  // Writes a safetensors file again, each tensor as `change` leaves it (false drops it).
  template <typename Change>
  static void Rewrite(const fs::path& path, const Change& change) {
    SafetensorsWriter writer;
    {
      auto file = SafetensorsFile::Open(path.string());
      ASSERT_TRUE(file.ok()) << file.status();
      for (const auto& [name, view] : (*file)->tensors()) {
        DType dtype = view.dtype;
        std::vector<int64_t> shape = view.shape;
        std::vector<uint8_t> data(view.data.begin(), view.data.end());
        if (change(name, dtype, shape, data)) {
          ASSERT_TRUE(writer.Add(name, dtype, shape, data).ok());
        }
      }
    }
    ASSERT_TRUE(writer.Write(path.string()).ok());
  }

  fs::path folder_;
};

TEST_F(ModelFolder, LoadsAndListsInTheOrderOfModelJson) {
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<std::string> codes;
  for (const auto& language : (*model)->languages()) codes.push_back(language->code());
  EXPECT_EQ(codes, (*model)->config().languages);
  EXPECT_EQ(codes.size(), 3U);
}

TEST_F(ModelFolder, FoldersBeyondTheListAreServedAndDotFoldersIgnored) {
  fs::copy(Language("es"), Language("xx"), fs::copy_options::recursive);
  Replace(Language("xx") / "language.json", "\"code\": \"es\"", "\"code\": \"xx\"");
  fs::copy(Language("es"), Language(".half-copied"), fs::copy_options::recursive);
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->languages().size(), 4U);
  EXPECT_EQ((*model)->languages().back()->code(), "xx");
}

TEST_F(ModelFolder, MissingAndEmptyFoldersAreNamed) {
  fs::remove_all(folder_);
  EXPECT_THAT(Fault(), AllOf(HasSubstr(folder_.string()), HasSubstr("does not exist")));
  fs::create_directory(folder_);
  EXPECT_THAT(Fault(), AllOf(HasSubstr(folder_.string()), HasSubstr("empty")));
}

TEST_F(ModelFolder, EachMissingFileIsNamed) {
  for (const std::string name : {"model.json", "shared.safetensors", "languages/fr/language.json",
                                 "languages/fr/language.safetensors", "languages/fr/tokenizer.model"}) {
    const std::string kept = ReadAll(folder_ / name);
    fs::remove(folder_ / name);
    EXPECT_THAT(Fault(), HasSubstr(name));
    WriteAll(folder_ / name, kept);
  }
  fs::rename(Language("fr"), folder_ / "elsewhere");
  EXPECT_THAT(Fault(), AllOf(HasSubstr("fr"), HasSubstr("lists")));
}

TEST_F(ModelFolder, TruncatedFilesAreNamedAtEveryLength) {
  for (const std::string name : {"shared.safetensors", "languages/fr/language.safetensors",
                                 "languages/fr/tokenizer.model", "model.json", "languages/fr/language.json"}) {
    const std::string whole = ReadAll(folder_ / name);
    for (const double part : {0.0, 0.001, 0.3, 0.9, 0.999}) {
      WriteAll(folder_ / name, whole.substr(0, static_cast<size_t>(part * static_cast<double>(whole.size()))));
      EXPECT_THAT(Fault(), HasSubstr(fs::path(name).filename().string())) << part;
    }
    WriteAll(folder_ / name, whole);
  }
  EXPECT_TRUE(Load().ok());
}

TEST_F(ModelFolder, AllMissingUnknownAndMisshapedTensorsAreReportedAtOnce) {
  Rewrite(folder_ / "shared.safetensors", [](std::string name, DType&, std::vector<int64_t>& shape, auto&) {
    if (name == "encoder.layers.0.ffn.down.bias") return false;
    if (name == "encoder.layers.0.self_attn.q.weight") shape = {shape[0] * shape[1]};
    return name != "decoder.final_norm.weight";
  });
  EXPECT_THAT(Fault(), AllOf(HasSubstr("encoder.layers.0.ffn.down.bias"), HasSubstr("decoder.final_norm.weight"),
                             HasSubstr("encoder.layers.0.self_attn.q.weight")));
}

TEST_F(ModelFolder, WrongDtypesAndALanguageWithoutTableAreNamed) {
  const fs::path file = Language("fr") / "language.safetensors";
  const std::string kept = ReadAll(file);
  Rewrite(file, [](const std::string& name, auto&, auto&, auto&) { return name != "embedding.weight"; });
  EXPECT_THAT(Fault(), AllOf(HasSubstr("languages/fr/language.safetensors"), HasSubstr("embedding.weight")));
  WriteAll(file, kept);
  Rewrite(file, [](const std::string& name, DType& dtype, auto&, auto& data) {
    if (name == "embedding.weight") {
      dtype = DType::kI8;
      data.resize(data.size() / 4);  // plans store F32
    }
    return true;
  });
  EXPECT_THAT(Fault(), AllOf(HasSubstr("embedding.weight"), HasSubstr("I8")));
}

TEST_F(ModelFolder, NaNsAndInfinitiesInWeightsAreNamed) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    const fs::path file = folder_ / "shared.safetensors";
    const std::string kept = ReadAll(file);
    Rewrite(file, [bad](const std::string& name, DType& dtype, auto&, auto& data) {
      if (name == "encoder.layers.1.ffn.up.weight") {
        EXPECT_EQ(dtype, DType::kF32);
        std::memcpy(data.data() + 64, &bad, sizeof(bad));
      }
      return true;
    });
    EXPECT_THAT(Fault(), AllOf(HasSubstr("encoder.layers.1.ffn.up.weight"), HasSubstr("NaN")));
    WriteAll(file, kept);
  }
}

TEST_F(ModelFolder, FewerRowsThanPiecesAreRefusedWithBothNumbersMoreAreNeverGenerated) {
  const fs::path file = Language("fr") / "language.safetensors";
  const std::string kept = ReadAll(file);
  const auto resize = [&](int64_t by) {
    Rewrite(file, [by](const std::string& name, DType& dtype, std::vector<int64_t>& shape, auto& data) {
      if (name == "embedding.weight" || name == "output.weight" || name == "output.bias") {
        const size_t row = data.size() / static_cast<size_t>(shape[0]);
        shape[0] += by;
        data.resize(row * static_cast<size_t>(shape[0]), 0);
        // Huge biases: greedy would choose the extra rows if it could.
        if (name == "output.bias" && by > 0) {
          EXPECT_EQ(dtype, DType::kF32);
          const float huge = 1e6F;
          std::memcpy(data.data() + data.size() - sizeof(huge), &huge, sizeof(huge));
        }
      }
      return true;
    });
  };
  resize(-1);
  EXPECT_THAT(Fault(), AllOf(HasSubstr("pieces"), HasSubstr("rows")));
  WriteAll(file, kept);
  resize(8);
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*(*model)->FindLanguage("fr"))->unusable_rows(), 8);
  koine::testing::EngineHarness harness(*model, {});
  const auto job = koine::testing::TranslateJob(**model, "es", "fr", "a b c", 20);
  const auto result = harness.Run({job})[0];
  ASSERT_TRUE(result.status.ok());
  const int64_t pieces = job->target->tokenizer().size();
  for (const int32_t id : result.hypotheses[0].ids) EXPECT_LT(id, pieces);
}

TEST_F(ModelFolder, ClaimsOfTheSameAliasAreRefused) {
  Replace(Language("fr") / "language.json", "\"aliases\": []", "\"aliases\": [\"rom\"]");
  Replace(Language("es") / "language.json", "\"aliases\": []", "\"aliases\": [\"ROM\"]");
  EXPECT_THAT(Fault(), AllOf(HasSubstr("rom"), HasSubstr("fr"), HasSubstr("es")));
}

TEST_F(ModelFolder, AWrongCodeInsideALanguageFolderIsRefused) {
  Replace(Language("fr") / "language.json", "\"code\": \"fr\"", "\"code\": \"it\"");
  EXPECT_THAT(Fault(), AllOf(HasSubstr("\"it\""), HasSubstr("\"fr\"")));
}

TEST(Languages, CodesAndAliasesMatchWhateverTheirCaseAndHyphens) {
  const auto model = koine::testing::LoadModel("deploy/demo_model", Precision::kF32);
  for (const auto& [given, code] : std::vector<std::pair<std::string, std::string>>{{"pt", "pt"},
                                                                                    {"pt-BR", "pt"},
                                                                                    {"pt_br", "pt"},
                                                                                    {"pb", "pt"},
                                                                                    {"zh-Hans", "zh"},
                                                                                    {"zh_hans", "zh"},
                                                                                    {"ZH-CN", "zh"},
                                                                                    {"zho_Hans", "zh"},
                                                                                    {"DEU_latn", "de"},
                                                                                    {"De", "de"},
                                                                                    {"ger", "de"}}) {
    const auto found = model->FindLanguage(given);
    ASSERT_TRUE(found.ok()) << given << ": " << found.status();
    EXPECT_EQ((*found)->code(), code) << given;
  }
}

TEST(Languages, UnknownOnesAreNamedWithNearOnes) {
  const auto model = koine::testing::LoadModel("deploy/demo_model", Precision::kF32);
  const auto fault = [&](const std::string& code) {
    const auto found = model->FindLanguage(code);
    EXPECT_FALSE(found.ok()) << code;
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(found.status().message());
  };
  EXPECT_THAT(fault("zh-Hant"), AllOf(HasSubstr("\"zh-Hant\""), HasSubstr("near ones: zh")));
  EXPECT_THAT(fault("dee"), HasSubstr("near ones: de"));
  EXPECT_THAT(fault("ja"), AllOf(HasSubstr("\"ja\""), HasSubstr("this model has: en, de, fr")));
  EXPECT_THAT(fault(""), HasSubstr("no language given"));
  EXPECT_THAT(fault("auto"), HasSubstr("unknown language"));
  EXPECT_THAT(fault("日"), HasSubstr("\"日\"")) << "as it was given";
  EXPECT_THAT(fault("x\n\x7f"), HasSubstr("\"x\\x0a\\x7f\""));
  const std::string cut = fault(std::string(39, 'x') + "日");
  EXPECT_THAT(cut, HasSubstr(std::string(39, 'x') + "\"")) << "never half a character";
}

TEST(Plans, AllEighteenPassTheirSamples) {
  int count = 0;
  for (int i = 0; i < 18; ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "tests/data/plans/plan-%02d", i);
    const auto reports = VerifyModel(koine::testing::SourcePath(name), {});
    ASSERT_TRUE(reports.ok()) << reports.status();
    EXPECT_FALSE(reports->empty());
    for (const SampleReport& report : *reports) {
      EXPECT_TRUE(report.faults.empty()) << name << " " << report.name << ": " << report.faults.front();
      ++count;
    }
  }
  EXPECT_GE(count, 18 * 2);
}

// The key `tokenizer`: the language's own description, and vocab.ids as numbers of the larger vocabulary.
TEST_F(ModelFolder, ADescribedTokenizerIsLoadedAndSlicedByVocabIds) {
  const auto plain = Load();
  ASSERT_TRUE(plain.ok()) << plain.status();
  const Tokenizer& own = (*plain)->languages()[0]->tokenizer();
  const std::string code = (*plain)->languages()[0]->code();
  std::string text;
  for (int32_t id = 10; id < 20; ++id) text += own.IdToPiece(id);
  const std::vector<int32_t> ids = own.Encode(text)->ids;
  ASSERT_FALSE(ids.empty());
  const int64_t rows = (*plain)->languages()[0]->weights().vocabulary;

  WriteAll(
      Language(code) / "language.json",
      "{\"code\": \"" + code + "\", \"tokenizer\": {\"kind\": \"sentencepiece\", \"files\": [\"tokenizer.model\"]}}");
  const auto described = Load();
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_EQ((*described)->languages()[0]->tokenizer().Encode(text)->ids, ids);
  EXPECT_GT((*described)->languages()[0]->tokenizer_bytes(), 0);

  // Rows in another order: the last row is the first text piece's, and so on back; special tokens stay.
  constexpr int32_t kSpecial = 4;
  std::vector<int32_t> numbers(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    numbers[static_cast<size_t>(row)] = static_cast<int32_t>(row < kSpecial ? row : rows - 1 - (row - kSpecial));
  }
  const auto add = [&](const std::vector<int32_t>& values) {
    std::vector<uint8_t> bytes(values.size() * sizeof(int32_t));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    SafetensorsWriter writer;
    const std::string path = (Language(code) / "language.safetensors").string();
    {
      auto file = SafetensorsFile::Open(path);
      ASSERT_TRUE(file.ok()) << file.status();
      for (const auto& [name, view] : (*file)->tensors()) {
        if (name != "vocab.ids") {
          ASSERT_TRUE(writer.Add(name, view.dtype, view.shape, view.data).ok());
        }
      }
      ASSERT_TRUE(writer.Add("vocab.ids", DType::kI32, {rows}, bytes).ok());
    }
    ASSERT_TRUE(writer.Write(path).ok());
  };
  add(numbers);
  const auto sliced = Load();
  ASSERT_TRUE(sliced.ok()) << sliced.status();
  const std::vector<int32_t> local = (*sliced)->languages()[0]->tokenizer().Encode(text)->ids;
  ASSERT_EQ(local.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(numbers[static_cast<size_t>(local[i])], ids[i]);
  EXPECT_NE(local, ids);

  numbers[5] = numbers[6];
  add(numbers);
  EXPECT_THAT(Fault(), AllOf(HasSubstr("language.safetensors"), HasSubstr("vocab.ids: rows 5 and 6 both have id")));
}

TEST_F(ModelFolder, ADescribedTokenizerThatIsMissingIsNamed) {
  WriteAll(Language("es") / "language.json",
           R"({"code": "es", "tokenizer": {"kind": "wordpiece", "files": ["vocab.txt"], "lower_case": true}})");
  EXPECT_THAT(Fault(), HasSubstr("vocab.txt: cannot open"));
}

// A folder without languages/ for tests to fill.
class NamelessModel : public ::testing::Test {
 protected:
  NamelessModel()
      : folder_(::testing::TempDir() + "/koine_nameless"), config_(koine::testing::SmallConfig("nameless")) {
    fs::remove_all(folder_);
    config_.shared_embedding = true;
  }
  ~NamelessModel() override { fs::remove_all(folder_); }

  absl::StatusOr<std::shared_ptr<const Model>> Load() const {
    koine::testing::WriteRandomShared(folder_, config_, 3, DType::kF32, koine::testing::SmallTokenizer());
    return Model::Load(folder_, {});
  }

  const std::string folder_;
  ModelConfig config_;
};

TEST_F(NamelessModel, HasOneLanguageWithoutANameThatOwnsNothing) {
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ((*model)->languages().size(), 1U);
  const ::koine::model_loader::Language& only = *(*model)->languages()[0];
  EXPECT_EQ(only.code(), "");
  EXPECT_EQ(only.mapped_bytes(), 0);
  EXPECT_EQ(only.tokenizer_bytes(), 0);
  EXPECT_TRUE(only.tensors().empty());
  EXPECT_GT((*model)->shared_tokenizer_bytes(), 0);
  EXPECT_EQ((*model)->FindLanguage("")->get(), &only);
  EXPECT_THAT(std::string((*model)->FindLanguage("en").status().message()), HasSubstr("this model has no languages"));
  EXPECT_EQ((*model)->PlanLanguage("")->memory_bytes(), 0);
}

TEST_F(NamelessModel, IsRefusedWhereLanguagesOwnSomethingOrAreListed) {
  config_.architecture.language_heads = 1;
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("no language folder"));
  config_.architecture.language_heads = 0;
  config_.architecture.encoder_layers[0] = kernels::LayerOwner::kLanguageAttention;
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("no language folder"));
  config_.architecture.encoder_layers[0] = kernels::LayerOwner::kShared;
  config_.languages = {"en"};
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("model.json lists en"));
}

TEST_F(NamelessModel, PoolsAsItsConfigurationSays) {
  config_.pooling.dense = PoolingDense{5, DenseActivation::kIdentity, true};
  const std::vector<float> rows = [] {
    std::vector<float> values(size_t{3} * 32);
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
    return values;
  }();
  const auto pool = [&](const Pooling& pooling, std::vector<float> input, int64_t tokens) {
    config_.pooling = pooling;
    const auto model = Load();
    EXPECT_TRUE(model.ok()) << model.status();
    std::vector<float> out(static_cast<size_t>((*model)->config().embedding_size()));
    kernels::Workspace workspace(1);
    (*model)->Pool(workspace, input.data(), tokens, false, out.data());
    return out;
  };
  // The dense layer is affine: pooling first and last rows apart and averaging is pooling both.
  const Pooling dense = config_.pooling;
  const std::vector<float> first = pool(dense, rows, 1);
  ASSERT_EQ(first.size(), 5U);
  const std::vector<float> second = pool(dense, std::vector<float>(rows.begin() + 32, rows.end()), 1);
  const std::vector<float> both = pool(dense, rows, 2);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(both[i], (first[i] + second[i]) / 2, 1e-5);
  Pooling cls = dense;
  cls.mode = PoolingMode::kCls;
  EXPECT_EQ(pool(cls, rows, 3), first);
  Pooling without_end = dense;
  without_end.includes_eos = false;
  EXPECT_EQ(pool(without_end, rows, 3), both);
  EXPECT_EQ(pool(without_end, rows, 1), first) << "a lone row counts, whatever it is";
  Pooling bounded = dense;
  bounded.dense->activation = DenseActivation::kTanh;
  const std::vector<float> squashed = pool(bounded, rows, 1);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(squashed[i], std::tanh(first[i]), 1e-6);
}

}  // namespace
}  // namespace koine::model_loader
