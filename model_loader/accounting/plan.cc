#include "model_loader/accounting/plan.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model_loader/accounting/count_internal.h"
#include "model_loader/accounting/text_internal.h"

namespace koine::model_loader {
namespace {

size_t Index(Component component) { return static_cast<size_t>(component); }
size_t Index(Projection projection) { return static_cast<size_t>(projection); }

// Counts by component while they are being added up.
class Counts {
 public:
  Counts() : counts_(kComponents, Count(0)) {}
  Count& operator[](Component component) { return counts_[Index(component)]; }

  absl::Status Get(const char* what, ComponentCounts* components, int64_t* total) const {
    Count sum = 0;
    for (size_t i = 0; i < kComponents; ++i) {
      sum += counts_[i];
      absl::StatusOr<int64_t> count = counts_[i].Get(what);
      if (!count.ok()) return count.status();
      (*components)[i] = *count;
    }
    absl::StatusOr<int64_t> all = sum.Get(what);
    if (!all.ok()) return all.status();
    *total = *all;
    return absl::OkStatus();
  }

 private:
  std::vector<Count> counts_;
};

// One stack of the shape.
struct Stack {
  Count layers, own;
  Count blocks;  // attention blocks a layer
  bool exists;
  const LoraCounts::ByProjection& lora_shared;
  const LoraCounts::ByProjection& lora_own;
};

std::array<Stack, 2> Stacks(const PlanShape& shape) {
  return {{{shape.encoder_layers, shape.own_encoder_layers, 1, shape.encoder_layers > 0, shape.lora.encoder_shared,
            shape.lora.encoder_own},
           {shape.decoder_layers, shape.own_decoder_layers, shape.cross_attention ? 2 : 1, shape.decoder_layers > 0,
            shape.lora.decoder_shared, shape.lora.decoder_own}}};
}

Count Bias(const PlanShape& shape) { return shape.linear_bias ? 1 : 0; }

// One norm: a weight, and a bias in layer_norm.
Count Norm(const PlanShape& shape) {
  return (shape.norm_type == kernels::NormType::kLayerNorm ? Count(2) : Count(1)) * shape.d_model;
}

// One layer's feed-forward: up [f, d], gate [f, d] if gated, down [d, f].
Count FeedForward(const PlanShape& shape) {
  if (shape.d_ffn == 0) return 0;
  const Count d = shape.d_model, f = shape.d_ffn, widening = shape.gated_ffn ? 2 : 1;
  return widening * (d * f + Bias(shape) * f) + f * d + Bias(shape) * d;
}

// One block's projection of d_model into `heads` heads of `width`.
Count InProjection(const PlanShape& shape, Count heads, Count width) {
  return heads * width * (Count(shape.d_model) + Bias(shape));
}

// One block's output projection from `heads` heads, without its bias.
Count OutProjection(const PlanShape& shape, Count heads) {
  return shape.output_projection ? Count(shape.d_model) * heads * shape.d_v : Count(0);
}
Count OutBias(const PlanShape& shape) { return shape.output_projection ? Bias(shape) * shape.d_model : Count(0); }

// q, k, v and o of `heads` heads, o's bias left aside.
Count Heads(const PlanShape& shape, Count heads) {
  return InProjection(shape, heads, Count(2) * shape.d_k + shape.d_v) + OutProjection(shape, heads);
}

// The language's table, or the shared one.
void AddVocabulary(const PlanShape& shape, Counts& counts) {
  const Count rows = shape.vocabulary;
  counts[Component::kEmbedding] += rows * shape.d_model;
  if (shape.decoder_layers == 0) return;  // no output without a decoder
  if (!shape.tied_output) counts[Component::kOutput] += rows * shape.d_model;
  if (shape.output_bias) counts[Component::kOutput] += rows;
}

// Attention without heads has no projections to stand on.
Count LoraOf(const PlanShape& shape, const LoraCounts::ByProjection& layers, int64_t heads) {
  const Count d = shape.d_model, f = shape.d_ffn, key = Count(heads) * shape.d_k, value = Count(heads) * shape.d_v;
  const Count any = heads > 0 ? 1 : 0;
  const auto at = [&](Projection projection) { return Count(layers[Index(projection)]); };
  // d_in + d_out of each projection, times the ranks of its pairs.
  const Count keys =
      at(Projection::kSelfQ) + at(Projection::kSelfK) + at(Projection::kCrossQ) + at(Projection::kCrossK);
  const Count values =
      at(Projection::kSelfV) + at(Projection::kSelfO) + at(Projection::kCrossV) + at(Projection::kCrossO);
  const Count wide =
      at(Projection::kFeedForwardUp) + at(Projection::kFeedForwardGate) + at(Projection::kFeedForwardDown);
  return any * keys * (d + key) + any * values * (d + value) + wide * (d + f);
}

Count AdapterCount(const PlanShape& shape) {
  const AdapterConfig& adapter = shape.adapter;
  const Count d = shape.d_model, r = adapter.rank, encoder = shape.encoder_layers, decoder = shape.decoder_layers;
  switch (adapter.kind) {
    case AdapterKind::kNone:
      return 0;
    case AdapterKind::kScale: {
      const Count every = Count(adapter.scale_self_attention ? 1 : 0) + Count(adapter.scale_feed_forward ? 1 : 0);
      const Count cross = adapter.scale_cross_attention && shape.cross_attention ? 1 : 0;
      return (encoder * every + decoder * (every + cross)) * d;
    }
    case AdapterKind::kBottleneck:
      return (encoder + decoder) * (Count(2) * d * r + r + d + Norm(shape));
    case AdapterKind::kLora: {
      const int64_t shared_heads = shape.heads - shape.language_heads;
      Count sum = 0;
      for (const Stack& stack : Stacks(shape)) {
        sum += LoraOf(shape, stack.lora_shared, shared_heads) + LoraOf(shape, stack.lora_own, shape.heads);
      }
      return sum;
    }
  }
  return 0;
}

Counts SharedCounts(const PlanShape& shape) {
  Counts counts;
  const Count shared_heads = shape.heads - shape.language_heads;
  for (const Stack& stack : Stacks(shape)) {
    if (!stack.exists) continue;
    const Count blocks = (stack.layers - stack.own) * stack.blocks;
    counts[Component::kAttentionQ] += blocks * InProjection(shape, shared_heads, shape.d_k);
    counts[Component::kAttentionK] += blocks * InProjection(shape, shared_heads, shape.d_k);
    counts[Component::kAttentionV] += blocks * InProjection(shape, shared_heads, shape.d_v);
    counts[Component::kAttentionO] += blocks * (OutProjection(shape, shared_heads) + OutBias(shape));
    // Layers whose norms and feed-forward are shared.
    const Count rest = shape.scope == LayerScope::kLayer ? stack.layers - stack.own : stack.layers;
    counts[Component::kFeedForward] += rest * FeedForward(shape);
    if (shape.norms) {
      const Count feed_forward = shape.d_ffn > 0 ? 1 : 0;
      counts[Component::kNorm] += rest * (stack.blocks + feed_forward) * Norm(shape);
    }
    if (shape.final_norm) counts[Component::kNorm] += Norm(shape);
    if (shape.embedding_norm) counts[Component::kNorm] += Norm(shape);
    counts[Component::kPositions] += Count(shape.position_rows) * shape.d_model;
    counts[Component::kPositions] += Count(shape.relative_position_buckets) * shape.heads;
  }
  counts[Component::kPooling] += Count(shape.pooling_dense) * (Count(shape.d_model) + (shape.pooling_bias ? 1 : 0));
  if (shape.shared_embedding) AddVocabulary(shape, counts);
  return counts;
}

Counts LanguageCounts(const PlanShape& shape) {
  Counts counts;
  for (const Stack& stack : Stacks(shape)) {
    if (!stack.exists) continue;
    counts[Component::kOwnHeads] += (stack.layers - stack.own) * stack.blocks * Heads(shape, shape.language_heads);
    Count layer = stack.blocks * (Heads(shape, shape.heads) + OutBias(shape));
    if (shape.scope == LayerScope::kLayer) {
      const Count feed_forward = shape.d_ffn > 0 ? 1 : 0;
      layer += FeedForward(shape);
      if (shape.norms) layer += (stack.blocks + feed_forward) * Norm(shape);
    }
    counts[Component::kOwnLayers] += stack.own * layer;
  }
  if (!shape.shared_embedding) AddVocabulary(shape, counts);
  counts[Component::kAdapter] += AdapterCount(shape);
  return counts;
}

// The architecture with nothing owned by languages but their tables.
PlanShape FullyShared(PlanShape shape) {
  shape.language_heads = shape.own_encoder_layers = shape.own_decoder_layers = 0;
  shape.adapter = {};
  shape.lora = {};
  return shape;
}

Count Head(const PlanShape& shape, AttentionCount count) {
  const Count d = shape.d_model, k = shape.d_k, v = shape.d_v;
  const Count qkv = d * (Count(2) * k + v);
  return count == AttentionCount::kQkvo ? qkv + d * v : qkv;
}

// Holds the shape to its rules, then gives the count.
template <typename Formula>
absl::StatusOr<int64_t> Checked(const PlanShape& shape, const char* what, const Formula& formula) {
  if (absl::Status status = CheckShape(shape); !status.ok()) return status;
  return formula().Get(what);
}

// "encoder.layers.3.self_attn.q.lora.a" -> (is encoder, 3, kSelfQ); false for any other name.
bool ParseLoraName(std::string_view name, bool* encoder, int64_t* layer, Projection* projection) {
  constexpr std::string_view kSuffix = ".lora.a";
  if (!name.ends_with(kSuffix)) return false;
  name.remove_suffix(kSuffix.size());
  constexpr std::string_view kEncoder = "encoder.layers.", kDecoder = "decoder.layers.";
  static_assert(kEncoder.size() == kDecoder.size());
  *encoder = name.starts_with(kEncoder);
  if (!*encoder && !name.starts_with(kDecoder)) return false;
  name.remove_prefix(kEncoder.size());
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), *layer);
  if (error != std::errc()) return false;
  name.remove_prefix(static_cast<size_t>(end - name.data()));
  constexpr std::array<std::string_view, kProjections> kNames = {
      ".self_attn.q",  ".self_attn.k",  ".self_attn.v", ".self_attn.o", ".cross_attn.q", ".cross_attn.k",
      ".cross_attn.v", ".cross_attn.o", ".ffn.up",      ".ffn.gate",    ".ffn.down"};
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return false;
  *projection = static_cast<Projection>(found - kNames.begin());
  return true;
}

