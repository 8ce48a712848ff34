// config.json of a Hugging Face checkpoint: what kind of model it is and how large. A key that is missing has the
// default of the library's configuration class (transformers/models/*/configuration_*.py); nothing is guessed from
// names or sizes of tensors.
#ifndef KOINE_MODEL_LOADER_IMPORTER_HF_CONFIG_H_
#define KOINE_MODEL_LOADER_IMPORTER_HF_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/ops/ops.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {

enum class HfFamily : uint8_t {
  kM2M100,   // M2M-100 and NLLB
  kMBart,    // mBART-25 and mBART-50
  kMarian,   // MarianMT, OPUS-MT
  kT5,       // T5 v1.0 and v1.1
  kMT5,      //
  kBert,     //
  kRoberta,  // XLM-R and RoBERTa
};

struct HfConfig {
  HfFamily family = HfFamily::kM2M100;
  std::string model_type, architecture;  // "m2m_100", "M2M100ForConditionalGeneration" (or "")
  bool encoder_only = false;             // BERT, RoBERTa, T5EncoderModel
  int64_t rows = 0;                      // vocab_size
  int64_t d_model = 0, heads = 0, d_head = 0, d_ffn = 0, encoder_layers = 0, decoder_layers = 0;
  kernels::Activation activation = kernels::Activation::kRelu;
  bool gated_ffn = false;
  double norm_eps = 1e-5;
  int64_t max_positions = 0;              // max_position_embeddings; 0: the family has no such limit
  int64_t buckets = 0, max_distance = 0;  // T5
  bool scale_embedding = false;
  bool scale_output = false;  // T5 v1.0
  bool tied = true;           // tie_word_embeddings
  int64_t types = 0;          // rows of BERT's table of token types
  std::optional<int64_t> pad, bos, eos, decoder_start;
  nlohmann::json raw;  // the whole object: generation settings of old checkpoints lie here
};

// `where` names the file in messages. INVALID_ARGUMENT with all faults: an unknown model_type (with those that are
// known), an unknown activation, sizes out of range or that do not fit each other, features that no row of the table
// of families has (experts, other kinds of positions).
absl::StatusOr<HfConfig> ParseHfConfig(const nlohmann::json& config, const std::string& where);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_IMPORTER_HF_CONFIG_H_
