// What many languages' adapters cost in one batch: a decoder step whose rows all use one language's adapter against one
// where they use 2, 4, 8, 16 languages' (same number of rows, random weights). Paired rounds, medians.
// A measurement, never a pass/fail test.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
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
  app.add_option("--rounds", rounds, "Rounds over all counts of languages")->capture_default_str();
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
    koine::testing::WriteRandomLanguage(folder.string(), config, {Code(i), adapter, 0},
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

  const auto step_seconds = [&](int languages) {
    koine::kernels::KvPool pool(transformer.kv_shape(), rows * 8);
    std::vector<BlockList> self(static_cast<size_t>(rows)), cross(static_cast<size_t>(rows));
    std::vector<koine::kernels::RowRun> runs;
    std::vector<koine::kernels::Segment> segments;
    std::vector<BlockList*> memories;
    for (int row = 0; row < rows; ++row) {
      const auto& language = *model.languages()[static_cast<size_t>(row * languages / rows)];
      if (runs.empty() || runs.back().language != &language.weights()) {
        runs.push_back({&language.weights(),
                        language.default_adapter() ? &language.default_adapter()->weights() : nullptr, row, row});
      }
      runs.back().end = row + 1;
      segments.push_back({row, row + 1});  // one source token: cross-attention costs next to nothing
      pool.Reserve(&cross[static_cast<size_t>(row)], 1);
      memories.push_back(&cross[static_cast<size_t>(row)]);
    }
    std::vector<float> encoder(static_cast<size_t>(koine::kernels::RowCapacity(rows) * d_model), 0.1F);
    transformer.FillCrossMemory(workspace, encoder.data(), segments, runs, memories, pool);
    std::vector<float> hidden(encoder.size());
    std::vector<double> seconds;
    for (int i = 0; i < steps; ++i) {
      std::vector<koine::kernels::DecodeRow> decode;
      for (int row = 0; row < rows; ++row) {
        pool.Extend(&self[static_cast<size_t>(row)]);
        decode.push_back({5, &self[static_cast<size_t>(row)], &cross[static_cast<size_t>(row)]});
      }
      const double start = ThreadSeconds();
      transformer.DecodeStep(workspace, decode, runs, pool, hidden.data());
      seconds.push_back(ThreadSeconds() - start);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  };

  std::printf("%s; %s, d %d, %d + %d layers, %s adapters of rank %d on %s, %d rows, one thread, processor time\n",
              koine::kernels::MatmulBackend().c_str(), precision_name.c_str(), d_model, 2, 2, kind.c_str(), rank,
              kind != "lora" || sites.empty() ? "every site" : absl::StrJoin(sites, ", ").c_str(), rows);
#ifndef NDEBUG
  std::printf("WARNING: built with assertions, times are not meaningful\n");
#endif
  const std::vector<int> counts = {1, 2, 4, 8, 16};
  std::vector<std::vector<double>> times(counts.size()), ratios(counts.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < counts.size(); ++i) {
      times[i].push_back(step_seconds(counts[i]));
      ratios[i].push_back(times[i].back() / times[0].back());
    }
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    std::sort(ratios[i].begin(), ratios[i].end());
    std::printf("  %2d languages: step %.3f ms, %.2f times one language's\n", counts[i],
                times[i][times[i].size() / 2] * 1e3, ratios[i][ratios[i].size() / 2]);
  }
  fs::remove_all(folder);
  return 0;
}
