#include "kernels/transformer/transformer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "kernels/attention/attention.h"

namespace koine::kernels {
namespace {

// Grow-only, 64-byte aligned, zeroed when it grows: rows beyond the batch are read by rounded products, so they must
// be initialised, but what they hold never matters.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  float* Get(int64_t floats) {
    if (floats > capacity_) {
      std::free(data_);
      const size_t bytes = (static_cast<size_t>(floats) * sizeof(float) + 63) / 64 * 64;
      data_ = static_cast<float*>(std::aligned_alloc(64, bytes));
      if (data_ == nullptr) {
        capacity_ = 0;
        throw std::bad_alloc();
      }
      std::memset(data_, 0, bytes);
      capacity_ = floats;
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  int64_t capacity_ = 0;
};

class Stopwatch {
 public:
  Stopwatch(bool on, double* seconds) : seconds_(on ? seconds : nullptr) {
    if (seconds_ != nullptr) start_ = std::chrono::steady_clock::now();
  }
  ~Stopwatch() {
    if (seconds_ != nullptr) {
      *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double* seconds_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

struct Workspace::Impl {
  explicit Impl(int threads) : matmul(threads) {}

  MatmulRunner matmul;
  ForwardTrace trace;
  ForwardProfile profile;
  bool profiling = false;

  // [rows, ...] each; see Pass for who uses what.
  Buffer x, normed, sublayer, shared_projection, own_projection, shared_context, own_context, temporary, low_rank, ffn;
  Buffer keys_values;  // encoder: one layer's blocks of one sentence
  Buffer scratch;      // scores
  Buffer zeros;        // never written
  std::vector<const float*> blocks;
  std::vector<LowRankUpdate> updates;  // of the projection at hand
};

Workspace::Workspace(int threads) : impl_(std::make_unique<Impl>(threads)) {}
Workspace::~Workspace() = default;
MatmulRunner& Workspace::matmul() { return impl_->matmul; }
const ForwardTrace& Workspace::trace() const { return impl_->trace; }
const ForwardProfile& Workspace::profile() const { return impl_->profile; }
void Workspace::set_profiling(bool on) {
  impl_->profiling = on;
  impl_->matmul.set_timing(on);
}

// One call's state: the batch, the workspace, and one method per kind of sublayer. Encoder and decoder run the same
// code; they differ in where attention finds its keys and values.
class Transformer::Pass {
 public:
  Pass(const Transformer& transformer, Workspace& workspace, bool decoder, int64_t rows, absl::Span<const RowRun> runs)
      : config_(transformer.config_),
        stack_(decoder ? transformer.shared_.decoder : transformer.shared_.encoder),
        owners_(decoder ? config_.decoder_layers : config_.encoder_layers),
        w_(workspace.impl()),
        decoder_(decoder),
        rows_(rows),
        capacity_(RowCapacity(rows)),
        runs_(runs),
        d_(config_.d_model) {
    w_.trace = ForwardTrace{.rows = rows, .runs = static_cast<int64_t>(runs.size())};
    x_ = w_.x.Get(capacity_ * d_);
  }

  float* x() { return x_; }

  void Encode(absl::Span<const int32_t> ids, absl::Span<const Segment> segments, float* out) {
    for (const Segment& segment : segments) {
      for (int64_t row = segment.begin; row < segment.end; ++row) {
        Embed(RunOf(row), ids[static_cast<size_t>(row)], row - segment.begin, x_ + row * d_);
      }
    }
    EmbeddingNorm();
    for (size_t layer = 0; layer < owners_.size(); ++layer) {
      Sublayer(layer, &LayerWeights::self_norm, &LayerAdapter::self_scale, [&](const float* in, float* y) {
        const Projected projected = ProjectSelf(layer, in);
        AttendSegments(projected, segments);
        ProjectOut(layer, SelfOut, &LayerAdapter::self_o, projected, y);
      });
      FeedForward(layer);
      Bottleneck(layer);
    }
    Finish(out);
  }

  void Decode(absl::Span<const DecodeRow> rows, KvPool& pool, float* hidden) {
    for (int64_t row = 0; row < rows_; ++row) {
      const DecodeRow& decode = rows[static_cast<size_t>(row)];
      Embed(RunOf(row), decode.token, decode.self->tokens, x_ + row * d_);
    }
    EmbeddingNorm();
    for (size_t layer = 0; layer < owners_.size(); ++layer) {
      Sublayer(layer, &LayerWeights::self_norm, &LayerAdapter::self_scale, [&](const float* in, float* y) {
        const Projected projected = ProjectSelf(layer, in);
        AttendSelf(static_cast<int>(layer), projected, rows, pool);
        ProjectOut(layer, SelfOut, &LayerAdapter::self_o, projected, y);
      });
      Sublayer(layer, &LayerWeights::cross_norm, &LayerAdapter::cross_scale, [&](const float* in, float* y) {
        const Projected projected = ProjectCrossQuery(layer, in);
        AttendCross(static_cast<int>(layer), projected, rows, pool);
        ProjectOut(layer, CrossOut, &LayerAdapter::cross_o, projected, y);
      });
      FeedForward(layer);
      Bottleneck(layer);
    }
    for (const DecodeRow& row : rows) ++row.self->tokens;
    Finish(hidden);
    if (config_.output_scale != 1) {
      for (int64_t i = 0; i < rows_ * d_; ++i) hidden[i] *= config_.output_scale;
    }
  }

  void CrossMemory(const float* encoder_rows, absl::Span<const Segment> segments, absl::Span<BlockList* const> memories,
                   KvPool& pool) {
    const KvShape shape = pool.shape();
    for (size_t layer = 0; layer < owners_.size(); ++layer) {
      Projected projected = Heads(layer);
      const int64_t parts = 2;
      Project(layer, encoder_rows, projected, parts, CrossKv, {&LayerAdapter::cross_k, &LayerAdapter::cross_v});
      const Stopwatch watch(w_.profiling, &w_.profile.cache);
      for (size_t s = 0; s < segments.size(); ++s) {
        for (int64_t row = segments[s].begin; row < segments[s].end; ++row) {
          const int64_t token = row - segments[s].begin;
          float* block =
              pool.layer(memories[s]->blocks[static_cast<size_t>(token / kBlockTokens)], static_cast<int>(layer));
          Store(shape, block, static_cast<int>(token % kBlockTokens), projected, parts, row, 0);
        }
      }
    }
  }

 private:
  // Queries (and keys, values) of one attention: shared heads first, the language's own after them.
  struct Projected {
    int shared_heads = 0;
    int own_heads = 0;
    float* shared = nullptr;   // [rows, parts * shared_heads * d_head]
    float* own = nullptr;      // [rows, parts * own_heads * d_head]
    int64_t shared_width = 0;  // shared_heads * d_head
    int64_t own_width = 0;
    int64_t shared_stride = 0;
    int64_t own_stride = 0;
    float* shared_context = nullptr;  // [rows, shared_width]
    float* own_context = nullptr;     // [rows, own_width]
  };
  using LinearOf = const Linear& (*)(const LayerWeights&);
  static const Linear& SelfQkv(const LayerWeights& layer) { return layer.self.qkv; }
  static const Linear& SelfOut(const LayerWeights& layer) { return layer.self.o; }
  static const Linear& CrossQ(const LayerWeights& layer) { return layer.cross.q; }
  static const Linear& CrossKv(const LayerWeights& layer) { return layer.cross.kv; }
  static const Linear& CrossOut(const LayerWeights& layer) { return layer.cross.o; }
  static const Linear& FfnUp(const LayerWeights& layer) { return layer.ffn.up; }
  static const Linear& FfnDown(const LayerWeights& layer) { return layer.ffn.down; }
  using LowRankOf = LowRank LayerAdapter::*;

  const RowRun& RunOf(int64_t row) {
    // Rows are visited in rising order.
    if (row < runs_[run_cursor_].begin) run_cursor_ = 0;
    while (row >= runs_[run_cursor_].end) ++run_cursor_;
    return runs_[run_cursor_];
  }
  const LayerWeights& Own(const RowRun& run, size_t layer) const {
    return (decoder_ ? run.language->decoder : run.language->encoder)[layer];
  }
  const LayerAdapter* AdapterOf(const RowRun& run, size_t layer) const {
    if (run.adapter == nullptr) return nullptr;
    return &(decoder_ ? run.adapter->decoder : run.adapter->encoder)[layer];
  }

  void Embed(const RowRun& run, int32_t id, int64_t position, float* row) {
    const Stopwatch watch(w_.profiling, &w_.profile.embedding);
    const EmbeddingTable& table = run.language->embedding;
    if (!table.packed.empty()) {
      UnpackRow(table.packed, id, row);
    } else if (table.precision == Precision::kF32) {
      std::memcpy(row, static_cast<const float*>(table.rows) + id * d_, static_cast<size_t>(d_) * sizeof(float));
    } else {
      const uint16_t* from = static_cast<const uint16_t*>(table.rows) + id * d_;
      for (int64_t i = 0; i < d_; ++i) row[i] = FromBFloat16(from[i]);
    }
    const float* added = stack_.positions != nullptr ? stack_.positions + position * d_ : w_.zeros.Get(d_);
    ScaleAndAdd(row, config_.embedding_scale, added, d_);
  }

  void Norm(const NormWeights& norm, const float* x, int64_t rows, float* y) {
    const Stopwatch watch(w_.profiling, &w_.profile.norms);
    Normalize(config_.norm_type, config_.norm_eps, norm.weight, norm.bias, x, d_, rows, d_, y, d_);
  }

  void LayerNorm(size_t layer, NormWeights LayerWeights::*norm, const float* x, float* y) {
    if (owners_[layer] != LayerOwner::kLanguageLayer) {
      Norm(stack_.layers[layer].*norm, x, rows_, y);
      return;
    }
    for (const RowRun& run : runs_) {
      Norm(Own(run, layer).*norm, x + run.begin * d_, run.end - run.begin, y + run.begin * d_);
    }
  }

  void EmbeddingNorm() {
    if (config_.embedding_norm) Norm(stack_.embedding_norm, x_, rows_, x_);
  }

  void Finish(float* out) {
    if (config_.final_norm) {
      Norm(stack_.final_norm, x_, rows_, out);
    } else {
      std::memcpy(out, x_, static_cast<size_t>(rows_ * d_) * sizeof(float));
    }
  }

  // Pre-norm: x += s * body(norm(x)). Post-norm: x = norm(x + s * body(x)). s is the run's scale vector or 1.
  template <typename Body>
  void Sublayer(size_t layer, NormWeights LayerWeights::*norm, const float* LayerAdapter::*scale, const Body& body) {
    const float* in = x_;
    if (config_.pre_norm) {
      float* normed = w_.normed.Get(capacity_ * d_);
      LayerNorm(layer, norm, x_, normed);
      in = normed;
    }
    float* y = w_.sublayer.Get(capacity_ * d_);
    body(in, y);
    {
      const Stopwatch watch(w_.profiling, &w_.profile.residuals);
      for (const RowRun& run : runs_) {
        const LayerAdapter* adapter = AdapterOf(run, layer);
        float* x = x_ + run.begin * d_;
        const float* added = y + run.begin * d_;
        if (adapter != nullptr && adapter->*scale != nullptr) {
          AddScaledBy(x, d_, adapter->*scale, added, d_, run.end - run.begin, d_);
        } else {
          AddInPlace(x, d_, added, d_, run.end - run.begin, d_);
        }
      }
    }
    if (!config_.pre_norm) LayerNorm(layer, norm, x_, x_);
  }

  void SharedProduct(const Linear& linear, const float* x, float* y) {
    ++w_.trace.shared_products;
    w_.matmul.Run(x, rows_, linear.weight, linear.bias, y);
  }
  void OwnProduct(const Linear& linear, const float* bias, const float* x, int64_t rows, float* y) {
    ++w_.trace.language_products;
    w_.matmul.Run(x, rows, linear.weight, bias, y);
  }

  // Every run's low-rank update of some projections of x [rows, in], as one call: pair i of a run's adapter adds to
  // columns [i * width, (i + 1) * width) of y.
  void AddLowRank(size_t layer, std::initializer_list<LowRankOf> pairs, const float* x, int64_t in, float* y,
                  int64_t width, int64_t stride) {
    w_.updates.clear();
    for (const RowRun& run : runs_) {
      const LayerAdapter* adapter = AdapterOf(run, layer);
      float* columns = y + run.begin * stride;
      for (const LowRankOf pair : pairs) {
        if (adapter != nullptr && !(adapter->*pair).a.empty()) {
          w_.updates.push_back({&(adapter->*pair), x + run.begin * in, run.end - run.begin, columns, stride});
        }
        columns += width;
      }
    }
    w_.trace.language_products += 2 * static_cast<int64_t>(w_.updates.size());
    w_.matmul.AddLowRank(w_.updates);
  }

  Projected Heads(size_t layer) const {
    Projected projected;
    projected.shared_heads = owners_[layer] == LayerOwner::kShared ? config_.shared_heads() : 0;
    projected.own_heads = config_.heads - projected.shared_heads;
    projected.shared_width = int64_t{projected.shared_heads} * config_.d_head;
    projected.own_width = int64_t{projected.own_heads} * config_.d_head;
    return projected;
  }

  // Projects x to `parts` stacked matrices of all heads. LoRA pairs apply to the shared heads of a shared layer and to
  // the whole projection of a language's own layer.
  void Project(size_t layer, const float* x, Projected& projected, int64_t parts, LinearOf linear,
               std::initializer_list<LowRankOf> pairs) {
    projected.shared_stride = parts * projected.shared_width;
    projected.own_stride = parts * projected.own_width;
    if (projected.shared_heads > 0) {
      projected.shared = w_.shared_projection.Get(capacity_ * projected.shared_stride);
      SharedProduct(linear(stack_.layers[layer]), x, projected.shared);
    }
    if (projected.own_heads > 0) projected.own = w_.own_projection.Get(capacity_ * projected.own_stride);
    if (projected.own_heads > 0) {
      for (const RowRun& run : runs_) {
        const Linear& own = linear(Own(run, layer));
        OwnProduct(own, own.bias, x + run.begin * d_, run.end - run.begin,
                   projected.own + run.begin * projected.own_stride);
      }
    }
    if (owners_[layer] != LayerOwner::kShared) {
      AddLowRank(layer, pairs, x, d_, projected.own, projected.own_width, projected.own_stride);
    } else if (projected.shared_heads > 0) {
      AddLowRank(layer, pairs, x, d_, projected.shared, projected.shared_width, projected.shared_stride);
    }
  }

  Projected ProjectSelf(size_t layer, const float* in) {
    Projected projected = Heads(layer);
    Project(layer, in, projected, 3, SelfQkv, {&LayerAdapter::self_q, &LayerAdapter::self_k, &LayerAdapter::self_v});
    Contexts(projected);
    return projected;
  }
  Projected ProjectCrossQuery(size_t layer, const float* in) {
    Projected projected = Heads(layer);
    Project(layer, in, projected, 1, CrossQ, {&LayerAdapter::cross_q});
    Contexts(projected);
    return projected;
  }
  void Contexts(Projected& projected) {
    projected.shared_context = w_.shared_context.Get(capacity_ * projected.shared_width);
    projected.own_context = w_.own_context.Get(capacity_ * projected.own_width);
  }

  // y = o(shared context) + own.o(own context) + bias.
  void ProjectOut(size_t layer, LinearOf linear, LowRankOf pair, const Projected& projected, float* y) {
    const Linear& shared = linear(stack_.layers[layer]);
    if (projected.shared_heads > 0) SharedProduct(shared, projected.shared_context, y);
    const bool own_layer = owners_[layer] != LayerOwner::kShared;
    for (const RowRun& run : runs_) {
      if (projected.own_heads == 0) break;
      const int64_t rows = run.end - run.begin;
      const Linear& own = linear(Own(run, layer));
      const float* context = projected.own_context + run.begin * projected.own_width;
      if (projected.shared_heads > 0) {
        float* part = w_.temporary.Get(capacity_ * d_);
        OwnProduct(own, nullptr, context, rows, part);
        AddInPlace(y + run.begin * d_, d_, part, d_, rows, d_);
      } else {
        // Where every head is the language's, a shared layer still owns the output bias.
        OwnProduct(own, own_layer ? own.bias : shared.bias, context, rows, y + run.begin * d_);
      }
    }
    if (own_layer) {
      AddLowRank(layer, {pair}, projected.own_context, projected.own_width, y, d_, d_);
    } else if (projected.shared_heads > 0) {
      AddLowRank(layer, {pair}, projected.shared_context, projected.shared_width, y, d_, d_);
    }
  }

  // Stores keys and values of `row` (parts k at `key_part`, v after it) into one layer of a block.
  static void Store(const KvShape& shape, float* block, int slot, const Projected& projected, int64_t parts,
                    int64_t row, int64_t key_part) {
    if (projected.shared_heads > 0) {
      const float* shared = projected.shared + row * parts * projected.shared_width + key_part * projected.shared_width;
      StoreKeyValue(shape, block, slot, 0, projected.shared_heads, shared, shared + projected.shared_width);
    }
    if (projected.own_heads > 0) {
      const float* own = projected.own + row * parts * projected.own_width + key_part * projected.own_width;
      StoreKeyValue(shape, block, slot, projected.shared_heads, projected.own_heads, own, own + projected.own_width);
    }
  }

  // Score biases of self-attention for query rows from `position` on.
  ScoreBias BiasFrom(int64_t position) const {
    if (stack_.relative_bias == nullptr) return {};
    return {stack_.relative_bias + config_.max_positions - 1 - position,
            RelativeStride(!decoder_, config_.max_positions)};
  }

  // Rows [begin, begin + rows) attend to one memory; shared and own heads.
  void AttendRows(const KvShape& shape, const Projected& projected, int64_t begin, int64_t rows,
                  const AttentionMemory& memory, const ScoreBias& bias) {
    float* scratch = w_.scratch.Get(AttentionScratchFloats(memory.tokens));
    const float scale = config_.attention_scale;
    if (projected.shared_heads > 0) {
      Attend(shape, 0, projected.shared_heads, scale, projected.shared + begin * projected.shared_stride,
             projected.shared_stride, rows, memory, bias, projected.shared_context + begin * projected.shared_width,
             projected.shared_width, scratch);
    }
    if (projected.own_heads > 0) {
      Attend(shape, projected.shared_heads, projected.own_heads, scale, projected.own + begin * projected.own_stride,
             projected.own_stride, rows, memory, bias, projected.own_context + begin * projected.own_width,
             projected.own_width, scratch);
    }
  }

  void AttendSegments(const Projected& projected, absl::Span<const Segment> segments) {
    const KvShape shape{1, config_.heads, config_.d_head};
    for (const Segment& segment : segments) {
      const int64_t tokens = segment.end - segment.begin;
      const int64_t blocks = BlocksFor(tokens);
      float* memory = w_.keys_values.Get(blocks * shape.layer_floats());
      {
        const Stopwatch watch(w_.profiling, &w_.profile.cache);
        w_.blocks.clear();
        for (int64_t b = 0; b < blocks; ++b) w_.blocks.push_back(memory + b * shape.layer_floats());
        for (int64_t t = 0; t < tokens; ++t) {
          Store(shape, memory + t / kBlockTokens * shape.layer_floats(), static_cast<int>(t % kBlockTokens), projected,
                3, segment.begin + t, 1);
        }
      }
      const Stopwatch watch(w_.profiling, &w_.profile.attention);
      AttendRows(shape, projected, segment.begin, tokens, {w_.blocks.data(), tokens}, BiasFrom(0));
    }
  }

  void PointAt(const BlockList& list, int64_t tokens, int layer, const KvPool& pool) {
    w_.blocks.clear();
    for (int64_t b = 0; b < BlocksFor(tokens); ++b) {
      w_.blocks.push_back(pool.layer(list.blocks[static_cast<size_t>(b)], layer));
    }
  }

  void AttendSelf(int layer, const Projected& projected, absl::Span<const DecodeRow> rows, KvPool& pool) {
    const KvShape shape = pool.shape();
    {
      const Stopwatch watch(w_.profiling, &w_.profile.cache);
      for (int64_t row = 0; row < rows_; ++row) {
        const BlockList& list = *rows[static_cast<size_t>(row)].self;
        Store(shape, pool.layer(list.blocks.back(), layer), static_cast<int>(list.tokens % kBlockTokens), projected, 3,
              row, 1);
      }
    }
    const Stopwatch watch(w_.profiling, &w_.profile.attention);
    for (int64_t row = 0; row < rows_; ++row) {
      const BlockList& list = *rows[static_cast<size_t>(row)].self;
      PointAt(list, list.tokens + 1, layer, pool);
      AttendRows(shape, projected, row, 1, {w_.blocks.data(), list.tokens + 1}, BiasFrom(list.tokens));
    }
  }

  void AttendCross(int layer, const Projected& projected, absl::Span<const DecodeRow> rows, const KvPool& pool) {
    const Stopwatch watch(w_.profiling, &w_.profile.attention);
    for (int64_t row = 0; row < rows_;) {
      const BlockList* memory = rows[static_cast<size_t>(row)].cross;
      PointAt(*memory, memory->tokens, layer, pool);
      // Beams of one sentence read the same memory together.
      int64_t end = row + 1;
      while (end < rows_ && rows[static_cast<size_t>(end)].cross == memory) ++end;
      AttendRows(pool.shape(), projected, row, end - row, {w_.blocks.data(), memory->tokens}, {});
      row = end;
    }
  }

  void FeedForward(size_t layer) {
    Sublayer(layer, &LayerWeights::ffn_norm, &LayerAdapter::ffn_scale, [&](const float* in, float* y) {
      const bool own = owners_[layer] == LayerOwner::kLanguageLayer;
      const int64_t inner = config_.d_ffn;
      const int64_t width = config_.gated_ffn ? 2 * inner : inner;
      float* up = w_.shared_projection.Get(capacity_ * width);
      if (own) {
        for (const RowRun& run : runs_) {
          const Linear& linear = FfnUp(Own(run, layer));
          OwnProduct(linear, linear.bias, in + run.begin * d_, run.end - run.begin, up + run.begin * width);
        }
      } else {
        SharedProduct(FfnUp(stack_.layers[layer]), in, up);
      }
      if (config_.gated_ffn) {
        AddLowRank(layer, {&LayerAdapter::ffn_gate, &LayerAdapter::ffn_up}, in, d_, up, inner, width);
      } else {
        AddLowRank(layer, {&LayerAdapter::ffn_up}, in, d_, up, inner, width);
      }
      float* hidden = up;
      {
        const Stopwatch watch(w_.profiling, &w_.profile.activations);
        if (config_.gated_ffn) {
          hidden = w_.ffn.Get(capacity_ * inner);
          ActivateGated(config_.activation, up, width, up + inner, width, rows_, inner, hidden, inner);
        } else {
          Activate(config_.activation, up, width, rows_, inner);
        }
      }
      if (own) {
        for (const RowRun& run : runs_) {
          const Linear& linear = FfnDown(Own(run, layer));
          OwnProduct(linear, linear.bias, hidden + run.begin * inner, run.end - run.begin, y + run.begin * d_);
        }
      } else {
        SharedProduct(FfnDown(stack_.layers[layer]), hidden, y);
      }
      AddLowRank(layer, {&LayerAdapter::ffn_down}, hidden, inner, y, d_, d_);
    });
  }

  void Bottleneck(size_t layer) {
    for (const RowRun& run : runs_) {
      const LayerAdapter* adapter = AdapterOf(run, layer);
      if (adapter == nullptr || adapter->down.weight.empty()) continue;
      const int64_t rows = run.end - run.begin;
      const int64_t rank = adapter->down.weight.out();
      float* x = x_ + run.begin * d_;
      float* normed = w_.normed.Get(capacity_ * d_);
      float* low = w_.low_rank.Get(capacity_ * rank);
      float* full = w_.temporary.Get(capacity_ * d_);
      Norm(adapter->norm, x, rows, normed);
      OwnProduct(adapter->down, adapter->down.bias, normed, rows, low);
      {
        const Stopwatch watch(w_.profiling, &w_.profile.activations);
        Activate(run.adapter->activation, low, rank, rows, rank);
      }
      OwnProduct(adapter->up, adapter->up.bias, low, rows, full);
      const Stopwatch watch(w_.profiling, &w_.profile.residuals);
      AddInPlace(x, d_, full, d_, rows, d_);
    }
  }

  const TransformerConfig& config_;
  const StackWeights& stack_;
  const std::vector<LayerOwner>& owners_;
  Workspace::Impl& w_;
  const bool decoder_;
  const int64_t rows_;
  const int64_t capacity_;
  const absl::Span<const RowRun> runs_;
  const int64_t d_;
  float* x_ = nullptr;
  size_t run_cursor_ = 0;
};

Transformer::Transformer(const TransformerConfig& config, const SharedWeights& shared)
    : config_(config), shared_(shared) {}

KvShape Transformer::kv_shape() const {
  return {static_cast<int>(config_.decoder_layers.size()), config_.heads, config_.d_head};
}

namespace {

// Shared products of one layer: `attention` matrices where the attention is shared and has shared heads, `others` where
// the layer is not the language's.
int64_t SharedMatrices(const TransformerConfig& config, const std::vector<LayerOwner>& layers, int64_t attention,
                       int64_t others) {
  int64_t count = 0;
  for (const LayerOwner owner : layers) {
    if (owner == LayerOwner::kShared && config.shared_heads() > 0) count += attention;
    if (owner != LayerOwner::kLanguageLayer) count += others;
  }
  return count;
}

}  // namespace

int64_t Transformer::encoder_shared_matrices() const { return SharedMatrices(config_, config_.encoder_layers, 2, 2); }
int64_t Transformer::cross_shared_matrices() const { return SharedMatrices(config_, config_.decoder_layers, 1, 0); }
int64_t Transformer::decoder_shared_matrices() const { return SharedMatrices(config_, config_.decoder_layers, 4, 2); }

void Transformer::Encode(Workspace& workspace, absl::Span<const int32_t> ids, absl::Span<const Segment> segments,
                         absl::Span<const RowRun> runs, float* out) const {
  Pass(*this, workspace, false, static_cast<int64_t>(ids.size()), runs).Encode(ids, segments, out);
}

void Transformer::FillCrossMemory(Workspace& workspace, const float* encoder_rows, absl::Span<const Segment> segments,
                                  absl::Span<const RowRun> runs, absl::Span<BlockList* const> memories,
                                  KvPool& pool) const {
  const int64_t rows = segments.empty() ? 0 : segments.back().end;
  if (rows == 0) return;
  Pass(*this, workspace, true, rows, runs).CrossMemory(encoder_rows, segments, memories, pool);
}

void Transformer::DecodeStep(Workspace& workspace, absl::Span<const DecodeRow> rows, absl::Span<const RowRun> runs,
                             KvPool& pool, float* hidden) const {
  Pass(*this, workspace, true, static_cast<int64_t>(rows.size()), runs).Decode(rows, pool, hidden);
}

void Transformer::Logits(Workspace& workspace, const LanguageWeights& language, const float* hidden, int64_t rows,
                         float* logits) const {
  workspace.matmul().Run(hidden, rows, language.output.weight, language.output.bias, logits);
}

int64_t Transformer::pooled_size() const {
  return shared_.pooling.dense.weight.empty() ? config_.d_model : shared_.pooling.dense.weight.out();
}

void Transformer::Pool(Workspace& workspace, const float* rows, int64_t count, bool normalize, float* out) const {
  const int64_t d = config_.d_model;
  const PoolingWeights& pooling = shared_.pooling;
  if (pooling.dense.weight.empty()) {
    MeanPool(rows, d, count, d, normalize, out);
    return;
  }
  const int64_t size = pooled_size();
  float* mean = workspace.impl().normed.Get(RowCapacity(1) * d);
  float* vector = workspace.impl().sublayer.Get(RowCapacity(1) * size);
  MeanPool(rows, d, count, d, false, mean);
  workspace.matmul().Run(mean, 1, pooling.dense.weight, pooling.dense.bias, vector);
  if (pooling.tanh) std::transform(vector, vector + size, vector, [](float x) { return std::tanh(x); });
  MeanPool(vector, size, 1, size, normalize, out);
}

int64_t RelativeBucket(int64_t relative, bool bidirectional, int64_t buckets, int64_t max_distance) {
  const int64_t side = bidirectional ? buckets / 2 : buckets;
  const int64_t first = bidirectional && relative > 0 ? side : 0;
  const int64_t distance = bidirectional ? std::abs(relative) : std::max<int64_t>(-relative, 0);
  const int64_t exact = side / 2;
  if (distance < exact) return first + distance;
  const float ratio = std::log(static_cast<float>(distance) / static_cast<float>(exact)) /
                      static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(exact)));
  const auto further = static_cast<int64_t>(ratio * static_cast<float>(side - exact));
  return first + std::min(side - 1, exact + further);
}

int64_t RelativeStride(bool bidirectional, int64_t max_positions) {
  return (bidirectional ? 2 * max_positions - 1 : max_positions) + kBlockTokens - 1;
}

void RelativeBiases(const float* weight, int64_t heads, bool bidirectional, int64_t buckets, int64_t max_distance,
                    int64_t max_positions, float* out) {
  const int64_t stride = RelativeStride(bidirectional, max_positions);
  for (int64_t i = 0; i < stride; ++i) {
    const int64_t bucket = RelativeBucket(i - (max_positions - 1), bidirectional, buckets, max_distance);
    for (int64_t head = 0; head < heads; ++head) out[head * stride + i] = weight[bucket * heads + head];
  }
}

void SinusoidalPositions(int d_model, double base, bool half_minus_one, int64_t first, int64_t count, float* out) {
  const int half = d_model / 2;
  const double divisor = half_minus_one ? std::max(half - 1, 1) : half;
  for (int64_t row = 0; row < count; ++row) {
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(first + row) * std::pow(base, -static_cast<double>(i) / divisor);
      out[row * d_model + i] = static_cast<float>(std::sin(angle));
      out[row * d_model + half + i] = static_cast<float>(std::cos(angle));
    }
  }
}

}  // namespace koine::kernels
