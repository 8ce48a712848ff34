// Closed formulas of the sharing family (DESIGN section 4): what a plan's parameters are, without loading a model.
//
// Everything here is arithmetic over a PlanShape; nothing walks a list of tensors. The account of loaded tensors
// (account.h) is the other way to the same numbers, and tests hold one against the other, to the parameter.
//
// Symbols as in DESIGN: N languages, L layers, of which L_o are each language's own and L_s = L - L_o shared, H heads,
// of which H2 are each language's own and H1 = H - H2 shared, d = d_model, d_k and d_v per head. An attention block is
// one self- or cross-attention; an encoder layer has one, a decoder layer one or two.
//
// All counts are checked: OUT_OF_RANGE where one exceeds 2^63 - 1, INVALID_ARGUMENT naming every impossible number of
// the shape. Pure functions; any thread.
#ifndef KOINE_MODEL_LOADER_ACCOUNTING_PLAN_H_
#define KOINE_MODEL_LOADER_ACCOUNTING_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/ops/ops.h"
#include "kernels/tensor/dtype.h"
#include "model_loader/format/config.h"
#include "model_loader/format/tensor_table.h"

namespace koine::model_loader {

inline constexpr size_t kComponents = static_cast<size_t>(Component::kVocabularyIds) + 1;
// Parameters by component, indexed by the enum.
using ComponentCounts = std::array<int64_t, kComponents>;

// The projections that a LoRA pair may stand on.
enum class Projection : uint8_t {
  kSelfQ,
  kSelfK,
  kSelfV,
  kSelfO,
  kCrossQ,
  kCrossK,
  kCrossV,
  kCrossO,
  kFeedForwardUp,
  kFeedForwardGate,
  kFeedForwardDown,
};
inline constexpr size_t kProjections = static_cast<size_t>(Projection::kFeedForwardDown) + 1;

// The ranks of the LoRA pairs on each projection, summed over the layers that have one. Shared and own layers are
// summed apart, since with own heads the pair of a shared layer spans the H1 shared heads and that of an own layer all
// H.
struct LoraCounts {
  using ByProjection = std::array<int64_t, kProjections>;
  ByProjection encoder_shared{}, encoder_own{}, decoder_shared{}, decoder_own{};
};

// A sharing plan by its sizes. A part whose size is 0 does not exist and is not counted.
struct PlanShape {
  std::string name;   // of the preset or model
  std::string about;  // what it stands for, for people

  int64_t languages = 1;  // N

  int64_t encoder_layers = 0, decoder_layers = 0;
  int64_t own_encoder_layers = 0, own_decoder_layers = 0;  // L_o of each stack
  LayerScope scope = LayerScope::kAttention;               // of the own layers
  bool cross_attention = true;                             // of decoder layers

  int64_t heads = 0, language_heads = 0;  // H, H2
  int64_t d_model = 0, d_k = 0, d_v = 0;
  bool output_projection = true;  // O [d, H d_v] counts in the totals
  int64_t d_ffn = 0;              // 0: no feed-forward sublayers
  bool gated_ffn = false;
  bool linear_bias = true;  // of attention and feed-forward

  bool norms = true;  // of sublayers
  kernels::NormType norm_type = kernels::NormType::kLayerNorm;
  bool final_norm = true, embedding_norm = false;  // one a stack

  int64_t position_rows = 0;              // learned tables: rows a stack
  int64_t relative_position_buckets = 0;  // T5: one table [buckets, H] a stack
  int64_t pooling_dense = 0;              // size of a dense layer after pooling, with a bias where pooling_bias
  bool pooling_bias = true;

  int64_t vocabulary = 0;                        // rows of one table
  bool shared_embedding = false;                 // one table for all languages
  bool tied_output = true, output_bias = false;  // of models with a decoder

  AdapterConfig adapter;  // of every language
  LoraCounts lora;        // with AdapterKind::kLora

  kernels::DType dtype = kernels::DType::kF32;  // of every tensor, for bytes

