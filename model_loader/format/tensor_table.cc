#include "model_loader/format/tensor_table.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "model_loader/format/json_fields.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

using kernels::DType;
using kernels::LayerOwner;
using kernels::NormType;
using kernels::TransformerConfig;

constexpr char kQ[] = "q", kK[] = "k", kV[] = "v", kO[] = "o";

// Appends specs of one owner; `forced` replaces the component of everything (own layers, adapters).
class Table {
 public:
  Table(const TransformerConfig& config, Owner owner) : config_(config), owner_(owner) {}

  void Force(std::optional<Component> component) { forced_ = component; }

  void Add(std::string name, std::vector<int64_t> shape, Component component, bool required = true) {
    TensorSpec spec;
    spec.name = std::move(name);
    spec.shape = std::move(shape);
    spec.owner = owner_;
    spec.component = forced_.value_or(component);
    spec.required = required;
    spec.integer = component == Component::kVocabularyIds;
    specs_.push_back(std::move(spec));
  }

  void Norm(const std::string& name, Component component = Component::kNorm) {
    Add(name + ".weight", {config_.d_model}, component);
    if (config_.norm_type == NormType::kLayerNorm) Add(name + ".bias", {config_.d_model}, component);
  }

  void Linear(const std::string& name, int64_t out, int64_t in, Component component, bool bias) {
    Add(name + ".weight", {out, in}, component);
    if (bias) Add(name + ".bias", {out}, component);
  }

  // q, k, v and o of `heads` heads. Where the language has all heads of a shared layer (heads == 0), the shared part is
  // the output bias alone. `output_bias` is false for own heads: the output projection has one bias, the shared one.
  void Attention(const std::string& name, int64_t heads, bool output_bias) {
    const int64_t width = heads * config_.d_head;
    if (heads > 0) {
      Linear(absl::StrCat(name, ".", kQ), width, config_.d_model, Component::kAttentionQ, config_.linear_bias);
      Linear(absl::StrCat(name, ".", kK), width, config_.d_model, Component::kAttentionK, config_.linear_bias);
      Linear(absl::StrCat(name, ".", kV), width, config_.d_model, Component::kAttentionV, config_.linear_bias);
      Add(absl::StrCat(name, ".", kO, ".weight"), {config_.d_model, width}, Component::kAttentionO);
    }
    if (output_bias && config_.linear_bias) {
      Add(absl::StrCat(name, ".", kO, ".bias"), {config_.d_model}, Component::kAttentionO);
    }
  }

  void FeedForward(const std::string& name) {
    const bool bias = config_.linear_bias;
    Linear(name + ".up", config_.d_ffn, config_.d_model, Component::kFeedForward, bias);
    if (config_.gated_ffn) Linear(name + ".gate", config_.d_ffn, config_.d_model, Component::kFeedForward, bias);
    Linear(name + ".down", config_.d_model, config_.d_ffn, Component::kFeedForward, bias);
  }

  void LowRankPair(const AdapterConfig& adapter, const std::string& projection, int64_t out, int64_t in) {
    if (out == 0 || in == 0) return;
    const int64_t rank = adapter.PairOf(projection).rank;
    Add(projection + ".lora.a", {rank, in}, Component::kAdapter, false);
    Add(projection + ".lora.b", {out, rank}, Component::kAdapter, false);
  }

  std::vector<TensorSpec> Take() { return std::move(specs_); }

 private:
  const TransformerConfig& config_;
  const Owner owner_;
  std::optional<Component> forced_;
  std::vector<TensorSpec> specs_;
};

struct Side {
  const char* name;
  const std::vector<LayerOwner>& layers;
  bool cross;  // its layers have cross-attention
};

std::vector<Side> Sides(const ModelConfig& config) {
  std::vector<Side> sides = {{"encoder", config.architecture.encoder_layers, false}};
  if (config.kind == ModelKind::kEncoderDecoder) sides.push_back({"decoder", config.architecture.decoder_layers, true});
  return sides;
}

