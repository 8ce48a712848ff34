#include "kernels/matmul/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace koine::kernels {
namespace {

struct Shape {
  int64_t in, out;
};
// Attention, feed-forward and table shapes, the low ranks (2 to 32) of adapters, and one of which oneDNN wants two
// layouts in f32.
const std::vector<Shape> kShapes = {{256, 256}, {256, 768}, {1024, 256}, {256, 1000}, {32, 256},
                                    {256, 32},  {4, 48},    {48, 4},     {2, 33},     {33, 2},
                                    {16, 100},  {40, 100},  {8, 8},      {1, 1},      {1024, 1024}};

std::vector<float> Random(size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// Owns aligned packed bytes.
struct Owned {
  PackedMatrix matrix;
  std::vector<char> bytes;
  Owned(int64_t out, int64_t in, Precision precision, const std::vector<float>& weights) {
    auto layout = LayoutFor(out, in, precision);
    EXPECT_TRUE(layout.ok()) << layout.status();
    bytes.resize(PackedBytes(**layout) + 64);
    char* aligned = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
    // In two pieces and in the wrong order: pieces must not touch each other.
    const int64_t half = out / 2;
    PackRows(**layout, half, out - half, weights.data() + half * in, aligned);
    PackRows(**layout, 0, half, weights.data(), aligned);
    matrix = {*layout, aligned};
  }
};

std::vector<Precision> Precisions() {
  std::vector<Precision> precisions = {Precision::kF32};
  if (CheckPrecision(Precision::kBF16).ok()) precisions.push_back(Precision::kBF16);
  return precisions;
}

// What is kept of a weight, and what a product takes for an element of x: low-rank matrices (a side up to 32) and
// [100, 40] are computed in f32 with x as it is.
float Stored(Precision precision, float value) {
  return precision == Precision::kF32 ? value : FromBFloat16(ToBFloat16(value));
}
float Taken(Precision precision, const Shape& shape, float value) {
  return std::min(shape.in, shape.out) <= 32 ? value : Stored(precision, value);
}

TEST(Matmul, BackendIsTheForcedOne) {
  const char* expected = std::getenv("KOINE_EXPECT_BACKEND");
  if (expected == nullptr) GTEST_SKIP() << "natural backend: " << MatmulBackend();
  EXPECT_NE(MatmulBackend().find(expected), std::string::npos) << MatmulBackend();
  EXPECT_FALSE(CheckPrecision(Precision::kBF16).ok());
}

TEST(Matmul, MatchesDoublePrecisionLoops) {
  for (const Precision precision : Precisions()) {
    for (const Shape shape : kShapes) {
      const auto weights = Random(static_cast<size_t>(shape.in * shape.out), 1);
      const auto bias = Random(static_cast<size_t>(shape.out), 2);
      const Owned w(shape.out, shape.in, precision, weights);
      MatmulRunner runner(1);
      for (const int64_t rows : {1, 3, 17}) {
        auto x = Random(static_cast<size_t>(RoundedRows(rows) * shape.in), 3);
        std::vector<float> y(static_cast<size_t>(RoundedRows(rows) * shape.out), NAN);
        for (const bool with_bias : {true, false}) {
          runner.Run(x.data(), rows, w.matrix, with_bias ? bias.data() : nullptr, y.data());
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t n = 0; n < shape.out; ++n) {
              double sum = with_bias ? double{bias[static_cast<size_t>(n)]} : 0.0;
              double magnitude = std::abs(sum);
              for (int64_t k = 0; k < shape.in; ++k) {
                const double product = double{Taken(precision, shape, x[static_cast<size_t>(r * shape.in + k)])} *
                                       double{Stored(precision, weights[static_cast<size_t>(n * shape.in + k)])};
                sum += product;
                magnitude += std::abs(product);
              }
              ASSERT_NEAR(y[static_cast<size_t>(r * shape.out + n)], sum, 2e-6 * magnitude + 1e-6)
                  << shape.out << "x" << shape.in << " row " << r << " column " << n;
            }
          }
        }
      }
    }
  }
}

