// Measures Exp and Erf over a dense sample of all floats, on every instruction set of this processor.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "kernels/ops/force_target.h"
#include "kernels/ops/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/unit/kernels_ops/vector_math_test.cc"
// Compiles this file once per instruction set.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/ops/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace koine::kernels {
namespace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace vm = vector_math::HWY_NAMESPACE;

// x.size() is a multiple of 16.
void ExpAll(std::vector<float>* x) {
  for (size_t i = 0; i < x->size(); i += static_cast<size_t>(vm::kLanes)) {
    hn::StoreU(vm::Exp(hn::LoadU(vm::F32(), x->data() + i)), vm::F32(), x->data() + i);
  }
}
void ErfAll(std::vector<float>* x) {
  for (size_t i = 0; i < x->size(); i += static_cast<size_t>(vm::kLanes)) {
    hn::StoreU(vm::Erf(hn::LoadU(vm::F32(), x->data() + i)), vm::F32(), x->data() + i);
  }
}
std::string Target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace koine::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace koine::kernels {
namespace {
HWY_EXPORT(ExpAll);
HWY_EXPORT(ErfAll);
HWY_EXPORT(Target);

// Every 331st finite float, both signs (13 million), and the extremes.
std::vector<float> SampleOfAllFloats() {
  std::vector<float> sample;
  for (uint32_t bits = 0; bits < 0x7f800000U; bits += 331) {
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    sample.push_back(x);
    sample.push_back(-x);
  }
  sample.push_back(std::numeric_limits<float>::infinity());
  sample.push_back(-std::numeric_limits<float>::infinity());
  sample.push_back(std::numeric_limits<float>::max());
  sample.push_back(std::numeric_limits<float>::lowest());
  while (sample.size() % 16 != 0) sample.push_back(0.0F);
  return sample;
}

const std::vector<float>& Sample() {
  static const std::vector<float>& sample = *new std::vector<float>(SampleOfAllFloats());
  return sample;
}

class VectorMathTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_EQ(HWY_DYNAMIC_DISPATCH(Target)(), GetParam()); }

 private:
  ForcedTarget forced_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Targets, VectorMathTest, testing::ValuesIn(RunnableTargets()),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(VectorMathTest, ExpIsWithinItsDocumentedError) {
  std::vector<float> result = Sample();
  HWY_DYNAMIC_DISPATCH(ExpAll)(&result);
  double worst = 0;
  int64_t wrong = 0;
  for (size_t i = 0; i < result.size(); ++i) {
    const double x = static_cast<double>(Sample()[i]);
    const double y = static_cast<double>(result[i]);
    const double exact = std::exp(x);
    if (exact > static_cast<double>(std::numeric_limits<float>::max())) {
      wrong += !std::isinf(y);
    } else if (exact < static_cast<double>(std::numeric_limits<float>::min())) {
      // Denormal results are exact to a few of their smallest steps.
      wrong += !(std::abs(y - exact) <= 2 * static_cast<double>(std::numeric_limits<float>::denorm_min()));
    } else {
      wrong += std::isnan(y);
      worst = std::max(worst, std::abs(y / exact - 1));
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_LT(worst, 1.5e-7);
  std::cout << "exp: largest relative error " << worst << "\n";
}

TEST_P(VectorMathTest, ErfIsWithinItsDocumentedError) {
  std::vector<float> result = Sample();
  HWY_DYNAMIC_DISPATCH(ErfAll)(&result);
  double worst = 0;
  double worst_small = 0;  // relative, where |x| < 1
  for (size_t i = 0; i < result.size(); ++i) {
    const double x = static_cast<double>(Sample()[i]);
    const double error = std::abs(static_cast<double>(result[i]) - std::erf(x));
    worst = std::max(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
    if (std::abs(x) < 1 && std::abs(x) > 1e-37) worst_small = std::max(worst_small, error / std::abs(std::erf(x)));
  }
  EXPECT_LT(worst, 1.5e-7);
  EXPECT_LT(worst_small, 3e-7);
  std::cout << "erf: largest absolute error " << worst << ", relative below 1: " << worst_small << "\n";
}

TEST_P(VectorMathTest, NanStaysNan) {
  std::vector<float> x(16, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> y = x;
  HWY_DYNAMIC_DISPATCH(ExpAll)(&x);
  HWY_DYNAMIC_DISPATCH(ErfAll)(&y);
  for (const float v : x) EXPECT_TRUE(std::isnan(v));
  for (const float v : y) EXPECT_TRUE(std::isnan(v));
}

}  // namespace
}  // namespace koine::kernels
#endif  // HWY_ONCE
