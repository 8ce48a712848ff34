// The one list of tensors (name, shape, owner, component, required?) that drives load, save, import and accounting.
#ifndef KOINE_MODEL_LOADER_FORMAT_TENSOR_TABLE_H_
#define KOINE_MODEL_LOADER_FORMAT_TENSOR_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model_loader/format/config.h"
#include "model_loader/safetensors/safetensors.h"

namespace koine::model_loader {

enum class Owner : uint8_t { kShared, kLanguage };

// What a parameter is for, in the account. Own heads and own layers count under kOwnHeads and kOwnLayers whatever
// projection they are; the projection itself stays visible in the name.
enum class Component : uint8_t {
  kAttentionQ,
  kAttentionK,
  kAttentionV,
  kAttentionO,
  kFeedForward,
  kNorm,
  kEmbedding,
  kOutput,
  kAdapter,
  kOwnHeads,
  kOwnLayers,
  kPositions,
  kPooling,
  kVocabularyIds,  // not parameters: counted in bytes, not in parameters
};
std::string_view Name(Component component);  // "attention_q", ...

// A shape element that the file decides: rows of the vocabulary.
inline constexpr int64_t kVocabularyRows = -1;

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // kVocabularyRows where the vocabulary's size stands
  Owner owner = Owner::kShared;
  Component component = Component::kNorm;
  bool required = true;
  bool integer = false;  // must be I32; others must be F32, F16 or BF16, matrices may be I8
  bool scales = false;   // the row scales of an I8 matrix (PresentTensors); F32
};

// The name of an I8 matrix's row scales: "<name>.scale", F32 [rows]. Row r of the matrix stands for its integers times
// scale r.
std::string ScaleName(std::string_view tensor);

// Tensors of shared.safetensors.
std::vector<TensorSpec> SharedTensors(const ModelConfig& config);
// Tensors of a language's language.safetensors, its default adapter included.
std::vector<TensorSpec> LanguageTensors(const ModelConfig& config, const AdapterConfig& adapter);
// Tensors of an adapter alone (adapters/<name>/adapter.safetensors); LoRA pairs are optional one by one.
std::vector<TensorSpec> AdapterTensors(const ModelConfig& config, const AdapterConfig& adapter);

// Adds "title (number): item, item, ..." to the parts of a message, unless there are none; cut at 100 so that a foreign
// file does not fill the log.
void AppendGroup(absl::string_view title, const std::vector<std::string>& items, std::vector<std::string>& groups);

// Holds a file against its list: all missing, unknown, misshaped and mistyped tensors in one INVALID_ARGUMENT, by name;
// half LoRA pairs, I8 matrices without row scales and tensors that disagree about the vocabulary's size too. On success
// *vocabulary (if not null) is the number of rows, or 0 if no listed tensor has one.
absl::Status CheckTensors(const SafetensorsFile& file, const std::vector<TensorSpec>& specs, int64_t* vocabulary);

// The tensors of a list that a file holds, in the list's order; each I8 matrix is followed by its row scales, whose
// spec has the matrix's component. REQUIRES that CheckTensors accepted the file.
std::vector<TensorSpec> PresentTensors(const SafetensorsFile& file, const std::vector<TensorSpec>& specs);

// `count` values of a tensor as f32, from element `first` on (row-major), whatever type stores them. REQUIRES that
// CheckTensors accepted the file, and a range inside a tensor that is not I32. INVALID_ARGUMENT naming the tensor and
// the row where a row scale is negative, infinite or NaN.
absl::Status ReadValues(const SafetensorsFile& file, std::string_view name, int64_t first, int64_t count, float* out);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_FORMAT_TENSOR_TABLE_H_