TEST(Matmul, RowsAreBitIdenticalForEveryBatchAndThreadCount) {
  for (const Precision precision : Precisions()) {
    for (const Shape shape : kShapes) {
      const auto weights = Random(static_cast<size_t>(shape.in * shape.out), 4);
      const auto bias = Random(static_cast<size_t>(shape.out), 5);
      const Owned w(shape.out, shape.in, precision, weights);
      const int64_t most = 300;
      const auto x = Random(static_cast<size_t>(RoundedRows(most) * shape.in), 6);
      std::vector<float> alone(static_cast<size_t>(most * shape.out));
      MatmulRunner single(1);
      std::vector<float> y(static_cast<size_t>(RoundedRows(most) * shape.out));
      for (int64_t r = 0; r < most; ++r) {
        single.Run(x.data() + r * shape.in, 1, w.matrix, bias.data(), y.data());
        std::memcpy(alone.data() + r * shape.out, y.data(), static_cast<size_t>(shape.out) * sizeof(float));
      }
      for (const int threads : {1, 2}) {
        MatmulRunner runner(threads);
        for (const int64_t rows : {2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33, 64, 65, 100, 128, 200, 300}) {
          runner.Run(x.data(), rows, w.matrix, bias.data(), y.data());
          ASSERT_EQ(std::memcmp(y.data(), alone.data(), static_cast<size_t>(rows * shape.out) * sizeof(float)), 0)
              << Name(precision) << " " << shape.out << "x" << shape.in << " rows " << rows << " threads " << threads;
        }
      }
    }
  }
}

// A language's low-rank pair, and what it adds by double loops.
struct Pair {
  int64_t in, rank, out;
  std::vector<float> a_values, b_values;
  Owned a, b;
  LowRank view;
  Pair(int64_t in_size, int64_t rank_size, int64_t out_size, Precision precision, unsigned seed)
      : in(in_size),
        rank(rank_size),
        out(out_size),
        a_values(Random(static_cast<size_t>(rank * in), seed)),
        b_values(Random(static_cast<size_t>(out * rank), seed + 1)),
        a(rank, in, precision, a_values),
        b(out, rank, precision, b_values),
        view{a.matrix, b.matrix, 0.25F * static_cast<float>(seed % 7 + 1)} {}

  double Added(Precision precision, const float* x, int64_t n, double* magnitude) const {
    double sum = 0;
    for (int64_t r = 0; r < rank; ++r) {
      double low = 0;
      for (int64_t k = 0; k < in; ++k) {
        const double taken = rank <= 32 ? x[k] : Stored(precision, x[k]);
        low += taken * double{Stored(precision, a_values[static_cast<size_t>(r * in + k)])};
      }
      const double product = low * double{Stored(precision, b_values[static_cast<size_t>(n * rank + r)])};
      sum += product;
      *magnitude += std::abs(product);
    }
    *magnitude *= view.scale;
    return sum * view.scale;
  }
};
// Ranks that fill a register, do not, or take two; columns that end inside a panel; a rank that takes the other path.
const std::vector<Shape> kRanks = {{256, 16}, {256, 8}, {96, 4}, {33, 1}, {130, 17}, {64, 32}, {256, 64}};

TEST(LowRank, MatchesDoublePrecisionLoopsAndTouchesNothingElse) {
  for (const Precision precision : Precisions()) {
    for (const auto& [in, rank] : kRanks) {
      for (const int64_t out : {16, 100, 300}) {
        const Pair pair(in, rank, out, precision, static_cast<unsigned>(rank));
        const int64_t rows = 7;
        const int64_t stride = out + 5;
        const auto x = Random(static_cast<size_t>(RoundedRows(rows) * in), 3);
        const auto before = Random(static_cast<size_t>((rows + 1) * stride), 4);
        std::vector<float> y = before;
        MatmulRunner runner(1);
        runner.AddLowRank({{&pair.view, x.data(), rows, y.data(), stride}});
        EXPECT_EQ(runner.counts().calls, 2);
        EXPECT_EQ(runner.counts().multiply_adds, rows * rank * (in + out));
        // The other path rounds what lies between its products to bf16.
        const double tolerance = rank > 32 && precision == Precision::kBF16 ? 1e-2 : 1e-5;
        for (size_t i = 0; i < y.size(); ++i) {
          const int64_t row = static_cast<int64_t>(i) / stride;
          const int64_t column = static_cast<int64_t>(i) % stride;
          if (row == rows || column >= out) {
            ASSERT_EQ(y[i], before[i]) << "row " << row << " column " << column;
            continue;
          }
          double magnitude = 0;
          const double added = pair.Added(precision, x.data() + row * in, column, &magnitude);
          ASSERT_NEAR(y[i], before[i] + added, tolerance * (magnitude + 1)) << "rank " << rank << " column " << column;
        }
      }
    }
  }
}

