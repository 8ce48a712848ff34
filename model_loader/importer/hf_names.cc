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
  HfNaming naming;
};
constexpr HfNaming kBart = HfNaming::kBart, kT5 = HfNaming::kT5, kBert = HfNaming::kBert;

// '@' stands for encoder or decoder, '#' for the number of a layer; both sides hold them in the same order.
constexpr Name kModules[] = {
    // transformers/models/{m2m_100,mbart,marian}/modeling_*.py
    {"shared", "embedding", kBart},
    {"@.embed_tokens", "embedding", kBart},
    {"lm_head", "output", kBart},
    {"@.embed_positions", "@.positions", kBart},
    {"@.layernorm_embedding", "@.embedding_norm", kBart},
    {"@.layer_norm", "@.final_norm", kBart},
    {"@.layers.#.self_attn.q_proj", "@.layers.#.self_attn.q", kBart},
    {"@.layers.#.self_attn.k_proj", "@.layers.#.self_attn.k", kBart},
    {"@.layers.#.self_attn.v_proj", "@.layers.#.self_attn.v", kBart},
    {"@.layers.#.self_attn.out_proj", "@.layers.#.self_attn.o", kBart},
    {"@.layers.#.self_attn_layer_norm", "@.layers.#.self_attn_norm", kBart},
    {"decoder.layers.#.encoder_attn.q_proj", "decoder.layers.#.cross_attn.q", kBart},
    {"decoder.layers.#.encoder_attn.k_proj", "decoder.layers.#.cross_attn.k", kBart},
    {"decoder.layers.#.encoder_attn.v_proj", "decoder.layers.#.cross_attn.v", kBart},
    {"decoder.layers.#.encoder_attn.out_proj", "decoder.layers.#.cross_attn.o", kBart},
    {"decoder.layers.#.encoder_attn_layer_norm", "decoder.layers.#.cross_attn_norm", kBart},
    {"@.layers.#.fc1", "@.layers.#.ffn.up", kBart},
    {"@.layers.#.fc2", "@.layers.#.ffn.down", kBart},
    {"@.layers.#.final_layer_norm", "@.layers.#.ffn_norm", kBart},
    // transformers/models/t5/modeling_t5.py. Gated: wo(act(wi_0 x) * wi_1 x).
    {"@.block.0.layer.0.SelfAttention.relative_attention_bias", "@.relative_bias", kT5},
    {"@.block.#.layer.0.SelfAttention.q", "@.layers.#.self_attn.q", kT5},
    {"@.block.#.layer.0.SelfAttention.k", "@.layers.#.self_attn.k", kT5},
    {"@.block.#.layer.0.SelfAttention.v", "@.layers.#.self_attn.v", kT5},
    {"@.block.#.layer.0.SelfAttention.o", "@.layers.#.self_attn.o", kT5},
    {"@.block.#.layer.0.layer_norm", "@.layers.#.self_attn_norm", kT5},
    {"decoder.block.#.layer.1.EncDecAttention.q", "decoder.layers.#.cross_attn.q", kT5},
    {"decoder.block.#.layer.1.EncDecAttention.k", "decoder.layers.#.cross_attn.k", kT5},
    {"decoder.block.#.layer.1.EncDecAttention.v", "decoder.layers.#.cross_attn.v", kT5},
    {"decoder.block.#.layer.1.EncDecAttention.o", "decoder.layers.#.cross_attn.o", kT5},
    {"decoder.block.#.layer.1.layer_norm", "decoder.layers.#.cross_attn_norm", kT5},
    {"encoder.block.#.layer.1.DenseReluDense.wi", "encoder.layers.#.ffn.up", kT5},
    {"encoder.block.#.layer.1.DenseReluDense.wi_0", "encoder.layers.#.ffn.gate", kT5},
    {"encoder.block.#.layer.1.DenseReluDense.wi_1", "encoder.layers.#.ffn.up", kT5},
    {"encoder.block.#.layer.1.DenseReluDense.wo", "encoder.layers.#.ffn.down", kT5},
    {"encoder.block.#.layer.1.layer_norm", "encoder.layers.#.ffn_norm", kT5},
    {"decoder.block.#.layer.2.DenseReluDense.wi", "decoder.layers.#.ffn.up", kT5},
    {"decoder.block.#.layer.2.DenseReluDense.wi_0", "decoder.layers.#.ffn.gate", kT5},
    {"decoder.block.#.layer.2.DenseReluDense.wi_1", "decoder.layers.#.ffn.up", kT5},
    {"decoder.block.#.layer.2.DenseReluDense.wo", "decoder.layers.#.ffn.down", kT5},
    {"decoder.block.#.layer.2.layer_norm", "decoder.layers.#.ffn_norm", kT5},
    {"@.final_layer_norm", "@.final_norm", kT5},
    // transformers/models/{bert,roberta,xlm_roberta}/modeling_*.py
    {"embeddings.word_embeddings", "embedding", kBert},
    {"embeddings.position_embeddings", "encoder.positions", kBert},
    {"embeddings.token_type_embeddings", "encoder.types", kBert},  // row 0 is added to the positions
    {"embeddings.LayerNorm", "encoder.embedding_norm", kBert},
    {"encoder.layer.#.attention.self.query", "encoder.layers.#.self_attn.q", kBert},
    {"encoder.layer.#.attention.self.key", "encoder.layers.#.self_attn.k", kBert},
    {"encoder.layer.#.attention.self.value", "encoder.layers.#.self_attn.v", kBert},
    {"encoder.layer.#.attention.output.dense", "encoder.layers.#.self_attn.o", kBert},
    {"encoder.layer.#.attention.output.LayerNorm", "encoder.layers.#.self_attn_norm", kBert},
    {"encoder.layer.#.intermediate.dense", "encoder.layers.#.ffn.up", kBert},
    {"encoder.layer.#.output.dense", "encoder.layers.#.ffn.down", kBert},
    {"encoder.layer.#.output.LayerNorm", "encoder.layers.#.ffn_norm", kBert},
    {"pooler.dense", "pooling.dense", kBert},
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

// Puts what stood in the places of '@' and '#' into another pattern.
std::string Fill(const char* pattern, const std::vector<std::string_view>& wild) {
  std::string text;
  size_t next = 0;
  for (const char c : std::string_view(pattern)) {
    if ((c == '@' || c == '#') && next < wild.size()) {
      text += wild[next++];
    } else {
      text += c;
    }
  }
  return text;
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
    if (Matches(candidate.theirs, name, &wild)) return Fill(candidate.ours, wild);
  }
  return "";
}

std::string HfParameterName(HfNaming naming, std::string_view koine_tensor, bool gated) {
  if (koine_tensor == "output.bias") return "final_logits_bias";
  const size_t dot = koine_tensor.rfind('.');
  if (dot == std::string_view::npos) return "";
  const std::string_view module = koine_tensor.substr(0, dot);
  std::vector<std::string_view> wild;
  for (const Name& candidate : kModules) {
    // The tables of tokens are named alike by T5 and the others.
    const bool table = module == "embedding" || module == "output";
    if (candidate.naming != naming && !(table && naming == kT5 && candidate.naming == kBart)) continue;
    if (!Matches(candidate.ours, module, &wild)) continue;
    const std::string name = candidate.theirs;
    // wi without a gate, wi_0 and wi_1 with one.
    if (name.size() > 3 && name.substr(name.size() - 3) == ".wi" && gated) continue;
    if (name.size() > 5 && name.substr(name.size() - 5, 4) == ".wi_" && !gated) continue;
    return Fill(candidate.theirs, wild) + std::string(koine_tensor.substr(dot));
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
