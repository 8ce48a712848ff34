// Relative positions: T5's buckets against thresholds that were checked in three published implementations, and the
// table that attention reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels/transformer/transformer.h"

namespace koine::kernels {
namespace {

// The first distance of each bucket from `first` on.
using Thresholds = std::map<int64_t, int64_t>;

Thresholds FirstDistances(bool bidirectional, int sign, int64_t buckets, int64_t max_distance, int64_t from) {
  Thresholds first;
  for (int64_t distance = from; distance < 1000; ++distance) {
    first.emplace(RelativeBucket(sign * distance, bidirectional, buckets, max_distance), distance);
  }
  return first;
}

TEST(RelativeBucketTest, HasThePublishedThresholds) {
  const Thresholds half = {{8, 8}, {9, 12}, {10, 16}, {11, 23}, {12, 32}, {13, 46}, {14, 64}, {15, 91}};
  EXPECT_EQ(FirstDistances(true, -1, 32, 128, 8), half);
  Thresholds later;
  for (const auto& [bucket, distance] : half) later.emplace(bucket + 16, distance);
  EXPECT_EQ(FirstDistances(true, 1, 32, 128, 8), later);
  const Thresholds whole = {{16, 16}, {17, 19}, {18, 21}, {19, 24}, {20, 27}, {21, 31}, {22, 35}, {23, 40},
                            {24, 46}, {25, 52}, {26, 59}, {27, 67}, {28, 77}, {29, 87}, {30, 99}, {31, 113}};
  EXPECT_EQ(FirstDistances(false, -1, 32, 128, 16), whole);
}

TEST(RelativeBucketTest, NearDistancesHaveABucketEach) {
  for (int64_t n = 0; n < 8; ++n) {
    EXPECT_EQ(RelativeBucket(-n, true, 32, 128), n);
    EXPECT_EQ(RelativeBucket(n, true, 32, 128), n == 0 ? 0 : 16 + n);
  }
  for (int64_t n = 0; n < 16; ++n) EXPECT_EQ(RelativeBucket(-n, false, 32, 128), n);
  EXPECT_EQ(RelativeBucket(5, false, 32, 128), 0) << "keys after the query count as distance 0";
}

TEST(RelativeBucketTest, RisesWithDistanceAndEndsInTheLastBucketForAllSizes) {
  for (int64_t buckets = 4; buckets <= 64; buckets += 2) {
    for (const int64_t max_distance : {buckets / 2 + 1, buckets, int64_t{100}, int64_t{128}, int64_t{1000}}) {
      for (const bool bidirectional : {false, true}) {
        const int64_t side = bidirectional ? buckets / 2 : buckets;
        int64_t last = 0;
        for (int64_t n = 0; n <= 2 * max_distance; ++n) {
          const int64_t bucket = RelativeBucket(-n, bidirectional, buckets, max_distance);
          ASSERT_GE(bucket, last);
          ASSERT_LT(bucket, side);
          if (n >= max_distance) {
            ASSERT_EQ(bucket, side - 1) << buckets << " " << max_distance << " " << n;
          }
          if (bidirectional && n > 0) {
            ASSERT_EQ(RelativeBucket(n, true, buckets, max_distance), side + bucket);
          }
          last = bucket;
        }
      }
    }
  }
}

TEST(RelativeBiasesTest, RowsHoldTheWeightOfEveryDistance) {
  constexpr int64_t kHeads = 3, kBuckets = 8, kDistance = 20, kLongest = 30;
  std::vector<float> weight(kBuckets * kHeads);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(i);
  for (const bool bidirectional : {true, false}) {
    const int64_t stride = RelativeStride(bidirectional, kLongest);
    std::vector<float> table(static_cast<size_t>(kHeads * stride), -1.0F);
    RelativeBiases(weight.data(), kHeads, bidirectional, kBuckets, kDistance, kLongest, table.data());
    const int64_t latest = bidirectional ? kLongest - 1 : 0;
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t n = -(kLongest - 1); n <= latest; ++n) {
        const int64_t bucket = RelativeBucket(n, bidirectional, kBuckets, kDistance);
        EXPECT_EQ(table[static_cast<size_t>(head * stride + kLongest - 1 + n)],
                  weight[static_cast<size_t>(bucket * kHeads + head)]);
      }
    }
    // What a block of tokens may read beyond the last one is there too.
    EXPECT_EQ(std::count(table.begin(), table.end(), -1.0F), 0);
  }
}

}  // namespace
}  // namespace koine::kernels
