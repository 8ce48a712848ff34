#include "model_loader/importer/hf_names.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace koine::model_loader {
namespace {

struct Name {
  const char* theirs;
  const char* ours;
};

// '@' stands for encoder or decoder, '#' for the number of a layer; both sides hold them in the same order.
constexpr Name kModules[] = {
    // transformers/models/{m2m_100,mbart,marian}/modeling_*.py
    {"shared", "embedding"},
    {"@.embed_tokens", "embedding"},
    {"lm_head", "output"},
    {"@.embed_positions", "@.positions"},
    {"@.layernorm_embedding", "@.embedding_norm"},
    {"@.layer_norm", "@.final_norm"},
    {"@.layers.#.self_attn.q_proj", "@.layers.#.self_attn.q"},
    {"@.layers.#.self_attn.k_proj", "@.layers.#.self_attn.k"},
    {"@.layers.#.self_attn.v_proj", "@.layers.#.self_attn.v"},
    {"@.layers.#.self_attn.out_proj", "@.layers.#.self_attn.o"},
    {"@.layers.#.self_attn_layer_norm", "@.layers.#.self_attn_norm"},
    {"decoder.layers.#.encoder_attn.q_proj", "decoder.layers.#.cross_attn.q"},
    {"decoder.layers.#.encoder_attn.k_proj", "decoder.layers.#.cross_attn.k"},
    {"decoder.layers.#.encoder_attn.v_proj", "decoder.layers.#.cross_attn.v"},
    {"decoder.layers.#.encoder_attn.out_proj", "decoder.layers.#.cross_attn.o"},
    {"decoder.layers.#.encoder_attn_layer_norm", "decoder.layers.#.cross_attn_norm"},
    {"@.layers.#.fc1", "@.layers.#.ffn.up"},
    {"@.layers.#.fc2", "@.layers.#.ffn.down"},
    {"@.layers.#.final_layer_norm", "@.layers.#.ffn_norm"},
    // transformers/models/t5/modeling_t5.py. Gated: wo(act(wi_0 x) * wi_1 x).
    {"@.block.0.layer.0.SelfAttention.relative_attention_bias", "@.relative_bias"},
    {"@.block.#.layer.0.SelfAttention.q", "@.layers.#.self_attn.q"},
    {"@.block.#.layer.0.SelfAttention.k", "@.layers.#.self_attn.k"},
    {"@.block.#.layer.0.SelfAttention.v", "@.layers.#.self_attn.v"},
    {"@.block.#.layer.0.SelfAttention.o", "@.layers.#.self_attn.o"},
    {"@.block.#.layer.0.layer_norm", "@.layers.#.self_attn_norm"},
    {"decoder.block.#.layer.1.EncDecAttention.q", "decoder.layers.#.cross_attn.q"},
    {"decoder.block.#.layer.1.EncDecAttention.k", "decoder.layers.#.cross_attn.k"},
    {"decoder.block.#.layer.1.EncDecAttention.v", "decoder.layers.#.cross_attn.v"},
    {"decoder.block.#.layer.1.EncDecAttention.o", "decoder.layers.#.cross_attn.o"},
    {"decoder.block.#.layer.1.layer_norm", "decoder.layers.#.cross_attn_norm"},
    {"encoder.block.#.layer.1.DenseReluDense.wi", "encoder.layers.#.ffn.up"},
    {"encoder.block.#.layer.1.DenseReluDense.wi_0", "encoder.layers.#.ffn.gate"},
    {"encoder.block.#.layer.1.DenseReluDense.wi_1", "encoder.layers.#.ffn.up"},
    {"encoder.block.#.layer.1.DenseReluDense.wo", "encoder.layers.#.ffn.down"},
    {"encoder.block.#.layer.1.layer_norm", "encoder.layers.#.ffn_norm"},
    {"decoder.block.#.layer.2.DenseReluDense.wi", "decoder.layers.#.ffn.up"},
    {"decoder.block.#.layer.2.DenseReluDense.wi_0", "decoder.layers.#.ffn.gate"},
    {"decoder.block.#.layer.2.DenseReluDense.wi_1", "decoder.layers.#.ffn.up"},
    {"decoder.block.#.layer.2.DenseReluDense.wo", "decoder.layers.#.ffn.down"},
    {"decoder.block.#.layer.2.layer_norm", "decoder.layers.#.ffn_norm"},
    {"@.final_layer_norm", "@.final_norm"},
    // transformers/models/{bert,roberta,xlm_roberta}/modeling_*.py
    {"embeddings.word_embeddings", "embedding"},
    {"embeddings.position_embeddings", "encoder.positions"},
    {"embeddings.token_type_embeddings", "encoder.types"},  // row 0 is added to the positions
    {"embeddings.LayerNorm", "encoder.embedding_norm"},
    {"encoder.layer.#.attention.self.query", "encoder.layers.#.self_attn.q"},
    {"encoder.layer.#.attention.self.key", "encoder.layers.#.self_attn.k"},
    {"encoder.layer.#.attention.self.value", "encoder.layers.#.self_attn.v"},
    {"encoder.layer.#.attention.output.dense", "encoder.layers.#.self_attn.o"},
    {"encoder.layer.#.attention.output.LayerNorm", "encoder.layers.#.self_attn_norm"},
    {"encoder.layer.#.intermediate.dense", "encoder.layers.#.ffn.up"},
    {"encoder.layer.#.output.dense", "encoder.layers.#.ffn.down"},
    {"encoder.layer.#.output.LayerNorm", "encoder.layers.#.ffn_norm"},
    {"pooler.dense", "pooling.dense"},
};

constexpr const char* kIgnorable[] = {
    "embeddings.position_ids",          // 0, 1, 2, ...
    "embeddings.token_type_ids",        // zeros
    "@.embed_positions.weight",         // sinusoidal: computed; learned ones have a name of their own above
    "@.embed_positions.weights",        // M2M-100 of older versions
    "@.embed_positions._float_tensor",  // a marker of fairseq
    "@.version",
    // Relative positions in cross-attention: in files of the first T5, used by no version of the library.
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    // Masked-language-model and next-sentence heads.
    "cls.predictions.bias",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "cls.predictions.transform.dense.weight",
    "cls.predictions.transform.dense.bias",
    "cls.predictions.transform.LayerNorm.weight",
    "cls.predictions.transform.LayerNorm.bias",
    "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
    "lm_head.bias",
    "lm_head.decoder.weight",
    "lm_head.decoder.bias",
    "lm_head.dense.weight",
    "lm_head.dense.bias",
    "lm_head.layer_norm.weight",
    "lm_head.layer_norm.bias",
};

bool Drop(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Matches all of `name`; appends what '@' and '#' stood for.
bool Matches(std::string_view pattern, std::string_view name, std::vector<std::string_view>* wild) {
  wild->clear();
  for (const char c : pattern) {
    if (c == '@') {
      const std::string_view side = name.substr(0, 7);
      if (side != "encoder" && side != "decoder") return false;
      wild->push_back(side);
      name.remove_prefix(side.size());
    } else if (c == '#') {
      const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
      // No model has a million layers, and "00" is no way to write 0.
      if (digits == 0 || digits > 6 || (digits > 1 && name.front() == '0')) return false;
      wild->push_back(name.substr(0, digits));
      name.remove_prefix(digits);
    } else {
      if (name.empty() || name.front() != c) return false;
      name.remove_prefix(1);
    }
  }
  return name.empty();
}

// The bodies of the models, within models with a head.
std::string_view WithoutPrefix(std::string_view name) {
  for (const char* prefix : {"model.", "bert.", "roberta.", "transformer."}) {
    if (Drop(name, prefix)) break;
  }
  return name;
}

}  // namespace

std::string KoineModuleName(std::string_view module) {
  const std::string_view name = WithoutPrefix(module);
  std::vector<std::string_view> wild;
  for (const Name& candidate : kModules) {
    if (!Matches(candidate.theirs, name, &wild)) continue;
    std::string ours;
    size_t next = 0;
    for (const char c : std::string_view(candidate.ours)) {
      if (c == '@' || c == '#') {
        ours += wild[next++];
      } else {
        ours += c;
      }
    }
    return ours;
  }
  return "";
}

std::string KoineTensorName(std::string_view parameter) {
  if (WithoutPrefix(parameter) == "final_logits_bias") return "output.bias";
  const size_t dot = parameter.rfind('.');
  if (dot == std::string_view::npos) return "";
  // TensorFlow's names of a norm's parameters, in old conversions of BERT.
  std::string_view kind = parameter.substr(dot + 1);
  if (kind == "gamma") kind = "weight";
  if (kind == "beta") kind = "bias";
  if (kind != "weight" && kind != "bias") return "";
  const std::string module = KoineModuleName(parameter.substr(0, dot));
  // The head of masked language models has a bias under the name of the translators' head.
  if (module.empty() || (module == "output" && kind == "bias")) return "";
  return module + "." + std::string(kind);
}

bool IsKnownIgnorable(std::string_view parameter) {
  const std::string_view name = WithoutPrefix(parameter);
  std::vector<std::string_view> wild;
  return std::any_of(std::begin(kIgnorable), std::end(kIgnorable),
                     [&](const char* pattern) { return Matches(pattern, name, &wild); });
}

}  // namespace koine::model_loader
