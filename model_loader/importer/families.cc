#include "model_loader/importer/families.h"

#include <algorithm>
#include <cmath>

namespace koine::model_loader {
namespace {

// T5 has no table of positions, so that nothing limits a sequence but its cost, which grows with the square. Four times
// the longest sequences these models are trained on.
constexpr int64_t kUnlimitedPositions = 4'096;

float InverseRoot(int64_t value) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(value))); }
float Root(int64_t value) { return static_cast<float>(std::sqrt(static_cast<double>(value))); }

}  // namespace

std::string FamilyTitle(const HfConfig& hf, const ModelConfig& config) {
  switch (hf.family) {
    case HfFamily::kM2M100:
      return config.tokenizer.has_value() && config.tokenizer->kind == TokenizerKind::kSentencePiece ? "NLLB"
                                                                                                     : "M2M-100";
    case HfFamily::kMBart:
      return config.prompt.decoder_start == "$target" ? "mBART-25" : "mBART-50";
    case HfFamily::kMarian:
      return "MarianMT";
    case HfFamily::kT5:
      return hf.encoder_only ? "T5 encoder" : "T5";
    case HfFamily::kMT5:
      return hf.encoder_only ? "mT5 encoder" : "mT5";
    case HfFamily::kBert:
      return "BERT encoder";
    case HfFamily::kRoberta:
      return hf.model_type == "roberta" ? "RoBERTa encoder" : "XLM-R encoder";
  }
  return "";
}

HfNaming NamingOf(HfFamily family) {
  switch (family) {
    case HfFamily::kM2M100:
    case HfFamily::kMBart:
    case HfFamily::kMarian:
      return HfNaming::kBart;
    case HfFamily::kT5:
    case HfFamily::kMT5:
      return HfNaming::kT5;
    case HfFamily::kBert:
    case HfFamily::kRoberta:
      return HfNaming::kBert;
  }
  return HfNaming::kBart;
}

ModelConfig ArchitectureOf(const HfConfig& hf, int64_t longest) {
  ModelConfig config;
  config.kind = hf.encoder_only ? ModelKind::kEncoder : ModelKind::kEncoderDecoder;
  kernels::TransformerConfig& a = config.architecture;
  a.d_model = static_cast<int>(hf.d_model);
  a.heads = static_cast<int>(hf.heads);
  a.d_head = static_cast<int>(hf.d_head);
  a.d_ffn = static_cast<int>(hf.d_ffn);
  a.encoder_layers.assign(static_cast<size_t>(hf.encoder_layers), kernels::LayerOwner::kShared);
  a.decoder_layers.assign(static_cast<size_t>(hf.decoder_layers), kernels::LayerOwner::kShared);
  a.norm_eps = static_cast<float>(hf.norm_eps);
  a.activation = hf.activation;
  a.gated_ffn = hf.gated_ffn;
  a.attention_scale = InverseRoot(hf.d_head);
  a.embedding_scale = hf.scale_embedding ? Root(hf.d_model) : 1.0F;

  // model-semantics: sections 1 to 5.
  Positions& positions = config.positions;
  positions.base = 10'000;
  switch (hf.family) {
    case HfFamily::kM2M100:
      // Row 1 is padding's, the first token has row 2.
      positions.first_position = 2;
      positions.max_positions = std::max(hf.max_positions, longest) + 2;
      break;
    case HfFamily::kMBart:
      positions.type = PositionType::kLearned;
      positions.first_position = 2;
      positions.max_positions = hf.max_positions + 2;
      a.embedding_norm = true;
      break;
    case HfFamily::kMarian:
      positions.exponent_half_minus_one = false;
      positions.max_positions = hf.max_positions;
      a.pre_norm = false;
      a.final_norm = false;
      break;
    case HfFamily::kT5:
    case HfFamily::kMT5:
      positions.type = PositionType::kRelativeBuckets;
      positions.buckets = hf.buckets;
      positions.max_distance = hf.max_distance;
      positions.max_positions = std::max(kUnlimitedPositions, longest);
      a.norm_type = kernels::NormType::kRmsNorm;
      a.linear_bias = false;
      a.attention_scale = 1;
      if (hf.scale_output && !hf.encoder_only) a.output_scale = InverseRoot(hf.d_model);
      break;
    case HfFamily::kBert:
    case HfFamily::kRoberta:
      positions.type = PositionType::kLearned;
      positions.first_position = hf.family == HfFamily::kRoberta ? hf.pad.value_or(1) + 1 : 0;
      positions.max_positions = hf.max_positions;
      a.embedding_norm = true;
      a.pre_norm = false;
      a.final_norm = false;
      break;
  }
  a.max_positions = positions.max_positions - positions.first_position;
  return config;
}

}  // namespace koine::model_loader
