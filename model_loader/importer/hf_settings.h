// What lies beside config.json and rules how a model is used: generation settings, and the modules of
// sentence-transformers (pooling, a dense layer, normalising, prompts).
#ifndef KOINE_MODEL_LOADER_IMPORTER_HF_SETTINGS_H_
#define KOINE_MODEL_LOADER_IMPORTER_HF_SETTINGS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model_loader/format/config.h"
#include "model_loader/importer/hf_config.h"
#include "model_loader/tokenizer/tokenizer.h"

namespace koine::model_loader {

struct SentenceSettings {
  bool present = false;            // there is a modules.json
  std::string transformer_folder;  // where config.json, the weights and the tokenizer lie: "" or a folder's name
  Pooling pooling;                 // dense included
  std::string dense_folder;        // with weights linear.weight, linear.bias; "" without a dense layer
  int64_t max_seq_length = 0;      // 0: none
  bool lower_case = false;
  std::map<std::string, std::string> prompts;
  std::string default_prompt;
};

// Reads modules.json and what it names. Kinds of modules and of pooling that Koine does not have are INVALID_ARGUMENT,
// by name. Without modules.json: `present` is false and nothing else is set.
absl::StatusOr<SentenceSettings> ReadSentenceSettings(const std::string& folder);

struct GenerationSettings {
  Generation generation;  // max_tokens not yet held against the positions
  std::optional<int64_t> decoder_start;
  std::optional<int64_t> forced_start;  // forced_bos_token_id
  std::vector<std::string> notes;       // what is there and is not carried over
};

// generation_config.json, or where there is none the same keys of config.json with the class's defaults, as the library
// does. `tokenizer` names the pieces of suppressed ids.
absl::StatusOr<GenerationSettings> ReadGenerationSettings(const std::string& folder, const HfConfig& config,
                                                          const Tokenizer& tokenizer);

// task_specific_params of T5's config.json: prefixes by task.
std::map<std::string, std::string> TaskPrompts(const HfConfig& config);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_IMPORTER_HF_SETTINGS_H_