bool IsCross(Projection projection) { return projection >= Projection::kCrossQ && projection <= Projection::kCrossO; }
bool IsFeedForward(Projection projection) { return projection >= Projection::kFeedForwardUp; }

std::vector<Projection> AllProjections() {
  std::vector<Projection> all;
  for (size_t i = 0; i < kProjections; ++i) all.push_back(static_cast<Projection>(i));
  return all;
}

}  // namespace

absl::Status CheckShape(const PlanShape& shape) {
  std::vector<std::string> faults;
  const auto at_least = [&](const char* what, int64_t value, int64_t least) {
    if (value < least) faults.push_back(absl::StrCat(what, " is ", value, ", must be at least ", least));
  };
  at_least("languages", shape.languages, 1);
  at_least("encoder layers", shape.encoder_layers, 0);
  at_least("decoder layers", shape.decoder_layers, 0);
  if (shape.encoder_layers == 0 && shape.decoder_layers == 0) faults.push_back("there are no layers");
  // Sums of layers are formed unchecked, so bound them far below overflow.
  constexpr int64_t kMostLayers = std::numeric_limits<int32_t>::max();
  if (shape.encoder_layers > kMostLayers || shape.decoder_layers > kMostLayers) {
    faults.push_back(absl::StrCat("more than ", kMostLayers, " layers"));
  }
  at_least("own encoder layers", shape.own_encoder_layers, 0);
  at_least("own decoder layers", shape.own_decoder_layers, 0);
  if (shape.own_encoder_layers > shape.encoder_layers) {
    faults.push_back(absl::StrCat("own encoder layers are ", shape.own_encoder_layers, " of ", shape.encoder_layers));
  }
  if (shape.own_decoder_layers > shape.decoder_layers) {
    faults.push_back(absl::StrCat("own decoder layers are ", shape.own_decoder_layers, " of ", shape.decoder_layers));
  }
  at_least("heads", shape.heads, 1);
  at_least("language heads", shape.language_heads, 0);
  if (shape.language_heads > shape.heads) {
    faults.push_back(absl::StrCat("language heads are ", shape.language_heads, " of ", shape.heads));
  }
  at_least("d_model", shape.d_model, 1);
  at_least("d_k", shape.d_k, 1);
  at_least("d_v", shape.d_v, 1);
  at_least("d_ffn", shape.d_ffn, 0);
  at_least("position rows", shape.position_rows, 0);
  at_least("relative position buckets", shape.relative_position_buckets, 0);
  at_least("pooling's dense layer", shape.pooling_dense, 0);
  at_least("vocabulary rows", shape.vocabulary, 0);
  if (shape.adapter.kind == AdapterKind::kBottleneck || shape.adapter.kind == AdapterKind::kLora) {
    at_least("adapter rank", shape.adapter.rank, 1);
  }
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("impossible plan: ", absl::StrJoin(faults, "; ")));
}

