#include "model_loader/format/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "model_loader/format/json_fields.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

using kernels::Activation;
using kernels::EarlyStopping;
using kernels::LayerOwner;
using kernels::NormType;
using nlohmann::json;
using nlohmann::ordered_json;

// Bounds that every published model stays far below; a hostile file can neither overflow a product of two of them (at
// most 2^16 * 2^20) nor make us allocate much before the tensor files have to prove their size.
constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr int64_t kMaxModelWidth = 65'536;   // d_model, heads * d_head
constexpr int64_t kMaxFfnWidth = 1'048'576;  // 16 * 65,536
constexpr int64_t kMaxHeads = 1'024;
constexpr int64_t kMaxLayers = 1'024;
constexpr int64_t kMaxPositions = 1'048'576;
constexpr int64_t kMaxBuckets = 4'096;
// Sinusoidal tables, and those by relative position, are computed, so no file proves their size: 2^26 floats are 256
// MiB.
constexpr int64_t kMaxComputedPositions = int64_t{1} << 26;
constexpr int64_t kMaxRank = 65'536;
constexpr double kMaxScale = 1e6;
constexpr size_t kMaxPairs = 2 * kMaxLayers * 11;  // both stacks, the projections of a decoder layer

constexpr int kMaxBeams = 1'024;
constexpr double kMaxLengthPenalty = 10;
constexpr size_t kMaxPrompts = 64;

const std::vector<std::pair<std::string, Activation>>& Activations() {
  static const auto& values = *new std::vector<std::pair<std::string, Activation>>{{"relu", Activation::kRelu},
                                                                                   {"gelu", Activation::kGelu},
                                                                                   {"gelu_tanh", Activation::kGeluTanh},
                                                                                   {"silu", Activation::kSilu}};
  return values;
}

const std::vector<std::pair<std::string, DenseActivation>>& DenseActivations() {
  static const auto& values = *new std::vector<std::pair<std::string, DenseActivation>>{
      {"tanh", DenseActivation::kTanh}, {"identity", DenseActivation::kIdentity}};
  return values;
}

template <typename T>
std::string NameOf(const std::vector<std::pair<std::string, T>>& names, T value) {
  for (const auto& [name, named] : names) {
    if (named == value) return name;
  }
  return "";
}

std::string ActivationName(Activation activation) { return NameOf(Activations(), activation); }

const std::vector<std::pair<std::string, AdapterKind>>& AdapterKinds() {
  static const auto& values =
      *new std::vector<std::pair<std::string, AdapterKind>>{{"none", AdapterKind::kNone},
                                                            {"scale", AdapterKind::kScale},
                                                            {"bottleneck", AdapterKind::kBottleneck},
                                                            {"lora", AdapterKind::kLora}};
  return values;
}

std::string FoldCode(const std::string& code) { return absl::StrReplaceAll(absl::AsciiStrToLower(code), {{"_", "-"}}); }

// Ids fit 22 bits: 16 times the largest published vocabulary (256,206 rows), and a table of names stays below 150 MB.
constexpr int64_t kMaxTokenId = (int64_t{1} << 22) - 1;
constexpr size_t kMaxMarkers = 4096;
constexpr size_t kMaxPieceBytes = 1024;

const std::vector<std::pair<std::string, TokenizerKind>>& TokenizerKinds() {
  static const auto& values = *new std::vector<std::pair<std::string, TokenizerKind>>{
      {"sentencepiece", TokenizerKind::kSentencePiece},
      {"sentencepiece_vocab", TokenizerKind::kSentencePieceVocab},
      {"wordpiece", TokenizerKind::kWordPiece},
      {"byte_bpe", TokenizerKind::kByteBpe}};
  return values;
}

void ReadMarkers(Fields& fields, TokenizerConfig& tokenizer) {
  const json* value = fields.Any("markers");
  if (value == nullptr) return;
  if (!value->is_object() || value->size() > kMaxMarkers) {
    fields.Fault("markers", absl::StrCat("must be an object of at most ", kMaxMarkers, " ids by pieces"));
    return;
  }
  std::map<int64_t, std::string> seen;
  for (const auto& [piece, id] : value->items()) {
    if (piece.empty() || piece.size() > kMaxPieceBytes || piece.find('\0') != std::string::npos) {
      fields.Fault("markers", absl::StrCat("a piece must be 1 to ", kMaxPieceBytes, " bytes without NUL, not \"",
                                           Printable(piece), "\""));
      continue;
    }
    if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(kMaxTokenId)) {
      fields.Fault("markers",
                   absl::StrCat("the id of \"", Printable(piece), "\" must be an integer from 0 to ", kMaxTokenId));
      continue;
    }
    const auto number = static_cast<int32_t>(id.get<uint64_t>());
    const auto [other, fresh] = seen.emplace(number, piece);
    if (!fresh) {
      fields.Fault("markers", absl::StrCat("\"", Printable(piece), "\" and \"", Printable(other->second),
                                           "\" both have id ", number));
      continue;
    }
    tokenizer.markers.emplace(piece, number);
  }
}

