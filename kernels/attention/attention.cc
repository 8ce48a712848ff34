#include "kernels/attention/attention.h"

#include <algorithm>
#include <limits>

#include "kernels/ops/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention.cc"
// Compiles this file once per instruction set.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/ops/vector_math-inl.h"

#ifndef KOINE_KERNELS_ATTENTION_ATTENTION_ONCE_
#define KOINE_KERNELS_ATTENTION_ATTENTION_ONCE_
namespace koine::kernels {
namespace {

// Query rows that share each load of keys and values. With two blocks (scores) or four column groups (context) they
// make 8 or 16 sums in AVX-512 registers: enough to hide a multiply-add's latency of 4 cycles at 2 per cycle.
constexpr int kMaxRowTile = 4;

// One head's view of the memory.
struct HeadMemory {
  const float* const* blocks;
  int64_t tokens;
  int64_t key_offset;    // of the head's keys in a block
  int64_t value_offset;  // of its values
  int d_head;
  int value_stride;

  const float* keys(int64_t block) const { return blocks[block] + key_offset; }
  const float* values(int64_t block) const { return blocks[block] + value_offset; }
  int64_t block_count() const { return BlocksFor(tokens); }
};

}  // namespace
}  // namespace koine::kernels
#endif  // KOINE_KERNELS_ATTENTION_ATTENTION_ONCE_

