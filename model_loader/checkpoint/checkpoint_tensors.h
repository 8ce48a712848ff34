// The weights of a Hugging Face checkpoint folder, in whichever form it has them:
//
//   model.safetensors                        one file
//   model.safetensors.index.json + shards
//   pytorch_model.bin                        torch.save since PyTorch 1.6
//   pytorch_model.bin.index.json + shards
//   adapter_model.safetensors, adapter_model.bin    PEFT adapters
//
// Files are mapped and trusted in nothing; every error names the file, and where there is one, the tensor.
#ifndef KOINE_MODEL_LOADER_CHECKPOINT_CHECKPOINT_TENSORS_H_
#define KOINE_MODEL_LOADER_CHECKPOINT_CHECKPOINT_TENSORS_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model_loader/checkpoint/tensor.h"
#include "model_loader/checkpoint/torch_file.h"
#include "model_loader/safetensors/safetensors.h"

namespace koine::model_loader {

enum class CheckpointKind : uint8_t { kModel, kAdapter };

// Open files and their tensors. Immutable; any thread may read them. Tensors are valid as long as this object.
class CheckpointTensors {
 public:
  // Takes the first form above that is there, safetensors before .bin. Errors:
  //   NOT_FOUND         no folder; no weights in it (with what it looks like instead, and what to give); shards that
  //                     the index names and that are not there, all of them named
  //   INVALID_ARGUMENT  a broken or foreign file; a tensor that is not in the shard that the index names
  static absl::StatusOr<std::unique_ptr<CheckpointTensors>> Open(const std::string& folder,
                                                                 CheckpointKind kind = CheckpointKind::kModel);

  const std::map<std::string, CheckpointTensor, std::less<>>& tensors() const { return tensors_; }
  const CheckpointTensor* Find(std::string_view name) const;  // null if there is none
  // Paths of the files that were opened.
  const std::vector<std::string>& files() const { return files_; }
  // What was left out, one line each: other forms of the weights, files and tensors that no index names.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Reads everything once and compares with the checksums that .bin files carry (safetensors have none): DATA_LOSS.
  absl::Status VerifyChecksums() const;

 private:
  CheckpointTensors() = default;
  // Opens one file, appends to `found`.
  absl::Status AddFile(const std::string& path, std::map<std::string, CheckpointTensor, std::less<>>* found);
  absl::Status OpenShards(const std::string& folder, const std::string& index_name);

  std::vector<std::unique_ptr<SafetensorsFile>> safetensors_;
  std::vector<std::unique_ptr<TorchFile>> torch_;
  std::vector<std::string> files_;
  std::vector<std::string> warnings_;
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
};

// What a folder without weights that we read holds instead, and what to give: "a CTranslate2 model: ...". "" if
// nothing is recognised. Also for paths that are no folders.
std::string DescribeForeignModel(const std::string& path);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_CHECKPOINT_CHECKPOINT_TENSORS_H_
