// The forward pass of the whole sharing family over packed rows of many languages.
//
// Rows are ordered so that rows of one (language, adapter) are contiguous: a RowRun. Shared weights run as one matrix
// product over all rows; what a language owns runs once per run. No row's result depends on any other row of the
// batch (attention reads only the row's own sequence), so a mixed batch equals separate runs bit for bit.
#ifndef KOINE_KERNELS_TRANSFORMER_TRANSFORMER_H_
#define KOINE_KERNELS_TRANSFORMER_TRANSFORMER_H_

#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "kernels/attention/kv_pool.h"
#include "kernels/transformer/weights.h"

namespace koine::kernels {

// Rows [begin, end) that share a language and an adapter (null: none). Runs cover all rows in rising order.
struct RowRun {
  const LanguageWeights* language = nullptr;
  const AdapterWeights* adapter = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};

// Rows [begin, end) that are one sentence.
struct Segment {
  int64_t begin = 0;
  int64_t end = 0;
};

struct DecodeRow {
  int32_t token = 0;
  BlockList* self = nullptr;         // extended by the caller (KvPool::Extend), not yet raised; the row's position is
                                     // self->tokens; raised by DecodeStep
  const BlockList* cross = nullptr;  // filled by FillCrossMemory
};

// What the products of one call did; the engine's step trace is made of these.
struct ForwardTrace {
  int64_t rows = 0;
  int64_t runs = 0;               // languages x adapters
  int64_t shared_products = 0;    // products with shared weights: exactly one per shared matrix
  int64_t language_products = 0;  // products with per-language weights
};

// Where the time of forward passes goes, in seconds; only measured while Workspace::set_profiling(true). Matrix
// products are in MatmulRunner::counts().
struct ForwardProfile {
  double attention = 0;  // scores, softmax, context
  double cache = 0;      // writing keys and values into blocks
  double norms = 0;
  double activations = 0;
  double residuals = 0;  // additions, scales
  double embedding = 0;
};

// Rows that buffers must hold for `rows` rows of several runs: products round each run's rows up, and the last run may
// start anywhere (RoundedRows(n) <= n + n/8 + 1).
inline int64_t RowCapacity(int64_t rows) { return rows + rows / 8 + 2; }

// Buffers and the product runner of one worker. Grows to the largest batch seen. Not thread-safe.
class Workspace {
 public:
  explicit Workspace(int threads);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  MatmulRunner& matmul();
  const ForwardTrace& trace() const;  // of the last Encode, FillCrossMemory or DecodeStep
  const ForwardProfile& profile() const;
  void set_profiling(bool on);
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// The model's arithmetic. Immutable: any number of threads, each with its own Workspace and KvPool.
class Transformer {
 public:
  Transformer(const TransformerConfig& config, const SharedWeights& shared);

  const TransformerConfig& config() const { return config_; }
  // Keys and values that decoding caches, of self- and cross-attention alike.
  KvShape kv_shape() const;
  // Shared matrices that one Encode / FillCrossMemory / DecodeStep multiplies with, by construction.
  int64_t encoder_shared_matrices() const;
  int64_t cross_shared_matrices() const;
  int64_t decoder_shared_matrices() const;

  // Encoder: ids [rows] of all segments -> out [rows, d_model] (after the final norm). Segments cover all rows in
  // rising order and lie inside one run each. REQUIRES every id in its table and every length <= max_positions.
  // out has row stride d_model.
  void Encode(Workspace& workspace, absl::Span<const int32_t> ids, absl::Span<const Segment> segments,
              absl::Span<const RowRun> runs, float* out) const;

  // Computes the decoder's cross-attention keys and values of encoder rows, once per sentence. `runs` name the target
  // languages; a run may hold several segments. memories[i] has been reserved for segments[i]'s tokens. encoder_rows
  // has capacity RowCapacity(rows).
  void FillCrossMemory(Workspace& workspace, const float* encoder_rows, absl::Span<const Segment> segments,
                       absl::Span<const RowRun> runs, absl::Span<BlockList* const> memories, KvPool& pool) const;

  // One decoder step: rows [n] -> hidden [n, d_model] (after the final norm and output_scale, ready for Logits). Raises
  // the tokens of every row's self list by one.
  void DecodeStep(Workspace& workspace, absl::Span<const DecodeRow> rows, absl::Span<const RowRun> runs, KvPool& pool,
                  float* hidden) const;

  // logits [rows, vocabulary] = output(hidden); row stride vocabulary. hidden and logits have capacity
  // RoundedRows(rows).
  void Logits(Workspace& workspace, const LanguageWeights& language, const float* hidden, int64_t rows,
              float* logits) const;

  // One sentence's vector: the mean of rows [count, d_model] (CLS: count 1), the dense layer if there is one, and, if
  // `normalize`, to length 1. out has pooled_size() elements. REQUIRES count >= 1.
  void Pool(Workspace& workspace, const float* rows, int64_t count, bool normalize, float* out) const;
  int64_t pooled_size() const;

 private:
  class Pass;
  TransformerConfig config_;
  SharedWeights shared_;
};

// T5's bucket of a key `relative` positions after the query (Raffel et al., 2020; in f32 as the published code has it).
// Bidirectional: half of the buckets for keys after the query, half for the others; else keys after the query count as
// distance 0. REQUIRES buckets even and >= 4, max_distance > buckets / 2.
int64_t RelativeBucket(int64_t relative, bool bidirectional, int64_t buckets, int64_t max_distance);

// Score biases of one stack by distance, from weight [buckets, heads]: out [heads, RelativeStride()], whose element
// max_positions - 1 + n of each head is that of keys n positions after the query. The end of a row holds what
// attention may read beyond the last token.
void RelativeBiases(const float* weight, int64_t heads, bool bidirectional, int64_t buckets, int64_t max_distance,
                    int64_t max_positions, float* out);
int64_t RelativeStride(bool bidirectional, int64_t max_positions);

// rows [count, d_model] f32 of positions first..first+count-1 of the sinusoidal table
//   [sin(p f_0) ... sin(p f_{h-1}), cos(p f_0) ... cos(p f_{h-1})],  h = d/2
// with f_i = base^-(i/(h-1)) (`half_minus_one`, tensor2tensor and fairseq) or base^-(2i/d) (Vaswani et al., 2017).
// Computed in double, rounded once.
void SinusoidalPositions(int d_model, double base, bool half_minus_one, int64_t first, int64_t count, float* out);

}  // namespace koine::kernels

#endif  // KOINE_KERNELS_TRANSFORMER_TRANSFORMER_H_
