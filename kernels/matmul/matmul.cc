#include "kernels/matmul/matmul.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/matmul/portable.h"
#include "kernels/ops/ops.h"

namespace koine::kernels {
namespace {

using dnnl::memory;

// Caps oneDNN's instruction set once, before anything asks oneDNN what it can do, and returns the engine.
// An operator's own ONEDNN_MAX_CPU_ISA (or the older DNNL_ name) wins, so that tests can force other paths.
const dnnl::engine& DnnlEngine() {
  static const dnnl::engine engine = [] {
    if (std::getenv("ONEDNN_MAX_CPU_ISA") == nullptr && std::getenv("DNNL_MAX_CPU_ISA") == nullptr) {
      dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);
    }
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return engine;
}

memory::data_type DataType(Precision precision) {
  return precision == Precision::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

// Throws dnnl::error if oneDNN has no implementation at all.
dnnl::matmul::primitive_desc Describe(int64_t rows, int64_t out, int64_t in, Precision precision, bool bias,
                                      const memory::desc* weights) {
  const memory::desc x({rows, in}, DataType(precision), memory::format_tag::ab);
  const memory::desc w =
      weights != nullptr ? *weights : memory::desc({in, out}, DataType(precision), memory::format_tag::any);
  const memory::desc y({rows, out}, memory::data_type::f32, memory::format_tag::ab);
  if (!bias) return {{x, w, y}, DnnlEngine()};
  const memory::desc b({1, out}, memory::data_type::f32, memory::format_tag::ab);
  return {{x, w, b, y}, DnnlEngine()};
}

bool IsBlockedKernel(const dnnl::matmul::primitive_desc& primitive) {
  return absl::StartsWith(primitive.impl_info_str(), "brg");
}

}  // namespace

class PackedLayout {
 public:
  int64_t out = 0;
  int64_t in = 0;
  Precision precision = Precision::kF32;  // of the products that were asked for
  Precision stored = Precision::kF32;     // of the packed numbers
  int64_t panel = 0;                      // columns of a panel of the portable layout; 0: oneDNN's
  memory::desc weights;                   // brgemm only
  size_t bytes = 0;
  // Element (n, k) lies at of_out[n] + of_in[k]: true of every blocked layout, since blocks split each dimension alone.
  std::vector<int64_t> of_out;
  std::vector<int64_t> of_in;
};

int64_t PackedMatrix::out() const { return layout->out; }
int64_t PackedMatrix::in() const { return layout->in; }
Precision PackedMatrix::precision() const { return layout->precision; }
size_t PackedMatrix::bytes() const { return layout->bytes; }
size_t PackedBytes(const PackedLayout& layout) { return layout.bytes; }

namespace {

// Offsets along one dimension (0 is `in`, 1 is `out`) of oneDNN's blocked descriptor.
std::vector<int64_t> Offsets(const memory::desc& desc, int dimension, int64_t size) {
  const auto& blocking = desc.data.format_desc.blocking;
  std::vector<int64_t> offsets(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    int64_t rest = i;
    int64_t offset = 0;
    int64_t inner = 1;  // elements inside the blocks to the right
    for (int b = blocking.inner_nblks - 1; b >= 0; --b) {
      const int64_t block = blocking.inner_blks[b];
      if (blocking.inner_idxs[b] == dimension) {
        offset += rest % block * inner;
        rest /= block;
      }
      inner *= block;
    }
    offsets[static_cast<size_t>(i)] = offset + rest * blocking.strides[dimension];
  }
  return offsets;
}

std::shared_ptr<const PackedLayout> Portable(std::shared_ptr<PackedLayout> layout, int64_t width) {
  const int64_t out = layout->out;
  const int64_t in = layout->in;
  layout->panel = width;
  if (width == kPanel) layout->stored = Precision::kF32;
  layout->bytes = static_cast<size_t>((out + width - 1) / width * width * in) *
                  (layout->stored == Precision::kF32 ? sizeof(float) : sizeof(uint16_t));
  layout->of_in.resize(static_cast<size_t>(in));
  layout->of_out.resize(static_cast<size_t>(out));
  for (int64_t k = 0; k < in; ++k) layout->of_in[static_cast<size_t>(k)] = k * width;
  for (int64_t n = 0; n < out; ++n) layout->of_out[static_cast<size_t>(n)] = n / width * in * width + n % width;
  return layout;
}

absl::StatusOr<std::shared_ptr<const PackedLayout>> MakeLayout(int64_t out, int64_t in, Precision precision) {
  auto layout = std::make_shared<PackedLayout>();
  layout->out = out;
  layout->in = in;
  layout->precision = precision;
  layout->stored = precision;
  // Low-rank matrices (adapters): oneDNN pads 16 columns to a block of 64, so that a batch of many languages' adapters
  // would stream four times their bytes, and calling it costs as much as such a product. Their numbers are stored in
  // the precision asked for, since a batch of many languages streams them; products and sums are f32.
  if (std::min(out, in) <= kThin) return Portable(std::move(layout), kThinPanel);
  // One layout must serve every batch size: hold a spread of them against each other.
  bool blocked = true;
  try {
    for (const int64_t rows : {1, 2, 7, 16, 33, 64, 512, 2048}) {
      const auto primitive = Describe(rows, out, in, precision, true, nullptr);
      blocked = blocked && IsBlockedKernel(primitive);
      if (!blocked) break;
      if (rows == 1) {
        layout->weights = primitive.weights_desc();
      } else if (primitive.weights_desc() != layout->weights) {
        return Portable(std::move(layout), kThinPanel);  // some odd sizes: [100, 40] in f32
      }
    }
  } catch (const dnnl::error&) {
    blocked = false;  // no implementation at all counts like a slow one
  }
  if (blocked && layout->weights.data.format_kind != dnnl_blocked) blocked = false;
  if (blocked && layout->weights.data.extra.flags != 0) blocked = false;
  if (blocked) {
    layout->bytes = layout->weights.get_size();
    layout->of_in = Offsets(layout->weights, 0, in);
    layout->of_out = Offsets(layout->weights, 1, out);
    return layout;
  }
  if (precision != Precision::kF32) {
    return absl::FailedPreconditionError(
        absl::StrCat("oneDNN has no blocked ", Name(precision), " kernel for [", out, ", ", in, "] on this processor"));
  }
  return Portable(std::move(layout), kPanel);
}

}  // namespace

absl::Status CheckPrecision(Precision precision) {
  if (precision == Precision::kF32) return absl::OkStatus();
  DnnlEngine();
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  const bool native = isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
  if (!native) {
    return absl::FailedPreconditionError(
        absl::StrCat("precision bf16 needs a processor with AVX512-BF16; matrix products here run on ", MatmulBackend(),
                     ", where it would only be emulated"));
  }
  return absl::OkStatus();
}

std::string MatmulBackend() {
  DnnlEngine();
  const dnnl_version_t* version = dnnl_version();
  const auto layout = LayoutFor(256, 256, Precision::kF32);
  if (!layout.ok() || (*layout)->panel > 0) return "portable Highway kernels";
  std::string isa;
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core:
      isa = "avx512_core";
      break;
    case dnnl::cpu_isa::avx512_core_vnni:
      isa = "avx512_core_vnni";
      break;
    case dnnl::cpu_isa::avx512_core_bf16:
      isa = "avx512_core_bf16";
      break;
    case dnnl::cpu_isa::avx512_core_amx:
      isa = "avx512_core_amx";
      break;
    default:
      isa = "another instruction set";
  }
  return absl::StrCat("oneDNN ", version->major, ".", version->minor, ".", version->patch, " brgemm ", isa);
}

absl::StatusOr<std::shared_ptr<const PackedLayout>> LayoutFor(int64_t out, int64_t in, Precision precision) {
  // A matrix of more elements could not be addressed by a file either; this keeps every product below in 64 bits.
  constexpr int64_t kMaxSide = int64_t{1} << 31;
  if (out < 1 || in < 1 || out >= kMaxSide || in >= kMaxSide || out > (int64_t{1} << 40) / in) {
    return absl::InvalidArgumentError(absl::StrCat("no packed layout for a matrix of [", out, ", ", in, "]"));
  }
  static std::mutex mutex;
  static auto& layouts = *new std::map<std::tuple<int64_t, int64_t, Precision>, std::shared_ptr<const PackedLayout>>();
  const std::lock_guard<std::mutex> lock(mutex);
  auto& known = layouts[{out, in, precision}];
  if (known == nullptr) {
    auto made = MakeLayout(out, in, precision);
    if (!made.ok()) return made.status();
    known = *std::move(made);
  }
  return known;
}

void PackRows(const PackedLayout& layout, int64_t first_row, int64_t rows, const float* source, void* packed) {
  const int64_t* of_in = layout.of_in.data();
  for (int64_t n = 0; n < rows; ++n) {
    const float* row = source + n * layout.in;
    const int64_t base = layout.of_out[static_cast<size_t>(first_row + n)];
    if (layout.stored == Precision::kF32) {
      float* to = static_cast<float*>(packed) + base;
      for (int64_t k = 0; k < layout.in; ++k) to[of_in[k]] = row[k];
    } else {
      uint16_t* to = static_cast<uint16_t*>(packed) + base;
      for (int64_t k = 0; k < layout.in; ++k) to[of_in[k]] = ToBFloat16(row[k]);
    }
  }
}

void UnpackRow(const PackedMatrix& matrix, int64_t row, float* destination) {
  const PackedLayout& layout = *matrix.layout;
  const int64_t* of_in = layout.of_in.data();
  const int64_t base = layout.of_out[static_cast<size_t>(row)];
  if (layout.stored == Precision::kF32) {
    const float* from = static_cast<const float*>(matrix.data) + base;
    for (int64_t k = 0; k < layout.in; ++k) destination[k] = from[of_in[k]];
  } else {
    const uint16_t* from = static_cast<const uint16_t*>(matrix.data) + base;
    for (int64_t k = 0; k < layout.in; ++k) destination[k] = FromBFloat16(from[of_in[k]]);
  }
}

int64_t RoundedRows(int64_t rows) {
  // Steps of 1/8 of the power of two below: 8 sizes an octave, so about 70 primitives a shape up to 4,096 rows.
  if (rows <= 16) return rows;
  int64_t step = 2;
  while (step * 16 < rows) step *= 2;
  return (rows + step - 1) / step * step;
}

namespace {

// REQUIRES the portable layout.
Panels PanelsOf(const PackedMatrix& w) {
  return {w.data, w.layout->in, w.layout->out, w.layout->panel, w.layout->stored};
}

}  // namespace

struct MatmulRunner::Impl {
  struct Key {
    const PackedLayout* layout;
    int64_t rows;
    bool bias;
    bool operator==(const Key& other) const {
      return layout == other.layout && rows == other.rows && bias == other.bias;
    }
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return std::hash<const void*>()(key.layout) ^
             (static_cast<size_t>(key.rows) * 2 + (key.bias ? 1 : 0)) * 0x9e3779b1U;
    }
  };
  // A created primitive with its arguments; only data handles change between runs.
  struct Product {
    dnnl::matmul primitive;
    memory x, w, b, y;
    std::unordered_map<int, memory> arguments;
  };

