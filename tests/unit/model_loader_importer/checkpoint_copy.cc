#include "tests/unit/model_loader_importer/checkpoint_copy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "model_loader/checkpoint/checkpoint_tensors.h"
#include "model_loader/safetensors/safetensors.h"

namespace koine::model_loader {

namespace fs = std::filesystem;

std::string DataPath(const std::string& name) { return absl::StrCat(KOINE_SOURCE_DIR, "/tests/data/", name); }

std::string ReadText(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

TemporaryFolder::TemporaryFolder() {
  static int made = 0;
  path_ = fs::path(testing::TempDir()) / absl::StrCat("koine_import_", getpid(), "_", ++made);
  fs::create_directories(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::vector<float> TensorCopy::Floats() const {
  std::vector<float> values(bytes.size() / kernels::SizeOf(dtype));
  kernels::ConvertToF32(bytes.data(), dtype, static_cast<int64_t>(values.size()), values.data());
  return values;
}

void TensorCopy::SetFloats(const std::vector<float>& values) {
  bytes.resize(values.size() * kernels::SizeOf(dtype));
  kernels::ConvertFromF32(values.data(), dtype, static_cast<int64_t>(values.size()), bytes.data());
}

CheckpointCopy::CheckpointCopy(const std::string& name) {
  // Only what a checkpoint has: the reference values would look like one more file.
  for (fs::recursive_directory_iterator it(DataPath(name)), end; it != end; ++it) {
    const fs::path goal = path() / fs::relative(it->path(), DataPath(name));
    if (it->is_directory()) {
      fs::create_directories(goal);
    } else if (it->path().filename() != "expected.json") {
      fs::create_directories(goal.parent_path());
      Write(fs::relative(it->path(), DataPath(name)).string(), ReadText(it->path()));
    }
  }
}

void CheckpointCopy::Write(const std::string& file, const std::string& bytes) const {
  std::ofstream stream(path() / file, std::ios::binary | std::ios::trunc);
  stream << bytes;
  stream.close();
  ASSERT_TRUE(stream.good()) << file;
}

void CheckpointCopy::EditJson(const std::string& file, const std::function<void(nlohmann::json&)>& change) const {
  nlohmann::json value =
      fs::exists(path() / file) ? nlohmann::json::parse(ReadText(path() / file)) : nlohmann::json::object();
  change(value);
  Write(file, value.dump());
}

void CheckpointCopy::EditTensors(const std::function<void(TensorMap&)>& change) const {
  TensorMap tensors;
  std::vector<std::string> files;
  {
    const auto checkpoint = CheckpointTensors::Open(path().string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (const auto& [name, tensor] : (*checkpoint)->tensors()) {
      TensorCopy& copy = tensors[name];
      ASSERT_TRUE(tensor.is_float()) << name;
      copy.dtype = tensor.type == ElementType::kF16    ? kernels::DType::kF16
                   : tensor.type == ElementType::kBF16 ? kernels::DType::kBF16
                                                       : kernels::DType::kF32;
      copy.shape = tensor.shape;
      copy.bytes.resize(static_cast<size_t>(tensor.elements()) * kernels::SizeOf(copy.dtype));
      ASSERT_TRUE(tensor.ReadBytes(0, tensor.rows(), absl::MakeSpan(copy.bytes)).ok());
    }
    files = (*checkpoint)->files();
  }
  for (const std::string& file : files) fs::remove(file);
  for (const char* index : {"model.safetensors.index.json", "pytorch_model.bin.index.json"}) Remove(index);
  change(tensors);
  SafetensorsWriter writer;
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE(writer.Add(name, tensor.dtype, tensor.shape, tensor.bytes).ok()) << name;
  }
  ASSERT_TRUE(writer.Write((path() / "model.safetensors").string()).ok());
}

ImportOptions CheckpointCopy::Options() const {
  ImportOptions options;
  options.folder = path().string();
  options.out = out().string();
  return options;
}

absl::StatusOr<ImportReport> CheckpointCopy::Run(const ImportOptions& options) const {
  fs::remove_all(out());
  absl::StatusOr<ImportReport> report = Import(options);
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(out().parent_path())) left.insert(entry.path().filename().string());
  EXPECT_EQ(left, report.ok() ? (std::set<std::string>{"checkpoint", "model"}) : (std::set<std::string>{"checkpoint"}));
  return report;
}

std::string CheckpointCopy::Fault(const ImportOptions& options) const {
  const absl::StatusOr<ImportReport> report = Run(options);
  EXPECT_FALSE(report.ok());
  if (report.ok()) return "imported";
  const std::string message(report.status().message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 20'000u);
  return message;
}

}  // namespace koine::model_loader
