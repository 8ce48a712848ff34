#include "model_loader/quantize/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "model_loader/accounting/account.h"
#include "model_loader/format/tensor_table.h"
#include "model_loader/model/model.h"
#include "model_loader/safetensors/safetensors.h"
#include "model_loader/verify/verify.h"
#include "tests/support/harness.h"
#include "tests/support/model_copy.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;
using kernels::DType;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ReadAll(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// A place for results that goes with the test.
class Quantize : public ::testing::Test {
 protected:
  Quantize() : out_(fs::path(::testing::TempDir()) / ("quantize_" + std::to_string(getpid()))) {
    fs::remove_all(out_);
    fs::create_directory(out_);
  }
  ~Quantize() override { fs::remove_all(out_); }
  std::string Out(const std::string& name = "out") const { return (out_ / name).string(); }

  fs::path out_;
};

std::vector<float> Values(const SafetensorsFile& file, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(file.Find(name)->elements()));
  EXPECT_TRUE(ReadValues(file, name, 0, static_cast<int64_t>(values.size()), values.data()).ok()) << name;
  return values;
}

// Matrices that conversion is about, by what their names say (the library goes by components).
bool Converts(const std::string& name, const TensorView& tensor) {
  return tensor.shape.size() == 2 && name.find("positions") == std::string::npos &&
         name.find("adapter") == std::string::npos && name.find(".lora.") == std::string::npos;
}

std::unique_ptr<SafetensorsFile> Open(const fs::path& path) {
  auto file = SafetensorsFile::Open(path.string());
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? *std::move(file) : nullptr;
}

