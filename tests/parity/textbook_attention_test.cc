// The textbook multi-head attention (one fused qkv projection, 8 heads, d_model 512) that two languages share: weights,
// inputs and outputs stored by another implementation, reproduced with both languages in one packed batch.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/matmul/matmul.h"
#include "model_loader/safetensors/safetensors.h"
#include "tests/support/harness.h"

namespace koine {
namespace {

constexpr int64_t kModel = 512;
constexpr int kHeads = 8;
constexpr int64_t kHeadWidth = kModel / kHeads;

struct Free {
  void operator()(void* data) const { std::free(data); }
};

std::vector<float> Values(const model_loader::SafetensorsFile& file, const char* name) {
  const model_loader::TensorView* tensor = file.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<float> values(static_cast<size_t>(tensor->elements()));
  kernels::ConvertToF32(tensor->data.data(), tensor->dtype, tensor->elements(), values.data());
  return values;
}

TEST(TextbookAttention, TwoLanguagesInOnePackedBatch) {
  const auto opened =
      model_loader::SafetensorsFile::Open(testing::SourcePath("tests/data/shared-attention/case.safetensors"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const model_loader::SafetensorsFile& file = **opened;
  const auto pack = [&](const char* name, int64_t out, std::unique_ptr<void, Free>* bytes) {
    const auto layout = *kernels::LayoutFor(out, kModel, kernels::Precision::kF32);
    const size_t size = (kernels::PackedBytes(*layout) + 63) / 64 * 64;
    bytes->reset(std::aligned_alloc(64, size));
    std::memset(bytes->get(), 0, size);
    const std::vector<float> weights = Values(file, name);
    kernels::PackRows(*layout, 0, out, weights.data(), bytes->get());
    return kernels::PackedMatrix{layout, bytes->get()};
  };
  std::unique_ptr<void, Free> qkv_bytes, out_bytes;
  const kernels::PackedMatrix qkv = pack("qkv_proj.weight", 3 * kModel, &qkv_bytes);
  const kernels::PackedMatrix out = pack("out_proj.weight", kModel, &out_bytes);
  const std::vector<float> qkv_bias = Values(file, "qkv_proj.bias");
  const std::vector<float> out_bias = Values(file, "out_proj.bias");

  // Rows of both languages, two sentences each: 2 x 10 and 2 x 12 tokens, no padding.
  std::vector<float> x = Values(file, "x_english");
  const std::vector<float> chinese = Values(file, "x_chinese");
  x.insert(x.end(), chinese.begin(), chinese.end());
  std::vector<float> expected = Values(file, "out_english");
  const std::vector<float> expected_chinese = Values(file, "out_chinese");
  expected.insert(expected.end(), expected_chinese.begin(), expected_chinese.end());
  const int64_t rows = static_cast<int64_t>(x.size()) / kModel;
  ASSERT_EQ(rows, 2 * 10 + 2 * 12);
  const int64_t capacity = kernels::RoundedRows(rows);
  x.resize(static_cast<size_t>(capacity * kModel));

  kernels::MatmulRunner runner(1);
  std::vector<float> projected(static_cast<size_t>(capacity * 3 * kModel));
  std::vector<float> context(static_cast<size_t>(capacity * kModel));
  std::vector<float> y(static_cast<size_t>(capacity * kModel));
  runner.Run(x.data(), rows, qkv, qkv_bias.data(), projected.data());
  const kernels::KvShape shape{1, kHeads, static_cast<int>(kHeadWidth)};
  int64_t begin = 0;
  for (const int64_t tokens : {10, 10, 12, 12}) {
    std::vector<float> block(static_cast<size_t>(shape.layer_floats()));
    for (int64_t t = 0; t < tokens; ++t) {
      const float* row = projected.data() + (begin + t) * 3 * kModel;
      kernels::StoreKeyValue(shape, block.data(), static_cast<int>(t), 0, kHeads, row + kModel, row + 2 * kModel);
    }
    const float* blocks = block.data();
    std::vector<float> scratch(static_cast<size_t>(kernels::AttentionScratchFloats(tokens)));
    kernels::Attend(shape, 0, kHeads, 1.0F / std::sqrt(static_cast<float>(kHeadWidth)),
                    projected.data() + begin * 3 * kModel, 3 * kModel, tokens, {&blocks, tokens}, {},
                    context.data() + begin * kModel, kModel, scratch.data());
    begin += tokens;
  }
  runner.Run(context.data(), rows, out, out_bias.data(), y.data());
  EXPECT_EQ(runner.counts().calls, 2) << "one product per shared matrix for all rows of both languages";

  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    largest = std::max(largest, std::abs(double{expected[i]} - double{y[i]}));
  std::printf("largest difference: %.2g\n", largest);
  EXPECT_LE(largest, 1e-5);
}

}  // namespace
}  // namespace koine
