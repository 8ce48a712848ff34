#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/kv_pool.h"
#include "kernels/ops/force_target.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/reference.h"

namespace koine::kernels {
namespace {

using reference::Matrix;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// Before and after every buffer that a kernel writes to.
constexpr int64_t kGuard = 32;
constexpr float kGuardValue = 12345.5F;

size_t Index(int64_t i) { return static_cast<size_t>(i); }

Matrix Random(std::mt19937& random, int64_t count, float deviation = 1.0F) {
  std::normal_distribution<float> normal(0, deviation);
  Matrix values(Index(count));
  for (float& value : values) value = normal(random);
  return values;
}

// Keys and values of one sequence in blocks of layer `layer`; every unused float of the blocks is NaN.
class Memory {
 public:
  Memory(const KvShape& shape, int layer, const Matrix& keys, const Matrix& values)
      : pool_(shape, static_cast<int32_t>(BlocksFor(Tokens(shape, keys)))) {
    const int64_t tokens = Tokens(shape, keys);
    const int64_t width = int64_t{shape.heads} * shape.d_head;
    EXPECT_TRUE(pool_.Reserve(&list_, tokens));
    for (const int32_t block : list_.blocks) std::fill_n(pool_.layer(block, 0), shape.block_floats(), kNan);
    for (int64_t t = 0; t < tokens; ++t) {
      StoreKeyValue(shape, pool_.layer(list_.blocks[Index(t / kBlockTokens)], layer),
                    static_cast<int>(t % kBlockTokens), 0, shape.heads, keys.data() + t * width,
                    values.data() + t * width);
    }
    for (const int32_t block : list_.blocks) starts_.push_back(pool_.layer(block, layer));
  }

  AttentionMemory view() const { return {.blocks = starts_.data(), .tokens = list_.tokens}; }

 private:
  static int64_t Tokens(const KvShape& shape, const Matrix& keys) {
    return static_cast<int64_t>(keys.size()) / shape.heads / shape.d_head;
  }

  KvPool pool_;
  BlockList list_;
  std::vector<const float*> starts_;
};

struct Result {
  Matrix out;      // [rows, heads * d_head]
  Matrix weights;  // [rows, tokens]
};

// Attends all heads of `shape`; checks that nothing outside out, scratch and weights was written.
Result RunAttend(const KvShape& shape, float scale, const Matrix& query, const AttentionMemory& memory,
                 int64_t padding = 0, int64_t misalign = 0, const ScoreBias& bias = {}) {
  const int64_t width = int64_t{shape.heads} * shape.d_head;
  const int64_t rows = static_cast<int64_t>(query.size()) / width;
  const int64_t stride = width + padding;
  Matrix in(Index(misalign + rows * stride), kNan);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(query.begin() + r * width, width, in.begin() + misalign + r * stride);
  }
  Matrix out(Index(2 * kGuard + misalign + rows * stride), kGuardValue);
  Matrix scratch(Index(2 * kGuard + AttentionScratchFloats(memory.tokens)), kGuardValue);
  Matrix weights(Index(2 * kGuard + rows * memory.tokens), kGuardValue);
  Attend(shape, 0, shape.heads, scale, in.data() + misalign, stride, rows, memory, bias, out.data() + kGuard + misalign,
         stride, scratch.data() + kGuard, weights.data() + kGuard);
  Result result;
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = out.begin() + kGuard + misalign + r * stride;
    result.out.insert(result.out.end(), row, row + width);
    std::fill_n(row, width, kGuardValue);
  }
  result.weights.assign(weights.begin() + kGuard, weights.end() - kGuard);
  EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](float v) { return v == kGuardValue; }));
  for (const Matrix* guarded : {&scratch, &weights}) {
    EXPECT_TRUE(std::all_of(guarded->begin(), guarded->begin() + kGuard, [](float v) { return v == kGuardValue; }));
    EXPECT_TRUE(std::all_of(guarded->end() - kGuard, guarded->end(), [](float v) { return v == kGuardValue; }));
  }
  return result;
}

