#include "kernels/ops/ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/ops/force_target.h"
#include "kernels/ops/reference.h"
#include "kernels/tensor/dtype.h"

namespace koine::kernels {
namespace {

using reference::Matrix;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Activation kActivations[] = {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu};

size_t Index(int64_t i) { return static_cast<size_t>(i); }
double Wide(float x) { return static_cast<double>(x); }

// Every tail of every vector length, and the widths of real models.
std::vector<int64_t> Widths() {
  std::vector<int64_t> widths;
  for (int64_t width = 1; width <= 70; ++width) widths.push_back(width);
  for (const int64_t width : {255, 256, 257, 1024, 8000}) widths.push_back(width);
  return widths;
}

Matrix Random(std::mt19937& random, int64_t count, float deviation = 1.0F, float mean = 0.0F) {
  std::normal_distribution<float> normal(mean, deviation);
  Matrix values(Index(count));
  for (float& value : values) value = normal(random);
  return values;
}

// A matrix with its own stride and alignment whose gaps hold a guard value: NaN where the gaps are only read past by
// a fault, so that reading one poisons the result.
class Strided {
 public:
  Strided(const Matrix& dense, int64_t width, int64_t padding, int64_t misalign)
      : width_(width),
        rows_(static_cast<int64_t>(dense.size()) / width),
        stride_(width + padding),
        misalign_(misalign),
        data_(Index(misalign + rows_ * stride_ + 1), kNan) {
    for (int64_t r = 0; r < rows_; ++r) std::copy_n(dense.begin() + r * width, width, data() + r * stride_);
  }

  float* data() { return data_.data() + misalign_; }
  int64_t stride() const { return stride_; }
  int64_t rows() const { return rows_; }

  // The matrix without its gaps, which must still be NaN.
  Matrix Dense() const {
    Matrix dense;
    for (size_t i = 0; i < data_.size(); ++i) {
      const int64_t offset = static_cast<int64_t>(i) - misalign_;
      const bool inside = offset >= 0 && offset < rows_ * stride_ && offset % stride_ < width_;
      if (inside) {
        dense.push_back(data_[i]);
      } else {
        EXPECT_TRUE(std::isnan(data_[i])) << "written outside the rows, offset " << offset;
      }
    }
    return dense;
  }

