// Which tensor of a checkpoint becomes which of the model: ties, what is missing, what is dropped.
#ifndef KOINE_MODEL_LOADER_IMPORTER_TENSOR_PLAN_H_
#define KOINE_MODEL_LOADER_IMPORTER_TENSOR_PLAN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model_loader/checkpoint/checkpoint_tensors.h"
#include "model_loader/format/config.h"
#include "model_loader/importer/hf_config.h"

namespace koine::model_loader {

struct TensorSource {
  CheckpointTensor tensor;  // in the shape that the model has it in
  std::string name;         // the checkpoint's
  // A row that is added to every row (BERT's token type 0 to its positions); nullopt: none.
  std::optional<CheckpointTensor> added_row;
};

struct TensorPlan {
  std::map<std::string, TensorSource, std::less<>> sources;  // by Koine's names; embedding, output included
  int64_t rows = 0;                                          // of the table
  std::vector<std::string> tied, dropped, ignored, notes;
};

// Finds a source for every tensor that `config` asks for and sets config.architecture.tied_output and output_bias by
// what is there. `dense`, if not null, holds a layer after pooling, linear.weight and linear.bias; else pooling.dense
// is the checkpoint's own pooler. `where` names the checkpoint in messages. Tables that a tied checkpoint stores twice
// are compared byte by byte.
//
// INVALID_ARGUMENT, all at once: tensors that are missing, of wrong shapes, of types that hold no weights; a table
// whose rows are not config.json's; layers that config.json does not have; tied tables that differ.
absl::StatusOr<TensorPlan> PlanTensors(const CheckpointTensors& checkpoint, const CheckpointTensors* dense,
                                       const HfConfig& hf, const std::string& where, ModelConfig& config);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_IMPORTER_TENSOR_PLAN_H_
