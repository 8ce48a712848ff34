// A copy of a stored checkpoint that a test changes: its JSON files, its tensors, its shards.
#ifndef KOINE_TESTS_UNIT_MODEL_LOADER_IMPORTER_CHECKPOINT_COPY_H_
#define KOINE_TESTS_UNIT_MODEL_LOADER_IMPORTER_CHECKPOINT_COPY_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/tensor/dtype.h"
#include "model_loader/importer/importer.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {

std::string DataPath(const std::string& name);
std::string ReadText(const std::filesystem::path& path);

// A folder of the test's own, gone with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct TensorCopy {
  kernels::DType dtype = kernels::DType::kF32;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;

  std::vector<float> Floats() const;
  void SetFloats(const std::vector<float>& values);
};
using TensorMap = std::map<std::string, TensorCopy>;

class CheckpointCopy {
 public:
  explicit CheckpointCopy(const std::string& name);  // of tests/data

  std::filesystem::path path() const { return temporary_.path() / "checkpoint"; }
  std::filesystem::path out() const { return temporary_.path() / "model"; }
  // Reads a JSON file, lets `change` change it, writes it back; an absent file is an empty object.
  void EditJson(const std::string& file, const std::function<void(nlohmann::json&)>& change) const;
  void Write(const std::string& file, const std::string& bytes) const;
  void Remove(const std::string& file) const { std::filesystem::remove_all(path() / file); }
  // All tensors, changed and written as one model.safetensors.
  void EditTensors(const std::function<void(TensorMap&)>& change) const;

  ImportOptions Options() const;
  // Imports; on failure the message. On failure nothing may be left but the checkpoint.
  absl::StatusOr<ImportReport> Run() const { return Run(Options()); }
  absl::StatusOr<ImportReport> Run(const ImportOptions& options) const;
  // REQUIRES that the import fails.
  std::string Fault() const { return Fault(Options()); }
  std::string Fault(const ImportOptions& options) const;

 private:
  TemporaryFolder temporary_;
};

}  // namespace koine::model_loader

#endif  // KOINE_TESTS_UNIT_MODEL_LOADER_IMPORTER_CHECKPOINT_COPY_H_
