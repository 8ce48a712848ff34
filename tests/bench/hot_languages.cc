// What languages that load cost those that are hot: latency of requests to hot languages alone, and while cold ones
// load and are evicted under a budget; how long requests for cold ones take; what a token costs with 1, 10 and 100
// languages. Paired rounds (A: hot only, B: hot beside cold), medians of the rounds; enough clients make the machine a
// saturated one. Writes a model of random weights into a temporary folder. A measurement, never a pass/fail test.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/matmul/matmul.h"
#include "server/engine/engine.h"
#include "server/languages/language_store.h"
#include "tests/support/random_model.h"
#include "tests/support/store_client.h"

namespace {

namespace fs = std::filesystem;
using koine::server::LanguageStore;

std::string Code(int i) { return absl::StrCat("l", i); }

double Percentile(std::vector<double>* values, double p) {
  if (values->empty()) return 0;
  std::sort(values->begin(), values->end());
  const auto at = static_cast<size_t>(std::ceil(p * static_cast<double>(values->size()))) - 1;
  return (*values)[std::min(at, values->size() - 1)];
}

struct Round {
  double p50 = 0, p99 = 0, requests = 0;
  std::vector<double> cold;  // requests that waited for a language
  int64_t loads = 0, failures = 0;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Latency of hot languages while others load.", "hot_languages"};
  int languages = 200, budget = 20, hot = 8, hot_clients = 2, cold_clients = 1, rounds = 5, tokens = 20;
  int workers = 1, niceness = koine::server::LanguageStoreOptions().loading_niceness;
  double seconds = 4;
  std::string traffic = "uniform";
  app.add_option("--languages", languages, "Languages in all")->capture_default_str();
  app.add_option("--budget", budget, "Languages that the memory budget holds")->capture_default_str();
  app.add_option("--hot", hot, "Hot languages")->capture_default_str();
  app.add_option("--hot-clients", hot_clients, "Closed-loop clients on hot languages")->capture_default_str();
  app.add_option("--cold-clients", cold_clients, "Closed-loop clients on all languages, in B rounds")
      ->capture_default_str();
  app.add_option("--traffic", traffic, "Of cold clients: uniform or zipf")
      ->check(CLI::IsMember({"uniform", "zipf"}))
      ->capture_default_str();
  app.add_option("--rounds", rounds, "Pairs of rounds")->capture_default_str();
  app.add_option("--seconds", seconds, "Of each round")->capture_default_str();
  app.add_option("--tokens", tokens, "Generated tokens of a request")->capture_default_str();
  app.add_option("--workers", workers, "Engines")->capture_default_str();
  app.add_option("--niceness", niceness, "Of the loading thread")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  // The demo's shape: d_model 256, 4 + 2 layers, tables of 8,000 rows.
  koine::model_loader::ModelConfig config = koine::testing::SmallConfig("hot");
  auto& a = config.architecture;
  a.d_model = 256;
  a.heads = 8;
  a.d_head = 32;
  a.d_ffn = 1024;
  a.encoder_layers.assign(4, koine::kernels::LayerOwner::kShared);
  a.attention_scale = 1.0F / std::sqrt(32.0F);
  a.embedding_scale = 16;
  const fs::path folder = fs::temp_directory_path() / "koine_hot_languages";
  fs::remove_all(folder);
  koine::testing::WriteRandomShared(folder.string(), config, 1, koine::kernels::DType::kBF16);
  const std::string tokenizer = koine::testing::DemoTokenizer("en");
  koine::testing::WriteRandomLanguage(folder.string(), config, {Code(0), {}, 0}, tokenizer, 2,
                                      koine::kernels::DType::kBF16);
  // The others are copies under other codes: what loading costs does not depend on the values.
  for (int i = 1; i < languages; ++i) {
    const fs::path from = folder / "languages" / Code(0);
    const fs::path to = folder / "languages" / Code(i);
    fs::create_directory(to);
    for (const char* file : {"language.safetensors", "tokenizer.model"}) fs::create_hard_link(from / file, to / file);
    koine::model_loader::LanguageConfig language;
    language.code = Code(i);
    std::ofstream(to / "language.json") << koine::model_loader::ToJson(language);
  }
  const auto model = koine::model_loader::Model::Open(folder.string(), {});
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
    return 1;
  }
  const int64_t one = (*model)->PlanLanguage(Code(0))->memory_bytes();
  LanguageStore store(*model, {.memory_budget = budget * one, .pinned = {}, .loading_niceness = niceness});
  if (const absl::Status started = store.Start(); !started.ok()) {
    std::fprintf(stderr, "%s\n", started.ToString().c_str());
    return 1;
  }
  koine::server::JobQueue queue({});
  koine::server::Engine engine(*model, &queue, {.workers = workers});
  engine.Start();

