// Slow and obvious references for tests: plain loops in double, rounded once at the end. They share no code with the
// kernels. Arguments mean what they mean in ops.h and attention.h, but matrices are dense (row stride = width).
#ifndef KOINE_KERNELS_OPS_REFERENCE_H_
#define KOINE_KERNELS_OPS_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "kernels/ops/ops.h"

namespace koine::kernels::reference {

using Matrix = std::vector<float>;

Matrix Normalize(NormType type, float eps, const float* weight, const float* bias, const Matrix& x, int64_t width);
double Activate(Activation activation, double x);
Matrix Activate(Activation activation, const Matrix& x);
Matrix ActivateGated(Activation activation, const Matrix& gate, const Matrix& up);
// x + factor * y.
Matrix AddScaled(const Matrix& x, double factor, const Matrix& y);
Matrix AddScaledBy(const Matrix& x, const Matrix& factors, const Matrix& y);
Matrix MeanPool(const Matrix& x, int64_t width, bool l2_normalize);
double LogSumExp(const float* x, int64_t width);
// A full sort; -inf and NaN elements left out.
std::vector<Scored> TopK(const float* x, int64_t width, int k);

// out[h] = softmax(scale * q[h] . K[h]^T) V[h]; query and out [rows, heads * d_head], keys and values
// [tokens, heads * d_head]. weights, if not null, becomes [rows, tokens]: the mean over heads.
// `bias` is empty or [heads, rows, tokens], added to the scaled scores.
Matrix Attend(int heads, int d_head, float scale, const Matrix& query, const Matrix& keys, const Matrix& values,
              Matrix* weights, const Matrix& bias = {});

}  // namespace koine::kernels::reference

#endif  // KOINE_KERNELS_OPS_REFERENCE_H_