std::vector<std::string> WeightFiles(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == "shared.safetensors" || name == "language.safetensors") {
      names.push_back(fs::relative(entry.path(), folder).string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Plans : public Quantize, public ::testing::WithParamInterface<int> {
 protected:
  std::string Folder() const {
    char name[32];
    std::snprintf(name, sizeof(name), "tests/data/plans/plan-%02d", GetParam());
    return koine::testing::SourcePath(name);
  }
};

INSTANTIATE_TEST_SUITE_P(All, Plans, ::testing::Range(0, 18));

TEST_P(Plans, Int8KeepsEveryWeightWithinHalfAScaleAndTheRestAsItIs) {
  const auto report = QuantizeModel(Folder(), Out(), DType::kI8);
  ASSERT_TRUE(report.ok()) << report.status();
  size_t matrices = 0;
  for (const std::string& name : WeightFiles(Folder())) {
    const auto before = Open(fs::path(Folder()) / name), after = Open(fs::path(Out()) / name);
    ASSERT_TRUE(before != nullptr && after != nullptr);
    size_t scales = 0;
    for (const auto& [tensor, view] : before->tensors()) {
      const TensorView* converted = after->Find(tensor);
      ASSERT_NE(converted, nullptr) << tensor;
      EXPECT_EQ(converted->shape, view.shape);
      if (!Converts(tensor, view)) {
        EXPECT_EQ(converted->dtype, view.dtype) << tensor;
        EXPECT_EQ(converted->data, view.data) << tensor;
        continue;
      }
      ++matrices;
      ++scales;
      ASSERT_EQ(converted->dtype, DType::kI8) << tensor;
      const std::vector<float> weights = Values(*before, tensor), restored = Values(*after, tensor);
      const std::vector<float> scale = Values(*after, tensor + ".scale");
      const size_t width = static_cast<size_t>(view.shape[1]);
      ASSERT_EQ(scale.size(), static_cast<size_t>(view.shape[0]));
      // By hand: what the report must say.
      double weight_squares = 0, error_squares = 0, max_abs = 0, worst = 0;
      for (size_t row = 0; row < scale.size(); ++row) {
        double row_weights = 0, row_errors = 0, largest = 0;
        for (size_t i = row * width; i < (row + 1) * width; ++i) {
          const auto q = static_cast<int8_t>(converted->data[i]);
          EXPECT_GE(q, -127);
          // The quotient is rounded to f32 before it is rounded to an integer.
          EXPECT_LE(std::abs(double{weights[i]} - double{scale[row]} * q), double{scale[row]} * (0.5 + 1e-5)) << tensor;
          const double error = double{weights[i]} - double{restored[i]};
          row_weights += double{weights[i]} * weights[i];
          row_errors += error * error;
          max_abs = std::max(max_abs, std::abs(error));
          largest = std::max(largest, std::abs(double{weights[i]}));
        }
        EXPECT_NEAR(scale[row], largest / 127, largest * 1e-7) << "no finer scale than the row needs";
        weight_squares += row_weights;
        error_squares += row_errors;
        if (row_weights > 0) worst = std::max(worst, std::sqrt(row_errors / row_weights));
      }
      const std::string& matrix = tensor;
      const auto line = std::find_if(report->matrices.begin(), report->matrices.end(),
                                     [&](const TensorError& e) { return e.file == name && e.name == matrix; });
      ASSERT_NE(line, report->matrices.end()) << name << " " << tensor;
      EXPECT_NEAR(line->relative_rms, std::sqrt(error_squares / weight_squares), 1e-9);
      EXPECT_NEAR(line->worst_row_rms, worst, 1e-9);
      EXPECT_DOUBLE_EQ(line->max_abs, max_abs);
      EXPECT_TRUE(line->converted());
    }
    EXPECT_EQ(after->tensors().size(), before->tensors().size() + scales);
  }
  EXPECT_EQ(report->matrices.size(), matrices);
  EXPECT_GT(matrices, 0U);
}

// Copies a folder with every I8 tensor written out as the F32 numbers that it stands for.
void WriteOut(const fs::path& from, const fs::path& to) {
  fs::copy(from, to, fs::copy_options::recursive);
  for (const std::string& name : WeightFiles(from)) {
    const auto file = Open(from / name);
    SafetensorsWriter writer;
    for (const auto& [tensor, view] : file->tensors()) {
      if (view.dtype == DType::kI8) {
        ASSERT_TRUE(writer.AddF32(tensor, DType::kF32, view.shape, Values(*file, tensor)).ok());
      } else if (!(tensor.size() > 13 && tensor.compare(tensor.size() - 13, 13, ".weight.scale") == 0)) {
        ASSERT_TRUE(writer.Add(tensor, view.dtype, view.shape, view.data).ok());
      }
    }
    fs::remove(to / name);
    ASSERT_TRUE(writer.Write((to / name).string()).ok());
  }
}

TEST_P(Plans, Int8LoadsAsTheNumbersItStandsForAndCountsAsBefore) {
  ASSERT_TRUE(QuantizeModel(Folder(), Out(), DType::kI8).ok());
  WriteOut(Out(), Out("written_out"));
  const auto original = Model::Load(Folder(), {});
  for (const auto precision : {kernels::Precision::kF32, kernels::Precision::kBF16}) {
    if (!kernels::CheckPrecision(precision).ok()) continue;
    const auto quantised = Model::Load(Out(), {precision}), plain = Model::Load(Out("written_out"), {precision});
    ASSERT_TRUE(quantised.ok()) << quantised.status();
    ASSERT_TRUE(plain.ok()) << plain.status();
    EXPECT_EQ((*quantised)->shared_checksum(), (*plain)->shared_checksum());
    ASSERT_EQ((*quantised)->languages().size(), (*plain)->languages().size());
    for (size_t i = 0; i < (*plain)->languages().size(); ++i) {
      EXPECT_EQ((*quantised)->languages()[i]->checksum(), (*plain)->languages()[i]->checksum());
      EXPECT_NE((*quantised)->languages()[i]->checksum(), (*original)->languages()[i]->checksum());
    }
    const Account account = AccountOf(**quantised).value(), before = AccountOf(**original).value();
    EXPECT_EQ(account.total.parameters, before.total.parameters);
    EXPECT_EQ(account.shared.parameters(), before.shared.parameters());
    EXPECT_EQ(account.shared.formula, account.shared.total.parameters);
    int64_t rows = 0, integers = 0, bytes = 0;
    for (const std::string& name : WeightFiles(Out())) {
      const auto file = Open(fs::path(Out()) / name);
      for (const auto& [tensor, view] : file->tensors()) {
        bytes += static_cast<int64_t>(view.data.size());
        if (view.dtype != DType::kI8) continue;
        rows += view.shape[0];
        integers += view.elements();
      }
    }
    EXPECT_EQ(account.total.bytes, bytes) << "scales are bytes";
    const auto i8 = static_cast<size_t>(DType::kI8), f32 = static_cast<size_t>(DType::kF32);
    EXPECT_EQ(account.total.parameters_by_dtype[i8], integers);
    EXPECT_EQ(account.total.bytes_by_dtype[i8], integers);
    EXPECT_EQ(account.total.parameters_by_dtype[f32], before.total.parameters - integers);
    EXPECT_EQ(account.total.bytes_by_dtype[f32], 4 * (before.total.parameters - integers + rows));
    for (const OwnerAccount& language : account.languages) EXPECT_EQ(language.formula, language.total.parameters);
    for (const std::string& code : (*quantised)->LanguageCodes()) {
      EXPECT_EQ((*quantised)->PlanLanguage(code)->parameters, (*original)->PlanLanguage(code)->parameters);
    }
  }
}

TEST_F(Quantize, Bf16RoundsMatricesToTheNearestAndReportsThem) {
  const std::string from = koine::testing::SourcePath("tests/data/plans/plan-00");
  const auto report = QuantizeModel(from, Out(), DType::kBF16);
  ASSERT_TRUE(report.ok()) << report.status();
  for (const std::string& name : WeightFiles(from)) {
    const auto before = Open(fs::path(from) / name), after = Open(fs::path(Out()) / name);
    EXPECT_EQ(after->tensors().size(), before->tensors().size());
    for (const auto& [tensor, view] : before->tensors()) {
      const bool converts = Converts(tensor, view);
      EXPECT_EQ(after->Find(tensor)->dtype, converts ? DType::kBF16 : view.dtype) << tensor;
      const std::vector<float> weights = Values(*before, tensor), restored = Values(*after, tensor);
      for (size_t i = 0; i < weights.size(); ++i) {
        EXPECT_EQ(restored[i], converts ? kernels::FromBFloat16(kernels::ToBFloat16(weights[i])) : weights[i]);
      }
    }
  }
  EXPECT_GT(report->matrices.front().relative_rms, 0);
  for (const TensorError& error : report->matrices) {
    EXPECT_LE(error.relative_rms, 1.0 / 256) << "half a unit of eight bits";
    EXPECT_EQ(error.outlier_rows, 0);
  }
  EXPECT_LT(report->bytes_after, report->bytes_before);
  EXPECT_TRUE(Model::Load(Out(), {}).ok());
  // And int8 back to numbers.
  ASSERT_TRUE(QuantizeModel(from, Out("int8"), DType::kI8).ok());
  const auto widened = QuantizeModel(Out("int8"), Out("wide"), DType::kBF16);
  ASSERT_TRUE(widened.ok()) << widened.status();
  EXPECT_EQ(Open(fs::path(Out("wide")) / "shared.safetensors")->tensors().size(),
            Open(fs::path(from) / "shared.safetensors")->tensors().size())
      << "no scales are left";
  EXPECT_TRUE(Model::Load(Out("wide"), {}).ok());
}

TEST_F(Quantize, CopiesEverythingElseExceptSamples) {
  const koine::testing::ModelCopy copy;
  const std::string code = Model::Open(copy.path().string(), {}).value()->LanguageCodes().front();
  std::ofstream(copy.path() / "CARD.txt") << "a card";
  std::ofstream(copy.path() / ".hidden") << "not for copying";
  const fs::path adapter = copy.Language(code) / "adapters" / "mine";
  fs::create_directories(adapter);
  std::ofstream(adapter / "adapter.json") << R"({"kind": "scale", "sites": ["ffn"]})";
  const auto report = QuantizeModel(copy.path().string(), Out(), DType::kI8);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->samples_left_out);
  size_t copied = 0;
  for (const auto& entry : fs::recursive_directory_iterator(copy.path())) {
    if (entry.is_directory()) continue;
    const fs::path relative = fs::relative(entry.path(), copy.path());
    const std::string name = relative.filename().string();
    if (name == "samples.json" || name == ".hidden") {
      EXPECT_FALSE(fs::exists(Out() / relative)) << relative;
    } else if (name != "shared.safetensors" && name != "language.safetensors") {
      EXPECT_EQ(ReadAll(Out() / relative), ReadAll(entry.path())) << relative;
      ++copied;
    }
  }
  EXPECT_GE(copied, 4U);
}

TEST_F(Quantize, RefusesInt8TwiceBf16TwiceAndAnExistingFolder) {
  const std::string from = koine::testing::SourcePath("tests/data/plans/plan-03");
  ASSERT_TRUE(QuantizeModel(from, Out("int8"), DType::kI8).ok());
  ASSERT_TRUE(QuantizeModel(from, Out("bf16"), DType::kBF16).ok());
  const auto twice = QuantizeModel(Out("int8"), Out("again"), DType::kI8).status();
  EXPECT_EQ(twice.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(twice.message()), AllOf(HasSubstr(Out("int8")), HasSubstr("is I8 already")));
  EXPECT_THAT(std::string(QuantizeModel(Out("bf16"), Out("again"), DType::kBF16).status().message()),
              HasSubstr("every matrix is BF16 already"));
  EXPECT_EQ(QuantizeModel(from, Out("int8"), DType::kI8).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(QuantizeModel(from, Out("again"), DType::kF16).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(QuantizeModel(Out("nowhere"), Out("again"), DType::kI8).status().message()),
              HasSubstr("model.json"));
  EXPECT_FALSE(fs::exists(Out("again")));
}

// Writes one tensor of a file again; `change` may alter its f32 values.
template <typename Change>
void Alter(const fs::path& path, const std::string& name, const Change& change) {
  SafetensorsWriter writer;
  {
    const auto file = Open(path);
    for (const auto& [tensor, view] : file->tensors()) {
      std::vector<float> values = Values(*file, tensor);
      if (tensor == name) change(values);
      ASSERT_TRUE(writer.AddF32(tensor, DType::kF32, view.shape, values).ok());
    }
  }
  ASSERT_TRUE(writer.Write(path.string()).ok());
}

TEST_F(Quantize, NamesAWeightThatIsNoNumberAndLeavesNothing) {
  // Those that are converted and those that are copied.
  for (const char* name :
       {"encoder.layers.1.ffn.up.weight", "encoder.layers.1.ffn.up.bias", "encoder.layers.0.self_attn_norm.weight"}) {
    const koine::testing::ModelCopy copy;
    Alter(copy.path() / "shared.safetensors", name, [](std::vector<float>& values) { values[17] = NAN; });
    const auto status = QuantizeModel(copy.path().string(), Out(), DType::kI8).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(name), HasSubstr("NaN"), Not(HasSubstr(".part"))));
    EXPECT_TRUE(fs::is_empty(out_)) << name;
  }
}