std::string WhatIsCounted(const PlanShape& shape) {
  std::vector<std::string> in = {"Q, K and V matrices"}, out;
  const auto part = [&](bool counted, std::string what) { (counted ? in : out).push_back(std::move(what)); };
  part(shape.output_projection, "output projections");
  part(shape.linear_bias, "biases");
  if (shape.decoder_layers > 0 && shape.encoder_layers > 0) part(shape.cross_attention, "cross-attention");
  part(shape.d_ffn > 0, shape.gated_ffn ? "gated feed-forward" : "feed-forward");
  part(shape.norms, "norms");
  if (shape.position_rows > 0) in.push_back("learned positions");
  if (shape.relative_position_buckets > 0) in.push_back("relative positions");
  if (shape.pooling_dense > 0) in.push_back("a dense layer after pooling");
  if (shape.vocabulary > 0) {
    std::string table = absl::StrCat("a table of ", Grouped(shape.vocabulary), " rows",
                                     shape.shared_embedding ? " for all languages" : " for each language");
    if (shape.decoder_layers > 0) {
      absl::StrAppend(&table, shape.tied_output ? ", tied" : " and an output of its own",
                      shape.output_bias ? ", with output bias" : "");
    }
    in.push_back(std::move(table));
  } else {
    out.push_back("vocabularies");
  }
  if (shape.adapter.kind != AdapterKind::kNone) in.push_back("adapters");
  return absl::StrCat(absl::StrJoin(in, ", "), out.empty() ? "" : "; not ", absl::StrJoin(out, ", "));
}