  explicit Impl(int thread_count) : threads(thread_count), stream(DnnlEngine()) {}

  Product& Get(const PackedLayout& layout, int64_t rows, bool bias) {
    const Key key{&layout, rows, bias};
    const auto found = products.find(key);
    if (found != products.end()) return *found->second;
    const auto description = Describe(rows, layout.out, layout.in, layout.precision, bias, &layout.weights);
    auto product = std::make_unique<Product>();
    product->primitive = dnnl::matmul(description);
    product->x = memory(description.src_desc(), DnnlEngine(), nullptr);
    product->w = memory(description.weights_desc(), DnnlEngine(), nullptr);
    product->y = memory(description.dst_desc(), DnnlEngine(), nullptr);
    product->arguments = {{DNNL_ARG_SRC, product->x}, {DNNL_ARG_WEIGHTS, product->w}, {DNNL_ARG_DST, product->y}};
    if (bias) {
      product->b = memory(description.bias_desc(), DnnlEngine(), nullptr);
      product->arguments.emplace(DNNL_ARG_BIAS, product->b);
    }
    ++counts.primitives_created;
    return *products.emplace(key, std::move(product)).first->second;
  }

  void Multiply(const float* x, int64_t rows, const PackedMatrix& w, const float* bias, float* y) {
    const PackedLayout& layout = *w.layout;
    if (layout.panel > 0) {
      PortableMatmul(x, rows, PanelsOf(w), bias, y, threads);
      return;
    }
    const int64_t rounded = RoundedRows(rows);
    const void* input = x;
    if (layout.precision == Precision::kBF16) {
      const size_t need = static_cast<size_t>(rounded * layout.in);
      if (converted.size() < need) converted.resize(need);
      ConvertToBFloat16(x, layout.in, rows, layout.in, converted.data(), layout.in);
      input = converted.data();
    }
    Product& product = Get(layout, rounded, bias != nullptr);
    // oneDNN's interface takes no const pointers; it only reads these.
    product.x.set_data_handle(const_cast<void*>(input));
    product.w.set_data_handle(const_cast<void*>(w.data));
    if (bias != nullptr) product.b.set_data_handle(const_cast<float*>(bias));
    product.y.set_data_handle(y);
    product.primitive.execute(stream, product.arguments);
    stream.wait();
  }