TEST_F(Quantize, RowsOfEveryMagnitudeKeepTheBoundAndOutliersAreNamed) {
  const koine::testing::ModelCopy copy;
  const std::string name = "encoder.layers.0.ffn.up.weight";
  const fs::path file = copy.path() / "shared.safetensors";
  const size_t width = static_cast<size_t>(Open(file)->Find(name)->shape[1]);
  const float magnitudes[] = {0, FLT_TRUE_MIN, 100 * FLT_TRUE_MIN, FLT_MIN, 64 * FLT_MIN, 1e-20F, 1, 1e20F, FLT_MAX};
  Alter(file, name, [&](std::vector<float>& values) {
    ASSERT_GE(values.size() / width, std::size(magnitudes) + 1);
    for (size_t row = 0; row < std::size(magnitudes); ++row) {
      for (size_t i = 0; i < width; ++i) {
        values[row * width + i] = magnitudes[row] * (static_cast<float>(i) / static_cast<float>(width - 1) * 2 - 1);
      }
    }
    // One weight that all others of its row vanish beside.
    for (size_t i = 0; i < width; ++i) values[std::size(magnitudes) * width + i] = i == 0 ? 1000.0F : 0.3F;
  });
  const auto report = QuantizeModel(copy.path().string(), Out(), DType::kI8);
  ASSERT_TRUE(report.ok()) << report.status();
  const auto before = Open(file), after = Open(fs::path(Out()) / "shared.safetensors");
  const std::vector<float> weights = Values(*before, name), restored = Values(*after, name);
  const std::vector<float> scales = Values(*after, name + ".scale");
  for (size_t i = 0; i < (std::size(magnitudes) + 1) * width; ++i) {
    const double scale = scales[i / width];
    EXPECT_TRUE(std::isfinite(restored[i])) << i;
    // The product of a tiny scale is rounded to the smallest float there is.
    EXPECT_LE(std::abs(double{weights[i]} - double{restored[i]}), scale * (0.5 + 1e-5) + FLT_TRUE_MIN) << i;
  }
  EXPECT_EQ(scales[0], 0) << "a row of zeros";
  for (const TensorError& error : report->matrices) {
    // Of the altered rows one has such a weight; ramps and random rows have none.
    EXPECT_EQ(error.outlier_rows, error.name == name ? 1 : 0) << error.file << " " << error.name;
  }
  EXPECT_TRUE(Model::Load(Out(), {}).ok()) << Model::Load(Out(), {}).status();
}