void PlaceLora(absl::Span<const Projection> projections, PlanShape& shape) {
  shape.lora = {};
  const int64_t rank = shape.adapter.rank;
  for (const Projection projection : projections) {
    if (projection == Projection::kFeedForwardGate && !shape.gated_ffn) continue;
    if (IsFeedForward(projection) && shape.d_ffn == 0) continue;
    if ((projection == Projection::kSelfO || projection == Projection::kCrossO) && !shape.output_projection) continue;
    const size_t i = Index(projection);
    if (!IsCross(projection)) {
      shape.lora.encoder_own[i] = rank * shape.own_encoder_layers;
      shape.lora.encoder_shared[i] = rank * (shape.encoder_layers - shape.own_encoder_layers);
    } else if (!shape.cross_attention) {
      continue;
    }
    shape.lora.decoder_own[i] = rank * shape.own_decoder_layers;
    shape.lora.decoder_shared[i] = rank * (shape.decoder_layers - shape.own_decoder_layers);
  }
}

absl::StatusOr<int64_t> HeadParameters(const PlanShape& shape, AttentionCount count) {
  return Checked(shape, "a head's parameter count", [&] { return Head(shape, count); });
}

absl::StatusOr<int64_t> BlockParameters(const PlanShape& shape, AttentionCount count) {
  return Checked(shape, "an attention block's parameter count",
                 [&] { return Count(shape.heads) * Head(shape, count); });
}