std::string LayerName(const Side& side, size_t layer) { return absl::StrCat(side.name, ".layers.", layer); }

std::vector<std::string> AttentionNames(const Side& side) {
  if (side.cross) return {"self_attn", "cross_attn"};
  return {"self_attn"};
}

// The table of embeddings and the output projection: the language's, or everybody's with a shared embedding.
void AddVocabulary(const ModelConfig& config, Table& table) {
  const int64_t d_model = config.architecture.d_model;
  table.Add("embedding.weight", {kVocabularyRows, d_model}, Component::kEmbedding);
  if (config.kind == ModelKind::kEncoderDecoder) {
    if (!config.architecture.tied_output) table.Add("output.weight", {kVocabularyRows, d_model}, Component::kOutput);
    if (config.architecture.output_bias) table.Add("output.bias", {kVocabularyRows}, Component::kOutput);
  }
  table.Add("vocab.ids", {kVocabularyRows}, Component::kVocabularyIds, false);
}

void AddLayerRest(const Side& side, const std::string& layer, Table& table) {
  for (const std::string& attention : AttentionNames(side)) table.Norm(absl::StrCat(layer, ".", attention, "_norm"));
  table.FeedForward(layer + ".ffn");
  table.Norm(layer + ".ffn_norm");
}

void AddAdapter(const ModelConfig& config, const AdapterConfig& adapter, Table& table) {
  const TransformerConfig& architecture = config.architecture;
  const int64_t d_model = architecture.d_model;
  const int64_t rank = adapter.rank;
  table.Force(Component::kAdapter);
  for (const Side& side : Sides(config)) {
    for (size_t i = 0; i < side.layers.size(); ++i) {
      const std::string layer = LayerName(side, i);
      switch (adapter.kind) {
        case AdapterKind::kNone:
          break;
        case AdapterKind::kScale:
          if (adapter.scale_self_attention) table.Add(layer + ".self_attn.scale", {d_model}, Component::kAdapter);
          if (adapter.scale_cross_attention && side.cross) {
            table.Add(layer + ".cross_attn.scale", {d_model}, Component::kAdapter);
          }
          if (adapter.scale_feed_forward) table.Add(layer + ".ffn.scale", {d_model}, Component::kAdapter);
          break;
        case AdapterKind::kBottleneck:
          table.Norm(layer + ".adapter.norm", Component::kAdapter);
          table.Linear(layer + ".adapter.down", rank, d_model, Component::kAdapter, true);
          table.Linear(layer + ".adapter.up", d_model, rank, Component::kAdapter, true);
          break;
        case AdapterKind::kLora: {
          // On a layer whose attention is the language's the update covers all heads, elsewhere the shared ones.
          const int64_t heads =
              side.layers[i] == LayerOwner::kShared ? architecture.shared_heads() : architecture.heads;
          const int64_t width = heads * architecture.d_head;
          for (const std::string& attention : AttentionNames(side)) {
            for (const char* projection : {kQ, kK, kV}) {
              table.LowRankPair(adapter, absl::StrCat(layer, ".", attention, ".", projection), width, d_model);
            }
            table.LowRankPair(adapter, absl::StrCat(layer, ".", attention, ".", kO), d_model, width);
          }
          table.LowRankPair(adapter, layer + ".ffn.up", architecture.d_ffn, d_model);
          if (architecture.gated_ffn) table.LowRankPair(adapter, layer + ".ffn.gate", architecture.d_ffn, d_model);
          table.LowRankPair(adapter, layer + ".ffn.down", d_model, architecture.d_ffn);
          break;
        }
      }
    }
  }
  table.Force(std::nullopt);
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::vector<std::string> parts;
  for (const int64_t dimension : shape) {
    parts.push_back(dimension == kVocabularyRows ? "V" : absl::StrCat(dimension));
  }
  return absl::StrCat("[", absl::StrJoin(parts, ", "), "]");
}