  void Update(absl::Span<const LowRankUpdate> updates) {
    thin.clear();
    for (const LowRankUpdate& u : updates) {
      const PackedMatrix& a = u.pair->a;
      const PackedMatrix& b = u.pair->b;
      if (a.out() <= kThin) {
        thin.push_back({u.x, u.rows, PanelsOf(a), PanelsOf(b), u.pair->scale, u.y, u.y_stride});
        continue;
      }
      const size_t rounded = static_cast<size_t>(RoundedRows(u.rows));
      low.resize(std::max(low.size(), rounded * static_cast<size_t>(a.out())));
      full.resize(std::max(full.size(), rounded * static_cast<size_t>(b.out())));
      Multiply(u.x, u.rows, a, nullptr, low.data());
      Multiply(low.data(), u.rows, b, nullptr, full.data());
      AddScaled(u.y, u.y_stride, u.pair->scale, full.data(), b.out(), u.rows, b.out());
    }
    PortableLowRank(thin.data(), static_cast<int64_t>(thin.size()), threads);
  }

  // Counts `calls` and times `work`.
  template <typename Work>
  void Measure(int64_t calls, int64_t multiply_adds, const Work& work) {
    counts.calls += calls;
    counts.multiply_adds += multiply_adds;
    omp_set_num_threads(threads);  // a value of the calling thread: cheap, and right whichever thread we run on
    if (!timing) return work();
    const auto start = std::chrono::steady_clock::now();
    work();
    counts.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  const int threads;
  dnnl::stream stream;
  std::unordered_map<Key, std::unique_ptr<Product>, KeyHash> products;
  std::vector<uint16_t> converted;
  std::vector<LowRankPanels> thin;
  std::vector<float> low, full;  // of ranks above kThin
  MatmulCounts counts;
  bool timing = false;
};

MatmulRunner::MatmulRunner(int threads) : impl_(std::make_unique<Impl>(threads)) {}
MatmulRunner::~MatmulRunner() = default;
int MatmulRunner::threads() const { return impl_->threads; }
const MatmulCounts& MatmulRunner::counts() const { return impl_->counts; }
void MatmulRunner::set_timing(bool on) { impl_->timing = on; }

void MatmulRunner::Run(const float* x, int64_t rows, const PackedMatrix& w, const float* bias, float* y) {
  impl_->Measure(1, rows * w.in() * w.out(), [&] { impl_->Multiply(x, rows, w, bias, y); });
}

void MatmulRunner::AddLowRank(absl::Span<const LowRankUpdate> updates) {
  if (updates.empty()) return;
  int64_t multiply_adds = 0;
  for (const LowRankUpdate& u : updates) {
    multiply_adds += u.rows * u.pair->a.out() * (u.pair->a.in() + u.pair->b.out());
  }
  impl_->Measure(2 * static_cast<int64_t>(updates.size()), multiply_adds, [&] { impl_->Update(updates); });
}

}  // namespace koine::kernels