absl::StatusOr<int64_t> IndependentAttention(const PlanShape& shape, AttentionCount count) {
  return Checked(shape, "independent attention's parameter count",
                 [&] { return Count(shape.languages) * shape.attention_blocks() * shape.heads * Head(shape, count); });
}

absl::StatusOr<int64_t> SharedAttention(const PlanShape& shape, AttentionCount count) {
  return Checked(shape, "shared attention's parameter count",
                 [&] { return Count(shape.attention_blocks()) * shape.heads * Head(shape, count); });
}

absl::StatusOr<int64_t> HybridHeadsAttention(const PlanShape& shape, AttentionCount count) {
  return Checked(shape, "hybrid heads' parameter count", [&] {
    const Count shared_heads = shape.heads - shape.language_heads;
    return Count(shape.attention_blocks()) * (shared_heads + Count(shape.languages) * shape.language_heads) *
           Head(shape, count);
  });
}

absl::StatusOr<int64_t> HybridLayersAttention(const PlanShape& shape, AttentionCount count) {
  return Checked(shape, "hybrid layers' parameter count", [&] {
    const Count own = shape.own_attention_blocks(), shared = Count(shape.attention_blocks()) - own;
    return (shared + Count(shape.languages) * own) * shape.heads * Head(shape, count);
  });
}

absl::StatusOr<int64_t> PlanAttention(const PlanShape& shape, AttentionCount count) {
  return Checked(shape, "the plan's attention parameter count", [&] {
    const Count n = shape.languages, shared_heads = shape.heads - shape.language_heads;
    const Count own = shape.own_attention_blocks(), shared = Count(shape.attention_blocks()) - own;
    return (shared * (shared_heads + n * shape.language_heads) + n * own * shape.heads) * Head(shape, count);
  });
}

absl::StatusOr<int64_t> AdapterParameters(const PlanShape& shape) {
  return Checked(shape, "the adapter's parameter count", [&] { return AdapterCount(shape); });
}

double SavingRatio(int64_t plan, int64_t independent) {
  if (independent == 0) return 0;
  return 1 - static_cast<double>(plan) / static_cast<double>(independent);
}

std::optional<int64_t> LanguagesThatFit(int64_t budget, int64_t shared, int64_t language) {
  if (budget < shared) return 0;
  if (language <= 0) return std::nullopt;
  return (budget - shared) / language;
}

absl::StatusOr<PlanCounts> CountPlan(const PlanShape& shape) {
  if (absl::Status status = CheckShape(shape); !status.ok()) return status;
  PlanCounts counts;
  absl::Status status = SharedCounts(shape).Get("the shared parameter count", &counts.shared, &counts.shared_total);
  if (!status.ok()) return status;
  status = LanguageCounts(shape).Get("a language's parameter count", &counts.language, &counts.language_total);
  if (!status.ok()) return status;
  absl::StatusOr<int64_t> total =
      (Count(counts.shared_total) + Count(shape.languages) * counts.language_total).Get("the plan's parameter count");
  if (!total.ok()) return total.status();
  counts.total = *total;

  // One whole model: everything shared in one copy, and one table.
  const PlanShape whole = FullyShared(shape);
  ComponentCounts unused;
  int64_t body = 0, table = 0;
  status = SharedCounts(whole).Get("a whole model's parameter count", &unused, &body);
  if (!status.ok()) return status;
  status = LanguageCounts(whole).Get("a whole model's parameter count", &unused, &table);
  if (!status.ok()) return status;
  total = (Count(shape.languages) * (Count(body) + table)).Get("the parameter count of independent models");
  if (!total.ok()) return total.status();
  counts.independent = *total;
  return counts;
}