bool SameBits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, Index(count) * sizeof(float)) == 0;
}

double LargestDifference(const Matrix& a, const Matrix& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    // NaN counts as infinite.
    largest = std::max(largest, std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference);
  }
  return largest;
}

// Every test runs on every instruction set of this processor.
class AttentionTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_EQ(OpsTarget(), GetParam()); }

 private:
  ForcedTarget forced_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Targets, AttentionTest, testing::ValuesIn(RunnableTargets()),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(AttentionTest, EqualsTheReference) {
  std::mt19937 random(1);
  double worst = 0;
  double worst_weight = 0;
  for (const int d_head : {4, 5, 16, 17, 31, 32, 33, 48, 64, 80, 100, 128, 192, 256}) {
    for (const int64_t tokens : {1, 2, 15, 16, 17, 33, 64, 100, 257}) {
      const KvShape shape = {.layers = 2, .heads = 1 + static_cast<int>(random() % 3), .d_head = d_head};
      const int64_t width = int64_t{shape.heads} * d_head;
      const int64_t rows = 1 + static_cast<int64_t>(random() % 9);
      const Matrix keys = Random(random, tokens * width);
      const Matrix values = Random(random, tokens * width);
      const Matrix query = Random(random, rows * width);
      const float scale = 1 / std::sqrt(static_cast<float>(d_head));
      const Memory memory(shape, static_cast<int>(random() % 2), keys, values);
      const Result result = RunAttend(shape, scale, query, memory.view(), static_cast<int64_t>(random() % 5));
      Matrix weights;
      const Matrix expected = reference::Attend(shape.heads, d_head, scale, query, keys, values, &weights);
      const double difference = LargestDifference(result.out, expected);
      ASSERT_LT(difference, 2e-6) << "d_head " << d_head << " tokens " << tokens << " rows " << rows;
      worst = std::max(worst, difference);
      worst_weight = std::max(worst_weight, LargestDifference(result.weights, weights));
    }
  }
  EXPECT_LT(worst_weight, 1e-6);
  std::cout << "largest difference: context " << worst << ", weights " << worst_weight << "\n";
}

TEST_P(AttentionTest, EqualsTheReferenceOverManyTokensAndSharpScores) {
  std::mt19937 random(2);
  const KvShape shape = {.layers = 1, .heads = 2, .d_head = 64};
  for (const float deviation : {0.01F, 1.0F, 4.0F}) {
    const Matrix keys = Random(random, 1024 * 128, deviation);
    const Matrix values = Random(random, 1024 * 128);
    const Matrix query = Random(random, 6 * 128);
    const Memory memory(shape, 0, keys, values);
    Matrix weights;
    const Matrix expected = reference::Attend(2, 64, 0.125F, query, keys, values, &weights);
    const Result result = RunAttend(shape, 0.125F, query, memory.view());
    EXPECT_LT(LargestDifference(result.out, expected), 1e-5) << deviation;
    EXPECT_LT(LargestDifference(result.weights, weights), 5e-6) << deviation;
  }
}

