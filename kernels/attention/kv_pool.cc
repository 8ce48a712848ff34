#include "kernels/attention/kv_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace koine::kernels {
namespace {

// Bytes of `blocks` blocks of this shape; 0 if the shape is empty or the size is not representable.
size_t PoolBytes(const KvShape& shape, int32_t blocks) {
  if (shape.layers <= 0 || shape.heads <= 0 || shape.d_head <= 0 || blocks <= 0) return 0;
  // int d_head: head_floats is below 2^31 * 16 * 2 + 2^9, far from overflow; the products below are checked.
  int64_t bytes = (int64_t{shape.d_head} + (int64_t{shape.d_head} + 15) / 16 * 16) * kBlockTokens;
  for (const int64_t factor : {int64_t{shape.heads}, int64_t{shape.layers}, int64_t{blocks}, int64_t{sizeof(float)}}) {
    if (__builtin_mul_overflow(bytes, factor, &bytes)) return 0;
  }
  return static_cast<size_t>(bytes);
}

// Null if the kernel refuses or `bytes` is 0.
float* MapPool(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return mapping == MAP_FAILED ? nullptr : static_cast<float*>(mapping);
}

size_t Index(int64_t i) { return static_cast<size_t>(i); }

}  // namespace

void StoreKeyValue(const KvShape& shape, float* layer_block, int slot, int first_head, int heads, const float* key,
                   const float* value) {
  const int64_t d_head = shape.d_head;
  for (int h = 0; h < heads; ++h) {
    float* keys = layer_block + (first_head + h) * shape.head_floats();
    float* values = keys + shape.key_floats() + int64_t{slot} * shape.d_head_padded();
    for (int64_t d = 0; d < d_head; ++d) keys[d * kBlockTokens + slot] = key[h * d_head + d];
    std::memcpy(values, value + h * d_head, Index(d_head) * sizeof(float));
  }
}

KvPool::KvPool(const KvShape& shape, int32_t blocks)
    : shape_(shape),
      bytes_(PoolBytes(shape, blocks)),
      data_(MapPool(bytes_)),
      capacity_(data_ == nullptr ? 0 : blocks),
      references_(Index(capacity_), 0) {
  // Last in, first out, starting with block 0: blocks that were just given back are the warm ones.
  free_.reserve(Index(capacity_));
  for (int32_t block = capacity_; block-- > 0;) free_.push_back(block);
}

KvPool::~KvPool() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

int32_t KvPool::Take() {
  const int32_t block = free_.back();
  free_.pop_back();
  references_[Index(block)] = 1;
  return block;
}

void KvPool::Drop(int32_t block) {
  if (--references_[Index(block)] == 0) free_.push_back(block);
}

void KvPool::CopyFilled(int32_t from, int32_t to, int64_t slots) {
  if (slots == 0) return;
  ++(slots == kBlockTokens ? full_copies_ : partial_copies_);
  const int64_t heads = int64_t{shape_.layers} * shape_.heads;
  // Keys are transposed: their filled slots lie in every cache line. Of the values only the filled rows are copied.
  const int64_t floats = shape_.key_floats() + slots * shape_.d_head_padded();
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t offset = h * shape_.head_floats();
    std::memcpy(layer(to, 0) + offset, layer(from, 0) + offset, Index(floats) * sizeof(float));
  }
}

bool KvPool::Extend(BlockList* list) {
  const int64_t index = list->tokens / kBlockTokens;
  if (static_cast<int64_t>(list->blocks.size()) == index) {
    if (free_.empty()) return false;
    list->blocks.push_back(Take());
    return true;
  }
  // The block of the new token is there already: partly filled, or taken by an Extend that was not followed up.
  int32_t& last = list->blocks.back();
  if (references_[Index(last)] == 1) return true;
  if (free_.empty()) return false;
  const int32_t copy = Take();
  CopyFilled(last, copy, list->tokens - index * kBlockTokens);
  Drop(last);
  last = copy;
  return true;
}

bool KvPool::Reserve(BlockList* list, int64_t tokens) {
  if (tokens <= 0) return tokens == 0;
  if (tokens > std::numeric_limits<int64_t>::max() - kBlockTokens - list->tokens) return false;
  const int64_t present = static_cast<int64_t>(list->blocks.size());
  const int64_t index = list->tokens / kBlockTokens;
  const bool copies = present > index && references_[Index(list->blocks.back())] > 1;
  const int64_t fresh = BlocksFor(list->tokens + tokens) - present;
  if (fresh + (copies ? 1 : 0) > free_blocks()) return false;
  if (copies) Extend(list);
  for (int64_t i = 0; i < fresh; ++i) list->blocks.push_back(Take());
  list->tokens += tokens;
  return true;
}

BlockList KvPool::Fork(const BlockList& list) {
  for (const int32_t block : list.blocks) ++references_[Index(block)];
  return list;
}

void KvPool::Release(BlockList* list) {
  for (const int32_t block : list->blocks) Drop(block);
  list->blocks.clear();
  list->tokens = 0;
}

}  // namespace koine::kernels
