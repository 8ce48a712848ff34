// Continuous batching over one model: workers that run the forward pass step by step for rows of all languages.
#ifndef KOINE_SERVER_ENGINE_ENGINE_H_
#define KOINE_SERVER_ENGINE_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "model_loader/model/model.h"
#include "server/schedule/queue.h"

namespace koine::server {

struct EngineOptions {
  // Change speed and memory only; never results.
  int workers = 1;                   // engine threads, each with its own caches, all on the same const model
  int threads = 1;                   // OpenMP threads of each worker's products
  int64_t max_rows = 64;             // decoder rows of one step; more fill products better, fewer answer sooner
  int64_t max_tokens = 4096;         // encoder tokens of one admission
  int64_t kv_cache_bytes = 1 << 30;  // upper bound of each worker's pool; pages are taken as they are touched
};

// What one step did, for tests, traces and benchmarks.
struct StepTrace {
  int worker = 0;
  int64_t encoded_tokens = 0;     // encoder rows admitted before this step
  int64_t encoded_languages = 0;  // source languages among them
  int64_t rows = 0;               // decoder rows
  int64_t languages = 0;          // target languages among them
  int64_t sentences = 0;
  int64_t shared_products = 0;  // of the decoder step
  int64_t language_products = 0;
  int64_t table_bytes = 0;     // bytes of output tables streamed
  double seconds = 0;          // of the whole step
  double product_seconds = 0;  // inside matrix products
};

// Running totals; every field only rises.
struct EngineCounters {
  std::atomic<int64_t> steps{0};
  std::atomic<int64_t> step_rows{0};
  std::atomic<int64_t> step_languages{0};
  std::atomic<int64_t> max_step_rows{0};
  std::atomic<int64_t> max_step_languages{0};
  std::atomic<int64_t> encoded_tokens{0};
  std::atomic<int64_t> generated_tokens{0};
  std::atomic<int64_t> finished{0};
  std::atomic<int64_t> cancelled{0};
  std::atomic<int64_t> expired{0};
  std::atomic<int64_t> failed{0};
  std::atomic<int64_t> multiply_adds{0};
  std::atomic<int64_t> table_bytes{0};
  std::atomic<int64_t> partial_block_copies{0};  // of partly filled cache blocks, when beams part
  std::atomic<int64_t> full_block_copies{0};     // always 0: full blocks are shared, never copied
};

// Owns its worker threads. Start and Stop from one thread; the rest is thread-safe.
class Engine {
 public:
  // `queue` outlives the engine. `trace`, if set, is called by the workers after each step.
  Engine(std::shared_ptr<const model_loader::Model> model, JobQueue* queue, const EngineOptions& options,
         std::function<void(const StepTrace&)> trace = nullptr);
  ~Engine();  // Stop

  void Start();
  // After JobQueue::Drain: waits until the workers have finished everything they have, at most until `deadline`; then
  // ends what is left with UNAVAILABLE. Joins the threads.
  void Stop(absl::Time deadline = absl::InfiniteFuture());

  const EngineCounters& counters() const { return counters_; }
  const EngineOptions& options() const { return options_; }
  int64_t live_jobs() const { return live_jobs_.load(); }

  // INVALID_ARGUMENT if a job could never run (more KV blocks than the pool has), naming the numbers. Asked at the
  // door.
  absl::Status CheckFits(const Job& job) const;

 private:
  class Worker;
  void RunWorker(int index);

  const std::shared_ptr<const model_loader::Model> model_;
  JobQueue* const queue_;
  const EngineOptions options_;
  const std::function<void(const StepTrace&)> trace_;
  EngineCounters counters_;
  std::atomic<int64_t> live_jobs_{0};
  std::atomic<bool> abort_{false};
  std::atomic<int> running_{0};
  std::vector<std::thread> workers_;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_ENGINE_ENGINE_H_