HWY_BEFORE_NAMESPACE();
namespace koine::kernels {
namespace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace vm = vector_math::HWY_NAMESPACE;
using vm::F32;
using vm::kLanes;
using vm::V32;

// Vectors that hold 16 tokens or 16 columns.
constexpr int kParts = static_cast<int>(kBlockTokens / kLanes);
// Tile sizes by the number of vector registers: 32 of 16 floats, else 16. See kMaxRowTile.
constexpr int kRowTile = kParts == 1 ? 4 : kParts == 2 ? 4 : kParts == 4 ? 2 : 1;
constexpr int kSums = kParts == 1 ? 16 : 8;  // sums kept in registers
static_assert(kRowTile <= kMaxRowTile);

constexpr int ColumnGroups(int rows) { return std::max(1, std::min(4, kSums / (rows * kParts))); }
constexpr int ScoreBlocks(int rows) { return std::max(1, std::min(4, 8 / (rows * kParts))); }

// Scores of kRows rows against kBlocks blocks from `block` on: scores[r][token] = scale * sum over d of q[d] k[d].
// Each sum starts at 0 and takes d in rising order, whatever the tile.
template <int kRows, int kBlocks>
HWY_INLINE void ScoreTile(const HeadMemory& memory, int64_t block, float scale, const float* query,
                          int64_t query_stride, float* scores, int64_t score_stride) {
  const F32 d;
  V32 sums[kRows][kBlocks][kParts];
  const float* keys[kBlocks];
  for (int b = 0; b < kBlocks; ++b) keys[b] = memory.keys(block + b);
  for (int r = 0; r < kRows; ++r) {
    for (int b = 0; b < kBlocks; ++b) {
      for (int p = 0; p < kParts; ++p) sums[r][b][p] = hn::Zero(d);
    }
  }
  const int64_t end = int64_t{memory.d_head} * kBlockTokens;
  const float* q = query;
  for (int64_t offset = 0; offset < end; offset += kBlockTokens, ++q) {
    V32 element[kRows];
    for (int r = 0; r < kRows; ++r) element[r] = hn::Set(d, q[r * query_stride]);
    for (int b = 0; b < kBlocks; ++b) {
      for (int p = 0; p < kParts; ++p) {
        const V32 key = hn::LoadU(d, keys[b] + offset + p * kLanes);
        for (int r = 0; r < kRows; ++r) sums[r][b][p] = hn::MulAdd(element[r], key, sums[r][b][p]);
      }
    }
  }
  const V32 factor = hn::Set(d, scale);
  for (int r = 0; r < kRows; ++r) {
    for (int b = 0; b < kBlocks; ++b) {
      for (int p = 0; p < kParts; ++p) {
        hn::StoreU(hn::Mul(sums[r][b][p], factor), d,
                   scores + r * score_stride + (block + b) * kBlockTokens + p * kLanes);
      }
    }
  }
}

template <int kRows>
HWY_INLINE void Scores(const HeadMemory& memory, float scale, const float* query, int64_t query_stride, float* scores,
                       int64_t score_stride) {
  constexpr int kBlocks = ScoreBlocks(kRows);
  const int64_t blocks = memory.block_count();
  int64_t b = 0;
  for (; b + kBlocks <= blocks; b += kBlocks) {
    ScoreTile<kRows, kBlocks>(memory, b, scale, query, query_stride, scores, score_stride);
  }
  for (; b < blocks; ++b) ScoreTile<kRows, 1>(memory, b, scale, query, query_stride, scores, score_stride);
}

// scores[r][t] += bias[t - r] for all slots.
template <int kRows>
HWY_INLINE void AddBias(const float* bias, int64_t slots, float* scores, int64_t score_stride) {
  const F32 d;
  for (int r = 0; r < kRows; ++r) {
    float* row = scores + r * score_stride;
    for (int64_t t = 0; t < slots; t += kLanes) {
      hn::StoreU(hn::Add(hn::LoadU(d, row + t), hn::LoadU(d, bias - r + t)), d, row + t);
    }
  }
}

// Replaces scores[0, tokens) by e^(score - max) and returns 1 / their sum. Elements up to the end of the last block
// are written too (0). Partial sum i takes tokens i, i + 16, ...
HWY_INLINE float ExponentiateRow(float* scores, int64_t tokens) {
  const F32 d;
  const V32 lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const int64_t padded = BlocksFor(tokens) * kBlockTokens;
  // Slots beyond the last token hold whatever the block held, NaN included.
  for (int64_t t = tokens; t < padded; ++t) scores[t] = -std::numeric_limits<float>::infinity();
  V32 best[kParts];
  for (int p = 0; p < kParts; ++p) best[p] = lowest;
  for (int64_t t = 0; t < padded; t += kBlockTokens) {
    for (int p = 0; p < kParts; ++p) best[p] = hn::Max(best[p], hn::LoadU(d, scores + t + p * kLanes));
  }
  for (int p = 1; p < kParts; ++p) best[0] = hn::Max(best[0], best[p]);
  const V32 max = hn::MaxOfLanes(d, best[0]);
  V32 sums[kParts];
  for (int p = 0; p < kParts; ++p) sums[p] = hn::Zero(d);
  for (int64_t t = 0; t < padded; t += kBlockTokens) {
    for (int p = 0; p < kParts; ++p) {
      const V32 weight = vm::Exp(hn::Sub(hn::LoadU(d, scores + t + p * kLanes), max));
      hn::StoreU(weight, d, scores + t + p * kLanes);
      sums[p] = hn::Add(sums[p], weight);
    }
  }
  HWY_ALIGN float partial[kBlockTokens];
  for (int p = 0; p < kParts; ++p) hn::Store(sums[p], d, partial + p * kLanes);
  return 1.0F / vm::TreeSum(partial, kBlockTokens);
}

// out[r][column..] = inverse[r] * sum over tokens of weight[r][t] * v[t], for kGroups groups of 16 columns.
// Each sum starts at 0 and takes tokens in rising order, whatever the tile.
template <int kRows, int kGroups>
HWY_INLINE void ContextTile(const HeadMemory& memory, int column, const float* weights, int64_t weight_stride,
                            const float* inverse, float* out, int64_t out_stride) {
  const F32 d;
  V32 sums[kRows][kGroups * kParts];
  for (int r = 0; r < kRows; ++r) {
    for (int g = 0; g < kGroups * kParts; ++g) sums[r][g] = hn::Zero(d);
  }
  const int64_t blocks = memory.block_count();
  const float* weight = weights;
  for (int64_t b = 0; b < blocks; ++b) {
    const float* values = memory.values(b) + column;
    const int64_t slots = std::min<int64_t>(kBlockTokens, memory.tokens - b * kBlockTokens);
    for (int64_t slot = 0; slot < slots; ++slot, ++weight, values += memory.value_stride) {
      V32 element[kRows];
      for (int r = 0; r < kRows; ++r) element[r] = hn::Set(d, weight[r * weight_stride]);
      for (int g = 0; g < kGroups * kParts; ++g) {
        const V32 value = hn::LoadU(d, values + g * kLanes);
        for (int r = 0; r < kRows; ++r) sums[r][g] = hn::MulAdd(element[r], value, sums[r][g]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const V32 factor = hn::Set(d, inverse[r]);
    for (int g = 0; g < kGroups * kParts; ++g) {
      const int64_t first = column + g * kLanes;
      const int64_t left = memory.d_head - first;
      float* to = out + r * out_stride + first;
      const V32 value = hn::Mul(sums[r][g], factor);
      if (left >= kLanes) {
        hn::StoreU(value, d, to);
      } else if (left > 0) {
        vm::StoreFirst(value, to, left);
      }
    }
  }
}

template <int kRows>
HWY_INLINE void Context(const HeadMemory& memory, const float* weights, int64_t weight_stride, const float* inverse,
                        float* out, int64_t out_stride) {
  constexpr int kGroups = ColumnGroups(kRows);
  int column = 0;
  for (; column + kGroups * 16 <= memory.value_stride; column += kGroups * 16) {
    ContextTile<kRows, kGroups>(memory, column, weights, weight_stride, inverse, out, out_stride);
  }
  if constexpr (kGroups > 2) {
    for (; column + 32 <= memory.value_stride; column += 32) {
      ContextTile<kRows, 2>(memory, column, weights, weight_stride, inverse, out, out_stride);
    }
  }
  for (; column < memory.value_stride; column += 16) {
    ContextTile<kRows, 1>(memory, column, weights, weight_stride, inverse, out, out_stride);
  }
}

template <int kRows>
void AttendTile(const HeadMemory& memory, float scale, const float* query, int64_t query_stride, const float* bias,
                float* scratch, int64_t scratch_stride, float* inverse, float* out, int64_t out_stride) {
  Scores<kRows>(memory, scale, query, query_stride, scratch, scratch_stride);
  if (bias != nullptr) AddBias<kRows>(bias, memory.block_count() * kBlockTokens, scratch, scratch_stride);
  for (int r = 0; r < kRows; ++r) inverse[r] = ExponentiateRow(scratch + r * scratch_stride, memory.tokens);
  Context<kRows>(memory, scratch, scratch_stride, inverse, out, out_stride);
}

void AttendImpl(const KvShape& shape, int first_head, int heads, float scale, const float* query, int64_t query_stride,
                int64_t rows, const AttentionMemory& memory, const ScoreBias& bias, float* out, int64_t out_stride,
                float* scratch, float* weights) {
  const int64_t tokens = memory.tokens;
  const int64_t scratch_stride = BlocksFor(tokens) * kBlockTokens;
  float inverse[kMaxRowTile];
  for (int h = 0; h < heads; ++h) {
    const int64_t head = (first_head + h) * shape.head_floats();
    const HeadMemory view = {memory.blocks,        tokens, head, head + shape.key_floats(), shape.d_head,
                             shape.d_head_padded()};
    const int64_t column = int64_t{h} * shape.d_head;
    for (int64_t r = 0; r < rows;) {
      const float* q = query + r * query_stride + column;
      float* o = out + r * out_stride + column;
      const float* b = bias.first == nullptr ? nullptr : bias.first + (first_head + h) * bias.head_stride - r;
      const int tile = static_cast<int>(std::min<int64_t>(kRowTile, rows - r));
      switch (tile) {
        case 4:
          if constexpr (kRowTile >= 4) {
            AttendTile<4>(view, scale, q, query_stride, b, scratch, scratch_stride, inverse, o, out_stride);
          }
          break;
        case 3:
          if constexpr (kRowTile >= 3) {
            AttendTile<3>(view, scale, q, query_stride, b, scratch, scratch_stride, inverse, o, out_stride);
          }
          break;
        case 2:
          if constexpr (kRowTile >= 2) {
            AttendTile<2>(view, scale, q, query_stride, b, scratch, scratch_stride, inverse, o, out_stride);
          }
          break;
        default:
          AttendTile<1>(view, scale, q, query_stride, b, scratch, scratch_stride, inverse, o, out_stride);
          break;
      }
      if (weights != nullptr) {
        for (int i = 0; i < tile; ++i) {
          const float share = inverse[i] / static_cast<float>(heads);
          const float* from = scratch + i * scratch_stride;
          float* to = weights + (r + i) * tokens;
          if (h == 0) {
            for (int64_t t = 0; t < tokens; ++t) to[t] = from[t] * share;
          } else {
            for (int64_t t = 0; t < tokens; ++t) to[t] += from[t] * share;
          }
        }
      }
      r += tile;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace koine::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace koine::kernels {
namespace {
HWY_EXPORT(AttendImpl);
}  // namespace

void Attend(const KvShape& shape, int first_head, int heads, float scale, const float* query, int64_t query_stride,
            int64_t rows, const AttentionMemory& memory, const ScoreBias& bias, float* out, int64_t out_stride,
            float* scratch, float* weights) {
  HWY_DYNAMIC_DISPATCH(AttendImpl)
  (shape, first_head, heads, scale, query, query_stride, rows, memory, bias, out, out_stride, scratch, weights);
}

int64_t AttentionScratchFloats(int64_t tokens) { return BlocksFor(tokens) * kBlockTokens * kMaxRowTile; }

}  // namespace koine::kernels
#endif  // HWY_ONCE