TEST_F(Quantize, TheDemoModelInInt8TranslatesMostSentencesAsBefore) {
  const auto report = QuantizeModel(koine::testing::SourcePath("deploy/demo_model"), Out(), DType::kI8);
  ASSERT_TRUE(report.ok()) << report.status();
  double worst = 0;
  for (const TensorError& error : report->matrices) worst = std::max(worst, error.relative_rms);
  const auto model = Model::Load(Out(), {});
  ASSERT_TRUE(model.ok()) << model.status();
  const auto cases = nlohmann::json::parse(std::ifstream(koine::testing::SourcePath("tests/data/demo.json")))["cases"];
  size_t equal = 0;
  for (const auto& test : cases) {
    Sample sample;
    sample.source = test["source"];
    sample.target = test["target"];
    sample.source_ids = test["source_ids"].get<std::vector<int32_t>>();
    sample.greedy_ids = test["greedy_ids"].get<std::vector<int32_t>>();
    sample.greedy_ids.insert(sample.greedy_ids.begin(), (*model)->config().special_tokens.bos);
    sample.max_steps = test["max_steps"];
    const auto verified = VerifySample(**model, sample, 0, {});
    ASSERT_TRUE(verified.ok()) << verified.status();
    if (verified->faults.empty()) ++equal;
  }
  std::printf("%zu of %zu greedy outputs are equal; largest relative RMS error of a matrix %.2e; %.3f of the bytes\n",
              equal, cases.size(), worst,
              static_cast<double>(report->bytes_after) / static_cast<double>(report->bytes_before));
  EXPECT_GE(4 * equal, 3 * cases.size());
  EXPECT_LT(worst, 0.02);
}

}  // namespace
}  // namespace koine::model_loader