PlanShape ShapeOf(const ModelConfig& config, const AdapterConfig& adapter, int64_t vocabulary, const LoraCounts& lora) {
  const kernels::TransformerConfig& architecture = config.architecture;
  const bool decodes = config.kind == ModelKind::kEncoderDecoder;
  const auto own = [](const std::vector<kernels::LayerOwner>& layers) {
    return static_cast<int64_t>(layers.size()) - std::count(layers.begin(), layers.end(), kernels::LayerOwner::kShared);
  };
  PlanShape shape;
  shape.name = config.name;
  shape.languages = std::max<int64_t>(1, static_cast<int64_t>(config.languages.size()));
  shape.encoder_layers = static_cast<int64_t>(architecture.encoder_layers.size());
  shape.own_encoder_layers = own(architecture.encoder_layers);
  shape.decoder_layers = decodes ? static_cast<int64_t>(architecture.decoder_layers.size()) : 0;
  shape.own_decoder_layers = decodes ? own(architecture.decoder_layers) : 0;
  shape.scope = config.layer_scope;
  shape.heads = architecture.heads;
  shape.language_heads = architecture.language_heads;
  shape.d_model = architecture.d_model;
  shape.d_k = shape.d_v = architecture.d_head;
  shape.d_ffn = architecture.d_ffn;
  shape.gated_ffn = architecture.gated_ffn;
  shape.linear_bias = architecture.linear_bias;
  shape.norm_type = architecture.norm_type;
  shape.final_norm = architecture.final_norm;
  shape.embedding_norm = architecture.embedding_norm;
  shape.position_rows = config.positions.type == PositionType::kLearned ? config.positions.max_positions : 0;
  if (config.positions.type == PositionType::kRelativeBuckets) {
    shape.relative_position_buckets = config.positions.buckets;
  }
  if (config.pooling.dense.has_value()) {
    shape.pooling_dense = config.pooling.dense->size;
    shape.pooling_bias = config.pooling.dense->bias;
  }
  shape.vocabulary = vocabulary;
  shape.shared_embedding = config.shared_embedding;
  shape.tied_output = architecture.tied_output;
  shape.output_bias = architecture.output_bias;
  shape.adapter = adapter;
  shape.lora = lora;
  return shape;
}

LoraCounts LoraEverywhere(const ModelConfig& config, const AdapterConfig& adapter) {
  PlanShape shape = ShapeOf(config, adapter, 0);
  PlaceLora(AllProjections(), shape);
  return shape.lora;
}

LoraCounts LoraCountsOf(const ModelConfig& config, const AdapterConfig& adapter,
                        absl::Span<const std::string_view> tensor_names) {
  LoraCounts counts;
  for (const std::string_view name : tensor_names) {
    bool encoder = false;
    int64_t layer = 0;
    Projection projection = Projection::kSelfQ;
    if (!ParseLoraName(name, &encoder, &layer, &projection)) continue;
    const auto& layers = encoder ? config.architecture.encoder_layers : config.architecture.decoder_layers;
    if (layer < 0 || layer >= static_cast<int64_t>(layers.size())) continue;
    const bool shared = layers[static_cast<size_t>(layer)] == kernels::LayerOwner::kShared;
    LoraCounts::ByProjection& by_projection = encoder ? (shared ? counts.encoder_shared : counts.encoder_own)
                                                      : (shared ? counts.decoder_shared : counts.decoder_own);
    constexpr size_t kSuffix = std::string_view(".lora.a").size();
    by_projection[Index(projection)] += adapter.PairOf(name.substr(0, name.size() - kSuffix)).rank;
  }
  return counts;
}

absl::StatusOr<PlanCounts> FormulaCount(const ModelConfig& config, const AdapterConfig& adapter, int64_t vocabulary,
                                        const LoraCounts& lora) {
  return CountPlan(ShapeOf(config, adapter, vocabulary, lora));
}

std::vector<std::string> PresetNames() { return {"seed", "nllb-600m", "mt5-small", "gpt3"}; }

