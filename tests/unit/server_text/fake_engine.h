// An engine without arithmetic: takes jobs from a queue and answers them as a test says.
#ifndef KOINE_TESTS_UNIT_SERVER_TEXT_FAKE_ENGINE_H_
#define KOINE_TESTS_UNIT_SERVER_TEXT_FAKE_ENGINE_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/schedule/queue.h"

namespace koine::server {

class FakeEngine {
 public:
  enum class Mode {
    kAnswer,  // takes jobs and answers them
    kHold,    // takes none: they wait
    kRun,     // takes jobs and keeps them until they are cancelled or the mode changes
  };

  explicit FakeEngine(JobQueue* queue, int d_model = 256) : queue_(*queue), d_model_(d_model) {
    thread_ = std::thread([this] { Loop(); });
  }
  ~FakeEngine() {
    stop_.store(true);
    thread_.join();
  }

  // Holds for every job submitted after it returns.
  void set_mode(Mode mode) {
    mode_.store(mode);
    while (observed_.load() != mode) absl::SleepFor(absl::Microseconds(100));
  }
  // Instead of the default answer.
  void set_answer(std::function<JobResult(const Job&)> answer) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }

  // Jobs taken so far.
  std::vector<JobPtr> seen() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return seen_;
  }
  // Lets go of the jobs seen so far, and of what they hold.
  void Forget() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<JobPtr> seen;
    absl::MutexLock lock(&mutex_);
    seen.swap(seen_);
  }
  bool WaitForSeen(size_t count) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return seen_.size() >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(30));
  }

  // Translate: the source's ids but the last, the end mark (2), log-probability -0.5 each, num_hypotheses times.
  // Encode: the number of source tokens, d_model times.
  static JobResult Echo(const Job& job, int d_model) {
    JobResult result;
    result.queued = absl::Milliseconds(2);
    result.computed = absl::Milliseconds(3);
    if (job.task == Job::Task::kEncode) {
      result.embedding.assign(static_cast<size_t>(d_model), static_cast<float>(job.source_ids.size()));
      if (job.token_states) result.token_states.assign(job.source_ids.size() * static_cast<size_t>(d_model), 1.5F);
      return result;
    }
    for (int i = 0; i < job.search.num_hypotheses; ++i) {
      kernels::Hypothesis hypothesis;
      hypothesis.ids.assign(job.source_ids.begin(), job.source_ids.end() - 1);
      hypothesis.ids.push_back(2);
      hypothesis.log_probs.assign(hypothesis.ids.size(), -0.5F);
      hypothesis.sum = -0.5 * static_cast<double>(hypothesis.ids.size());
      hypothesis.score = -0.5;
      result.hypotheses.push_back(hypothesis);
    }
    return result;
  }

 private:
  void Loop() {
    std::vector<JobPtr> running;
    while (!stop_.load() || !running.empty()) {
      const Mode wanted = mode_.load();
      observed_.store(wanted);
      const Mode mode = stop_.load() ? Mode::kAnswer : wanted;
      if (mode != Mode::kHold) {
        Room room;
        room.rows = room.tokens = room.blocks = 1 << 20;
        room.idle = running.empty();
        const std::vector<JobPtr> taken = queue_.Take(room, {}, absl::Milliseconds(2));
        running.insert(running.end(), taken.begin(), taken.end());
        absl::MutexLock lock(&mutex_);
        seen_.insert(seen_.end(), taken.begin(), taken.end());
      } else {
        absl::SleepFor(absl::Milliseconds(1));
      }
      std::vector<JobPtr> kept;
      for (const JobPtr& job : running) {
        JobResult result;
        if (job->cancelled.load()) {
          result.status = absl::CancelledError("cancelled while running");
        } else if (mode == Mode::kAnswer) {
          std::function<JobResult(const Job&)> answer;
          {
            absl::MutexLock lock(&mutex_);
            answer = answer_;
          }
          result = answer ? answer(*job) : Echo(*job, d_model_);
        } else {
          kept.push_back(job);
          continue;
        }
        job->done(std::move(result));
      }
      running = std::move(kept);
    }
  }

  JobQueue& queue_;
  const int d_model_;
  std::atomic<Mode> mode_{Mode::kAnswer};
  std::atomic<Mode> observed_{Mode::kAnswer};
  std::atomic<bool> stop_{false};
  mutable absl::Mutex mutex_;
  std::vector<JobPtr> seen_ ABSL_GUARDED_BY(mutex_);
  std::function<JobResult(const Job&)> answer_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace koine::server

#endif  // KOINE_TESTS_UNIT_SERVER_TEXT_FAKE_ENGINE_H_