  const auto run = [&](int cold) {
    Round round;
    std::vector<std::vector<double>> latencies(static_cast<size_t>(hot_clients));
    std::atomic<int64_t> failures{0};
    const int64_t loads = store.counters().loads;
    const absl::Time end = absl::Now() + absl::Seconds(seconds);
    std::vector<std::thread> clients;
    for (int c = 0; c < hot_clients; ++c) {
      clients.emplace_back([&, c] {
        std::mt19937 generator(static_cast<unsigned>(c));
        while (absl::Now() < end) {
          const absl::Time start = absl::Now();
          const auto result = koine::testing::TranslateIds(
              store, queue, Code(static_cast<int>(generator() % static_cast<unsigned>(hot))),
              Code(static_cast<int>(generator() % static_cast<unsigned>(hot))), std::vector<int32_t>(15, 100), tokens);
          if (!result.status.ok()) ++failures;
          latencies[static_cast<size_t>(c)].push_back(absl::ToDoubleSeconds(absl::Now() - start));
        }
      });
    }
    std::vector<std::vector<double>> waits(static_cast<size_t>(cold));
    std::vector<double> weights;
    for (int i = 0; i < languages; ++i) weights.push_back(traffic == "zipf" ? 1.0 / (i + 1) : 1.0);
    for (int c = 0; c < cold; ++c) {
      clients.emplace_back([&, c] {
        std::mt19937 generator(1000 + static_cast<unsigned>(c));
        std::discrete_distribution<int> pick(weights.begin(), weights.end());
        while (absl::Now() < end) {
          const absl::Time start = absl::Now();
          bool waited = false;
          const auto result = koine::testing::TranslateIds(store, queue, Code(pick(generator)), Code(pick(generator)),
                                                           std::vector<int32_t>(15, 100), tokens, &waited);
          if (!result.status.ok()) ++failures;
          if (waited) waits[static_cast<size_t>(c)].push_back(absl::ToDoubleSeconds(absl::Now() - start));
        }
      });
    }
    for (std::thread& client : clients) client.join();
    std::vector<double> all;
    for (const auto& some : latencies) all.insert(all.end(), some.begin(), some.end());
    for (const auto& some : waits) round.cold.insert(round.cold.end(), some.begin(), some.end());
    round.requests = static_cast<double>(all.size()) / seconds;
    round.p50 = Percentile(&all, 0.5);
    round.p99 = Percentile(&all, 0.99);
    round.loads = store.counters().loads - loads;
    round.failures = failures.load();
    return round;
  };

  std::printf(
      "%u cores; %s; %d languages of %.1f MiB (d 256, 8,000 rows, f32), budget for %d; %d engine(s), %d hot "
      "clients, %d cold client(s), %s traffic, %d tokens a request, loading at niceness %d\n",
      std::thread::hardware_concurrency(), koine::kernels::MatmulBackend().c_str(), languages,
      static_cast<double>(one) / (1 << 20), budget, workers, hot_clients, cold_clients, traffic.c_str(), tokens,
      niceness);
#ifndef NDEBUG
  std::printf("WARNING: built with assertions, times are not meaningful\n");
#endif
  run(0);  // the hot ones are loaded
  std::vector<double> ratios50, ratios99, cold;
  for (int i = 0; i < rounds; ++i) {
    const Round alone = run(0);
    Round beside = run(cold_clients);
    cold.insert(cold.end(), beside.cold.begin(), beside.cold.end());
    // What a client of the same kind costs when nothing needs to load: the fair comparison for B is not A alone.
    ratios50.push_back(beside.p50 / alone.p50);
    ratios99.push_back(beside.p99 / alone.p99);
    std::printf(
        "  hot alone: p50 %.2f ms, p99 %.2f ms, %.0f requests/s | beside loading: p50 %.2f ms, p99 %.2f ms, %.0f "
        "requests/s, %ld loads, %ld failures; cold p50 %.0f ms\n",
        alone.p50 * 1e3, alone.p99 * 1e3, alone.requests, beside.p50 * 1e3, beside.p99 * 1e3, beside.requests,
        static_cast<long>(beside.loads), static_cast<long>(alone.failures + beside.failures),
        Percentile(&beside.cold, 0.5) * 1e3);
  }
  std::printf("median ratio of p50: %.2f, of p99: %.2f\n", Percentile(&ratios50, 0.5), Percentile(&ratios99, 0.5));
  std::printf("%zu requests that waited for a language: p50 %.0f ms, p99 %.0f ms\n", cold.size(),
              Percentile(&cold, 0.5) * 1e3, Percentile(&cold, 0.99) * 1e3);
  std::printf("resident: %.1f MiB of parameters (smaps), budget %.1f MiB + shared %.1f MiB\n",
              static_cast<double>(koine::testing::ResidentBySmaps("koine:hot:")) / (1 << 20),
              static_cast<double>(budget * one) / (1 << 20),
              static_cast<double>((*model)->shared_resident_bytes()) / (1 << 20));
  for (const int count : {1, 10, 100}) {
    const int64_t work = engine.counters().multiply_adds.load();
    const int64_t rows = engine.counters().step_rows.load();
    for (int i = 0; i < 100; ++i) {
      koine::testing::TranslateIds(store, queue, Code(i % count), Code((i + 1) % count), std::vector<int32_t>(15, 100),
                                   5);
    }
    std::printf("%d language(s): %.1f multiply-adds of matrix products per decoded token\n", count,
                static_cast<double>(engine.counters().multiply_adds.load() - work) /
                    static_cast<double>(engine.counters().step_rows.load() - rows));
  }
  engine.Stop();
  store.Stop();
  fs::remove_all(folder);
  return 0;
}