TEST_P(AttentionTest, ARowsBitsDoNotDependOnTheOtherRows) {
  std::mt19937 random(3);
  for (const int d_head : {4, 20, 32, 64, 72, 128}) {
    for (const int64_t tokens : {1, 7, 16, 40, 143}) {
      const KvShape shape = {.layers = 1, .heads = 2, .d_head = d_head};
      const int64_t width = int64_t{2} * d_head;
      const Matrix keys = Random(random, tokens * width);
      const Matrix values = Random(random, tokens * width);
      const Memory memory(shape, 0, keys, values);
      const Matrix query = Random(random, 17 * width);
      std::vector<Result> alone;
      for (int64_t r = 0; r < 17; ++r) {
        const Matrix row(query.begin() + r * width, query.begin() + (r + 1) * width);
        alone.push_back(RunAttend(shape, 0.3F, row, memory.view()));
      }
      for (const int64_t rows : {1, 2, 3, 5, 8, 17}) {
        const Matrix some(query.begin(), query.begin() + rows * width);
        const Result together = RunAttend(shape, 0.3F, some, memory.view(), rows % 3, rows % 4);
        for (int64_t r = 0; r < rows; ++r) {
          ASSERT_TRUE(SameBits(together.out.data() + r * width, alone[Index(r)].out.data(), width))
              << "d_head " << d_head << " tokens " << tokens << " rows " << rows << " row " << r;
          ASSERT_TRUE(SameBits(together.weights.data() + r * tokens, alone[Index(r)].weights.data(), tokens));
        }
      }
    }
  }
}

TEST_P(AttentionTest, HeadsInPiecesEqualAllHeadsAtOnce) {
  std::mt19937 random(4);
  const KvShape shape = {.layers = 1, .heads = 5, .d_head = 24};
  const int64_t width = 5 * 24;
  const Matrix keys = Random(random, 50 * width);
  const Matrix values = Random(random, 50 * width);
  const Matrix query = Random(random, 6 * width);
  const Memory memory(shape, 0, keys, values);
  const Result whole = RunAttend(shape, 0.2F, query, memory.view());
  Matrix pieces(query.size());
  Matrix scratch(Index(AttentionScratchFloats(50)));
  for (const auto& [first, heads] : {std::pair{0, 2}, std::pair{2, 1}, std::pair{3, 2}}) {
    Attend(shape, first, heads, 0.2F, query.data() + first * 24, width, 6, memory.view(), {},
           pieces.data() + first * 24, width, scratch.data());
  }
  EXPECT_TRUE(SameBits(whole.out.data(), pieces.data(), 6 * width));
}

// A table by distance as a model has it, with NaN after what may be read.
struct BiasTable {
  BiasTable(std::mt19937& random, int heads, int64_t positions)
      : longest(positions), stride(2 * longest - 1 + kBlockTokens - 1), values(Random(random, heads * stride)) {
    values.resize(values.size() + 64, kNan);
  }
  // For query rows from `position` on.
  ScoreBias from(int64_t position) const { return {values.data() + longest - 1 - position, stride}; }

  int64_t longest, stride;
  Matrix values;
};

TEST_P(AttentionTest, ScoresGetTheBiasOfTheirDistanceAndRowsStayAlone) {
  std::mt19937 random(8);
  for (const int64_t tokens : {1, 2, 15, 16, 17, 40, 129}) {
    const KvShape shape = {.layers = 1, .heads = 3, .d_head = 20};
    const int64_t width = 60;
    const Matrix keys = Random(random, tokens * width);
    const Matrix values = Random(random, tokens * width);
    const Matrix query = Random(random, tokens * width);
    const Memory memory(shape, 0, keys, values);
    const BiasTable table(random, 3, tokens + static_cast<int64_t>(random() % 3));
    Matrix bias;
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t r = 0; r < tokens; ++r) {
        for (int64_t t = 0; t < tokens; ++t) {
          bias.push_back(table.values[Index(h * table.stride + table.longest - 1 + t - r)]);
        }
      }
    }
    Matrix weights;
    const Matrix expected = reference::Attend(3, 20, 0.2F, query, keys, values, &weights, bias);
    const Result whole = RunAttend(shape, 0.2F, query, memory.view(), 3, 1, table.from(0));
    EXPECT_LT(LargestDifference(whole.out, expected), 2e-6) << tokens;
    EXPECT_LT(LargestDifference(whole.weights, weights), 1e-6) << tokens;
    for (int64_t r = 0; r < tokens; ++r) {
      const Matrix row(query.begin() + r * width, query.begin() + (r + 1) * width);
      const Result alone = RunAttend(shape, 0.2F, row, memory.view(), 0, 0, table.from(r));
      ASSERT_TRUE(SameBits(alone.out.data(), whole.out.data() + r * width, width)) << tokens << " row " << r;
    }
  }
}

