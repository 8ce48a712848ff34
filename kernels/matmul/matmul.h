// Matrix products of activations with weights that are packed once. The only header behind which oneDNN stands.
//
//   y[rows, out] = x[rows, in] * W[out, in]^T + bias[out]
//
// Two backends with one contract, chosen once per process:
//   brgemm    oneDNN's blocked kernels (AVX-512 and later), one packed layout for every number of rows.
//   portable  our own Highway loop, for processors on which oneDNN would fall back to its `gemm` or `ref`
//             implementations (those change a row's bits with the number of rows, measured on AVX2), and everywhere for
//             low-rank matrices (adapters, up to 32 rows or columns) and the few odd sizes of which oneDNN wants
//             several layouts: stored in the precision asked for, computed in f32 with x as it is.
//
// Bit-stable: a row of y depends on that row of x, W and bias only; not on the other rows, their number, the
// number of threads or the worker. oneDNN's AMX kernels break this (they split K by the number of rows), so the
// process-wide instruction set is capped at AVX-512 with BF16 before oneDNN's first use.
#ifndef KOINE_KERNELS_MATMUL_MATMUL_H_
#define KOINE_KERNELS_MATMUL_MATMUL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/tensor/dtype.h"

namespace koine::kernels {

// Where each element of a [out, in] matrix lies in its packed form. Immutable; any thread may read it.
class PackedLayout;

// A packed [out, in] matrix. A view: `data` (64-byte aligned) belongs to whoever packed it.
struct PackedMatrix {
  std::shared_ptr<const PackedLayout> layout;
  const void* data = nullptr;

  bool empty() const { return data == nullptr; }
  int64_t out() const;
  int64_t in() const;
  Precision precision() const;
  // Bytes held, padding to whole blocks included.
  size_t bytes() const;
};

// y += scale * b(a(x)) (Hu et al., 2021); empty if a is empty.
struct LowRank {
  PackedMatrix a;  // [r, in]
  PackedMatrix b;  // [out, r]
  float scale = 0;
};

// y[rows, out] += scale * b(a(x[rows, in])) for the rows of one language; x is dense, y has a stride.
struct LowRankUpdate {
  const LowRank* pair = nullptr;  // not empty
  const float* x = nullptr;       // capacity RoundedRows(rows)
  int64_t rows = 0;
  float* y = nullptr;  // only its `rows` rows and `out` columns are touched
  int64_t y_stride = 0;
};

// OK if this processor (under any ONEDNN_MAX_CPU_ISA given) multiplies in `precision` natively;
// else FAILED_PRECONDITION naming what is missing.
absl::Status CheckPrecision(Precision precision);

// For people: backend and instruction set, e.g. "oneDNN 2.6.3 brgemm avx512_core_bf16".
std::string MatmulBackend();

// The layout for [out, in] in `precision`: one whatever the number of rows. Layouts are memoised for the life of the
// process.
absl::StatusOr<std::shared_ptr<const PackedLayout>> LayoutFor(int64_t out, int64_t in, Precision precision);
size_t PackedBytes(const PackedLayout& layout);

// Writes `rows` rows of W (row-major f32 [rows, in]) at row `first_row` of the packed matrix. Rows may come in any
// order and pieces; PackRows never touches the padding, so `packed` must start zeroed (fresh mappings are).
void PackRows(const PackedLayout& layout, int64_t first_row, int64_t rows, const float* source, void* packed);

// Reads row `row` of W back as f32 [in]: the embedding lookup of a tied table.
// REQUIRES 0 <= row < out.
void UnpackRow(const PackedMatrix& matrix, int64_t row, float* destination);

// Number of rows really computed for `rows`: a small set of sizes, since creating a primitive costs 0.3-1.1 ms.
// Exact to 16, then rounded up by at most 1/8.
int64_t RoundedRows(int64_t rows);

// Counts of one MatmulRunner since its creation.
struct MatmulCounts {
  int64_t calls = 0;               // products
  int64_t multiply_adds = 0;       // rows * in * out, padding not counted
  int64_t primitives_created = 0;  // misses of the cache of created primitives
  double seconds = 0;              // time inside products; only measured while set_timing(true)
};

// Runs products and keeps the created primitives. Not thread-safe: one per worker thread, used on that thread only.
class MatmulRunner {
 public:
  // threads: how many OpenMP threads each product may use (1: no barriers at all).
  explicit MatmulRunner(int threads);
  ~MatmulRunner();
  MatmulRunner(const MatmulRunner&) = delete;
  MatmulRunner& operator=(const MatmulRunner&) = delete;

  // y [rows, out] = x [rows, in] * W^T + bias [out] (may be null); both dense row-major. Always overwrites y.
  // Reads x and writes y up to RoundedRows(rows) rows: both must have that capacity, and whatever lies in y between
  // rows and RoundedRows(rows) is lost. So callers that fill slices of one buffer go in rising order.
  // REQUIRES rows >= 1. Throws dnnl::error (a std::exception) if a primitive cannot be created.
  void Run(const float* x, int64_t rows, const PackedMatrix& w, const float* bias, float* y);

  // All of them, in one go: of many languages with a few rows each, and of projections that read the same x. No two may
  // overlap in y. Ranks up to 32 add to y directly; larger ones are two products of Run's each.
  void AddLowRank(absl::Span<const LowRankUpdate> updates);

  int threads() const;
  const MatmulCounts& counts() const;
  void set_timing(bool on);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace koine::kernels

#endif  // KOINE_KERNELS_MATMUL_MATMUL_H_
