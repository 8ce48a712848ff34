// One sentence's work, from admission to its answer.
#ifndef KOINE_SERVER_SCHEDULE_JOB_H_
#define KOINE_SERVER_SCHEDULE_JOB_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/decode/search.h"
#include "model_loader/model/model.h"

namespace koine::server {

struct JobResult {
  absl::Status status;
  std::vector<kernels::Hypothesis> hypotheses;  // translate: best first
  std::vector<float> embedding;                 // encode: as the model pools
  std::vector<float> token_states;              // encode, if asked: [tokens, d_model]
  absl::Duration queued;                        // admission to first computation
  absl::Duration computed;                      // first computation to answer
};

// Filled by server/text, queued by server/schedule, run by server/engine. After Submit only `cancelled` may be touched.
struct Job {
  enum class Task : uint8_t { kTranslate, kEncode };

  Task task = Task::kTranslate;
  std::shared_ptr<const model_loader::Language> source;
  std::shared_ptr<const model_loader::Language> target;   // translate only
  const model_loader::Adapter* source_adapter = nullptr;  // owned by `source`
  const model_loader::Adapter* target_adapter = nullptr;  // owned by `target`
  std::vector<int32_t> source_ids;                        // complete, with prompt tokens; never empty
  int32_t start_token = 0;                                // translate: decoder_start
  kernels::SearchOptions search;                          // translate
  bool token_states = false;                              // encode
  bool normalize = true;                                  // encode
  absl::Time deadline = absl::InfiniteFuture();

  // Called exactly once, on whatever thread ends the job; must not block and must not call into the queue.
  std::function<void(JobResult)> done;

  std::atomic<bool> cancelled{false};

  // Set by the queue, under its lock.
  absl::Time enqueued;
  absl::Time passed_over = absl::InfiniteFuture();  // since when younger ones are taken before it
  std::pair<int64_t, uint64_t> place = {0, 0};      // in the queue's order; never twice the same

  // Decoder rows this job may need at once, and tokens it counts for in the queue.
  int64_t rows() const { return task == Task::kTranslate ? search.beam_size : 0; }
  int64_t tokens() const { return static_cast<int64_t>(source_ids.size()); }
  // What it counts for between calls: its tokens, for each of its rows.
  int64_t cost() const { return tokens() * std::max<int64_t>(1, rows()); }
};

using JobPtr = std::shared_ptr<Job>;

}  // namespace koine::server

#endif  // KOINE_SERVER_SCHEDULE_JOB_H_
