#include "model_loader/importer/hf_config.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model_loader/format/json_fields.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

using kernels::Activation;
using nlohmann::json;

// The format's own bounds (FORMAT.md): what passes here can be written.
constexpr int64_t kMaxModelWidth = 65'536, kMaxFfnWidth = 1'048'576, kMaxHeads = 1'024, kMaxLayers = 1'024,
                  kMaxPositions = 1'048'576, kMaxRows = int64_t{1} << 22;

struct FamilyName {
  const char* model_type;
  HfFamily family;
};
constexpr FamilyName kFamilies[] = {{"m2m_100", HfFamily::kM2M100},
                                    {"mbart", HfFamily::kMBart},
                                    {"marian", HfFamily::kMarian},
                                    {"t5", HfFamily::kT5},
                                    {"mt5", HfFamily::kMT5},
                                    {"bert", HfFamily::kBert},
                                    {"xlm-roberta", HfFamily::kRoberta},
                                    {"roberta", HfFamily::kRoberta}};

// transformers/activations.py, ACT2FN: those that are one of ours under another name.
const std::vector<std::pair<std::string, Activation>>& Activations() {
  static const auto& values = *new std::vector<std::pair<std::string, Activation>>{
      {"relu", Activation::kRelu},
      {"gelu", Activation::kGelu},
      {"gelu_python", Activation::kGelu},
      {"gelu_new", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh},  // the same polynomial, factored
      {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"silu", Activation::kSilu},
      {"swish", Activation::kSilu}};
  return values;
}

Activation ReadActivation(Fields& fields, const char* key, const std::string& otherwise) {
  const std::string name = fields.String(key, otherwise);
  std::vector<std::string> known;
  for (const auto& [theirs, ours] : Activations()) {
    if (theirs == name) return ours;
    known.push_back(theirs);
  }
  fields.Fault(key, absl::StrCat("\"", Printable(name), "\" is no activation that Koine has (",
                                 absl::StrJoin(known, ", "), ")"));
  return Activation::kRelu;
}

// ids are null, absent or numbers; -100 and the like mark "none" in some files.
std::optional<int64_t> ReadId(Fields& fields, const char* key, std::optional<int64_t> otherwise) {
  const json* value = fields.Any(key);
  if (value == nullptr) return otherwise;
  // Some generation files list several end marks.
  if (!value->is_number_integer()) {
    fields.Fault(key, "must be an integer");
    return otherwise;
  }
  const int64_t id = fields.Int(key, -kMaxRows, kMaxRows - 1);
  return id < 0 ? std::nullopt : std::optional<int64_t>(id);
}

struct BartDefaults {
  int64_t rows;
  const char* activation;
  std::optional<int64_t> bos, pad, eos, decoder_start;
};