std::optional<TokenizerConfig> ReadTokenizer(Fields fields) {
  if (!fields.present()) return std::nullopt;
  TokenizerConfig tokenizer;
  tokenizer.kind = fields.Enum("kind", TokenizerKinds());
  tokenizer.files = fields.Strings("files", true);
  for (const std::string& file : tokenizer.files) {
    if (!IsPlainFileName(file)) {
      fields.Fault("files",
                   absl::StrCat("\"", Printable(file),
                                "\" is no name of a file in this folder (letters, digits, '.', '_' and '-', at "
                                "most 128, no \"..\", not beginning with '.')"));
    }
  }
  const FileCount count = FileCountOf(tokenizer.kind);
  if (fields.Has("files") && (tokenizer.files.size() < count.least || tokenizer.files.size() > count.most)) {
    fields.Fault("files", absl::StrCat("must name ", count.what));
  }
  ReadMarkers(fields, tokenizer);
  switch (tokenizer.kind) {
    case TokenizerKind::kSentencePiece:
      tokenizer.id_offset = static_cast<int32_t>(fields.Int("id_offset", 0, kMaxTokenId, 0));
      if (fields.Has("unk_piece_to")) {
        tokenizer.unk_piece_to = static_cast<int32_t>(fields.Int("unk_piece_to", 0, kMaxTokenId));
      } else {
        fields.Any("unk_piece_to");
      }
      break;
    case TokenizerKind::kSentencePieceVocab:
      tokenizer.unk_piece = fields.String("unk_piece", "<unk>");
      break;
    case TokenizerKind::kWordPiece:
      tokenizer.unk_piece = fields.String("unk_piece", "[UNK]");
      tokenizer.lower_case = fields.Bool("lower_case");
      if (fields.Has("strip_accents")) {
        tokenizer.strip_accents = fields.Bool("strip_accents");
      } else {
        fields.Any("strip_accents");
      }
      tokenizer.split_cjk = fields.Bool("split_cjk", true);
      tokenizer.continuation_prefix = fields.String("continuation_prefix", "##");
      tokenizer.max_word_chars = static_cast<int32_t>(fields.Int("max_word_chars", 1, 256, 100));
      if (tokenizer.continuation_prefix.empty() || tokenizer.continuation_prefix.size() > 16) {
        fields.Fault("continuation_prefix", "must be 1 to 16 bytes");
      }
      break;
    case TokenizerKind::kByteBpe:
      tokenizer.unk_piece = fields.String("unk_piece", "<unk>");
      tokenizer.add_prefix_space = fields.Bool("add_prefix_space", false);
      tokenizer.split_words = fields.Bool("split_words", true);
      break;
  }
  if (tokenizer.kind != TokenizerKind::kSentencePiece && tokenizer.unk_piece.empty()) {
    fields.Fault("unk_piece", "must not be empty");
  }
  fields.Done();
  return tokenizer;
}

void ReadPairs(Fields& fields, AdapterConfig& adapter) {
  const json* value = fields.Any("pairs");
  if (value == nullptr) return;
  if (!value->is_object() || value->size() > kMaxPairs) {
    fields.Fault("pairs", absl::StrCat("must be an object of at most ", kMaxPairs, " projections"));
    return;
  }
  Fields pairs = fields.Object("pairs", false);
  for (const auto& [name, unused] : value->items()) {
    if (!IsProjectionName(name)) {
      fields.Fault("pairs", absl::StrCat("\"", Printable(name), "\" is no projection of a layer"));
      continue;
    }
    Fields pair = pairs.Object(name.c_str(), true);
    AdapterConfig::Pair& read = adapter.pairs[name];
    read.rank = static_cast<int>(pair.Int("rank", 1, kMaxRank, adapter.rank));
    read.alpha = pair.Number("alpha", 0, true, kMaxScale, adapter.alpha);
    pair.Done();
  }
}

AdapterConfig ReadAdapter(Fields fields) {
  AdapterConfig adapter;
  if (!fields.present()) return adapter;
  adapter.kind = fields.Enum<AdapterKind>("kind", AdapterKinds());
  switch (adapter.kind) {
    case AdapterKind::kNone:
      break;
    case AdapterKind::kScale: {
      for (const std::string& site : fields.Strings("sites", true)) {
        bool* flag = site == "self_attn"    ? &adapter.scale_self_attention
                     : site == "cross_attn" ? &adapter.scale_cross_attention
                     : site == "ffn"        ? &adapter.scale_feed_forward
                                            : nullptr;
        if (flag == nullptr) {
          fields.Fault("sites", absl::StrCat("\"", Printable(site), "\" is no site (self_attn, cross_attn, ffn)"));
        } else if (*flag) {
          fields.Fault("sites", absl::StrCat("holds \"", site, "\" twice"));
        } else {
          *flag = true;
        }
      }
      const json* sites = fields.Any("sites");
      if (sites != nullptr && sites->is_array() && sites->empty()) fields.Fault("sites", "must not be empty");
      break;
    }
    case AdapterKind::kBottleneck:
      adapter.rank = static_cast<int>(fields.Int("rank", 1, kMaxRank));
      adapter.activation = fields.Enum("activation", Activations(), std::optional(Activation::kRelu));
      break;
    case AdapterKind::kLora:
      adapter.rank = static_cast<int>(fields.Int("rank", 1, kMaxRank));
      adapter.alpha = fields.Number("alpha", 0, true, kMaxScale);
      adapter.rank_stabilised = fields.Bool("rank_stabilised", false);
      ReadPairs(fields, adapter);
      break;
  }
  fields.Done();
  return adapter;
}

