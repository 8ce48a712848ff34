#include "model_loader/accounting/params.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace koine::model_loader {
namespace {

constexpr std::array<const char*, kProjections> kProjectionNames = {
    "self_attn.q",  "self_attn.k",  "self_attn.v", "self_attn.o", "cross_attn.q", "cross_attn.k",
    "cross_attn.v", "cross_attn.o", "ffn.up",      "ffn.gate",    "ffn.down"};
constexpr std::array<const char*, 3> kSiteNames = {"self_attn", "cross_attn", "ffn"};

// Index of `name` in `names`, or INVALID_ARGUMENT listing them.
template <size_t kSize>
absl::StatusOr<size_t> Find(std::string_view what, const std::string& name,
                            const std::array<const char*, kSize>& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  return absl::InvalidArgumentError(
      absl::StrCat("no ", std::string(what), " '", name, "'; there are ", absl::StrJoin(names, ", ")));
}

template <typename Value>
void Take(const std::optional<Value>& option, Value& value) {
  if (option.has_value()) value = *option;
}

absl::Status SetHeads(const ParamsOptions& options, PlanShape& shape) {
  Take(options.heads, shape.heads);
  for (const std::optional<int64_t>* part : {&options.heads, &options.shared_heads, &options.language_heads}) {
    if (part->has_value() && (**part < 0 || **part > std::numeric_limits<int32_t>::max())) {
      return absl::InvalidArgumentError(absl::StrCat("a number of heads is ", **part));
    }
  }
  if (options.shared_heads.has_value() && options.language_heads.has_value()) {
    const int64_t sum = *options.shared_heads + *options.language_heads;
    if (options.heads.has_value() && *options.heads != sum) {
      return absl::InvalidArgumentError(absl::StrCat(*options.shared_heads, " shared and ", *options.language_heads,
                                                     " own heads are not ", *options.heads, " heads"));
    }
    shape.heads = sum;
    shape.language_heads = *options.language_heads;
  } else if (options.shared_heads.has_value()) {
    if (*options.shared_heads > shape.heads) {
      return absl::InvalidArgumentError(absl::StrCat("shared heads are ", *options.shared_heads, " of ", shape.heads));
    }
    shape.language_heads = shape.heads - *options.shared_heads;
  } else {
    Take(options.language_heads, shape.language_heads);
  }
  return absl::OkStatus();
}

absl::Status SetAdapter(const ParamsOptions& options, PlanShape& shape) {
  constexpr std::array<const char*, 4> kKinds = {"none", "scale", "bottleneck", "lora"};
  const std::string name = options.adapter.value_or("none");
  const absl::StatusOr<size_t> kind = Find("adapter", name, kKinds);
  if (!kind.ok()) return kind.status();
  shape.adapter = {};
  shape.adapter.kind = static_cast<AdapterKind>(*kind);
  const bool ranked = shape.adapter.kind == AdapterKind::kBottleneck || shape.adapter.kind == AdapterKind::kLora;
  if (options.adapter_rank.has_value()) {
    if (!ranked) return absl::InvalidArgumentError(absl::StrCat("adapter '", name, "' has no rank"));
    if (*options.adapter_rank < 1 || *options.adapter_rank > std::numeric_limits<int>::max()) {
      return absl::InvalidArgumentError(absl::StrCat("the adapter's rank is ", *options.adapter_rank));
    }
    shape.adapter.rank = static_cast<int>(*options.adapter_rank);
  } else if (ranked) {
    shape.adapter.rank = 32;  // the demo model's
  }
  switch (shape.adapter.kind) {
    case AdapterKind::kScale: {
      std::vector<bool> chosen(kSiteNames.size(), options.adapter_sites.empty());
      for (const std::string& site : options.adapter_sites) {
        const absl::StatusOr<size_t> index = Find("adapter site", site, kSiteNames);
        if (!index.ok()) return index.status();
        chosen[*index] = true;
      }
      shape.adapter.scale_self_attention = chosen[0];
      shape.adapter.scale_cross_attention = chosen[1];
      // What does not exist cannot be scaled.
      shape.adapter.scale_feed_forward = chosen[2] && shape.d_ffn > 0;
      return absl::OkStatus();
    }
    case AdapterKind::kLora: {
      std::vector<Projection> projections;
      for (const std::string& site : options.adapter_sites) {
        const absl::StatusOr<size_t> index = Find("adapter site", site, kProjectionNames);
        if (!index.ok()) return index.status();
        projections.push_back(static_cast<Projection>(*index));
      }
      if (projections.empty()) {
        projections = {Projection::kSelfQ, Projection::kSelfV, Projection::kCrossQ, Projection::kCrossV};
      }
      PlaceLora(projections, shape);
      return absl::OkStatus();
    }
    case AdapterKind::kNone:
    case AdapterKind::kBottleneck:
      if (options.adapter_sites.empty()) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("adapter '", name, "' has no choice of sites"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlanShape> ShapeFromOptions(const ParamsOptions& options) {
  absl::StatusOr<PlanShape> preset = Preset(options.preset);
  if (!preset.ok()) return preset.status();
  PlanShape shape = *preset;

  Take(options.languages, shape.languages);
  if (options.layers.has_value()) {
    if (shape.encoder_layers > 0) shape.encoder_layers = *options.layers;
    if (shape.decoder_layers > 0) shape.decoder_layers = *options.layers;
  }
  Take(options.encoder_layers, shape.encoder_layers);
  Take(options.decoder_layers, shape.decoder_layers);
  if (options.own_layers.has_value()) {
    if (shape.encoder_layers > 0) shape.own_encoder_layers = *options.own_layers;
    if (shape.decoder_layers > 0) shape.own_decoder_layers = *options.own_layers;
  }
  Take(options.own_encoder_layers, shape.own_encoder_layers);
  Take(options.own_decoder_layers, shape.own_decoder_layers);
  if (options.own_layer_scope.has_value()) {
    constexpr std::array<const char*, 2> kScopes = {"attention", "layer"};
    const absl::StatusOr<size_t> scope = Find("scope of own layers", *options.own_layer_scope, kScopes);
    if (!scope.ok()) return scope.status();
    shape.scope = *scope == 1 ? LayerScope::kLayer : LayerScope::kAttention;
  }
  if (absl::Status status = SetHeads(options, shape); !status.ok()) return status;
  Take(options.d_model, shape.d_model);
  Take(options.d_k, shape.d_k);
  Take(options.d_v, shape.d_v);
  Take(options.d_ffn, shape.d_ffn);
  Take(options.output_projection, shape.output_projection);
  Take(options.cross_attention, shape.cross_attention);
  Take(options.linear_bias, shape.linear_bias);
  Take(options.gated_ffn, shape.gated_ffn);
  Take(options.vocabulary, shape.vocabulary);
  Take(options.shared_embedding, shape.shared_embedding);
  Take(options.tied_output, shape.tied_output);
  Take(options.output_bias, shape.output_bias);
  if (options.dtype.has_value()) {
    const std::optional<kernels::DType> dtype = kernels::DTypeFromName(absl::AsciiStrToUpper(*options.dtype));
    if (!dtype.has_value() || *dtype == kernels::DType::kI32) {
      return absl::InvalidArgumentError(
          absl::StrCat("no dtype '", *options.dtype, "' for parameters; there are F32, F16, BF16, I8"));
    }
    shape.dtype = *dtype;
  }
  // LoRA is placed by the layers there are, so they are checked before.
  if (absl::Status status = CheckShape(shape); !status.ok()) return status;
  if (absl::Status status = SetAdapter(options, shape); !status.ok()) return status;
  return shape;
}

absl::StatusOr<ParamsOutput> Params(const ParamsOptions& options) {
  absl::StatusOr<PlanShape> shape = ShapeFromOptions(options);
  if (!shape.ok()) return shape.status();
  absl::StatusOr<PlanReport> report = ComparePlans(*shape, options.budget);
  if (!report.ok()) return report.status();
  int64_t right_end = options.chart_languages;
  if (right_end == 0) {
    const int64_t n = shape->languages;
    right_end = n > std::numeric_limits<int64_t>::max() / 2 ? n : std::max<int64_t>(10, 2 * n);
  }
  absl::StatusOr<std::string> svg = RenderSvgChart(*report, right_end);
  if (!svg.ok()) return svg.status();
  ParamsOutput output;
  output.table = RenderTable(*report);
  output.json = ToJson(*report);
  output.svg = *std::move(svg);
  output.report = *std::move(report);
  return output;
}

}  // namespace koine::model_loader
