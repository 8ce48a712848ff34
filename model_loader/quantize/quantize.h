// Rewrites a model folder with smaller weights, and says what that costs each tensor.
//
// Int8 is symmetric, one scale a row of the output: scale = max|w| / 127, q = w / scale rounded to the nearest, so that
// |w - q * scale| <= scale / 2. Matrices of attention, feed-forward, tables and whatever a language owns are converted;
// norms, biases, positions and adapters stay as they are stored.
#ifndef KOINE_MODEL_LOADER_QUANTIZE_QUANTIZE_H_
#define KOINE_MODEL_LOADER_QUANTIZE_QUANTIZE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor/dtype.h"

namespace koine::model_loader {

// What conversion did to one matrix.
struct TensorError {
  std::string file, name;  // "languages/de/language.safetensors", "embedding.weight"
  std::vector<int64_t> shape;
  kernels::DType from = kernels::DType::kF32, to = kernels::DType::kI8;
  double relative_rms = 0;   // sqrt(sum of squared errors / sum of squared weights); 0 where all weights are 0
  double max_abs = 0;        // largest absolute error
  int64_t worst_row = 0;     // the row whose own relative RMS error is largest
  double worst_row_rms = 0;  // that error
  int64_t outlier_rows = 0;  // int8: rows whose largest weight exceeds kOutlierRatio times the RMS of the others
  bool converted() const { return from != to; }
};

// The largest weight of a row sets the scale of all. Of normally distributed ones it is about 4 RMS of the others, and
// they get an error of 4 / (127 * sqrt(12)) = 0.9 % of themselves; at 10 it is 2.3 %.
inline constexpr double kOutlierRatio = 10;

struct QuantizeReport {
  std::vector<TensorError> matrices;          // every matrix that conversion is about, those stored so already included
  int64_t bytes_before = 0, bytes_after = 0;  // of the tensors of the rewritten files
  bool samples_left_out = false;  // samples.json was there: its values are the source's, and the result has others
};

// What a caller may watch and end; either may be null.
struct QuantizeHooks {
  std::function<void(int64_t done, int64_t total)> progress;  // bytes of matrices read
  std::function<bool()> cancelled;                            // asked often; true ends the work with CANCELLED
};

// Writes the model of folder `from` into the new folder `to`, matrices as `dtype` (I8 or BF16). Everything else is
// copied, except samples.json and names that begin with a dot. The whole folder appears at once; weights are streamed.
// Errors: ALREADY_EXISTS (`to`); INVALID_ARGUMENT: a folder that could not be loaded, a weight that is NaN or infinite,
// int8 of a model that holds I8 tensors, or nothing to convert; CANCELLED.
absl::StatusOr<QuantizeReport> QuantizeModel(const std::string& from, const std::string& to, kernels::DType dtype,
                                             const QuantizeHooks& hooks = {});

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_QUANTIZE_QUANTIZE_H_