Positions ReadPositions(Fields fields, int64_t d_model, int64_t heads) {
  Positions positions;
  positions.type = fields.Enum<PositionType>("type", {{"sinusoidal", PositionType::kSinusoidal},
                                                      {"learned", PositionType::kLearned},
                                                      {"relative_buckets", PositionType::kRelativeBuckets}});
  positions.max_positions = fields.Int("max_positions", 1, kMaxPositions);
  if (positions.type == PositionType::kRelativeBuckets) {
    positions.buckets = fields.Int("buckets", 4, kMaxBuckets, 32);
    positions.max_distance = fields.Int("max_distance", 2, kMaxPositions, 128);
    if (positions.buckets % 2 != 0) {
      fields.Fault("buckets", absl::StrCat("must be even, not ", positions.buckets));
    }
    // Half of the decoder's buckets hold one distance each; the others are for larger ones.
    if (positions.max_distance <= positions.buckets / 2) {
      fields.Fault("max_distance", absl::StrCat("must be more than half the buckets, ", positions.buckets / 2));
    }
    if (positions.max_positions > kMaxComputedPositions / (2 * heads)) {
      fields.Fault("max_positions",
                   absl::StrCat("2 * ", positions.max_positions, " distances of ", heads, " heads exceed the ",
                                kMaxComputedPositions, " values a computed table may have"));
    }
    fields.Done();
    return positions;
  }
  positions.first_position = fields.Int("first_position", 0, kMaxPositions - 1, 0);
  if (positions.first_position >= positions.max_positions && fields.present()) {
    fields.Fault("first_position", absl::StrCat("is ", positions.first_position, ", which leaves none of the ",
                                                positions.max_positions, " max_positions"));
  }
  if (positions.type == PositionType::kSinusoidal) {
    // The enums have one value or two so far; they are spelled out in the file because other families differ.
    fields.Enum<int>("layout", {{"sin_then_cos", 0}});
    positions.base = fields.Number("base", 0, true, 1e12, 10'000);
    positions.exponent_half_minus_one =
        fields.Enum<bool>("exponent", {{"i/(d_model/2-1)", true}, {"2i/d_model", false}});
    if (d_model % 2 != 0) fields.Fault("type", absl::StrCat("sinusoidal needs an even d_model, not ", d_model));
    if (positions.exponent_half_minus_one && d_model < 4) {
      fields.Fault("exponent", absl::StrCat("i/(d_model/2-1) needs d_model of at least 4, not ", d_model));
    }
    if (positions.max_positions > kMaxComputedPositions / d_model) {
      fields.Fault("max_positions", absl::StrCat(positions.max_positions, " rows of ", d_model, " exceed the ",
                                                 kMaxComputedPositions, " values a computed table may have"));
    }
  }
  fields.Done();
  return positions;
}

void ReadArchitecture(Fields fields, ModelConfig& config) {
  kernels::TransformerConfig& architecture = config.architecture;
  config.kind = fields.Enum<ModelKind>(
      "kind", {{"encoder-decoder", ModelKind::kEncoderDecoder}, {"encoder", ModelKind::kEncoder}});
  const bool decodes = config.kind == ModelKind::kEncoderDecoder;
  architecture.d_model = static_cast<int>(fields.Int("d_model", 1, kMaxModelWidth));
  architecture.heads = static_cast<int>(fields.Int("heads", 1, kMaxHeads));
  architecture.d_head = static_cast<int>(fields.Int("d_head", 1, kMaxModelWidth));
  if (int64_t{architecture.heads} * architecture.d_head > kMaxModelWidth) {
    fields.Fault("d_head", absl::StrCat("heads * d_head is ", int64_t{architecture.heads} * architecture.d_head,
                                        "; at most ", kMaxModelWidth, " is allowed"));
  }
  architecture.d_ffn = static_cast<int>(fields.Int("d_ffn", 1, kMaxFfnWidth));
  const int64_t encoder_layers = fields.Int("encoder_layers", 1, kMaxLayers);
  const int64_t decoder_layers =
      decodes ? fields.Int("decoder_layers", 1, kMaxLayers) : fields.Int("decoder_layers", 0, 0, 0);
  architecture.encoder_layers.assign(static_cast<size_t>(encoder_layers), LayerOwner::kShared);
  architecture.decoder_layers.assign(static_cast<size_t>(decoder_layers), LayerOwner::kShared);

  Fields norm = fields.Object("norm", true);
  architecture.norm_type =
      norm.Enum<NormType>("type", {{"layer_norm", NormType::kLayerNorm}, {"rms_norm", NormType::kRmsNorm}});
  architecture.norm_eps = static_cast<float>(norm.Number("eps", 1e-20, false, 1));
  architecture.pre_norm = norm.Enum<bool>("placement", {{"pre", true}, {"post", false}});
  norm.Done();

  architecture.final_norm = fields.Bool("final_norm");
  architecture.linear_bias = fields.Bool("linear_bias", true);
  architecture.activation = fields.Enum("activation", Activations());
  architecture.gated_ffn = fields.Bool("gated_ffn", false);
  // The lower bounds keep the f32 value a normal number.
  architecture.attention_scale = static_cast<float>(fields.Number("attention_scale", 1e-20, false, kMaxScale));
  architecture.embedding_scale = static_cast<float>(fields.Number("embedding_scale", 1e-20, false, kMaxScale, 1));
  architecture.embedding_norm = fields.Bool("embedding_norm", false);
  architecture.tied_output = fields.Bool("tied_output", true);
  architecture.output_bias = fields.Bool("output_bias", false);
  if (!decodes && !architecture.tied_output) fields.Fault("tied_output", "an encoder has no output projection");
  if (!decodes && architecture.output_bias) fields.Fault("output_bias", "an encoder has no output projection");

  architecture.output_scale = static_cast<float>(fields.Number("output_scale", 1e-20, false, kMaxScale, 1));
  if (!decodes && architecture.output_scale != 1) fields.Fault("output_scale", "an encoder has no output projection");

  config.positions = ReadPositions(fields.Object("positions", true), architecture.d_model, architecture.heads);
  architecture.max_positions = std::max<int64_t>(0, config.positions.max_positions - config.positions.first_position);
  fields.Done();
}

void ReadSharing(Fields fields, ModelConfig& config) {
  kernels::TransformerConfig& architecture = config.architecture;
  config.shared_embedding = fields.Enum<bool>("embedding", {{"language", false}, {"shared", true}}, false);
  architecture.language_heads = static_cast<int>(fields.Int("language_heads", 0, architecture.heads, 0));

  Fields layers = fields.Object("language_layers", false);
  config.layer_scope = layers.Enum<LayerScope>(
      "scope", {{"attention", LayerScope::kAttention}, {"layer", LayerScope::kLayer}}, LayerScope::kAttention);
  const LayerOwner owner =
      config.layer_scope == LayerScope::kLayer ? LayerOwner::kLanguageLayer : LayerOwner::kLanguageAttention;
  const auto read = [&](const char* side, std::vector<LayerOwner>& owners) {
    for (const int64_t layer : layers.Ints(side, 0, static_cast<int64_t>(owners.size()) - 1)) {
      owners[static_cast<size_t>(layer)] = owner;
    }
  };
  read("encoder", architecture.encoder_layers);
  read("decoder", architecture.decoder_layers);
  layers.Done();
  fields.Done();
}

// A prompt element must be a piece or one of the words in `words`.
void CheckElement(Fields& fields, const char* key, const std::string& element, const std::vector<std::string>& words) {
  // "$" followed by a letter can only be meant as a word of ours.
  if (element.size() < 2 || element[0] != '$' || !absl::ascii_isalpha(static_cast<unsigned char>(element[1]))) return;
  if (std::find(words.begin(), words.end(), element) != words.end()) return;
  fields.Fault(key,
               absl::StrCat("\"", Printable(element), "\" has no meaning here (",
                            words.empty() ? "a piece is expected" : absl::StrJoin(words, ", ") + " or a piece", ")"));
}

void ReadPrompt(Fields fields, ModelConfig& config) {
  Prompt& prompt = config.prompt;
  prompt.source = fields.Strings("source", true);
  for (const std::string& element : prompt.source) {
    CheckElement(fields, "source", element, {"$text", "$source", "$target"});
  }
  if (std::count(prompt.source.begin(), prompt.source.end(), "$text") != 1 && fields.Has("source")) {
    fields.Fault("source", "must hold \"$text\" exactly once");
  }
  if (config.kind == ModelKind::kEncoderDecoder) {
    prompt.decoder_start = fields.String("decoder_start");
    CheckElement(fields, "decoder_start", prompt.decoder_start, {"$target"});
    const json* start = fields.Any("decoder_start");
    if (start != nullptr && start->is_string() && prompt.decoder_start.empty()) {
      fields.Fault("decoder_start", "must be a piece");
    }
    prompt.decoder_forced = fields.Strings("decoder_forced", false);
    for (const std::string& element : prompt.decoder_forced) {
      CheckElement(fields, "decoder_forced", element, {"$source", "$target"});
    }
  } else {
    for (const char* key : {"decoder_start", "decoder_forced"}) {
      if (fields.Any(key) != nullptr) fields.Fault(key, "an encoder has no decoder");
    }
  }
  fields.Done();
}

void ReadSpecialTokens(Fields fields, ModelConfig& config) {
  const auto read = [&fields](const char* key, bool required) {
    if (!required && !fields.Has(key)) {
      fields.Any(key);
      return int32_t{-1};
    }
    return static_cast<int32_t>(fields.Int(key, 0, INT32_MAX));
  };
  config.special_tokens.pad = read("pad", false);
  config.special_tokens.bos = read("bos", false);
  // Decoding ends with eos; without it nothing would.
  config.special_tokens.eos = read("eos", config.kind == ModelKind::kEncoderDecoder);
  config.special_tokens.unk = read("unk", false);
  fields.Done();
}

void ReadPooling(Fields fields, ModelConfig& config) {
  if (!fields.present()) return;
  config.pooling.mode =
      fields.Enum<PoolingMode>("mode", {{"mean", PoolingMode::kMean}, {"cls", PoolingMode::kCls}}, PoolingMode::kMean);
  config.pooling.includes_eos = fields.Bool("includes_eos", true);
  config.pooling.normalize = fields.Bool("normalize", true);
  Fields dense = fields.Object("dense", false);
  if (dense.present()) {
    PoolingDense layer;
    layer.size = dense.Int("size", 1, kMaxModelWidth);
    layer.activation = dense.Enum("activation", DenseActivations());
    layer.bias = dense.Bool("bias", true);
    config.pooling.dense = layer;
  }
  dense.Done();
  fields.Done();
}

// Names are words of requests, where "none" means no prompt.
void ReadTextPrompts(Fields& fields, ModelConfig& config) {
  const json* value = fields.Any("prompts");
  if (value != nullptr && (!value->is_object() || value->size() > kMaxPrompts)) {
    fields.Fault("prompts", absl::StrCat("must be an object of at most ", kMaxPrompts, " texts by names"));
  } else if (value != nullptr) {
    Fields prompts = fields.Object("prompts", false);
    for (const auto& [name, text] : value->items()) {
      std::string read = prompts.String(name.c_str());
      if (!IsLanguageCode(name) || name == "none") {
        fields.Fault("prompts", absl::StrCat("\"", Printable(name), "\" is no name of a prompt (", kCodeRule,
                                             ", and not \"none\")"));
        continue;
      }
      if (text.is_string() && read.empty()) prompts.Fault(name, "must be a text");
      config.prompts.emplace(name, std::move(read));
    }
  }
  config.default_prompt = fields.String("default_prompt", "");
  if (!config.default_prompt.empty() && config.prompts.count(config.default_prompt) == 0) {
    fields.Fault("default_prompt",
                 absl::StrCat("\"", Printable(config.default_prompt), "\" is no name of \"prompts\""));
  }
}

void ReadGeneration(Fields fields, ModelConfig& config) {
  if (!fields.present()) return;
  Generation& generation = config.generation;
  if (config.kind == ModelKind::kEncoder) fields.Fault("", "an encoder generates nothing");
  const auto integer = [&fields](const char* key, int64_t minimum, int64_t maximum) -> std::optional<int64_t> {
    if (fields.Any(key) == nullptr) return std::nullopt;
    return fields.Int(key, minimum, maximum);
  };
  if (const auto beams = integer("beam_size", 1, kMaxBeams)) generation.beam_size = static_cast<int>(*beams);
  generation.max_tokens = integer("max_tokens", 1, kMaxPositions);
  generation.min_tokens = integer("min_tokens", 0, kMaxPositions);
  if (generation.max_tokens.has_value() && generation.min_tokens.value_or(0) > *generation.max_tokens) {
    fields.Fault("min_tokens",
                 absl::StrCat("is ", *generation.min_tokens, ", more than max_tokens ", *generation.max_tokens));
  }
  if (const json* penalty = fields.Any("length_penalty"); penalty != nullptr) {
    const double number = penalty->is_number() ? penalty->get<double>() : std::nan("");
    if (std::abs(number) <= kMaxLengthPenalty) {
      generation.length_penalty = number;
    } else {
      fields.Fault("length_penalty",
                   absl::StrCat("must be a number from -", kMaxLengthPenalty, " to ", kMaxLengthPenalty));
    }
  }
  if (const json* stopping = fields.Any("early_stopping"); stopping != nullptr) {
    if (stopping->is_boolean()) {
      generation.early_stopping = stopping->get<bool>() ? EarlyStopping::kYes : EarlyStopping::kNo;
    } else if (*stopping == "never") {
      generation.early_stopping = EarlyStopping::kNever;
    } else {
      fields.Fault("early_stopping", "must be true, false or \"never\"");
    }
  }
  generation.suppressed = fields.Strings("suppressed", false);
  generation.forced_end = fields.Bool("forced_end", false);
  fields.Done();
}

void ReadTasks(Fields& fields, ModelConfig& config) {
  const std::vector<std::string> tasks = fields.Strings("tasks", true);
  for (const std::string& task : tasks) {
    bool* flag = task == "translate" ? &config.translates : task == "encode" ? &config.encodes : nullptr;
    if (flag == nullptr) {
      fields.Fault("tasks", absl::StrCat("\"", Printable(task), "\" is no task (translate, encode)"));
    } else if (*flag) {
      fields.Fault("tasks", absl::StrCat("holds \"", task, "\" twice"));
    } else {
      *flag = true;
    }
  }
  const json* list = fields.Any("tasks");
  if (list != nullptr && list->is_array() && list->empty()) fields.Fault("tasks", "must not be empty");
  if (config.translates && config.kind == ModelKind::kEncoder) {
    fields.Fault("tasks", "an encoder cannot translate");
  }
}

void ReadLanguages(Fields& fields, ModelConfig& config) {
  std::vector<std::string> folded;
  for (const std::string& code : fields.Strings("languages", false)) {
    if (!IsLanguageCode(code)) {
      fields.Fault("languages", absl::StrCat("\"", Printable(code), "\" is no language code (", kCodeRule, ")"));
      continue;
    }
    std::string fold = FoldCode(code);
    if (std::find(folded.begin(), folded.end(), fold) != folded.end()) {
      fields.Fault("languages",
                   absl::StrCat("holds \"", code, "\" twice (case does not count, '-' and '_' are alike)"));
      continue;
    }
    folded.push_back(std::move(fold));
    config.languages.push_back(code);
  }
}

// "de-fr"; codes may hold '-' themselves, so the two halves must be languages of the model.
void ReadZeroShotPairs(Fields& fields, ModelConfig& config) {
  const auto known = [&config](const std::string& code) {
    return std::find(config.languages.begin(), config.languages.end(), code) != config.languages.end();
  };
  for (const std::string& text : fields.Strings("zero_shot_pairs", false)) {
    std::vector<LanguagePair> readings;
    for (size_t dash = text.find('-'); dash != std::string::npos; dash = text.find('-', dash + 1)) {
      LanguagePair pair{text.substr(0, dash), text.substr(dash + 1)};
      if (known(pair.source) && known(pair.target)) readings.push_back(std::move(pair));
    }
    if (readings.size() != 1) {
      fields.Fault("zero_shot_pairs",
                   absl::StrCat("\"", Printable(text), "\" is ",
                                readings.empty() ? "not SOURCE-TARGET with two codes of \"languages\""
                                                 : "ambiguous: it can be split in two ways"));
      continue;
    }
    const LanguagePair& pair = readings.front();
    const bool twice = std::any_of(
        config.zero_shot_pairs.begin(), config.zero_shot_pairs.end(),
        [&pair](const LanguagePair& other) { return other.source == pair.source && other.target == pair.target; });
    if (twice) {
      fields.Fault("zero_shot_pairs", absl::StrCat("holds \"", text, "\" twice"));
      continue;
    }
    config.zero_shot_pairs.push_back(pair);
  }
}

void ReadFormat(Fields& fields) {
  const std::string format = fields.String("format");
  if (fields.Has("format") && format != "koine") {
    fields.Fault("format", absl::StrCat("must be \"koine\", not \"", Printable(format), "\""));
  }
  const int64_t version = fields.Int("format_version", 1, INT32_MAX);
  if (version > kFormatVersion) {
    fields.Fault("format_version", absl::StrCat("is ", version, "; this build reads versions up to ", kFormatVersion));
  }
}

absl::StatusOr<json> ParseConfigJson(std::string_view text, const std::string& where) {
  if (text.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", text.size(), " bytes; at most ", kMaxConfigBytes, " are allowed"));
  }
  absl::StatusOr<json> value = ParseStrictJson(text);
  if (!value.ok()) return absl::InvalidArgumentError(absl::StrCat(where, ": ", value.status().message()));
  return value;
}

// The shortest decimal that is this float again, so that 1e-5F is written 1e-05 and not 9.99999974737875e-06.
double Decimal(float value) {
  char buffer[32];
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  double result = value;
  std::from_chars(buffer, end.ptr, result);
  return result;
}

std::string Text(const ordered_json& value) {
  return value.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

ordered_json AdapterJson(const AdapterConfig& adapter) {
  const std::string kind = Name(adapter.kind);
  switch (adapter.kind) {
    case AdapterKind::kNone:
      return {{"kind", kind}};
    case AdapterKind::kScale: {
      ordered_json sites = ordered_json::array();
      if (adapter.scale_self_attention) sites.push_back("self_attn");
      if (adapter.scale_cross_attention) sites.push_back("cross_attn");
      if (adapter.scale_feed_forward) sites.push_back("ffn");
      return {{"kind", kind}, {"sites", sites}};
    }
    case AdapterKind::kBottleneck:
      return {{"kind", kind}, {"rank", adapter.rank}, {"activation", ActivationName(adapter.activation)}};
    case AdapterKind::kLora: {
      ordered_json result = {{"kind", kind},
                             {"rank", adapter.rank},
                             {"alpha", adapter.alpha},
                             {"rank_stabilised", adapter.rank_stabilised}};
      for (const auto& [name, pair] : adapter.pairs) {
        result["pairs"][name] = {{"rank", pair.rank}, {"alpha", pair.alpha}};
      }
      return result;
    }
  }
  return {};
}

ordered_json TokenizerJson(const TokenizerConfig& tokenizer) {
  ordered_json result;
  for (const auto& [name, kind] : TokenizerKinds()) {
    if (kind == tokenizer.kind) result["kind"] = name;
  }
  result["files"] = tokenizer.files;
  switch (tokenizer.kind) {
    case TokenizerKind::kSentencePiece:
      result["id_offset"] = tokenizer.id_offset;
      if (tokenizer.unk_piece_to.has_value()) result["unk_piece_to"] = *tokenizer.unk_piece_to;
      break;
    case TokenizerKind::kSentencePieceVocab:
      result["unk_piece"] = tokenizer.unk_piece;
      break;
    case TokenizerKind::kWordPiece:
      result["unk_piece"] = tokenizer.unk_piece;
      result["lower_case"] = tokenizer.lower_case;
      if (tokenizer.strip_accents.has_value()) result["strip_accents"] = *tokenizer.strip_accents;
      result["split_cjk"] = tokenizer.split_cjk;
      result["continuation_prefix"] = tokenizer.continuation_prefix;
      result["max_word_chars"] = tokenizer.max_word_chars;
      break;
    case TokenizerKind::kByteBpe:
      result["unk_piece"] = tokenizer.unk_piece;
      result["add_prefix_space"] = tokenizer.add_prefix_space;
      result["split_words"] = tokenizer.split_words;
      break;
  }
  if (!tokenizer.markers.empty()) {
    // By id, as people list them.
    std::vector<std::pair<int32_t, std::string>> markers;
    for (const auto& [piece, id] : tokenizer.markers) markers.emplace_back(id, piece);
    std::sort(markers.begin(), markers.end());
    ordered_json& object = result["markers"];
    for (const auto& [id, piece] : markers) object[piece] = id;
  }
  return result;
}

ordered_json GenerationJson(const Generation& generation) {
  ordered_json result = ordered_json::object();
  if (generation.beam_size.has_value()) result["beam_size"] = *generation.beam_size;
  if (generation.length_penalty.has_value()) result["length_penalty"] = *generation.length_penalty;
  if (generation.early_stopping == EarlyStopping::kNever) {
    result["early_stopping"] = "never";
  } else if (generation.early_stopping.has_value()) {
    result["early_stopping"] = *generation.early_stopping == EarlyStopping::kYes;
  }
  if (generation.max_tokens.has_value()) result["max_tokens"] = *generation.max_tokens;
  if (generation.min_tokens.has_value()) result["min_tokens"] = *generation.min_tokens;
  if (!generation.suppressed.empty()) result["suppressed"] = generation.suppressed;
  if (generation.forced_end) result["forced_end"] = true;
  return result;
}

ordered_json OwnLayers(const std::vector<LayerOwner>& layers) {
  ordered_json result = ordered_json::array();
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] != LayerOwner::kShared) result.push_back(i);
  }
  return result;
}

}  // namespace

