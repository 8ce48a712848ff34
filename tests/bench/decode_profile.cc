// Where a decode step's time goes: random weights in a given shape, `rows` sentences over `languages` target languages.
// Prints its environment, then a table; a measurement, never a pass/fail test.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/attention/kv_pool.h"
#include "kernels/decode/search.h"
#include "kernels/transformer/transformer.h"

namespace {

using namespace koine::kernels;  // NOLINT: a small program about this library

struct Shape {
  int d_model, heads, d_ffn, layers;
  int64_t vocabulary;
  int bottleneck;  // rank of each language's adapter, 0 for none
};

// Owns random packed weights. One random tile is repeated: speed does not depend on the values, but denormals and
// infinities would.
class RandomWeights {
 public:
  RandomWeights(const Shape& shape, Precision precision) : precision_(precision), tile_(1 << 16) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal(0, 1.0F / std::sqrt(static_cast<float>(shape.d_model)));
    for (float& value : tile_) value = normal(generator);
    ones_.assign(static_cast<size_t>(std::max(shape.d_ffn, 3 * shape.d_model)), 1.0F);
    zeros_.assign(std::max<size_t>(ones_.size(), static_cast<size_t>(shape.vocabulary)), 0.0F);
  }

  Linear Make(int64_t out, int64_t in) {
    const auto layout = *LayoutFor(out, in, precision_);
    char* data = static_cast<char*>(std::aligned_alloc(64, (PackedBytes(*layout) + 63) / 64 * 64));
    owned_.emplace_back(data);
    std::vector<float> row(static_cast<size_t>(in));
    for (int64_t n = 0; n < out; ++n) {
      for (int64_t k = 0; k < in; ++k)
        row[static_cast<size_t>(k)] = tile_[static_cast<size_t>((n * 7919 + k) & 0xffff)];
      PackRows(*layout, n, 1, row.data(), data);
    }
    return {{layout, data}, zeros_.data()};
  }
  NormWeights Norm() const { return {ones_.data(), zeros_.data()}; }
  const float* zeros() const { return zeros_.data(); }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  const Precision precision_;
  std::vector<float> tile_, ones_, zeros_;
  std::vector<std::unique_ptr<char, Free>> owned_;
};