TEST_P(AttentionTest, ABiasOfZeroChangesNoBit) {
  std::mt19937 random(9);
  const KvShape shape = {.layers = 1, .heads = 2, .d_head = 32};
  const Memory memory(shape, 0, Random(random, 50 * 64), Random(random, 50 * 64));
  const Matrix query = Random(random, 9 * 64);
  const Matrix zeros(2 * 256, 0.0F);
  const Result with = RunAttend(shape, 0.2F, query, memory.view(), 0, 0, {zeros.data() + 100, 256});
  const Result without = RunAttend(shape, 0.2F, query, memory.view());
  EXPECT_TRUE(SameBits(with.out.data(), without.out.data(), 9 * 64));
}

TEST_P(AttentionTest, WeightsOfARowSumToOne) {
  std::mt19937 random(5);
  const KvShape shape = {.layers = 1, .heads = 4, .d_head = 16};
  const Memory memory(shape, 0, Random(random, 77 * 64), Random(random, 77 * 64));
  const Result result = RunAttend(shape, 0.25F, Random(random, 7 * 64), memory.view());
  for (int64_t r = 0; r < 7; ++r) {
    double sum = 0;
    for (int64_t t = 0; t < 77; ++t) sum += static_cast<double>(result.weights[Index(r * 77 + t)]);
    EXPECT_NEAR(sum, 1.0, 1e-6);
  }
}

TEST_P(AttentionTest, OneTokenGivesItsValue) {
  std::mt19937 random(6);
  const KvShape shape = {.layers = 1, .heads = 2, .d_head = 32};
  const Matrix values = Random(random, 64);
  const Memory memory(shape, 0, Random(random, 64), values);
  const Result result = RunAttend(shape, 1.0F, Random(random, 3 * 64), memory.view());
  for (int64_t r = 0; r < 3; ++r) EXPECT_TRUE(SameBits(result.out.data() + r * 64, values.data(), 64));
  EXPECT_EQ(result.weights, (Matrix{1, 1, 1}));
}

TEST_P(AttentionTest, HugeScoresDoNotOverflow) {
  // Scores of about +-1e30: the softmax is a choice of the largest.
  const KvShape shape = {.layers = 1, .heads = 1, .d_head = 4};
  Matrix keys, values;
  for (int t = 0; t < 20; ++t) {
    for (int d = 0; d < 4; ++d) {
      keys.push_back(t == 13 ? 1e15F : -1e15F * static_cast<float>(t + 1));
      values.push_back(static_cast<float>(t));
    }
  }
  const Memory memory(shape, 0, keys, values);
  const Result result = RunAttend(shape, 1.0F, {1e15F, 1e15F, 1e15F, 1e15F}, memory.view());
  EXPECT_EQ(result.out, Matrix(4, 13.0F));
}

TEST_P(AttentionTest, NanInAQueryStaysInItsRow) {
  std::mt19937 random(7);
  const KvShape shape = {.layers = 1, .heads = 1, .d_head = 32};
  const Memory memory(shape, 0, Random(random, 30 * 32), Random(random, 30 * 32));
  Matrix query = Random(random, 3 * 32);
  const Result clean = RunAttend(shape, 0.2F, query, memory.view());
  query[32 + 5] = kNan;
  const Result broken = RunAttend(shape, 0.2F, query, memory.view());
  EXPECT_TRUE(SameBits(clean.out.data(), broken.out.data(), 32));
  EXPECT_TRUE(SameBits(clean.out.data() + 64, broken.out.data() + 64, 32));
  for (int64_t d = 0; d < 32; ++d) EXPECT_TRUE(std::isnan(broken.out[Index(32 + d)]));
}

}  // namespace
}  // namespace koine::kernels