bool ShapeMatches(const std::vector<int64_t>& expected, const std::vector<int64_t>& real) {
  if (expected.size() != real.size()) return false;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == kVocabularyRows ? real[i] < 1 || real[i] > INT32_MAX : real[i] != expected[i]) return false;
  }
  return true;
}

}  // namespace

void AppendGroup(absl::string_view title, const std::vector<std::string>& items, std::vector<std::string>& groups) {
  constexpr size_t kMaxListed = 100;
  if (items.empty()) return;
  const size_t listed = std::min(items.size(), kMaxListed);
  std::string text =
      absl::StrCat(title, " (", items.size(), "): ", absl::StrJoin(items.begin(), items.begin() + listed, ", "));
  if (listed < items.size()) absl::StrAppend(&text, ", and ", items.size() - listed, " more");
  groups.push_back(std::move(text));
}

std::string_view Name(Component component) {
  switch (component) {
    case Component::kAttentionQ:
      return "attention_q";
    case Component::kAttentionK:
      return "attention_k";
    case Component::kAttentionV:
      return "attention_v";
    case Component::kAttentionO:
      return "attention_o";
    case Component::kFeedForward:
      return "feed_forward";
    case Component::kNorm:
      return "norm";
    case Component::kEmbedding:
      return "embedding";
    case Component::kOutput:
      return "output";
    case Component::kAdapter:
      return "adapter";
    case Component::kOwnHeads:
      return "own_heads";
    case Component::kOwnLayers:
      return "own_layers";
    case Component::kPositions:
      return "positions";
    case Component::kPooling:
      return "pooling";
    case Component::kVocabularyIds:
      return "vocabulary_ids";
  }
  return "?";
}

std::vector<TensorSpec> SharedTensors(const ModelConfig& config) {
  const TransformerConfig& architecture = config.architecture;
  Table table(architecture, Owner::kShared);
  if (config.shared_embedding) AddVocabulary(config, table);
  for (const Side& side : Sides(config)) {
    const std::string stack = side.name;
    if (config.positions.type == PositionType::kLearned) {
      table.Add(stack + ".positions.weight", {config.positions.max_positions, architecture.d_model},
                Component::kPositions);
    } else if (config.positions.type == PositionType::kRelativeBuckets) {
      table.Add(stack + ".relative_bias.weight", {config.positions.buckets, architecture.heads}, Component::kPositions);
    }
    if (architecture.embedding_norm) table.Norm(stack + ".embedding_norm");
    for (size_t i = 0; i < side.layers.size(); ++i) {
      const std::string layer = LayerName(side, i);
      if (side.layers[i] == LayerOwner::kLanguageLayer) continue;
      if (side.layers[i] == LayerOwner::kShared) {
        for (const std::string& attention : AttentionNames(side)) {
          table.Attention(absl::StrCat(layer, ".", attention), architecture.shared_heads(), true);
        }
      }
      AddLayerRest(side, layer, table);
    }
    if (architecture.final_norm) table.Norm(stack + ".final_norm");
  }
  if (const std::optional<PoolingDense>& dense = config.pooling.dense; dense.has_value()) {
    table.Linear("pooling.dense", dense->size, architecture.d_model, Component::kPooling, dense->bias);
  }
  return table.Take();
}

std::vector<TensorSpec> LanguageTensors(const ModelConfig& config, const AdapterConfig& adapter) {
  const TransformerConfig& architecture = config.architecture;
  Table table(architecture, Owner::kLanguage);
  if (!config.shared_embedding) AddVocabulary(config, table);
  for (const Side& side : Sides(config)) {
    for (size_t i = 0; i < side.layers.size(); ++i) {
      const std::string layer = LayerName(side, i);
      if (side.layers[i] == LayerOwner::kShared) {
        table.Force(Component::kOwnHeads);
        for (const std::string& attention : AttentionNames(side)) {
          table.Attention(absl::StrCat(layer, ".", attention, ".own"), architecture.language_heads, false);
        }
      } else {
        table.Force(Component::kOwnLayers);
        for (const std::string& attention : AttentionNames(side)) {
          table.Attention(absl::StrCat(layer, ".", attention), architecture.heads, true);
        }
        if (side.layers[i] == LayerOwner::kLanguageLayer) AddLayerRest(side, layer, table);
      }
      table.Force(std::nullopt);
    }
  }
  AddAdapter(config, adapter, table);
  return table.Take();
}