 private:
  const int64_t width_, rows_, stride_, misalign_;
  Matrix data_;
};

// An operation on a strided matrix in place; the width is known to it.
using RowOperation = std::function<void(float* x, int64_t stride, int64_t rows)>;

Matrix Apply(const RowOperation& operation, const Matrix& x, int64_t width, int64_t padding = 0, int64_t misalign = 0) {
  Strided strided(x, width, padding, misalign);
  operation(strided.data(), strided.stride(), strided.rows());
  return strided.Dense();
}

// |a - b| <= absolute + relative * |b| everywhere; infinities of the same sign are equal, and so are NaNs.
testing::AssertionResult Near(const Matrix& a, const Matrix& b, double absolute, double relative) {
  if (a.size() != b.size()) return testing::AssertionFailure() << a.size() << " elements, not " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    if (!(std::abs(Wide(a[i]) - Wide(b[i])) <= absolute + relative * std::abs(Wide(b[i])))) {
      return testing::AssertionFailure() << "element " << i << ": " << a[i] << ", expected " << b[i];
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult SameBits(const Matrix& a, const Matrix& b) {
  if (a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "bits differ";
}

// Bits of every row must be the same alone, among others, with any stride and at any alignment.
void ExpectRowsAreIndependent(const RowOperation& operation, const Matrix& x, int64_t width) {
  const int64_t rows = static_cast<int64_t>(x.size()) / width;
  Matrix alone;
  for (int64_t r = 0; r < rows; ++r) {
    const Matrix row(x.begin() + r * width, x.begin() + (r + 1) * width);
    const Matrix result = Apply(operation, row, width);
    alone.insert(alone.end(), result.begin(), result.end());
  }
  for (const int64_t padding : {0, 1, 5, 16}) {
    for (const int64_t misalign : {0, 1, 3}) {
      ASSERT_TRUE(SameBits(Apply(operation, x, width, padding, misalign), alone))
          << "width " << width << " padding " << padding << " misalign " << misalign;
    }
  }
}

// Every test runs on every instruction set of this processor.
class OpsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_EQ(OpsTarget(), GetParam()); }

 private:
  ForcedTarget forced_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Targets, OpsTest, testing::ValuesIn(RunnableTargets()),
                         [](const auto& parameter) { return parameter.param; });

TEST(OpsTargetTest, TheBestInstructionSetIsTheDefault) {
  { const ForcedTarget forced(RunnableTargets().back()); }
  EXPECT_EQ(OpsTarget(), RunnableTargets().front());
}

TEST_P(OpsTest, NormalizeEqualsTheReference) {
  std::mt19937 random(1);
  double worst = 0;
  for (const int64_t width : Widths()) {
    const Matrix weight = Random(random, width), bias = Random(random, width);
    const Matrix x = Random(random, 3 * width, 2.0F, 0.5F);
    for (const NormType type : {NormType::kLayerNorm, NormType::kRmsNorm}) {
      for (const float* b : {bias.data(), static_cast<const float*>(nullptr)}) {
        const auto operation = [&](float* data, int64_t stride, int64_t rows) {
          Normalize(type, 1e-5F, weight.data(), b, data, stride, rows, width, data, stride);
        };
        const Matrix expected = reference::Normalize(type, 1e-5F, weight.data(), b, x, width);
        const Matrix result = Apply(operation, x, width, 3, 1);
        // Normalised values are of order 1; a small variance (few columns) amplifies the mean's rounding.
        ASSERT_TRUE(Near(result, expected, width < 4 ? 1e-4 : 1e-5, 1e-5)) << "width " << width;
        if (width == 1024) {
          for (size_t i = 0; i < result.size(); ++i) {
            worst = std::max(worst, std::abs(Wide(result[i]) - Wide(expected[i])) / (std::abs(Wide(expected[i])) + 1));
          }
        }
        ASSERT_NO_FATAL_FAILURE(ExpectRowsAreIndependent(operation, x, width));
      }
    }
  }
  EXPECT_LT(worst, 1e-6);
  std::cout << "normalize, width 1024: largest error relative to 1 + |y| " << worst << "\n";
}

TEST_P(OpsTest, NormalizeToAnotherMatrixLeavesTheInputAlone) {
  std::mt19937 random(2);
  const Matrix weight = Random(random, 20), x = Random(random, 60);
  Strided in(x, 20, 4, 0), out(Matrix(60), 20, 7, 1);
  Normalize(NormType::kLayerNorm, 1e-6F, weight.data(), nullptr, in.data(), in.stride(), 3, 20, out.data(),
            out.stride());
  EXPECT_TRUE(SameBits(in.Dense(), x));
  EXPECT_TRUE(
      Near(out.Dense(), reference::Normalize(NormType::kLayerNorm, 1e-6F, weight.data(), nullptr, x, 20), 2e-6, 2e-6));
}

TEST_P(OpsTest, NormalizeStaysAccurateFarFromZeroAndAtExtremes) {
  std::mt19937 random(3);
  const int64_t width = 1024;
  const Matrix ones(Index(width), 1.0F);
  for (const float mean : {100.0F, -1000.0F}) {
    const Matrix x = Random(random, width, 1.0F, mean);
    const auto operation = [&](float* data, int64_t stride, int64_t rows) {
      Normalize(NormType::kLayerNorm, 1e-5F, ones.data(), nullptr, data, stride, rows, width, data, stride);
    };
    // The inputs' own spacing at 1000 is 6e-5 of their deviation.
    EXPECT_TRUE(Near(Apply(operation, x, width),
                     reference::Normalize(NormType::kLayerNorm, 1e-5F, ones.data(), nullptr, x, width), 1e-4, 1e-5));
  }
  for (const float scale : {1e30F, -1e30F, 1e20F, 1e-30F, 1e-42F}) {
    Matrix x = Random(random, width);
    for (float& value : x) value *= scale;
    for (const NormType type : {NormType::kLayerNorm, NormType::kRmsNorm}) {
      const auto operation = [&](float* data, int64_t stride, int64_t rows) {
        Normalize(type, 1e-6F, ones.data(), nullptr, data, stride, rows, width, data, stride);
      };
      EXPECT_TRUE(Near(Apply(operation, x, width), reference::Normalize(type, 1e-6F, ones.data(), nullptr, x, width),
                       1e-6, 1e-5))
          << "scale " << scale;
    }
  }
  Matrix equal(Index(width), 3.0F);
  Normalize(NormType::kLayerNorm, 1e-5F, ones.data(), nullptr, equal.data(), width, 1, width, equal.data(), width);
  EXPECT_EQ(equal, Matrix(Index(width), 0.0F));
}

TEST_P(OpsTest, ActivateEqualsTheReference) {
  std::mt19937 random(4);
  for (const Activation activation : kActivations) {
    for (const int64_t width : Widths()) {
      const Matrix x = Random(random, 3 * width, 3.0F);
      const auto operation = [&](float* data, int64_t stride, int64_t rows) {
        Activate(activation, data, stride, rows, width);
      };
      ASSERT_TRUE(Near(Apply(operation, x, width, 3, 1), reference::Activate(activation, x), 5e-7, 5e-7));
      ASSERT_NO_FATAL_FAILURE(ExpectRowsAreIndependent(operation, x, width));
    }
  }
}

TEST_P(OpsTest, ActivationsAreAccurateOverTheWholeRange) {
  Matrix x;
  for (int i = -200000; i <= 200000; ++i) x.push_back(static_cast<float>(i) * 1e-4F);
  for (const float extreme : {1e30F, -1e30F, 1e-30F, -1e-30F, 1e-42F, -1e-42F, 0.0F, -0.0F, 88.0F, -88.0F, 104.0F,
                              -104.0F, 1000.0F, -1000.0F, 3e38F, -3e38F}) {
    x.push_back(extreme);
  }
  for (const Activation activation : kActivations) {
    Matrix y = x;
    const int64_t width = static_cast<int64_t>(x.size());
    Activate(activation, y.data(), width, 1, width);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = reference::Activate(activation, Wide(x[i]));
      const double error = std::abs(Wide(y[i]) - exact) / std::max(1.0, std::abs(exact));
      ASSERT_FALSE(std::isnan(error)) << x[i];
      worst = std::max(worst, error);
    }
    EXPECT_LT(worst, 5e-7);
    std::cout << "activation " << static_cast<int>(activation) << ": largest error relative to max(1, |y|) " << worst
              << "\n";
  }
}

TEST_P(OpsTest, ActivationsKeepNan) {
  for (const Activation activation : kActivations) {
    Matrix x = {1, kNan, 2};
    Activate(activation, x.data(), 3, 1, 3);
    EXPECT_TRUE(std::isnan(x[1]));
    EXPECT_FALSE(std::isnan(x[0]));
    EXPECT_FALSE(std::isnan(x[2]));
  }
}

TEST_P(OpsTest, ActivateGatedEqualsTheReferenceAndMayOverwriteEitherInput) {
  std::mt19937 random(5);
  for (const Activation activation : kActivations) {
    for (const int64_t width : Widths()) {
      const Matrix gate = Random(random, 2 * width), up = Random(random, 2 * width);
      const Matrix expected = reference::ActivateGated(activation, gate, up);
      Strided g(gate, width, 2, 1), u(up, width, 0, 0), y(Matrix(gate.size()), width, 5, 3);
      ActivateGated(activation, g.data(), g.stride(), u.data(), u.stride(), 2, width, y.data(), y.stride());
      const Matrix result = y.Dense();
      ASSERT_TRUE(Near(result, expected, 2e-6, 5e-7));
      Strided over_gate(gate, width, 1, 0), over_up(up, width, 3, 2);
      ActivateGated(activation, over_gate.data(), over_gate.stride(), u.data(), u.stride(), 2, width, over_gate.data(),
                    over_gate.stride());
      ActivateGated(activation, g.data(), g.stride(), over_up.data(), over_up.stride(), 2, width, over_up.data(),
                    over_up.stride());
      ASSERT_TRUE(SameBits(over_gate.Dense(), result));
      ASSERT_TRUE(SameBits(over_up.Dense(), result));
    }
  }
}

TEST_P(OpsTest, AdditionsEqualTheReference) {
  std::mt19937 random(6);
  for (const int64_t width : Widths()) {
    const Matrix x = Random(random, 3 * width), y = Random(random, 3 * width), factors = Random(random, width);
    Strided other(y, width, 4, 2);
    const RowOperation add = [&](float* data, int64_t stride, int64_t rows) {
      AddInPlace(data, stride, other.data(), other.stride(), rows, width);
    };
    ASSERT_TRUE(SameBits(Apply(add, x, width, 1, 1), reference::AddScaled(x, 1, y)));
    const RowOperation add_scaled = [&](float* data, int64_t stride, int64_t rows) {
      AddScaled(data, stride, 0.37F, other.data(), other.stride(), rows, width);
    };
    ASSERT_TRUE(Near(Apply(add_scaled, x, width, 1, 1), reference::AddScaled(x, Wide(0.37F), y), 5e-7, 1e-7));
    const RowOperation add_scaled_by = [&](float* data, int64_t stride, int64_t rows) {
      AddScaledBy(data, stride, factors.data(), other.data(), other.stride(), rows, width);
    };
    ASSERT_TRUE(Near(Apply(add_scaled_by, x, width, 1, 1), reference::AddScaledBy(x, factors, y), 2e-6, 1e-7));
    const RowOperation scale_and_add = [&](float* data, int64_t, int64_t) {
      ScaleAndAdd(data, 5.5F, factors.data(), width);
    };
    const Matrix row(x.begin(), x.begin() + width);
    ASSERT_TRUE(Near(Apply(scale_and_add, row, width, 1, 1), reference::AddScaled(factors, 5.5, row), 2e-6, 1e-7));
    // Bits independent of stride and alignment, against the same operation on dense rows one by one.
    for (const int64_t r : {0, 1, 2}) {
      const Matrix own(x.begin() + r * width, x.begin() + (r + 1) * width);
      const RowOperation one = [&](float* data, int64_t stride, int64_t rows) {
        AddScaledBy(data, stride, factors.data(), y.data() + r * width, width, rows, width);
      };
      const Matrix together = Apply(add_scaled_by, x, width, 7, 3);
      ASSERT_TRUE(
          SameBits(Apply(one, own, width), Matrix(together.begin() + r * width, together.begin() + (r + 1) * width)));
    }
  }
}

TEST_P(OpsTest, MeanPoolEqualsTheReference) {
  std::mt19937 random(7);
  for (const int64_t width : Widths()) {
    for (const int64_t rows : {1, 2, 7, 100}) {
      if (width > 1024 && rows > 7) continue;
      const Matrix x = Random(random, rows * width);
      for (const bool l2 : {false, true}) {
        Strided in(x, width, 3, 1);
        Strided out(Matrix(Index(width)), width, 0, 1);
        MeanPool(in.data(), in.stride(), rows, width, l2, out.data());
        ASSERT_TRUE(Near(out.Dense(), reference::MeanPool(x, width, l2), 1e-6, 2e-6)) << width << " " << rows;
      }
    }
  }
}

TEST_P(OpsTest, MeanPoolOfExtremeRows) {
  Matrix out(3);
  const Matrix zero(6, 0.0F);
  MeanPool(zero.data(), 3, 2, 3, true, out.data());
  EXPECT_EQ(out, Matrix(3, 0.0F));  // not NaN
  const Matrix huge = {1e30F, 0, -1e30F};
  MeanPool(huge.data(), 3, 1, 3, true, out.data());
  EXPECT_TRUE(Near(out, reference::MeanPool(huge, 3, true), 0, 1e-6));
  const Matrix tiny = {1e-20F, 0, 0};
  MeanPool(tiny.data(), 3, 1, 3, true, out.data());
  EXPECT_TRUE(Near(out, reference::MeanPool(tiny, 3, true), 0, 1e-6));
}

TEST_P(OpsTest, BFloat16RoundsAsTheScalarConversion) {
  std::mt19937 random(8);
  for (const int64_t width : Widths()) {
    Matrix x(Index(2 * width));
    for (float& value : x) {
      const uint32_t bits = static_cast<uint32_t>(random());  // any float at all, NaN and infinities included
      std::memcpy(&value, &bits, sizeof(value));
    }
    if (width > 8) {
      const uint32_t special[] = {0x3f808000U, 0x3f818000U, 0x7f7fffffU, 0x7f800000U,
                                  0xff800001U, 0x7fffffffU, 0x00000001U, 0x80000000U};
      std::memcpy(x.data(), special, sizeof(special));
    }
    const int64_t stride = width + 3;
    std::vector<uint16_t> y(Index(2 * stride), 0xabcd);
    ConvertToBFloat16(x.data(), width, 2, width, y.data(), stride);
    for (int64_t i = 0; i < 2 * stride; ++i) {
      const int64_t r = i / stride, c = i % stride;
      ASSERT_EQ(y[Index(i)], c < width ? ToBFloat16(x[Index(r * width + c)]) : 0xabcd) << width << " " << i;
    }
  }
}

TEST_P(OpsTest, LogSumExpEqualsTheReference) {
  std::mt19937 random(9);
  double worst = 0;
  const auto check = [&](const Matrix& x) {
    const int64_t width = static_cast<int64_t>(x.size());
    const double exact = reference::LogSumExp(x.data(), width);
    const double error = std::abs(Wide(LogSumExp(x.data(), width)) - exact) / std::max(1.0, std::abs(exact));
    ASSERT_FALSE(std::isnan(error));
    worst = std::max(worst, error);
  };
  std::vector<int64_t> widths = Widths();
  widths.push_back(32000);
  widths.push_back(256206);
  for (const int64_t width : widths) {
    for (const float deviation : {0.0F, 0.1F, 3.0F, 30.0F}) {
      Matrix x = Random(random, width, deviation + 1e-30F, 2.0F);
      check(x);
      x[Index(width / 2)] += 12.3F;
      check(x);
      for (int64_t i = 0; i + 1 < width; i += 3) x[Index(i)] = -kInf;
      check(x);
    }
  }
  check({1e30F, -1e30F, 1e30F});
  check({-1e30F, -1e30F});
  check({1e-42F, -1e-42F, 0.0F});
  check({-kInf, -3.5F, -kInf});
  EXPECT_LT(worst, 1e-6);
  std::cout << "log-sum-exp: largest error relative to max(1, |y|) " << worst << "\n";
}

TEST_P(OpsTest, LogSumExpOfNothingIsMinusInfinity) {
  const Matrix nothing(40, -kInf);
  EXPECT_EQ(LogSumExp(nothing.data(), 40), -kInf);
}

TEST_P(OpsTest, LogSumExpDoesNotDependOnAlignment) {
  std::mt19937 random(10);
  for (const int64_t width : {1, 31, 33, 1000, 5000}) {
    const Matrix x = Random(random, width);
    const float expected = LogSumExp(x.data(), width);
    for (const int64_t misalign : {1, 2, 3, 7}) {
      Strided moved(x, width, 0, misalign);
      EXPECT_EQ(LogSumExp(moved.data(), width), expected);
    }
  }
}

void ExpectTopK(const Matrix& x, int k) {
  const int64_t width = static_cast<int64_t>(x.size());
  std::vector<Scored> result = {{-1, -1.0F}};  // cleared first
  TopK(x.data(), width, k, &result);
  const std::vector<Scored> expected = reference::TopK(x.data(), width, k);
  ASSERT_EQ(result.size(), expected.size()) << "width " << width << " k " << k;
  for (size_t i = 0; i < result.size(); ++i) {
    ASSERT_EQ(result[i].id, expected[i].id) << "width " << width << " k " << k << " place " << i;
    ASSERT_EQ(result[i].value, expected[i].value);
  }
}

TEST_P(OpsTest, TopKEqualsASort) {
  std::mt19937 random(11);
  std::vector<int64_t> widths = Widths();
  widths.push_back(256206);
  for (const int64_t width : widths) {
    for (const int k : {0, 1, 2, 8, 64, 1000, 300000}) {
      if (width > 10000 && k > 64) continue;
      const Matrix x = Random(random, width);
      ASSERT_NO_FATAL_FAILURE(ExpectTopK(x, k));
      // Few different values: nearly all are ties.
      Matrix ties = x;
      for (float& value : ties) value = std::floor(value);
      ASSERT_NO_FATAL_FAILURE(ExpectTopK(ties, k));
      Matrix masked = x;
      for (float& value : masked) {
        if (random() % 2 == 0) value = -kInf;
      }
      ASSERT_NO_FATAL_FAILURE(ExpectTopK(masked, k));
    }
  }
}

TEST_P(OpsTest, TopKOfSortedAndExtremeRows) {
  Matrix rising;
  for (int i = 0; i < 5000; ++i) rising.push_back(static_cast<float>(i));
  ExpectTopK(rising, 10);
  std::reverse(rising.begin(), rising.end());
  ExpectTopK(rising, 10);
  ExpectTopK(Matrix(300, -kInf), 5);
  ExpectTopK(Matrix(300, 0.0F), 5);
  ExpectTopK({0.0F, -0.0F, 0.0F, 1e-42F, -1e-42F}, 5);  // zeros tie
  ExpectTopK({1e30F, -1e30F, kInf, -kInf, 3e38F, -3e38F}, 6);
}

TEST_P(OpsTest, TopKSkipsNan) {
  Matrix x(200, kNan);
  ExpectTopK(x, 3);
  x[77] = 1;
  x[150] = 2;
  ExpectTopK(x, 1);
  ExpectTopK(x, 3);
}

TEST_P(OpsTest, TopKRejectsANegativeK) {
  const Matrix x = {1, 2, 3};
  std::vector<Scored> result;
  TopK(x.data(), 3, -1, &result);
  EXPECT_TRUE(result.empty());
}

TEST_P(OpsTest, AllFiniteFindsEveryOddElement) {
  std::mt19937 random(12);
  for (const int64_t width : Widths()) {
    Matrix x = Random(random, width);
    x[0] = 3e38F;
    if (width > 1) x[1] = -1e-42F;
    ASSERT_TRUE(AllFinite(x.data(), width));
    for (int64_t i = 0; i < width; i += 1 + width / 50) {
      for (const float odd : {kNan, -kNan, kInf, -kInf}) {
        const float kept = x[Index(i)];
        x[Index(i)] = odd;
        ASSERT_FALSE(AllFinite(x.data(), width)) << width << " " << i;
        x[Index(i)] = kept;
      }
    }
  }
  EXPECT_TRUE(AllFinite(nullptr, 0));
}

TEST_P(OpsTest, NoRowsIsNothingToDo) {
  Normalize(NormType::kLayerNorm, 1e-5F, nullptr, nullptr, nullptr, 0, 0, 8, nullptr, 0);
  Activate(Activation::kGelu, nullptr, 0, 0, 8);
  AddInPlace(nullptr, 0, nullptr, 0, 0, 8);
  Matrix out(8, 1.0F);
  MeanPool(nullptr, 0, 0, 8, true, out.data());
  EXPECT_EQ(out, Matrix(8, 0.0F));
}

}  // namespace
}  // namespace koine::kernels