void ReadBart(Fields& fields, HfConfig& config) {
  // M2M100Config, MBartConfig, MarianConfig.
  const BartDefaults defaults = config.family == HfFamily::kM2M100 ? BartDefaults{128'112, "relu", 0, 1, 2, 2}
                                : config.family == HfFamily::kMBart
                                    ? BartDefaults{50'265, "gelu", 0, 1, 2, std::nullopt}
                                    : BartDefaults{58'101, "gelu", std::nullopt, 58'100, 0, 58'100};
  config.rows = fields.Int("vocab_size", 1, kMaxRows, defaults.rows);
  config.d_model = fields.Int("d_model", 1, kMaxModelWidth, 1'024);
  config.encoder_layers = fields.Int("encoder_layers", 1, kMaxLayers, 12);
  config.decoder_layers = fields.Int("decoder_layers", 1, kMaxLayers, 12);
  config.heads = fields.Int("encoder_attention_heads", 1, kMaxHeads, 16);
  config.d_ffn = fields.Int("encoder_ffn_dim", 1, kMaxFfnWidth, 4'096);
  const int64_t decoder_heads = fields.Int("decoder_attention_heads", 1, kMaxHeads, 16);
  const int64_t decoder_ffn = fields.Int("decoder_ffn_dim", 1, kMaxFfnWidth, 4'096);
  if (decoder_heads != config.heads) {
    fields.Fault("decoder_attention_heads", absl::StrCat("is ", decoder_heads, ", but encoder_attention_heads is ",
                                                         config.heads, ": both stacks must have as many"));
  }
  if (decoder_ffn != config.d_ffn) {
    fields.Fault("decoder_ffn_dim", absl::StrCat("is ", decoder_ffn, ", but encoder_ffn_dim is ", config.d_ffn,
                                                 ": both stacks must be as wide"));
  }
  config.activation = ReadActivation(fields, "activation_function", defaults.activation);
  config.max_positions = fields.Int("max_position_embeddings", 1, kMaxPositions - 2, 1'024);
  // M2M100Config: True; the others: False.
  config.scale_embedding = fields.Bool("scale_embedding", config.family == HfFamily::kM2M100);
  config.norm_eps = 1e-5;  // nn.LayerNorm's own default; no key changes it
  config.pad = ReadId(fields, "pad_token_id", defaults.pad);
  config.bos = ReadId(fields, "bos_token_id", defaults.bos);
  config.eos = ReadId(fields, "eos_token_id", defaults.eos);
  config.decoder_start = ReadId(fields, "decoder_start_token_id", defaults.decoder_start);
  if (config.family == HfFamily::kMarian) {
    if (!fields.Bool("share_encoder_decoder_embeddings", true)) {
      fields.Fault("share_encoder_decoder_embeddings",
                   "is false: separate vocabularies for source and target are not supported");
    }
    const int64_t target = fields.Int("decoder_vocab_size", 1, kMaxRows, config.rows);
    if (target != config.rows) {
      fields.Fault("decoder_vocab_size", absl::StrCat("is ", target, ", but vocab_size is ", config.rows,
                                                      ": separate vocabularies are not supported"));
    }
  }
}

void ReadT5(Fields& fields, HfConfig& config) {
  const bool multilingual = config.family == HfFamily::kMT5;  // MT5Config against T5Config
  config.rows = fields.Int("vocab_size", 1, kMaxRows, multilingual ? 250'112 : 32'128);
  config.d_model = fields.Int("d_model", 1, kMaxModelWidth, 512);
  config.d_head = fields.Int("d_kv", 1, kMaxModelWidth, 64);
  config.d_ffn = fields.Int("d_ff", 1, kMaxFfnWidth, multilingual ? 1'024 : 2'048);
  config.encoder_layers = fields.Int("num_layers", 1, kMaxLayers, multilingual ? 8 : 6);
  config.decoder_layers = fields.Int("num_decoder_layers", 1, kMaxLayers, config.encoder_layers);
  config.heads = fields.Int("num_heads", 1, kMaxHeads, multilingual ? 6 : 8);
  config.buckets = fields.Int("relative_attention_num_buckets", 4, 4'096, 32);
  config.max_distance = fields.Int("relative_attention_max_distance", 2, kMaxPositions, 128);
  if (config.buckets % 2 != 0 || config.max_distance <= config.buckets / 2) {
    fields.Fault("relative_attention_num_buckets",
                 absl::StrCat("is ", config.buckets, " with relative_attention_max_distance ", config.max_distance,
                              ": an even number is supported, of which half is below that distance"));
  }
  config.norm_eps = fields.Number("layer_norm_epsilon", 1e-20, false, 1, 1e-6);

  // "gated-gelu" means gelu_new (T5Config.__init__); dense_act_fn and is_gated_act, which newer versions save too, win.
  const std::string projection = fields.String("feed_forward_proj", multilingual ? "gated-gelu" : "relu");
  const size_t dash = projection.find('-');
  std::string activation = dash == std::string::npos ? projection : projection.substr(dash + 1);
  if (dash != std::string::npos && projection.substr(0, dash) != "gated") {
    fields.Fault("feed_forward_proj", absl::StrCat("\"", Printable(projection), "\" is neither ACT nor gated-ACT"));
  }
  if (projection == "gated-gelu") activation = "gelu_new";
  config.gated_ffn = fields.Bool("is_gated_act", dash != std::string::npos);
  config.activation = ReadActivation(fields, "dense_act_fn", activation);

  config.tied = fields.Bool("tie_word_embeddings", !multilingual);
  // T5 v1.0 scales the decoder's rows by d_model^-0.5 where the head is the embedding table; mT5 never does, whatever
  // newer versions of the library write into tie_word_embeddings.
  config.scale_output = fields.Bool("scale_decoder_outputs", config.tied) && !multilingual;
  config.pad = ReadId(fields, "pad_token_id", 0);
  config.eos = ReadId(fields, "eos_token_id", 1);
  config.bos = ReadId(fields, "bos_token_id", std::nullopt);
  config.decoder_start = ReadId(fields, "decoder_start_token_id", config.pad);
  config.encoder_only = absl::EndsWith(config.architecture, "EncoderModel");
}

void ReadBert(Fields& fields, HfConfig& config) {
  const bool roberta = config.family == HfFamily::kRoberta;  // BertConfig against RobertaConfig, XLMRobertaConfig
  config.encoder_only = true;
  config.rows = fields.Int("vocab_size", 1, kMaxRows, config.model_type == "roberta" ? 50'265 : 30'522);
  config.d_model = fields.Int("hidden_size", 1, kMaxModelWidth, 768);
  config.encoder_layers = fields.Int("num_hidden_layers", 1, kMaxLayers, 12);
  config.heads = fields.Int("num_attention_heads", 1, kMaxHeads, 12);
  config.d_ffn = fields.Int("intermediate_size", 1, kMaxFfnWidth, 3'072);
  config.activation = ReadActivation(fields, "hidden_act", "gelu");
  config.max_positions = fields.Int("max_position_embeddings", 1, kMaxPositions, 512);
  config.types = fields.Int("type_vocab_size", 1, 1'024, 2);
  config.norm_eps = fields.Number("layer_norm_eps", 1e-20, false, 1, 1e-12);
  config.pad = ReadId(fields, "pad_token_id", roberta ? 1 : 0);
  config.bos = ReadId(fields, "bos_token_id", roberta ? std::optional<int64_t>(0) : std::nullopt);
  config.eos = ReadId(fields, "eos_token_id", roberta ? std::optional<int64_t>(2) : std::nullopt);
  if (const std::string type = fields.String("position_embedding_type", "absolute"); type != "absolute") {
    fields.Fault("position_embedding_type", absl::StrCat("\"", Printable(type), "\" is not supported, only absolute"));
  }
  if (fields.Bool("is_decoder", false)) fields.Fault("is_decoder", "is true: only encoders are supported");
  if (roberta && (!config.pad.has_value() || *config.pad + 1 >= config.max_positions)) {
    fields.Fault("pad_token_id", absl::StrCat("positions start after it, which leaves none of the ",
                                              config.max_positions, " max_position_embeddings"));
  }
}

}  // namespace

absl::StatusOr<HfConfig> ParseHfConfig(const json& value, const std::string& where) {
  Faults faults(where);
  Fields fields(&value, "", &faults);
  HfConfig config;
  config.model_type = fields.String("model_type");
  const FamilyName* family = nullptr;
  std::vector<std::string> known;
  for (const FamilyName& candidate : kFamilies) {
    if (config.model_type == candidate.model_type) family = &candidate;
    known.push_back(candidate.model_type);
  }
  if (family == nullptr) {
    if (fields.Has("model_type") && value["model_type"].is_string()) {
      const bool diffusers = fields.Has("_class_name");
      fields.Fault("model_type",
                   absl::StrCat("\"", Printable(config.model_type), "\" is none of those that can be imported (",
                                absl::StrJoin(known, ", "), ")", diffusers ? "; a diffusers model" : ""));
    }
    return faults.ToStatus();
  }
  config.family = family->family;
  if (const json* list = fields.Any("architectures");
      list != nullptr && list->is_array() && !list->empty() && list->front().is_string()) {
    config.architecture = list->front().get<std::string>();
  }
  switch (config.family) {
    case HfFamily::kM2M100:
    case HfFamily::kMBart:
    case HfFamily::kMarian:
      config.tied = fields.Bool("tie_word_embeddings", true);
      ReadBart(fields, config);
      break;
    case HfFamily::kT5:
    case HfFamily::kMT5:
      ReadT5(fields, config);
      break;
    case HfFamily::kBert:
    case HfFamily::kRoberta:
      ReadBert(fields, config);
      break;
  }
  if (fields.Any("quantization_config") != nullptr && !value["quantization_config"].is_null()) {
    fields.Fault("quantization_config", "quantised checkpoints are not supported; give the original");
  }
  for (const char* key : {"pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"}) {
    if (!fields.Has(key) || !value[key].is_number_integer()) continue;  // null, or one id of several
    const int64_t id = value[key].get<int64_t>();
    if (id < 0 || id >= config.rows) fields.Fault(key, absl::StrCat("is ", id, ", the vocabulary has ", config.rows));
  }
  if (config.d_head == 0) {
    if (config.d_model % config.heads != 0) {
      faults.Add("", absl::StrCat("the width ", config.d_model, " cannot be divided among ", config.heads, " heads"));
    }
    config.d_head = std::max<int64_t>(1, config.d_model / config.heads);
  }
  if (config.encoder_only) {
    config.decoder_layers = 0;
  } else if (!config.eos.has_value()) {
    fields.Fault("eos_token_id", "is missing: nothing would end a translation");
  }
  if (!faults.empty()) return faults.ToStatus();
  config.raw = value;
  return config;
}

}  // namespace koine::model_loader
