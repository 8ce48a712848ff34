#include "kernels/ops/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace koine::kernels::reference {
namespace {

size_t Index(int64_t i) { return static_cast<size_t>(i); }
double Wide(float x) { return static_cast<double>(x); }

}  // namespace

Matrix Normalize(NormType type, float eps, const float* weight, const float* bias, const Matrix& x, int64_t width) {
  Matrix y(x.size());
  const int64_t rows = static_cast<int64_t>(x.size()) / width;
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = x.data() + r * width;
    double mean = 0;
    if (type == NormType::kLayerNorm) {
      for (int64_t i = 0; i < width; ++i) mean += Wide(in[i]);
      mean /= static_cast<double>(width);
    }
    double variance = 0;
    for (int64_t i = 0; i < width; ++i) variance += (Wide(in[i]) - mean) * (Wide(in[i]) - mean);
    variance /= static_cast<double>(width);
    for (int64_t i = 0; i < width; ++i) {
      double value = (Wide(in[i]) - mean) / std::sqrt(variance + Wide(eps)) * Wide(weight[i]);
      if (type == NormType::kLayerNorm && bias != nullptr) value += Wide(bias[i]);
      y[Index(r * width + i)] = static_cast<float>(value);
    }
  }
  return y;
}

double Activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
  }
  return std::numeric_limits<double>::quiet_NaN();
}

Matrix Activate(Activation activation, const Matrix& x) {
  Matrix y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(Activate(activation, Wide(x[i])));
  return y;
}

Matrix ActivateGated(Activation activation, const Matrix& gate, const Matrix& up) {
  Matrix y(gate.size());
  for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<float>(Activate(activation, Wide(gate[i])) * Wide(up[i]));
  return y;
}

Matrix AddScaled(const Matrix& x, double factor, const Matrix& y) {
  Matrix sum(x.size());
  for (size_t i = 0; i < x.size(); ++i) sum[i] = static_cast<float>(Wide(x[i]) + factor * Wide(y[i]));
  return sum;
}

Matrix AddScaledBy(const Matrix& x, const Matrix& factors, const Matrix& y) {
  Matrix sum(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    sum[i] = static_cast<float>(Wide(x[i]) + Wide(factors[i % factors.size()]) * Wide(y[i]));
  }
  return sum;
}

Matrix MeanPool(const Matrix& x, int64_t width, bool l2_normalize) {
  const int64_t rows = static_cast<int64_t>(x.size()) / width;
  std::vector<double> mean(Index(width), 0.0);
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t r = 0; r < rows; ++r) mean[Index(i)] += Wide(x[Index(r * width + i)]) / static_cast<double>(rows);
    squares += mean[Index(i)] * mean[Index(i)];
  }
  const double divisor = l2_normalize ? std::max(std::sqrt(squares), 1e-12) : 1.0;
  Matrix out(Index(width));
  for (int64_t i = 0; i < width; ++i) out[Index(i)] = static_cast<float>(mean[Index(i)] / divisor);
  return out;
}

double LogSumExp(const float* x, int64_t width) {
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < width; ++i) max = std::max(max, Wide(x[i]));
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += std::exp(Wide(x[i]) - max);
  return max + std::log(sum);
}

std::vector<Scored> TopK(const float* x, int64_t width, int k) {
  std::vector<Scored> all;
  for (int64_t i = 0; i < width; ++i) {
    if (x[i] > -std::numeric_limits<float>::infinity()) all.push_back({static_cast<int32_t>(i), x[i]});
  }
  std::stable_sort(all.begin(), all.end(), [](const Scored& a, const Scored& b) { return a.value > b.value; });
  if (all.size() > Index(std::max(k, 0))) all.resize(Index(std::max(k, 0)));
  return all;
}

Matrix Attend(int heads, int d_head, float scale, const Matrix& query, const Matrix& keys, const Matrix& values,
              Matrix* weights, const Matrix& bias) {
  const int64_t width = int64_t{heads} * d_head;
  const int64_t rows = static_cast<int64_t>(query.size()) / width;
  const int64_t tokens = static_cast<int64_t>(keys.size()) / width;
  Matrix out(query.size());
  std::vector<double> means(Index(rows * tokens), 0.0);
  std::vector<double> scores(Index(tokens), 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t first = h * d_head;
      double max = -std::numeric_limits<double>::infinity();
      for (int64_t t = 0; t < tokens; ++t) {
        double dot = 0;
        for (int64_t d = first; d < first + d_head; ++d) {
          dot += Wide(query[Index(r * width + d)]) * Wide(keys[Index(t * width + d)]);
        }
        scores[Index(t)] = Wide(scale) * dot;
        if (!bias.empty()) scores[Index(t)] += Wide(bias[Index((h * rows + r) * tokens + t)]);
        max = std::max(max, scores[Index(t)]);
      }
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - max);
      for (int64_t t = 0; t < tokens; ++t) means[Index(r * tokens + t)] += scores[Index(t)] / sum / heads;
      for (int64_t d = first; d < first + d_head; ++d) {
        double value = 0;
        for (int64_t t = 0; t < tokens; ++t) value += scores[Index(t)] / sum * Wide(values[Index(t * width + d)]);
        out[Index(r * width + d)] = static_cast<float>(value);
      }
    }
  }
  if (weights != nullptr) weights->assign(means.begin(), means.end());
  return out;
}

}  // namespace koine::kernels::reference
