// The planner behind `koine-model params`: a plain options struct in, texts out. Needs no model.
#ifndef KOINE_MODEL_LOADER_ACCOUNTING_PARAMS_H_
#define KOINE_MODEL_LOADER_ACCOUNTING_PARAMS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model_loader/accounting/plan.h"

namespace koine::model_loader {

// What is absent comes from the preset.
struct ParamsOptions {
  std::string preset = "seed";
  std::optional<int64_t> languages;                       // N
  std::optional<int64_t> layers;                          // L: of every stack the preset has
  std::optional<int64_t> encoder_layers, decoder_layers;  // of one stack; beat `layers`
  std::optional<int64_t> heads;                           // H; alone it leaves H2 as it is
  std::optional<int64_t> shared_heads, language_heads;    // H1, H2: both given set H too; one alone takes H - it
  std::optional<int64_t> d_model, d_k, d_v, d_ffn;
  std::optional<int64_t> own_layers;                              // L_o of every stack the preset has
  std::optional<int64_t> own_encoder_layers, own_decoder_layers;  // of one stack; beat `own_layers`
  std::optional<std::string> own_layer_scope;                     // "attention", "layer"
  std::optional<bool> output_projection, cross_attention, linear_bias, gated_ffn;
  std::optional<int64_t> vocabulary;  // rows
  std::optional<bool> shared_embedding, tied_output, output_bias;
  std::optional<std::string> adapter;  // "none", "scale", "bottleneck", "lora"
  std::optional<int64_t> adapter_rank;
  // scale: "self_attn", "cross_attn", "ffn"; lora: "self_attn.q", ..., "ffn.down". Empty: all sites; q and v.
  std::vector<std::string> adapter_sites;
  std::optional<std::string> dtype;  // "F32", "BF16", ...; any case
  std::optional<int64_t> budget;     // bytes of memory: how many languages fit
  int64_t chart_languages = 0;       // N at the chart's right end; 0: twice `languages`, but at least 10
};

// INVALID_ARGUMENT, NOT_FOUND (preset), OUT_OF_RANGE (a count exceeds 2^63 - 1), each naming the option or number.
absl::StatusOr<PlanShape> ShapeFromOptions(const ParamsOptions& options);

struct ParamsOutput {
  PlanReport report;
  std::string table;  // for people
  std::string json;
  std::string svg;  // memory against N
};
absl::StatusOr<ParamsOutput> Params(const ParamsOptions& options);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_ACCOUNTING_PARAMS_H_
