// Row-wise operations in f32, vectorised with Highway and dispatched at run time to the best instruction set.
//
// All matrices are row-major with a row stride in elements. Every function computes each row alone and in a fixed
// order, so a row's bits do not depend on how many rows there are (DESIGN: bit-stable results). None allocates.
// Thread rule: pure functions; any thread, as long as nobody else writes the same rows.
#ifndef KOINE_KERNELS_OPS_OPS_H_
#define KOINE_KERNELS_OPS_OPS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace koine::kernels {

enum class NormType : uint8_t { kLayerNorm, kRmsNorm };
// gelu is the erf form, gelu_tanh the tanh form (Hendrycks and Gimpel, 2016), silu is x * sigmoid(x).
enum class Activation : uint8_t { kRelu, kGelu, kGeluTanh, kSilu };

// layer_norm: (x - mean) / sqrt(var + eps) * weight + bias, biased variance (Ba et al., 2016).
// rms_norm: x / sqrt(mean(x^2) + eps) * weight; bias is ignored (Zhang and Sennrich, 2019).
// x and y are [rows, width] and may be the same matrix. bias may be null.
void Normalize(NormType type, float eps, const float* weight, const float* bias, const float* x, int64_t x_stride,
               int64_t rows, int64_t width, float* y, int64_t y_stride);

// x = act(x) in place. Within 5e-7 of the exact value (relative above 1), for every finite x; NaN stays NaN.
void Activate(Activation activation, float* x, int64_t x_stride, int64_t rows, int64_t width);
// y = act(gate) * up; y may be `up` or `gate` itself.
void ActivateGated(Activation activation, const float* gate, int64_t gate_stride, const float* up, int64_t up_stride,
                   int64_t rows, int64_t width, float* y, int64_t y_stride);

// x += y.
void AddInPlace(float* x, int64_t x_stride, const float* y, int64_t y_stride, int64_t rows, int64_t width);
// x += factor * y (one factor), and x += factors[width] * y (element-wise, the `scale` adapter).
void AddScaled(float* x, int64_t x_stride, float factor, const float* y, int64_t y_stride, int64_t rows, int64_t width);
void AddScaledBy(float* x, int64_t x_stride, const float* factors, const float* y, int64_t y_stride, int64_t rows,
                 int64_t width);

// row = scale * row + position: one embedding row finished in place.
void ScaleAndAdd(float* row, float scale, const float* position, int64_t width);

// out[width] = mean over rows of x, then, if l2_normalize, divided by max(|out|, 1e-12).
void MeanPool(const float* x, int64_t x_stride, int64_t rows, int64_t width, bool l2_normalize, float* out);

// f32 -> bf16 (round to nearest, ties to even; NaN stays NaN), for inputs of bf16 products.
void ConvertToBFloat16(const float* x, int64_t x_stride, int64_t rows, int64_t width, uint16_t* y, int64_t y_stride);

// log(sum(exp(x))) of one row, in natural logarithms, within 1e-6 (relative above 1); x finite or -inf, at least one
// finite (else -inf).
float LogSumExp(const float* x, int64_t width);

struct Scored {
  int32_t id;
  float value;
};
// The k largest elements of one row in falling order; equal values in rising order of id. k is capped at width.
// -inf and NaN elements are never returned. `out` is cleared first and keeps its capacity.
void TopK(const float* x, int64_t width, int k, std::vector<Scored>* out);

// True if every element is finite (a NaN or infinity in logits means broken weights).
bool AllFinite(const float* x, int64_t width);

// Name of the instruction set that the dispatcher uses now, e.g. "AVX3".
std::string OpsTarget();

}  // namespace koine::kernels

#endif  // KOINE_KERNELS_OPS_OPS_H_