absl::StatusOr<PlanShape> Preset(std::string_view name) {
  PlanShape shape;
  shape.name = std::string(name);
  if (name == "seed") {
    shape.about = "the attention matrices of 12 layers";
    shape.languages = 100;
    shape.encoder_layers = 12;
    shape.heads = 8;
    shape.d_model = 1024;
    shape.d_k = shape.d_v = 128;
    shape.output_projection = shape.linear_bias = shape.norms = shape.final_norm = false;
    return shape;
  }
  if (name == "nllb-600m") {
    shape.about = "NLLB-200-distilled-600M, whose positions are computed and not stored";
    shape.languages = 202;
    shape.encoder_layers = shape.decoder_layers = 12;
    shape.heads = 16;
    shape.d_model = 1024;
    shape.d_k = shape.d_v = 64;
    shape.d_ffn = 4096;
    shape.vocabulary = 256'206;
    shape.shared_embedding = true;
    return shape;
  }
  if (name == "mt5-small") {
    shape.about = "mT5-small, with tables of relative positions in each stack";
    shape.languages = 101;
    shape.encoder_layers = shape.decoder_layers = 8;
    shape.heads = 6;
    shape.d_model = 512;
    shape.d_k = shape.d_v = 64;
    shape.d_ffn = 1024;
    shape.gated_ffn = true;
    shape.linear_bias = false;
    shape.norm_type = kernels::NormType::kRmsNorm;
    shape.relative_position_buckets = 32;
    shape.vocabulary = 250'112;
    shape.shared_embedding = true;
    shape.tied_output = false;
    return shape;
  }
  if (name == "gpt3") {
    shape.about = "GPT-3 175B, V factored into value and output projection";
    shape.languages = 1;
    shape.decoder_layers = 96;
    shape.cross_attention = false;
    shape.heads = 96;
    shape.d_model = 12'288;
    shape.d_k = shape.d_v = 128;
    shape.d_ffn = 49'152;
    shape.position_rows = 2'048;
    shape.vocabulary = 50'257;
    shape.shared_embedding = true;
    return shape;
  }
  return absl::NotFoundError(
      absl::StrCat("no preset '", std::string(name), "'; there are ", absl::StrJoin(PresetNames(), ", ")));
}