  // Attention blocks of the plan, and those of own layers.
  int64_t attention_blocks() const { return encoder_layers + decoder_layers * (cross_attention ? 2 : 1); }
  int64_t own_attention_blocks() const { return own_encoder_layers + own_decoder_layers * (cross_attention ? 2 : 1); }
};

absl::Status CheckShape(const PlanShape& shape);

// What the shape's numbers contain and what they leave out, in a sentence: "Q, K and V matrices; not output
// projections, biases, ...".
std::string WhatIsCounted(const PlanShape& shape);

// Sets `shape.lora` to a pair of shape.adapter.rank on each of `projections` in every layer that has the projection.
void PlaceLora(absl::Span<const Projection> projections, PlanShape& shape);

// --- DESIGN section 4, attention matrices only (no biases) ---

// The two counts of attention: Q, K, V as most papers count, and with the output projection as memory holds it.
enum class AttentionCount : uint8_t { kQkv, kQkvo };

// d (2 d_k + d_v), and d d_v more with the output projection (whether or not the shape's totals count it).
absl::StatusOr<int64_t> HeadParameters(const PlanShape& shape, AttentionCount count);
// H heads: one block of attention.
absl::StatusOr<int64_t> BlockParameters(const PlanShape& shape, AttentionCount count);
// N·L·H·head.
absl::StatusOr<int64_t> IndependentAttention(const PlanShape& shape, AttentionCount count);
// L·H·head.
absl::StatusOr<int64_t> SharedAttention(const PlanShape& shape, AttentionCount count);
// L·(H1 + N·H2)·head: the shape's own heads, its own layers left aside.
absl::StatusOr<int64_t> HybridHeadsAttention(const PlanShape& shape, AttentionCount count);
// (L_s + N·L_o)·H·head: the shape's own layers, its own heads left aside.
absl::StatusOr<int64_t> HybridLayersAttention(const PlanShape& shape, AttentionCount count);
// Both together: (L_s·(H1 + N·H2) + N·L_o·H)·head.
absl::StatusOr<int64_t> PlanAttention(const PlanShape& shape, AttentionCount count);
// One language's adapter: scale S·d over S sites; bottleneck S·(2dr + r + d + norm); lora Σ r(d_in + d_out).
absl::StatusOr<int64_t> AdapterParameters(const PlanShape& shape);

// 1 - plan / independent; 0 where there is nothing to save from.
double SavingRatio(int64_t plan, int64_t independent);

// How many languages fit: the largest n with shared + n·language <= budget; 0 if not even the shared part fits, nullopt
// if a language costs nothing (any number fits).
std::optional<int64_t> LanguagesThatFit(int64_t budget, int64_t shared, int64_t language);

// --- Full counts: biases, output projections, cross-attention, norms, feed-forward, positions, vocabulary ---

struct PlanCounts {
  ComponentCounts shared{};    // of the shared file
  ComponentCounts language{};  // of one language, its adapter included: the cost of one more language
  int64_t shared_total = 0, language_total = 0;
  int64_t total = 0;        // shared + N·language
  int64_t independent = 0;  // N whole models of their own, without adapters
};
absl::StatusOr<PlanCounts> CountPlan(const PlanShape& shape);

// The shape of a model; N is the number of config.languages, but at least 1. LoRA counts are `lora`.
PlanShape ShapeOf(const ModelConfig& config, const AdapterConfig& adapter, int64_t vocabulary,
                  const LoraCounts& lora = {});
// A pair on every projection: what AdapterTensors() lists for an adapter without ranks of its own for some.
LoraCounts LoraEverywhere(const ModelConfig& config, const AdapterConfig& adapter);
// From the names of the tensors that a file really has ("encoder.layers.0.self_attn.q.lora.a", ...).
LoraCounts LoraCountsOf(const ModelConfig& config, const AdapterConfig& adapter,
                        absl::Span<const std::string_view> tensor_names);
// CountPlan of that shape.
absl::StatusOr<PlanCounts> FormulaCount(const ModelConfig& config, const AdapterConfig& adapter, int64_t vocabulary,
                                        const LoraCounts& lora = {});

// --- Presets ---

// "seed", "nllb-600m", "mt5-small", "gpt3"; NOT_FOUND naming them. WhatIsCounted says what each counts.
absl::StatusOr<PlanShape> Preset(std::string_view name);
std::vector<std::string> PresetNames();

// --- Comparison of plans over one architecture ---

struct PlanRow {
  std::string plan;  // "independent", "shared", "hybrid heads (6 + 2)", ...
  int64_t attention_qkv = 0, attention_qkvo = 0;
  double attention_saving = 0;  // of Q, K, V, against independent
  int64_t shared_parameters = 0, language_parameters = 0, total_parameters = 0;
  double saving = 0;  // of all parameters counted, against independent
  int64_t shared_bytes = 0, language_bytes = 0, total_bytes = 0;
  bool any_number_fits = false;               // a language costs nothing
  std::optional<int64_t> languages_that_fit;  // of `budget`, if one was given and a language costs something
};

struct PlanReport {
  PlanShape shape;
  std::optional<int64_t> budget;
  PlanCounts counts;  // of the shape as given
  // "as given" first (unless the shape is the shared plan itself), then the standard plans over its architecture.
  std::vector<PlanRow> rows;
};

// Standard plans: independent, shared, hybrid heads and layers (the shape's own, or a quarter of the heads and a third
// of the layers where it has none), and shared with each kind of adapter (the shape's, or rank 32; lora on self- and
// cross-attention's q and v).
absl::StatusOr<PlanReport> ComparePlans(const PlanShape& shape, std::optional<int64_t> budget = std::nullopt);

// A table for people; `report` as JSON (one object, snake_case keys); memory against N as an SVG document with one line
// a plan, N from 1 to max_languages (REQUIRES >= 2).
std::string RenderTable(const PlanReport& report);
std::string ToJson(const PlanReport& report);
absl::StatusOr<std::string> RenderSvgChart(const PlanReport& report, int64_t max_languages);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_ACCOUNTING_PLAN_H_
