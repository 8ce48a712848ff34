// Scaled dot-product attention of packed query rows over blocks of keys and values (Vaswani et al., 2017).
//
//   out[h] = softmax(scale * q[h] . K[h]^T + bias[h]) V[h]
//
// One kernel serves encoder self-attention (all tokens of the sequence), causal decoder self-attention (the tokens
// so far) and cross-attention (the source's tokens): they differ only in the list of blocks and in `tokens`.
// Scores are summed over d_head in rising order, context over tokens in rising order: no reduction depends on the
// batch, so rows are bit-stable. All arithmetic is f32.
#ifndef KOINE_KERNELS_ATTENTION_ATTENTION_H_
#define KOINE_KERNELS_ATTENTION_ATTENTION_H_

#include <cstdint>

#include "kernels/attention/kv_pool.h"

namespace koine::kernels {

// The keys and values one group of query rows attends to.
struct AttentionMemory {
  // blocks[b] points at the start of one layer (KvPool::layer) of the b-th block; ceil(tokens / kBlockTokens) of them.
  const float* const* blocks = nullptr;
  int64_t tokens = 0;  // >= 1
};

// What is added to scores for relative positions (Raffel et al., 2020): a table by distance, read with a shift.
struct ScoreBias {
  // The score of head h (as in KvShape), query row r and token t gets first[h * head_stride - r + t]: row r stands one
  // position after row r - 1. Elements up to the end of the last block of tokens are read, whatever they hold.
  const float* first = nullptr;  // null: none
  int64_t head_stride = 0;
};

// Attends `rows` query rows over the same memory, for heads [first_head, first_head + heads) of `shape`.
// query and out are [rows, heads * d_head] with row strides in elements; column 0 belongs to first_head.
// scratch holds at least AttentionScratchFloats(memory.tokens) floats.
// weights, if not null, receives [rows, tokens] the mean over these heads of the attention weights (for alignments).
// Thread rule: pure function of its arguments.
void Attend(const KvShape& shape, int first_head, int heads, float scale, const float* query, int64_t query_stride,
            int64_t rows, const AttentionMemory& memory, const ScoreBias& bias, float* out, int64_t out_stride,
            float* scratch, float* weights = nullptr);

int64_t AttentionScratchFloats(int64_t tokens);

}  // namespace koine::kernels

#endif  // KOINE_KERNELS_ATTENTION_ATTENTION_H_
