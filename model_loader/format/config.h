// model.json, language.json and adapter.json as typed values (FORMAT.md is the normative text).
//
// Parsing is strict: a wrong type, an unknown key, an unknown enum value or a number out of range is INVALID_ARGUMENT
// naming the file, the key and what is allowed; all faults of a file are reported at once.
#ifndef KOINE_MODEL_LOADER_FORMAT_CONFIG_H_
#define KOINE_MODEL_LOADER_FORMAT_CONFIG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/decode/search.h"
#include "kernels/transformer/weights.h"
#include "model_loader/format/tokenizer_config.h"

namespace koine::model_loader {

inline constexpr int kFormatVersion = 1;

enum class ModelKind : uint8_t { kEncoderDecoder, kEncoder };
enum class LayerScope : uint8_t { kAttention, kLayer };
enum class PositionType : uint8_t { kSinusoidal, kLearned, kRelativeBuckets };
enum class PoolingMode : uint8_t { kMean, kCls };
enum class DenseActivation : uint8_t { kTanh, kIdentity };
enum class AdapterKind : uint8_t { kNone, kScale, kBottleneck, kLora };
std::string Name(AdapterKind kind);  // as the files have it: "none", ...

struct Positions {
  PositionType type = PositionType::kSinusoidal;
  double base = 10000;
  bool exponent_half_minus_one = true;  // "i/(d_model/2-1)"; false: "2i/d_model"
  int64_t first_position = 0;           // row of the first token
  int64_t max_positions = 0;            // rows of the table; usable length is max_positions - first_position
  int64_t buckets = 32;                 // relative buckets: rows of each stack's table
  int64_t max_distance = 128;           // relative buckets: from here on everything is in the last bucket
};

struct AdapterConfig {
  AdapterKind kind = AdapterKind::kNone;
  bool scale_self_attention = false, scale_cross_attention = false, scale_feed_forward = false;  // scale: sites
  int rank = 0;                                                                                  // bottleneck, lora
  kernels::Activation activation = kernels::Activation::kRelu;                                   // bottleneck
  double alpha = 0;                                                                              // lora
  bool rank_stabilised = false;  // lora: alpha/sqrt(r), not alpha/r
  // lora: pairs with a rank and alpha of their own, by projection ("encoder.layers.0.self_attn.q").
  struct Pair {
    int rank = 0;
    double alpha = 0;
  };
  std::map<std::string, Pair, std::less<>> pairs;

  // lora: of one projection's pair.
  Pair PairOf(std::string_view projection) const;
  double PairScale(std::string_view projection) const;  // what b(a(x)) is multiplied by
};

// "{encoder|decoder}.layers.{i}.{self_attn.{q,k,v,o} | cross_attn.{q,k,v,o} | ffn.{up,gate,down}}": what a LoRA pair
// may sit on.
bool IsProjectionName(std::string_view name);

// Prompt elements: "$text", "$source", "$target" or a piece; decoder_start is "$target" or a piece.
struct Prompt {
  std::vector<std::string> source;
  std::string decoder_start;
  std::vector<std::string> decoder_forced;
};

struct SpecialTokens {
  int32_t pad = -1, bos = -1, eos = -1, unk = -1;
};

// A layer between pooling and normalising: tensors pooling.dense.*.
struct PoolingDense {
  int64_t size = 0;
  DenseActivation activation = DenseActivation::kTanh;
  bool bias = true;
};

struct Pooling {
  PoolingMode mode = PoolingMode::kMean;
  bool includes_eos = true;
  bool normalize = true;
  std::optional<PoolingDense> dense;
};

// What a request gets where it is silent; absent: the server's own defaults.
struct Generation {
  std::optional<int> beam_size;
  std::optional<double> length_penalty;
  std::optional<kernels::EarlyStopping> early_stopping;
  std::optional<int64_t> max_tokens, min_tokens;  // generated, end mark included
  std::vector<std::string> suppressed;            // pieces that are never generated
  bool forced_end = false;                        // the last of max_tokens tokens is the end mark
};

struct LanguagePair {
  std::string source, target;
};

struct ModelConfig {
  std::string name, license;
  bool translates = false, encodes = false;  // tasks
  ModelKind kind = ModelKind::kEncoderDecoder;
  kernels::TransformerConfig architecture;  // max_positions holds the usable length
  Positions positions;
  LayerScope layer_scope = LayerScope::kAttention;
  bool shared_embedding = false;  // sharing.embedding == "shared": one table and tokenizer in the shared part
  Prompt prompt;
  SpecialTokens special_tokens;
  std::optional<TokenizerConfig> tokenizer;  // absent: tokenizer.model, SentencePiece with its own ids
  Pooling pooling;
  std::map<std::string, std::string> prompts;  // name -> text that goes before the user's text
  std::string default_prompt;                  // a name of `prompts`; empty: none
  Generation generation;
  int64_t max_source_tokens = 0;  // prompt tokens included; 0: what the positions allow
  std::vector<LanguagePair> zero_shot_pairs;
  std::vector<std::string> languages;  // order of the listing, and what readiness requires

  int64_t longest_source() const { return max_source_tokens > 0 ? max_source_tokens : architecture.max_positions; }
  // Numbers of one sentence vector.
  int64_t embedding_size() const { return pooling.dense.has_value() ? pooling.dense->size : architecture.d_model; }
};

struct LanguageConfig {
  std::string code, name, native_name, script, direction;  // direction: "ltr" (default) or "rtl"
  std::vector<std::string> aliases;
  std::string tag;  // a piece, or empty
  AdapterConfig adapter;
  std::optional<TokenizerConfig> tokenizer;  // of the language's own folder; absent: tokenizer.model
};

// What codes, aliases and names of adapters may be: folder names without separators, dots, or anything that a shell or
// a path would take for more.
bool IsLanguageCode(const std::string& code);
inline constexpr char kCodeRule[] = "letters, digits, '-' and '_', at most 64, beginning with a letter or digit";

// `where` names the file in messages.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json, const std::string& where);
absl::StatusOr<LanguageConfig> ParseLanguageConfig(std::string_view json, const std::string& where);
absl::StatusOr<AdapterConfig> ParseAdapterConfig(std::string_view json, const std::string& where);

// The inverse, for writers: JSON text that parses to the same value.
std::string ToJson(const ModelConfig& config);
std::string ToJson(const LanguageConfig& config);
std::string ToJson(const AdapterConfig& config);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_FORMAT_CONFIG_H_
