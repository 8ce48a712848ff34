#include "kernels/attention/kv_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace koine::kernels {
namespace {

constexpr KvShape kShape = {.layers = 2, .heads = 3, .d_head = 5};
constexpr int kWidth = 3 * 5;

size_t Index(int64_t i) { return static_cast<size_t>(i); }

// The key or value element that token `token` has at (layer, column); different for every argument.
float Element(int64_t token, int layer, int column, bool value) {
  return static_cast<float>(((token * 2 + layer) * kWidth + column) * 2 + (value ? 1 : 0));
}

// Writes token `token` into the last slot that Extend made, and raises the list.
void Append(KvPool& pool, BlockList& list, int64_t token) {
  std::vector<float> key(kWidth), value(kWidth);
  for (int layer = 0; layer < kShape.layers; ++layer) {
    for (int c = 0; c < kWidth; ++c) {
      key[Index(c)] = Element(token, layer, c, false);
      value[Index(c)] = Element(token, layer, c, true);
    }
    StoreKeyValue(kShape, pool.layer(list.blocks.back(), layer), static_cast<int>(list.tokens % kBlockTokens), 0,
                  kShape.heads, key.data(), value.data());
  }
  ++list.tokens;
}

// Reads an element back from the documented layout.
float Read(const KvPool& pool, const BlockList& list, int64_t t, int layer, int column, bool value) {
  const int head = column / kShape.d_head;
  const int d = column % kShape.d_head;
  const int64_t slot = t % kBlockTokens;
  const float* start = pool.layer(list.blocks[Index(t / kBlockTokens)], layer) + head * kShape.head_floats();
  if (!value) return start[d * kBlockTokens + slot];
  return start[kShape.key_floats() + slot * kShape.d_head_padded() + d];
}

void ExpectHolds(const KvPool& pool, const BlockList& list, const std::vector<int64_t>& tokens) {
  ASSERT_EQ(list.tokens, static_cast<int64_t>(tokens.size()));
  ASSERT_EQ(static_cast<int64_t>(list.blocks.size()), BlocksFor(list.tokens));
  for (int64_t t = 0; t < list.tokens; ++t) {
    for (int layer = 0; layer < kShape.layers; ++layer) {
      for (int c = 0; c < kWidth; ++c) {
        ASSERT_EQ(Read(pool, list, t, layer, c, false), Element(tokens[Index(t)], layer, c, false)) << t << " " << c;
        ASSERT_EQ(Read(pool, list, t, layer, c, true), Element(tokens[Index(t)], layer, c, true)) << t << " " << c;
      }
    }
  }
}

TEST(KvShapeTest, CountsTheElementsOfABlock) {
  EXPECT_EQ(kShape.d_head_padded(), 16);
  EXPECT_EQ(kShape.key_floats(), 5 * 16);
  EXPECT_EQ(kShape.value_floats(), 16 * 16);
  EXPECT_EQ(kShape.block_floats(), 2 * 3 * (5 * 16 + 16 * 16));
  EXPECT_EQ(BlocksFor(0), 0);
  EXPECT_EQ(BlocksFor(16), 1);
  EXPECT_EQ(BlocksFor(17), 2);
}

TEST(KvPoolTest, StoresSomeHeadsAndLeavesTheOthersAlone) {
  KvPool pool(kShape, 1);
  BlockList list;
  ASSERT_TRUE(pool.Extend(&list));
  const std::vector<float> key = {1, 2, 3, 4, 5};
  const std::vector<float> value = {6, 7, 8, 9, 10};
  StoreKeyValue(kShape, pool.layer(list.blocks[0], 1), 3, 2, 1, key.data(), value.data());
  list.tokens = 4;
  for (int layer = 0; layer < 2; ++layer) {
    for (int64_t t = 0; t < 4; ++t) {
      for (int c = 0; c < kWidth; ++c) {
        const bool written = layer == 1 && t == 3 && c >= 10;
        EXPECT_EQ(Read(pool, list, t, layer, c, false), written ? static_cast<float>(c - 10 + 1) : 0.0F);
        EXPECT_EQ(Read(pool, list, t, layer, c, true), written ? static_cast<float>(c - 10 + 6) : 0.0F);
      }
    }
  }
  pool.Release(&list);
}

TEST(KvPoolTest, BlocksOfOneListNeverOverlap) {
  KvPool pool(kShape, 3);
  BlockList list;
  ASSERT_TRUE(pool.Reserve(&list, 3 * kBlockTokens));
  std::set<const float*> starts;
  for (const int32_t block : list.blocks) {
    for (int layer = 0; layer < kShape.layers; ++layer) starts.insert(pool.layer(block, layer));
  }
  ASSERT_EQ(starts.size(), 6U);
  const float* previous = nullptr;
  for (const float* start : starts) {
    if (previous != nullptr) {
      EXPECT_EQ(start - previous, kShape.layer_floats());
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(start) % 64, 0U);
    previous = start;
  }
  pool.Release(&list);
}

TEST(KvPoolTest, ExtendTakesABlockForEverySixteenTokens) {
  KvPool pool(kShape, 3);
  BlockList list;
  std::vector<int64_t> tokens;
  for (int64_t t = 0; t < 3 * kBlockTokens; ++t) {
    ASSERT_TRUE(pool.Extend(&list));
    EXPECT_EQ(list.tokens, t);  // raised by the caller only
    Append(pool, list, 100 + t);
    tokens.push_back(100 + t);
    EXPECT_EQ(pool.free_blocks(), 3 - BlocksFor(t + 1));
  }
  ExpectHolds(pool, list, tokens);
  EXPECT_FALSE(pool.Extend(&list));
  ExpectHolds(pool, list, tokens);  // a refusal changes nothing
  pool.Release(&list);
  EXPECT_EQ(list.tokens, 0);
  EXPECT_TRUE(list.blocks.empty());
  EXPECT_EQ(pool.free_blocks(), 3);
}

TEST(KvPoolTest, ExtendTwiceWithoutATokenTakesOneBlock) {
  KvPool pool(kShape, 2);
  BlockList list;
  ASSERT_TRUE(pool.Extend(&list));
  ASSERT_TRUE(pool.Extend(&list));
  EXPECT_EQ(list.blocks.size(), 1U);
  EXPECT_EQ(pool.free_blocks(), 1);
  // Forked in that state, nothing is there to copy.
  BlockList fork = pool.Fork(list);
  ASSERT_TRUE(pool.Extend(&fork));
  EXPECT_NE(fork.blocks[0], list.blocks[0]);
  EXPECT_EQ(pool.partial_copies(), 0);
  pool.Release(&list);
  pool.Release(&fork);
  EXPECT_EQ(pool.free_blocks(), 2);
}

TEST(KvPoolTest, ASharedFullBlockIsNotCopied) {
  KvPool pool(kShape, 4);
  BlockList list;
  std::vector<int64_t> tokens;
  for (int64_t t = 0; t < kBlockTokens; ++t) {
    ASSERT_TRUE(pool.Extend(&list));
    Append(pool, list, t);
    tokens.push_back(t);
  }
  BlockList fork = pool.Fork(list);
  ASSERT_TRUE(pool.Extend(&fork));
  Append(pool, fork, 1000);
  EXPECT_EQ(fork.blocks[0], list.blocks[0]);
  EXPECT_EQ(pool.partial_copies(), 0);
  EXPECT_EQ(pool.full_copies(), 0);
  ExpectHolds(pool, list, tokens);
  tokens.push_back(1000);
  ExpectHolds(pool, fork, tokens);
  pool.Release(&fork);
  pool.Release(&list);
  EXPECT_EQ(pool.free_blocks(), 4);
}

TEST(KvPoolTest, ASharedPartlyFilledBlockIsCopiedByTheFirstWriterOnly) {
  KvPool pool(kShape, 4);
  BlockList list;
  for (int64_t t = 0; t < 3; ++t) {
    ASSERT_TRUE(pool.Extend(&list));
    Append(pool, list, t);
  }
  BlockList fork = pool.Fork(list);
  ASSERT_TRUE(pool.Extend(&fork));
  Append(pool, fork, 50);
  EXPECT_EQ(pool.partial_copies(), 1);
  ASSERT_TRUE(pool.Extend(&list));  // alone again
  Append(pool, list, 60);
  EXPECT_EQ(pool.partial_copies(), 1);
  ExpectHolds(pool, list, {0, 1, 2, 60});
  ExpectHolds(pool, fork, {0, 1, 2, 50});
  pool.Release(&fork);
  pool.Release(&list);
}

TEST(KvPoolTest, ACopyThatDoesNotFitChangesNothing) {
  KvPool pool(kShape, 1);
  BlockList list;
  ASSERT_TRUE(pool.Extend(&list));
  Append(pool, list, 7);
  BlockList fork = pool.Fork(list);
  EXPECT_FALSE(pool.Extend(&fork));
  EXPECT_FALSE(pool.Reserve(&fork, 1));
  ExpectHolds(pool, fork, {7});
  pool.Release(&list);
  EXPECT_EQ(pool.free_blocks(), 0);  // the fork still holds it
  EXPECT_TRUE(pool.Extend(&fork));
  pool.Release(&fork);
  EXPECT_EQ(pool.free_blocks(), 1);
}

TEST(KvPoolTest, ReserveIsAllOrNothing) {
  KvPool pool(kShape, 4);
  BlockList list;
  EXPECT_TRUE(pool.Reserve(&list, 0));
  EXPECT_FALSE(pool.Reserve(&list, -1));
  EXPECT_FALSE(pool.Reserve(&list, 4 * kBlockTokens + 1));
  EXPECT_FALSE(pool.Reserve(&list, std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(pool.free_blocks(), 4);
  EXPECT_EQ(list.tokens, 0);
  EXPECT_TRUE(list.blocks.empty());
  EXPECT_TRUE(pool.Reserve(&list, 17));
  EXPECT_EQ(list.tokens, 17);
  EXPECT_EQ(list.blocks.size(), 2U);
  EXPECT_TRUE(pool.Reserve(&list, 15));  // fits the second block
  EXPECT_EQ(list.blocks.size(), 2U);
  BlockList fork = pool.Fork(list);
  EXPECT_TRUE(pool.Reserve(&fork, 2));
  EXPECT_EQ(fork.tokens, 34);
  EXPECT_EQ(fork.blocks.size(), 3U);
  EXPECT_EQ(pool.free_blocks(), 1);
  pool.Release(&list);
  pool.Release(&fork);
  EXPECT_EQ(pool.free_blocks(), 4);
}

TEST(KvPoolTest, ReserveMakesASharedLastBlockItsOwn) {
  KvPool pool(kShape, 3);
  BlockList list;
  ASSERT_TRUE(pool.Extend(&list));
  Append(pool, list, 9);
  BlockList fork = pool.Fork(list);
  ASSERT_TRUE(pool.Reserve(&fork, kBlockTokens));  // one copy and one fresh block
  EXPECT_NE(fork.blocks[0], list.blocks[0]);
  EXPECT_EQ(Read(pool, fork, 0, 1, 4, true), Element(9, 1, 4, true));
  EXPECT_EQ(pool.partial_copies(), 1);
  EXPECT_EQ(pool.free_blocks(), 0);
  pool.Release(&list);
  pool.Release(&fork);
}

TEST(KvPoolTest, AnImpossiblePoolIsEmpty) {
  for (const KvShape& shape :
       {KvShape{.layers = 0, .heads = 1, .d_head = 1}, KvShape{.layers = 1, .heads = -1, .d_head = 1},
        KvShape{.layers = 1 << 30, .heads = 1 << 30, .d_head = 1 << 30}}) {
    KvPool pool(shape, 1 << 20);
    EXPECT_EQ(pool.capacity(), 0);
    BlockList list;
    EXPECT_FALSE(pool.Extend(&list));
  }
  KvPool none(kShape, 0);
  EXPECT_EQ(none.capacity(), 0);
}

// Random beam searches against a model that keeps every hypothesis' whole history.
TEST(KvPoolTest, RandomBeamReorderingsKeepEveryHistory) {
  std::mt19937 random(1);
  int64_t partial_copies = 0;
  for (int round = 0; round < 30; ++round) {
    const int beam = 1 + static_cast<int>(random() % 6);
    const int steps = 1 + static_cast<int>(random() % 60);
    // While reordering, old and new lists live together: one further partly filled block each.
    const int32_t capacity = static_cast<int32_t>((2 * beam) * (BlocksFor(steps) + 1));
    KvPool pool(kShape, capacity);
    std::vector<BlockList> lists(1);
    std::vector<std::vector<int64_t>> histories(1);
    int64_t next_token = 0;
    for (int step = 0; step < steps; ++step) {
      for (size_t i = 0; i < lists.size(); ++i) {
        ASSERT_TRUE(pool.Extend(&lists[i]));
        Append(pool, lists[i], next_token);
        histories[i].push_back(next_token++);
      }
      for (size_t i = 0; i < lists.size(); ++i) ASSERT_NO_FATAL_FAILURE(ExpectHolds(pool, lists[i], histories[i]));
      std::vector<BlockList> new_lists;
      std::vector<std::vector<int64_t>> new_histories;
      const int live = 1 + static_cast<int>(random() % Index(beam));
      for (int i = 0; i < live; ++i) {
        const size_t parent = random() % lists.size();
        new_lists.push_back(pool.Fork(lists[parent]));
        new_histories.push_back(histories[parent]);
      }
      for (BlockList& list : lists) pool.Release(&list);
      lists = std::move(new_lists);
      histories = std::move(new_histories);
    }
    for (BlockList& list : lists) pool.Release(&list);
    EXPECT_EQ(pool.free_blocks(), capacity);
    EXPECT_EQ(pool.full_copies(), 0);
    partial_copies += pool.partial_copies();
  }
  EXPECT_GT(partial_copies, 0);
}

}  // namespace
}  // namespace koine::kernels