namespace {

absl::StatusOr<PlanRow> RowOf(std::string plan, const PlanShape& shape) {
  absl::StatusOr<PlanCounts> counts = CountPlan(shape);
  if (!counts.ok()) return counts.status();
  PlanRow row;
  row.plan = std::move(plan);
  absl::StatusOr<int64_t> qkv = PlanAttention(shape, AttentionCount::kQkv);
  absl::StatusOr<int64_t> qkvo = PlanAttention(shape, AttentionCount::kQkvo);
  absl::StatusOr<int64_t> independent = IndependentAttention(shape, AttentionCount::kQkv);
  for (const auto* count : {&qkv, &qkvo, &independent}) {
    if (!count->ok()) return count->status();
  }
  row.attention_qkv = *qkv;
  row.attention_qkvo = *qkvo;
  row.attention_saving = SavingRatio(*qkv, *independent);
  row.shared_parameters = counts->shared_total;
  row.language_parameters = counts->language_total;
  row.total_parameters = counts->total;
  row.saving = SavingRatio(counts->total, counts->independent);
  return row;
}

absl::Status AddBytes(const PlanShape& shape, std::optional<int64_t> budget, PlanRow& row) {
  const Count size = static_cast<int64_t>(kernels::SizeOf(shape.dtype));
  const auto bytes = [&](int64_t parameters, int64_t* out) -> absl::Status {
    absl::StatusOr<int64_t> product = (size * parameters).Get("the plan's size in bytes");
    if (!product.ok()) return product.status();
    *out = *product;
    return absl::OkStatus();
  };
  absl::Status status = bytes(row.shared_parameters, &row.shared_bytes);
  if (status.ok()) status = bytes(row.language_parameters, &row.language_bytes);
  if (status.ok()) status = bytes(row.total_parameters, &row.total_bytes);
  if (!status.ok()) return status;
  if (budget.has_value()) {
    row.languages_that_fit = LanguagesThatFit(*budget, row.shared_bytes, row.language_bytes);
    row.any_number_fits = !row.languages_that_fit.has_value();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlanReport> ComparePlans(const PlanShape& shape, std::optional<int64_t> budget) {
  if (budget.has_value() && *budget < 0) {
    return absl::InvalidArgumentError(absl::StrCat("the memory budget is ", *budget, " bytes"));
  }
  PlanReport report;
  report.shape = shape;
  report.budget = budget;
  absl::StatusOr<PlanCounts> counts = CountPlan(shape);
  if (!counts.ok()) return counts.status();
  report.counts = *counts;

  absl::Status failure = absl::OkStatus();
  const auto add = [&](std::string name, const PlanShape& plan) {
    absl::StatusOr<PlanRow> row = RowOf(std::move(name), plan);
    if (!row.ok()) {
      failure.Update(row.status());
      return;
    }
    failure.Update(AddBytes(plan, budget, *row));
    report.rows.push_back(*std::move(row));
  };
  const PlanShape shared = FullyShared(shape);
  const bool plain = shape.language_heads == 0 && shape.own_encoder_layers == 0 && shape.own_decoder_layers == 0 &&
                     shape.adapter.kind == AdapterKind::kNone;
  if (!plain) add("as given", shape);
  add("shared", shared);
  if (!failure.ok()) return failure;
  // Independent models are the shared plan's bytes, all of them once a language.
  {
    PlanRow row;
    row.plan = "independent";
    absl::StatusOr<int64_t> qkv = IndependentAttention(shape, AttentionCount::kQkv);
    absl::StatusOr<int64_t> qkvo = IndependentAttention(shape, AttentionCount::kQkvo);
    for (const auto* count : {&qkv, &qkvo}) {
      if (!count->ok()) return count->status();
    }
    row.attention_qkv = *qkv;
    row.attention_qkvo = *qkvo;
    row.total_parameters = counts->independent;
    row.language_parameters = counts->independent / shape.languages;
    failure.Update(AddBytes(shape, budget, row));
    report.rows.insert(report.rows.end() - 1, std::move(row));
  }

  PlanShape heads = shared;
  heads.language_heads = shape.language_heads > 0 ? shape.language_heads : std::max<int64_t>(1, shape.heads / 4);
  add(absl::StrCat("hybrid heads (", heads.heads - heads.language_heads, " shared + ", heads.language_heads, " own)"),
      heads);

  PlanShape layers = shared;
  layers.own_encoder_layers = shape.own_encoder_layers;
  layers.own_decoder_layers = shape.own_decoder_layers;
  if (shape.own_encoder_layers == 0 && shape.own_decoder_layers == 0) {
    // A third of each stack, rounded up.
    layers.own_encoder_layers = (shape.encoder_layers + 2) / 3;
    layers.own_decoder_layers = (shape.decoder_layers + 2) / 3;
  }
  const int64_t own = layers.own_encoder_layers + layers.own_decoder_layers;
  add(absl::StrCat("hybrid layers (", shape.encoder_layers + shape.decoder_layers - own, " shared + ", own, " own)"),
      layers);

  constexpr int kDefaultRank = 32;
  const int rank = shape.adapter.rank > 0 ? shape.adapter.rank : kDefaultRank;
  PlanShape scale = shared;
  scale.adapter.kind = AdapterKind::kScale;
  scale.adapter.scale_self_attention = scale.adapter.scale_cross_attention = true;
  scale.adapter.scale_feed_forward = shape.d_ffn > 0;
  add("shared + scale adapters", scale);
  PlanShape bottleneck = shared;
  bottleneck.adapter.kind = AdapterKind::kBottleneck;
  bottleneck.adapter.rank = rank;
  add(absl::StrCat("shared + bottleneck adapters (rank ", rank, ")"), bottleneck);
  PlanShape lora = shared;
  lora.adapter.kind = AdapterKind::kLora;
  lora.adapter.rank = rank;
  if (shape.adapter.kind == AdapterKind::kLora && shape.own_encoder_layers == 0 && shape.own_decoder_layers == 0) {
    lora.lora = shape.lora;
  } else {
    PlaceLora({Projection::kSelfQ, Projection::kSelfV, Projection::kCrossQ, Projection::kCrossV}, lora);
  }
  add(absl::StrCat("shared + LoRA adapters (rank ", rank, ")"), lora);
  if (!failure.ok()) return failure;
  return report;
}

}  // namespace koine::model_loader
