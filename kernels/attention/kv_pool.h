// Keys and values in fixed-size blocks from one pool (Kwon et al., 2023, "PagedAttention").
//
// A block holds kBlockTokens tokens of every layer it was sized for. Inside a block, per layer and head:
//
//   keys   [d_head][kBlockTokens]   transposed, so that one vector register holds one dimension of 16 tokens
//   values [kBlockTokens][d_head_padded]   d_head rounded up to 16
//
// Sequences hold lists of blocks. Blocks are counted references: forking a beam copies the list, not the bytes;
// only a shared, partly filled last block is copied when somebody writes to it. Full blocks are never copied.
#ifndef KOINE_KERNELS_ATTENTION_KV_POOL_H_
#define KOINE_KERNELS_ATTENTION_KV_POOL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace koine::kernels {

// One AVX-512 register of f32; also the granularity of memory (16 tokens * 2 * layers * heads * d_head * 4 bytes).
inline constexpr int kBlockTokens = 16;

// Shape of the cached keys and values.
struct KvShape {
  int layers = 0;
  int heads = 0;
  int d_head = 0;

  int d_head_padded() const { return (d_head + 15) / 16 * 16; }
  // Elements of one head's keys and of its values in a block.
  int64_t key_floats() const { return int64_t{d_head} * kBlockTokens; }
  int64_t value_floats() const { return int64_t{d_head_padded()} * kBlockTokens; }
  int64_t head_floats() const { return key_floats() + value_floats(); }
  int64_t layer_floats() const { return head_floats() * heads; }
  int64_t block_floats() const { return layer_floats() * layers; }
};

// Writes one token's key or value rows of heads [first_head, first_head + heads) at slot 0..kBlockTokens-1.
// `layer_block` is the start of one layer inside a block; key and value are [heads * d_head].
void StoreKeyValue(const KvShape& shape, float* layer_block, int slot, int first_head, int heads, const float* key,
                   const float* value);

// A sequence's blocks in order, and how many tokens are filled.
struct BlockList {
  std::vector<int32_t> blocks;
  int64_t tokens = 0;
};

// Fixed number of blocks, allocated lazily by the kernel (one private mapping). Not thread-safe: one per engine.
class KvPool {
 public:
  // If the shape is empty or the mapping is refused, the pool has no blocks (capacity() == 0) and every Extend fails.
  KvPool(const KvShape& shape, int32_t blocks);
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  const KvShape& shape() const { return shape_; }
  int32_t capacity() const { return capacity_; }
  int32_t free_blocks() const { return static_cast<int32_t>(free_.size()); }

  // Makes room for one more token at the end of `list` and makes its block writable by this list alone: takes a new
  // block when the last one is full, copies the last one when it is shared. False if the pool is empty (nothing
  // changed). After true, the new token's slot is list->tokens % kBlockTokens of the last block, and tokens is NOT
  // yet raised: callers store all layers, then raise it. Again before that: nothing more is taken.
  bool Extend(BlockList* list);
  // Adds `tokens` fresh slots at once (cross-attention memory) and raises list->tokens. All or nothing.
  bool Reserve(BlockList* list, int64_t tokens);
  // A second list over the same blocks.
  BlockList Fork(const BlockList& list);
  // Gives the list's references back and clears it.
  void Release(BlockList* list);

  float* layer(int32_t block, int layer) {
    return data_ + block * shape_.block_floats() + layer * shape_.layer_floats();
  }
  const float* layer(int32_t block, int layer) const {
    return data_ + block * shape_.block_floats() + layer * shape_.layer_floats();
  }

  // Copies made of partly filled blocks, and of full ones (always 0; a test holds it).
  int64_t partial_copies() const { return partial_copies_; }
  int64_t full_copies() const { return full_copies_; }

 private:
  // A free block, referenced once. REQUIRES one.
  int32_t Take();
  // Gives one reference back.
  void Drop(int32_t block);
  // Copies the first `slots` tokens of a block.
  void CopyFilled(int32_t from, int32_t to, int64_t slots);

  // Constant after construction.
  const KvShape shape_;
  const size_t bytes_;
  float* const data_;
  const int32_t capacity_;

  std::vector<int32_t> references_;
  std::vector<int32_t> free_;
  int64_t partial_copies_ = 0;
  int64_t full_copies_ = 0;
};

// Blocks that `tokens` tokens need.
inline int64_t BlocksFor(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace koine::kernels

#endif  // KOINE_KERNELS_ATTENTION_KV_POOL_H_