FileCount FileCountOf(TokenizerKind kind) {
  switch (kind) {
    case TokenizerKind::kSentencePiece:
    case TokenizerKind::kWordPiece:
      break;
    case TokenizerKind::kSentencePieceVocab:
      return {2, 3, "a model and a dictionary, or two models and a dictionary"};
    case TokenizerKind::kByteBpe:
      return {1, 2, "a tokenizer.json, or a dictionary and its merges"};
  }
  return {1, 1, "one file"};
}

bool IsPlainFileName(std::string_view name) {
  constexpr size_t kMaxName = 128;
  return !name.empty() && name.size() <= kMaxName && name.front() != '.' && name.find("..") == std::string_view::npos &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
         });
}

bool IsLanguageCode(const std::string& code) {
  constexpr size_t kMaxCode = 64;
  return !code.empty() && code.size() <= kMaxCode && absl::ascii_isalnum(static_cast<unsigned char>(code.front())) &&
         std::all_of(code.begin(), code.end(),
                     [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_'; });
}

bool IsProjectionName(std::string_view name) {
  bool decoder = false;
  if (name.substr(0, 8) == "decoder.") {
    decoder = true;
  } else if (name.substr(0, 8) != "encoder.") {
    return false;
  }
  name.remove_prefix(8);
  constexpr std::string_view kLayers = "layers.";
  if (name.substr(0, kLayers.size()) != kLayers) return false;
  name.remove_prefix(kLayers.size());
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto digits = static_cast<size_t>(end - name.data());
  if (error != std::errc() || layer < 0 || layer >= kMaxLayers || name.front() == '-' ||
      (digits > 1 && name.front() == '0')) {
    return false;
  }
  name.remove_prefix(digits);
  for (const char* attention : {".self_attn.", ".cross_attn."}) {
    const std::string_view prefix = attention;
    if (name.substr(0, prefix.size()) != prefix) continue;
    if (!decoder && prefix == ".cross_attn.") return false;
    const std::string_view matrix = name.substr(prefix.size());
    return matrix == "q" || matrix == "k" || matrix == "v" || matrix == "o";
  }
  return name == ".ffn.up" || name == ".ffn.gate" || name == ".ffn.down";
}

AdapterConfig::Pair AdapterConfig::PairOf(std::string_view projection) const {
  const auto found = pairs.find(projection);
  return found == pairs.end() ? Pair{rank, alpha} : found->second;
}

double AdapterConfig::PairScale(std::string_view projection) const {
  const Pair pair = PairOf(projection);
  return pair.alpha / (rank_stabilised ? std::sqrt(static_cast<double>(pair.rank)) : pair.rank);
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text, const std::string& where) {
  const absl::StatusOr<json> value = ParseConfigJson(text, where);
  if (!value.ok()) return value.status();
  Faults faults(where);
  Fields fields(&*value, "", &faults);
  ModelConfig config;
  ReadFormat(fields);
  config.name = fields.String("name");
  if (fields.Has("name") && config.name.empty()) fields.Fault("name", "must be a non-empty string");
  config.license = fields.String("license", "");
  ReadArchitecture(fields.Object("architecture", true), config);
  ReadTasks(fields, config);
  ReadSharing(fields.Object("sharing", false), config);
  ReadPrompt(fields.Object("prompt", true), config);
  ReadSpecialTokens(fields.Object("special_tokens", true), config);
  ReadPooling(fields.Object("pooling", false), config);
  ReadTextPrompts(fields, config);
  ReadGeneration(fields.Object("generation", false), config);
  if (fields.Any("max_source_tokens") != nullptr) {
    config.max_source_tokens =
        fields.Int("max_source_tokens", 1, std::max<int64_t>(1, config.architecture.max_positions));
  }
  ReadLanguages(fields, config);
  ReadZeroShotPairs(fields, config);
  config.tokenizer = ReadTokenizer(fields.Object("tokenizer", false));
  fields.Done();
  if (!faults.empty()) return faults.ToStatus();
  return config;
}

absl::StatusOr<LanguageConfig> ParseLanguageConfig(std::string_view text, const std::string& where) {
  const absl::StatusOr<json> value = ParseConfigJson(text, where);
  if (!value.ok()) return value.status();
  Faults faults(where);
  Fields fields(&*value, "", &faults);
  LanguageConfig config;
  config.code = fields.String("code");
  if (fields.Has("code") && !IsLanguageCode(config.code)) {
    fields.Fault("code", absl::StrCat("\"", Printable(config.code), "\" is no language code (", kCodeRule, ")"));
  }
  config.name = fields.String("name", "");
  config.native_name = fields.String("native_name", "");
  config.script = fields.String("script", "");
  config.direction = fields.Enum<std::string>("direction", {{"ltr", "ltr"}, {"rtl", "rtl"}}, "ltr");
  for (const std::string& alias : fields.Strings("aliases", false)) {
    if (IsLanguageCode(alias)) {
      config.aliases.push_back(alias);
    } else {
      fields.Fault("aliases", absl::StrCat("\"", Printable(alias), "\" is no language code (", kCodeRule, ")"));
    }
  }
  config.tag = fields.String("tag", "");
  config.adapter = ReadAdapter(fields.Object("adapter", false));
  config.tokenizer = ReadTokenizer(fields.Object("tokenizer", false));
  fields.Done();
  if (!faults.empty()) return faults.ToStatus();
  return config;
}

absl::StatusOr<AdapterConfig> ParseAdapterConfig(std::string_view text, const std::string& where) {
  const absl::StatusOr<json> value = ParseConfigJson(text, where);
  if (!value.ok()) return value.status();
  Faults faults(where);
  const AdapterConfig config = ReadAdapter(Fields(&*value, "", &faults));
  if (!faults.empty()) return faults.ToStatus();
  return config;
}

std::string ToJson(const ModelConfig& config) {
  const kernels::TransformerConfig& architecture = config.architecture;
  const bool decodes = config.kind == ModelKind::kEncoderDecoder;
  ordered_json root;
  root["format"] = "koine";
  root["format_version"] = kFormatVersion;
  root["name"] = config.name;
  if (!config.license.empty()) root["license"] = config.license;
  root["tasks"] = ordered_json::array();
  if (config.translates) root["tasks"].push_back("translate");
  if (config.encodes) root["tasks"].push_back("encode");

  ordered_json& shape = root["architecture"];
  shape["kind"] = decodes ? "encoder-decoder" : "encoder";
  shape["d_model"] = architecture.d_model;
  shape["heads"] = architecture.heads;
  shape["d_head"] = architecture.d_head;
  shape["d_ffn"] = architecture.d_ffn;
  shape["encoder_layers"] = architecture.encoder_layers.size();
  shape["decoder_layers"] = architecture.decoder_layers.size();
  shape["norm"] = {{"type", architecture.norm_type == NormType::kLayerNorm ? "layer_norm" : "rms_norm"},
                   {"eps", Decimal(architecture.norm_eps)},
                   {"placement", architecture.pre_norm ? "pre" : "post"}};
  shape["final_norm"] = architecture.final_norm;
  shape["linear_bias"] = architecture.linear_bias;
  shape["activation"] = ActivationName(architecture.activation);
  shape["gated_ffn"] = architecture.gated_ffn;
  shape["attention_scale"] = Decimal(architecture.attention_scale);
  shape["embedding_scale"] = Decimal(architecture.embedding_scale);
  shape["embedding_norm"] = architecture.embedding_norm;
  if (architecture.output_scale != 1) shape["output_scale"] = Decimal(architecture.output_scale);
  ordered_json& positions = shape["positions"];
  if (config.positions.type == PositionType::kSinusoidal) {
    positions["type"] = "sinusoidal";
    positions["layout"] = "sin_then_cos";
    positions["base"] = config.positions.base;
    positions["exponent"] = config.positions.exponent_half_minus_one ? "i/(d_model/2-1)" : "2i/d_model";
  } else if (config.positions.type == PositionType::kRelativeBuckets) {
    positions["type"] = "relative_buckets";
    positions["buckets"] = config.positions.buckets;
    positions["max_distance"] = config.positions.max_distance;
  } else {
    positions["type"] = "learned";
  }
  if (config.positions.type != PositionType::kRelativeBuckets) {
    positions["first_position"] = config.positions.first_position;
  }
  positions["max_positions"] = config.positions.max_positions;
  shape["tied_output"] = architecture.tied_output;
  shape["output_bias"] = architecture.output_bias;

  root["sharing"] = {{"embedding", config.shared_embedding ? "shared" : "language"},
                     {"language_heads", architecture.language_heads},
                     {"language_layers",
                      {{"encoder", OwnLayers(architecture.encoder_layers)},
                       {"decoder", OwnLayers(architecture.decoder_layers)},
                       {"scope", config.layer_scope == LayerScope::kLayer ? "layer" : "attention"}}}};

  root["prompt"]["source"] = config.prompt.source;
  if (decodes) {
    root["prompt"]["decoder_start"] = config.prompt.decoder_start;
    if (!config.prompt.decoder_forced.empty()) root["prompt"]["decoder_forced"] = config.prompt.decoder_forced;
  }
  root["special_tokens"] = ordered_json::object();
  const SpecialTokens& tokens = config.special_tokens;
  for (const auto& [key, id] : std::initializer_list<std::pair<const char*, int32_t>>{
           {"pad", tokens.pad}, {"bos", tokens.bos}, {"eos", tokens.eos}, {"unk", tokens.unk}}) {
    if (id >= 0) root["special_tokens"][key] = id;
  }
  if (config.tokenizer.has_value()) root["tokenizer"] = TokenizerJson(*config.tokenizer);
  root["pooling"] = {{"mode", config.pooling.mode == PoolingMode::kMean ? "mean" : "cls"},
                     {"includes_eos", config.pooling.includes_eos},
                     {"normalize", config.pooling.normalize}};
  if (config.pooling.dense.has_value()) {
    const PoolingDense& dense = *config.pooling.dense;
    root["pooling"]["dense"] = {
        {"size", dense.size}, {"activation", NameOf(DenseActivations(), dense.activation)}, {"bias", dense.bias}};
  }
  if (!config.prompts.empty()) root["prompts"] = config.prompts;
  if (!config.default_prompt.empty()) root["default_prompt"] = config.default_prompt;
  if (ordered_json generation = GenerationJson(config.generation); !generation.empty()) {
    root["generation"] = std::move(generation);
  }
  if (config.max_source_tokens > 0) root["max_source_tokens"] = config.max_source_tokens;
  if (!config.zero_shot_pairs.empty()) {
    for (const LanguagePair& pair : config.zero_shot_pairs) {
      root["zero_shot_pairs"].push_back(absl::StrCat(pair.source, "-", pair.target));
    }
  }
  root["languages"] = config.languages;
  return Text(root);
}

std::string ToJson(const LanguageConfig& config) {
  ordered_json root;
  root["code"] = config.code;
  if (!config.name.empty()) root["name"] = config.name;
  if (!config.native_name.empty()) root["native_name"] = config.native_name;
  if (!config.script.empty()) root["script"] = config.script;
  root["direction"] = config.direction.empty() ? "ltr" : config.direction;
  root["aliases"] = config.aliases;
  if (!config.tag.empty()) root["tag"] = config.tag;
  root["adapter"] = AdapterJson(config.adapter);
  if (config.tokenizer.has_value()) root["tokenizer"] = TokenizerJson(*config.tokenizer);
  return Text(root);
}

std::string ToJson(const AdapterConfig& config) { return Text(AdapterJson(config)); }

std::string Name(AdapterKind kind) { return NameOf(AdapterKinds(), kind); }

}  // namespace koine::model_loader