std::string CpuModel() {
  std::ifstream stream("/proc/cpuinfo");
  std::string line;
  while (std::getline(stream, line)) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Profile of the decode step on random weights.", "decode_profile"};
  std::string shape_name = "demo";
  std::string precision_name = "f32";
  int64_t rows = 32;
  int languages = 8;
  int source_tokens = 24;
  int steps = 40;
  int threads = 1;
  app.add_option("--shape", shape_name, "demo or nllb-600m")
      ->check(CLI::IsMember({"demo", "nllb-600m"}))
      ->capture_default_str();
  app.add_option("--precision", precision_name, "f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  app.add_option("--rows", rows, "Sentences decoded together")->capture_default_str();
  app.add_option("--languages", languages, "Target languages among them (each with a table of its own)")
      ->capture_default_str();
  app.add_option("--source-tokens", source_tokens, "Tokens of each source sentence")->capture_default_str();
  app.add_option("--steps", steps, "Measured steps; positions run from 1 to this")->capture_default_str();
  app.add_option("--threads", threads, "OpenMP threads of the products")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  languages = static_cast<int>(std::min<int64_t>(languages, rows));

  const Shape shape = shape_name == "demo" ? Shape{256, 8, 1024, 2, 8000, 32} : Shape{1024, 16, 4096, 12, 256206, 0};
  const Precision precision = precision_name == "f32" ? Precision::kF32 : Precision::kBF16;
  if (const absl::Status status = CheckPrecision(precision); !status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return 1;
  }
  // Where languages share one big vocabulary (NLLB as published), they share one table too.
  const bool one_table = shape_name != "demo";

  std::printf("%s, %u cores; %s; %s\n", CpuModel().c_str(), std::thread::hardware_concurrency(),
              MatmulBackend().c_str(),
#ifdef NDEBUG
              "optimised build"
#else
              "WARNING: built with assertions, times are not meaningful"
#endif
  );
  std::printf(
      "shape %s (d %d, %d heads, ffn %d, %d decoder layers, %ld rows a table), %s, %ld rows of %d languages, "
      "%d source tokens, %d thread(s)\n",
      shape_name.c_str(), shape.d_model, shape.heads, shape.d_ffn, shape.layers, static_cast<long>(shape.vocabulary),
      precision_name.c_str(), static_cast<long>(rows), languages, source_tokens, threads);

  RandomWeights random(shape, precision);
  TransformerConfig config;
  config.d_model = shape.d_model;
  config.heads = shape.heads;
  config.d_head = shape.d_model / shape.heads;
  config.d_ffn = shape.d_ffn;
  config.attention_scale = 1.0F / std::sqrt(static_cast<float>(config.d_head));
  config.max_positions = 1024;
  config.decoder_layers.assign(static_cast<size_t>(shape.layers), LayerOwner::kShared);
  SharedWeights shared;
  const int64_t d = shape.d_model;
  for (int i = 0; i < shape.layers; ++i) {
    LayerWeights& layer = shared.decoder.layers.emplace_back();
    layer.self = {shape.heads, random.Make(3 * d, d), random.Make(d, d)};
    layer.cross = {shape.heads, random.Make(d, d), random.Make(2 * d, d), random.Make(d, d)};
    layer.ffn = {random.Make(shape.d_ffn, d), random.Make(d, shape.d_ffn)};
    layer.self_norm = layer.cross_norm = layer.ffn_norm = random.Norm();
  }
  shared.decoder.final_norm = random.Norm();
  std::vector<float> positions(static_cast<size_t>(config.max_positions * d));
  SinusoidalPositions(shape.d_model, 10000, true, 0, config.max_positions, positions.data());
  shared.decoder.positions = positions.data();
  const Transformer transformer(config, shared);

  std::vector<LanguageWeights> language_weights(static_cast<size_t>(languages));
  std::vector<AdapterWeights> adapters(static_cast<size_t>(languages));
  for (size_t l = 0; l < language_weights.size(); ++l) {
    LanguageWeights& language = language_weights[l];
    language.vocabulary = shape.vocabulary;
    language.output = one_table && l > 0 ? language_weights[0].output : random.Make(shape.vocabulary, d);
    language.embedding.packed = language.output.weight;
    language.decoder.resize(static_cast<size_t>(shape.layers));
    adapters[l].decoder.resize(static_cast<size_t>(shape.layers));
    for (LayerAdapter& layer : adapters[l].decoder) {
      if (shape.bottleneck == 0) continue;
      layer.norm = random.Norm();
      layer.down = random.Make(shape.bottleneck, d);
      layer.up = random.Make(d, shape.bottleneck);
    }
  }

  Workspace workspace(threads);
  KvPool pool(transformer.kv_shape(),
              static_cast<int32_t>(rows * (BlocksFor(source_tokens) + BlocksFor(steps + 8) + 1)));
  std::vector<BlockList> self(static_cast<size_t>(rows)), cross(static_cast<size_t>(rows));
  std::vector<RowRun> runs;
  for (int64_t row = 0; row < rows; ++row) {
    const size_t l = static_cast<size_t>(row * languages / rows);
    if (runs.empty() || runs.back().language != &language_weights[l]) {
      runs.push_back({&language_weights[l], shape.bottleneck > 0 ? &adapters[l] : nullptr, row, row});
    }
    runs.back().end = row + 1;
  }
  std::vector<Segment> segments;
  std::vector<RowRun> source_runs;
  std::vector<BlockList*> memories;
  for (const RowRun& run : runs)
    source_runs.push_back({run.language, run.adapter, run.begin * source_tokens, run.end * source_tokens});
  for (int64_t row = 0; row < rows; ++row) {
    segments.push_back({row * source_tokens, (row + 1) * source_tokens});
    pool.Reserve(&cross[static_cast<size_t>(row)], source_tokens);
    memories.push_back(&cross[static_cast<size_t>(row)]);
  }
  std::vector<float> encoder(static_cast<size_t>(RowCapacity(rows * source_tokens) * d), 0.1F);
  transformer.FillCrossMemory(workspace, encoder.data(), segments, source_runs, memories, pool);

  std::vector<float> hidden(static_cast<size_t>(RowCapacity(rows) * d));
  std::vector<float> logits(static_cast<size_t>(RoundedRows(rows) * shape.vocabulary));
  std::vector<std::unique_ptr<Search>> searches;
  for (int64_t row = 0; row < rows; ++row) {
    SearchOptions options;
    options.max_tokens = 1 << 20;
    options.end_token = 2;
    options.min_tokens = 1 << 20;
    searches.push_back(std::make_unique<Search>(options, shape.vocabulary));
  }
  double search_seconds = 0;
  double total_seconds = 0;
  std::vector<int32_t> tokens(static_cast<size_t>(rows), 5);
  const auto step = [&] {
    const absl::Time start = absl::Now();
    std::vector<DecodeRow> decode;
    for (int64_t row = 0; row < rows; ++row) {
      pool.Extend(&self[static_cast<size_t>(row)]);
      decode.push_back(
          {tokens[static_cast<size_t>(row)], &self[static_cast<size_t>(row)], &cross[static_cast<size_t>(row)]});
    }
    transformer.DecodeStep(workspace, decode, runs, pool, hidden.data());
    for (size_t r = 0; r < runs.size(); ++r) {
      size_t last = r;
      while (one_table && last + 1 < runs.size()) ++last;  // one table: one product for all languages
      const int64_t begin = runs[r].begin;
      const int64_t end = runs[last].end;
      transformer.Logits(workspace, *runs[r].language, hidden.data() + begin * d, end - begin, logits.data());
      const absl::Time searching = absl::Now();
      for (int64_t row = begin; row < end; ++row) {
        Search& search = *searches[static_cast<size_t>(row)];
        search.Advance(logits.data() + (row - begin) * shape.vocabulary);
        tokens[static_cast<size_t>(row)] = search.continuations()[0].token;
      }
      search_seconds += absl::ToDoubleSeconds(absl::Now() - searching);
      r = last;
    }
    total_seconds += absl::ToDoubleSeconds(absl::Now() - start);
  };
  for (int i = 0; i < 3; ++i) step();  // primitives are made, pages touched
  workspace.set_profiling(true);
  search_seconds = total_seconds = 0;
  for (int i = 0; i < steps; ++i) step();

  const ForwardProfile& profile = workspace.profile();
  const double products = workspace.matmul().counts().seconds;
  double rest = total_seconds - products - search_seconds;
  const auto line = [&](const char* name, double seconds) {
    std::printf("  %-44s %9.3f ms %6.1f %%\n", name, seconds / steps * 1e3, seconds / total_seconds * 100);
  };
  std::printf("one step, mean of %d:\n", steps);
  line("matrix products", products);
  for (const auto& [name, seconds] :
       {std::pair<const char*, double>{"attention (scores, softmax, context)", profile.attention},
        {"writing keys and values", profile.cache},
        {"norms", profile.norms},
        {"activations", profile.activations},
        {"residual additions", profile.residuals},
        {"embedding lookup", profile.embedding}}) {
    line(name, seconds);
    rest -= seconds;
  }
  line("log-softmax, top-k, search", search_seconds);
  line("everything else", rest);
  line("total", total_seconds);
  std::printf("  %.0f tokens/s\n", static_cast<double>(rows) * steps / total_seconds);
  return 0;
}