std::vector<TensorSpec> AdapterTensors(const ModelConfig& config, const AdapterConfig& adapter) {
  Table table(config.architecture, Owner::kLanguage);
  AddAdapter(config, adapter, table);
  return table.Take();
}

absl::Status CheckTensors(const SafetensorsFile& file, const std::vector<TensorSpec>& specs, int64_t* vocabulary) {
  if (vocabulary != nullptr) *vocabulary = 0;
  std::map<std::string, const TensorSpec*, std::less<>> by_name;
  for (const TensorSpec& spec : specs) by_name.emplace(spec.name, &spec);

  std::vector<std::string> missing, unknown, misshaped, mistyped, halves, rows;
  std::map<int64_t, std::vector<std::string>> names_of_rows;
  std::set<std::string, std::less<>> scales;  // that I8 matrices need
  for (const TensorSpec& spec : specs) {
    const TensorView* tensor = file.Find(spec.name);
    if (tensor == nullptr) {
      if (spec.required) missing.push_back(absl::StrCat(spec.name, " ", ShapeText(spec.shape)));
      // A pair's other half: both or neither.
      for (const auto& [suffix, other] : {std::pair(".lora.a", ".lora.b"), std::pair(".lora.b", ".lora.a")}) {
        if (!spec.required && absl::EndsWith(spec.name, suffix)) {
          const std::string partner = absl::StrCat(absl::StripSuffix(spec.name, suffix), other);
          if (file.Find(partner) != nullptr) halves.push_back(absl::StrCat(spec.name, " of ", partner));
        }
      }
      continue;
    }
    if (!ShapeMatches(spec.shape, tensor->shape)) {
      misshaped.push_back(
          absl::StrCat(spec.name, " is ", ShapeToString(tensor->shape), ", not ", ShapeText(spec.shape)));
    } else {
      for (size_t i = 0; i < spec.shape.size(); ++i) {
        if (spec.shape[i] == kVocabularyRows) names_of_rows[tensor->shape[i]].push_back(spec.name);
      }
    }
    const DType dtype = tensor->dtype;
    if (!spec.integer && dtype == DType::kI8) {
      if (tensor->shape.size() != 2) {
        mistyped.push_back(absl::StrCat(spec.name, " is I8, which only matrices may be"));
        continue;
      }
      const std::string scale = ScaleName(spec.name);
      scales.insert(scale);
      const std::vector<int64_t> shape = {tensor->shape[0]};
      const TensorView* values = file.Find(scale);
      if (values == nullptr) {
        missing.push_back(absl::StrCat(scale, " ", ShapeToString(shape), " (the row scales of an I8 matrix)"));
      } else if (values->shape != shape) {
        misshaped.push_back(absl::StrCat(scale, " is ", ShapeToString(values->shape), ", not ", ShapeToString(shape)));
      } else if (values->dtype != DType::kF32) {
        mistyped.push_back(absl::StrCat(scale, " is ", Absl(kernels::Name(values->dtype)), ", not F32"));
      }
    } else if (spec.integer ? dtype != DType::kI32
                            : dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) {
      mistyped.push_back(absl::StrCat(spec.name, " is ", Absl(kernels::Name(dtype)), ", not ",
                                      spec.integer ? "I32" : "F32, F16 or BF16"));
    }
  }
  if (names_of_rows.size() > 1) {
    for (const auto& [count, names] : names_of_rows) {
      rows.push_back(absl::StrCat(absl::StrJoin(names, " and "), names.size() == 1 ? " has " : " have ", count));
    }
  }
  std::vector<std::string> known;
  for (const TensorSpec& spec : specs) known.push_back(spec.name);
  constexpr size_t kMaxHints = 10;  // each is compared with every name of the list
  for (const auto& [name, tensor] : file.tensors()) {
    if (by_name.find(name) != by_name.end() || scales.count(name) != 0) continue;
    std::string text = absl::StrCat(Printable(name), " ", ShapeToString(tensor.shape));
    const absl::string_view base = absl::StripSuffix(name, ".scale");
    if (base.size() < name.size() && by_name.find(std::string(base)) != by_name.end()) {
      absl::StrAppend(&text, " (row scales, but the tensor is not I8)");
    } else if (unknown.size() < kMaxHints) {
      const std::string meant = NearMiss(name, known);
      if (!meant.empty() && file.Find(meant) == nullptr) absl::StrAppend(&text, " (did you mean ", meant, "?)");
    }
    unknown.push_back(std::move(text));
  }

  std::vector<std::string> groups;
  AppendGroup("missing tensors", missing, groups);
  AppendGroup("unknown tensors", unknown, groups);
  AppendGroup("wrong shapes", misshaped, groups);
  AppendGroup("wrong types", mistyped, groups);
  AppendGroup("LoRA halves missing", halves, groups);
  AppendGroup("different vocabulary sizes", rows, groups);
  if (!groups.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file.name(), ": ", absl::StrJoin(groups, "; ")));
  }
  if (vocabulary != nullptr && !names_of_rows.empty()) *vocabulary = names_of_rows.begin()->first;
  return absl::OkStatus();
}

