// What many languages' adapters cost in one batch: a decoder step whose rows all use one language's adapter against one
// where they use 2, 4, 8, 16 languages' (same number of rows, random weights). Alternating pairs, medians. Beside it
// the floor: the bytes of the other languages' low-rank pairs must be read once, and reading them alone takes so long.
// A measurement, never a pass/fail test.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/transformer/transformer.h"
#include "model_loader/model/model.h"
#include "tests/support/random_model.h"

namespace {

namespace fs = std::filesystem;
using koine::kernels::BlockList;

std::string Code(int i) { return absl::StrCat("l", i); }

// Processor time of this thread: waiting for a core on a busy machine does not count.
double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The matrices of a language's low-rank pairs that a decoder step reads: all but those of cross-attention's keys and
// values.
std::vector<koine::kernels::PackedMatrix> PairsOfAStep(const koine::kernels::AdapterWeights& adapter) {
  std::vector<koine::kernels::PackedMatrix> matrices;
  for (const auto& layer : adapter.decoder) {
    for (const auto* pair : {&layer.self_q, &layer.self_k, &layer.self_v, &layer.self_o, &layer.cross_q, &layer.cross_o,
                             &layer.ffn_gate, &layer.ffn_up, &layer.ffn_down}) {
      if (pair->a.empty()) continue;
      matrices.push_back(pair->a);
      matrices.push_back(pair->b);
    }
  }
  return matrices;
}

// Reads every cache line once.
uint64_t Read(const std::vector<koine::kernels::PackedMatrix>& matrices) {
  constexpr size_t kAhead = 4096;
  uint64_t sum = 0;
  for (const auto& matrix : matrices) {
    const char* bytes = static_cast<const char*>(matrix.data);
    for (size_t at = 0; at < matrix.bytes(); at += 64) {
      __builtin_prefetch(bytes + at + kAhead);
      sum += *reinterpret_cast<const uint64_t*>(bytes + at);
    }
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Adapters of many languages in one batch.", "adapter_batch"};
  int rows = 32, rank = 16, d_model = 512, steps = 60, rounds = 7;
  std::string kind = "lora";
  std::vector<std::string> sites = {"self_attn.q", "self_attn.v", "cross_attn.q", "cross_attn.v"};
  std::string precision_name = "f32";
  app.add_option("--rows", rows, "Rows of the step")->capture_default_str();
  app.add_option("--rank", rank, "Rank of each adapter")->capture_default_str();
  app.add_option("--d-model", d_model, "Width of the model")->capture_default_str();
  app.add_option("--kind", kind, "lora, bottleneck or none")
      ->check(CLI::IsMember({"lora", "bottleneck", "none"}))
      ->capture_default_str();
  app.add_option("--sites", sites, "Projections with a low-rank pair (PEFT's default: q and v); \"all\" for all")
      ->delimiter(',');
  app.add_option("--precision", precision_name, "f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  app.add_option("--rounds", rounds, "Rounds of alternating pairs for each count of languages")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  koine::model_loader::ModelConfig config = koine::testing::SmallConfig("adapters");
  auto& a = config.architecture;
  a.d_model = d_model;
  a.heads = 8;
  a.d_head = d_model / 8;
  a.d_ffn = 4 * d_model;
  a.attention_scale = 1.0F / std::sqrt(static_cast<float>(a.d_head));
  const fs::path folder = fs::temp_directory_path() / "koine_adapter_batch";
  fs::remove_all(folder);
  koine::testing::WriteRandomShared(folder.string(), config, 1);
  koine::model_loader::AdapterConfig adapter;
  if (kind == "lora") {
    adapter.kind = koine::model_loader::AdapterKind::kLora;
    adapter.rank = rank;
    adapter.alpha = rank;
  } else if (kind == "bottleneck") {
    adapter.kind = koine::model_loader::AdapterKind::kBottleneck;
    adapter.rank = rank;
  }
  if (sites == std::vector<std::string>{"all"}) sites.clear();
  constexpr int kMost = 16;
  for (int i = 0; i < kMost; ++i) {
    koine::testing::WriteRandomLanguage(folder.string(), config, {Code(i), adapter, 0, sites},
                                        koine::testing::SmallTokenizer(), static_cast<unsigned>(10 + i));
  }
  const auto precision = precision_name == "f32" ? koine::kernels::Precision::kF32 : koine::kernels::Precision::kBF16;
  const auto loaded = koine::model_loader::Model::Load(folder.string(), {precision});
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\n", loaded.status().ToString().c_str());
    return 1;
  }
  const auto& model = **loaded;
  const koine::kernels::Transformer& transformer = model.transformer();
  koine::kernels::Workspace workspace(1);

  // A batch of so many languages, and what a step of it takes.
  struct Batch {
    Batch(const koine::kernels::KvShape& shape, int32_t blocks) : pool(shape, blocks) {}
    koine::kernels::KvPool pool;
    std::vector<BlockList> self, cross;
    std::vector<koine::kernels::RowRun> runs;
    std::vector<float> hidden;
  };
  const auto start = [&](int languages) {
    auto batch = std::make_unique<Batch>(transformer.kv_shape(), rows * 8);
    batch->self.resize(static_cast<size_t>(rows));
    batch->cross.resize(static_cast<size_t>(rows));
    std::vector<koine::kernels::Segment> segments;
    std::vector<BlockList*> memories;
    for (int row = 0; row < rows; ++row) {
      const auto& language = *model.languages()[static_cast<size_t>(row * languages / rows)];
      if (batch->runs.empty() || batch->runs.back().language != &language.weights()) {
        batch->runs.push_back({&language.weights(),
                               language.default_adapter() ? &language.default_adapter()->weights() : nullptr, row,
                               row});
      }
      batch->runs.back().end = row + 1;
      segments.push_back({row, row + 1});  // one source token: cross-attention costs next to nothing
      batch->pool.Reserve(&batch->cross[static_cast<size_t>(row)], 1);
      memories.push_back(&batch->cross[static_cast<size_t>(row)]);
    }
    const std::vector<float> encoder(static_cast<size_t>(koine::kernels::RowCapacity(rows) * d_model), 0.1F);
    transformer.FillCrossMemory(workspace, encoder.data(), segments, batch->runs, memories, batch->pool);
    batch->hidden.resize(encoder.size());
    return batch;
  };
  const auto step_seconds = [&](Batch* batch) {
    std::vector<koine::kernels::DecodeRow> decode;
    for (size_t row = 0; row < batch->self.size(); ++row) {
      batch->pool.Extend(&batch->self[row]);
      decode.push_back({5, &batch->self[row], &batch->cross[row]});
    }
    const double before = ThreadSeconds();
    transformer.DecodeStep(workspace, decode, batch->runs, batch->pool, batch->hidden.data());
    return ThreadSeconds() - before;
  };

  std::printf("%s; %s, d %d, %d + %d layers, %s adapters of rank %d on %s, %d rows, one thread, processor time\n",
              koine::kernels::MatmulBackend().c_str(), precision_name.c_str(), d_model, 2, 2, kind.c_str(), rank,
              kind != "lora" || sites.empty() ? "every site" : absl::StrJoin(sites, ", ").c_str(), rows);
#ifndef NDEBUG
  std::printf("WARNING: built with assertions, times are not meaningful\n");
#endif
  // The other languages' pairs, read in the order of a step after one: what it left in the caches is left to both.
  std::vector<koine::kernels::PackedMatrix> others;
  size_t bytes = 0;
  for (int i = 1; i < kMost && kind == "lora"; ++i) {
    for (const auto& matrix : PairsOfAStep(model.languages()[static_cast<size_t>(i)]->default_adapter()->weights())) {
      others.push_back(matrix);
      bytes += matrix.bytes();
    }
  }
  std::vector<double> reading;
  volatile uint64_t sink = 0;
  for (const int count : {2, 4, 8, 16}) {
    if (count > std::min(rows, kMost)) break;
    std::vector<double> ones, manies, ratios;
    for (int round = 0; round < rounds; ++round) {
      const auto one = start(1);
      const auto many = start(count);
      std::vector<double> one_steps, many_steps;
      for (int i = 0; i < steps; ++i) {
        one_steps.push_back(step_seconds(one.get()));
        many_steps.push_back(step_seconds(many.get()));
      }
      ones.push_back(Median(one_steps));
      manies.push_back(Median(many_steps));
      ratios.push_back(manies.back() / ones.back());
      if (count < kMost || others.empty()) continue;
      step_seconds(one.get());
      const double before = ThreadSeconds();
      sink = sink + Read(others);
      reading.push_back(ThreadSeconds() - before);
    }
    std::printf("  %2d languages: step %.3f ms, one language's %.3f ms, %.2f times\n", count, Median(manies) * 1e3,
                Median(ones) * 1e3, Median(ratios));
    if (reading.empty()) continue;
    std::printf("  floor at 16: %.1f MB of the other languages' pairs read once take %.3f ms (%.1f GB/s): %.2f times\n",
                static_cast<double>(bytes) / 1e6, Median(reading) * 1e3,
                static_cast<double>(bytes) / 1e9 / Median(reading), 1 + Median(reading) / Median(ones));
  }
  fs::remove_all(folder);
  return 0;
}