TEST(LowRank, RowsAreBitIdenticalAloneAndAmongOtherLanguagesWithEveryThreadCount) {
  for (const Precision precision : Precisions()) {
    std::vector<std::unique_ptr<Pair>> pairs;
    const int64_t in = 96, out = 100;
    for (unsigned i = 0; i < 9; ++i) {
      pairs.push_back(std::make_unique<Pair>(in, std::vector<int64_t>{16, 2, 31, 40, 8}[i % 5], out, precision, i));
    }
    const int64_t most = 200;
    const auto x = Random(static_cast<size_t>(RoundedRows(most) * in), 6);
    const auto before = Random(static_cast<size_t>(most * out), 7);
    std::mt19937 generator(8);
    for (int round = 0; round < 20; ++round) {
      // Rows in runs of a random language each.
      std::vector<size_t> language(static_cast<size_t>(most));
      for (size_t row = 0; row < language.size();) {
        const size_t pair = generator() % pairs.size();
        for (size_t n = 1 + generator() % (round % 2 == 0 ? 3 : 60); n > 0 && row < language.size(); --n) {
          language[row++] = pair;
        }
      }
      std::vector<float> alone = before;
      MatmulRunner single(1);
      for (int64_t row = 0; row < most; ++row) {
        single.AddLowRank({{&pairs[language[static_cast<size_t>(row)]]->view, x.data() + row * in, 1,
                            alone.data() + row * out, out}});
      }
      for (const int threads : {1, 2, 3}) {
        std::vector<float> y = before;
        std::vector<LowRankUpdate> updates;
        for (int64_t row = 0; row < most; ++row) {
          const LowRank* pair = &pairs[language[static_cast<size_t>(row)]]->view;
          if (updates.empty() || updates.back().pair != pair) {
            updates.push_back({pair, x.data() + row * in, 0, y.data() + row * out, out});
          }
          ++updates.back().rows;
        }
        MatmulRunner runner(threads);
        runner.AddLowRank(updates);
        ASSERT_EQ(std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)), 0)
            << Name(precision) << " round " << round << " threads " << threads;
      }
    }
  }
}

TEST(Matmul, UnpackRowGivesBackWhatWasPacked) {
  for (const Precision precision : Precisions()) {
    for (const Shape shape : kShapes) {
      const auto weights = Random(static_cast<size_t>(shape.in * shape.out), 7);
      const Owned w(shape.out, shape.in, precision, weights);
      EXPECT_EQ(w.matrix.out(), shape.out);
      EXPECT_EQ(w.matrix.in(), shape.in);
      std::vector<float> row(static_cast<size_t>(shape.in));
      for (int64_t n = 0; n < shape.out; ++n) {
        UnpackRow(w.matrix, n, row.data());
        for (int64_t k = 0; k < shape.in; ++k) {
          ASSERT_EQ(row[static_cast<size_t>(k)], Stored(precision, weights[static_cast<size_t>(n * shape.in + k)]));
        }
      }
    }
  }
}

TEST(Matmul, RoundedRowsIsTightAndSmall) {
  int64_t sizes = 0;
  for (int64_t rows = 1, last = 0; rows <= 4096; ++rows) {
    const int64_t rounded = RoundedRows(rows);
    EXPECT_GE(rounded, rows);
    EXPECT_LE(rounded - rows, rows / 8 + 1);
    EXPECT_EQ(RoundedRows(rounded), rounded);
    if (rounded != last) ++sizes;
    last = rounded;
  }
  EXPECT_LE(sizes, 90);
}

TEST(Matmul, CreatesEachPrimitiveOnce) {
  const auto weights = Random(64 * 64, 8);
  const Owned w(64, 64, Precision::kF32, weights);
  MatmulRunner runner(1);
  std::vector<float> x(64 * 64), y(64 * 64);
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (const int64_t rows : {1, 17, 18}) runner.Run(x.data(), rows, w.matrix, nullptr, y.data());
  }
  EXPECT_EQ(runner.counts().calls, 9);
  EXPECT_EQ(runner.counts().multiply_adds, 3 * (1 + 17 + 18) * 64 * 64);
  EXPECT_LE(runner.counts().primitives_created, 2);  // 17 and 18 rows round to the same size; 0 on the portable path
}

TEST(Matmul, RefusesImpossibleShapes) {
  for (const auto& [out, in] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 4}, {4, 0}, {-1, 4}, {int64_t{1} << 40, 4}, {int64_t{1} << 30, int64_t{1} << 30}}) {
    EXPECT_EQ(LayoutFor(out, in, Precision::kF32).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace koine::kernels