std::string ScaleName(std::string_view tensor) { return absl::StrCat(Absl(tensor), ".scale"); }

std::vector<TensorSpec> PresentTensors(const SafetensorsFile& file, const std::vector<TensorSpec>& specs) {
  std::vector<TensorSpec> present;
  for (const TensorSpec& spec : specs) {
    const TensorView* tensor = file.Find(spec.name);
    if (tensor == nullptr) continue;  // optional
    present.push_back(spec);
    if (tensor->dtype != DType::kI8) continue;
    TensorSpec scales = spec;
    scales.name = ScaleName(spec.name);
    scales.shape = {spec.shape.front()};
    scales.scales = true;
    present.push_back(std::move(scales));
  }
  return present;
}

absl::Status ReadValues(const SafetensorsFile& file, std::string_view name, int64_t first, int64_t count, float* out) {
  const TensorView& tensor = *file.Find(name);
  const uint8_t* data = tensor.data.data() + static_cast<size_t>(first) * kernels::SizeOf(tensor.dtype);
  if (tensor.dtype != DType::kI8) {
    kernels::ConvertToF32(data, tensor.dtype, count, out);
    return absl::OkStatus();
  }
  const uint8_t* scales = file.Find(ScaleName(name))->data.data();
  const int64_t width = tensor.shape[1];
  for (int64_t done = 0; done < count;) {
    const int64_t row = (first + done) / width;
    const int64_t run = std::min(count - done, (row + 1) * width - (first + done));
    float scale;
    std::memcpy(&scale, scales + static_cast<size_t>(row) * sizeof(scale), sizeof(scale));
    if (!(scale >= 0) || std::isinf(scale)) {
      return absl::InvalidArgumentError(absl::StrCat(file.name(), ": tensor ", ScaleName(name), " holds ", scale,
                                                     " for row ", row, "; a scale is finite and not negative"));
    }
    for (int64_t i = 0; i < run; ++i) out[done + i] = scale * static_cast<float>(static_cast<int8_t>(data[done + i]));
    done += run;
  }
  return absl::OkStatus();
}

}  // namespace koine::model_loader
