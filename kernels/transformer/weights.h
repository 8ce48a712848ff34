// Views of a model's parameters, as the forward pass reads them. Nothing here owns memory.
//
// Who owns what (sharing-semantics): the shared file provides SharedWeights; a language provides LanguageWeights
// (table, own heads, own layers); an adapter is chosen per row. In the encoder a row uses its source language, in the
// decoder, cross-attention included, its target language.
#ifndef KOINE_KERNELS_TRANSFORMER_WEIGHTS_H_
#define KOINE_KERNELS_TRANSFORMER_WEIGHTS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/matmul/matmul.h"
#include "kernels/ops/ops.h"

namespace koine::kernels {

// Who provides the parameters of one layer.
enum class LayerOwner : uint8_t {
  kShared,             // all shared; `language_heads` of the attention heads may be the language's
  kLanguageAttention,  // self- and cross-attention (all heads) are the language's, norms and feed-forward shared
  kLanguageLayer,      // every tensor of the layer is the language's
};

struct TransformerConfig {
  int d_model = 0;
  int heads = 0;           // H: all heads of a layer
  int language_heads = 0;  // H2 of them in shared layers
  int d_head = 0;
  int d_ffn = 0;
  NormType norm_type = NormType::kLayerNorm;
  float norm_eps = 1e-5F;
  bool pre_norm = true;
  bool final_norm = true;
  bool linear_bias = true;
  bool gated_ffn = false;
  bool embedding_norm = false;
  bool tied_output = true;
  bool output_bias = false;
  Activation activation = Activation::kRelu;
  float attention_scale = 1;
  float embedding_scale = 1;
  float output_scale = 1;  // of the decoder's final rows, before the output table
  int64_t max_positions = 0;
  std::vector<LayerOwner> encoder_layers;  // one entry a layer
  std::vector<LayerOwner> decoder_layers;

  int shared_heads() const { return heads - language_heads; }
};

struct Linear {
  PackedMatrix weight;
  const float* bias = nullptr;  // [out] or null
};

struct NormWeights {
  const float* weight = nullptr;  // null: the owner does not provide this norm
  const float* bias = nullptr;
};

// q, k and v of the same input are packed as one matrix: one product per layer instead of three.
struct SelfAttentionWeights {
  int heads = 0;  // 0: the owner provides none
  Linear qkv;     // [3 * heads * d_head, d_model]: q rows, then k, then v
  Linear o;       // [d_model, heads * d_head]
};
struct CrossAttentionWeights {
  int heads = 0;
  Linear q;   // [heads * d_head, d_model]
  Linear kv;  // [2 * heads * d_head, d_model]: k rows, then v
  Linear o;
};

struct FeedForwardWeights {
  Linear up;    // [d_ffn, d_model]; gated: [2 * d_ffn, d_model], gate rows first
  Linear down;  // [d_model, d_ffn]
};

// What one owner provides of one layer; absent parts are empty.
struct LayerWeights {
  SelfAttentionWeights self;
  CrossAttentionWeights cross;  // decoder only
  NormWeights self_norm, cross_norm, ffn_norm;
  FeedForwardWeights ffn;
};

struct StackWeights {
  std::vector<LayerWeights> layers;
  NormWeights final_norm;            // absent without final_norm
  NormWeights embedding_norm;        // absent without embedding_norm
  const float* positions = nullptr;  // [max_positions, d_model]; row t belongs to the t-th token of a sequence. Null:
                                     // nothing is added to embeddings
  const float* relative_bias = nullptr;  // of self-attention, from RelativeBiases(); null: none
};

// Between pooling and normalising a sentence's vector; absent if dense is empty.
struct PoolingWeights {
  Linear dense;  // [size, d_model]
  bool tanh = false;
};

struct SharedWeights {
  StackWeights encoder, decoder;
  PoolingWeights pooling;
};

struct LayerAdapter {
  // `scale`: the sublayer's output is multiplied by this vector [d_model]; null means 1.
  const float* self_scale = nullptr;
  const float* cross_scale = nullptr;
  const float* ffn_scale = nullptr;
  // `lora`
  LowRank self_q, self_k, self_v, self_o;
  LowRank cross_q, cross_k, cross_v, cross_o;
  LowRank ffn_up, ffn_gate, ffn_down;
  // `bottleneck` (Houlsby et al., 2019; Bapna and Firat, 2019): x += up(act(down(norm(x)))); absent if down is empty.
  NormWeights norm;
  Linear down, up;
};

struct AdapterWeights {
  Activation activation = Activation::kRelu;   // of the bottleneck
  std::vector<LayerAdapter> encoder, decoder;  // one entry a layer
};

// Rows of an embedding table, wherever they lie.
struct EmbeddingTable {
  PackedMatrix packed;                    // tied tables: the output projection's own bytes
  const void* rows = nullptr;             // else row-major [vocabulary, d_model]
  Precision precision = Precision::kF32;  // of `rows`
};

struct LanguageWeights {
  int64_t vocabulary = 0;
  EmbeddingTable embedding;
  Linear output;                      // [vocabulary, d_model]; empty in encoder-only models
  std::vector<LayerWeights> encoder;  // own heads and own layers; one entry a layer, all parts empty if none
  std::vector<LayerWeights> decoder;
};

}  // namespace koine::kernels

#endif  // KOINE_KERNELS_TRANSFORMER_WEIGHTS_H_
