// The bounded queue between text workers and engine workers.
//
// Admission is one rule for every path: items and tokens. Over a bound the answer is immediate.
//
// Order is fair between calls (start-time fair queueing): the items of one call (one Submit) stay in order, and each
// gets the tag of the one before it plus its own cost in tokens; the first starts from the queue's virtual time, which
// follows what has been taken. The lowest tag goes first, the earlier arrival among equals. So a call of one sentence
// overtakes a call of thousands, calls of the same size share evenly, and nobody starves, since every job taken moves
// later calls' tags on. The order is a function of the calls and never of time; it decides when, not what.
//
// Within the window that fits, jobs whose target table is already live are preferred until somebody has been passed
// over for longer than the age cap (the cost of mixing, DESIGN section 5). Submit and Cancel take O(log n) a job, Take
// O(log n) a job and a window of bounded length.
#ifndef KOINE_SERVER_SCHEDULE_QUEUE_H_
#define KOINE_SERVER_SCHEDULE_QUEUE_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/schedule/job.h"

namespace koine::server {

struct QueueLimits {
  int64_t max_items = 4096;
  int64_t max_tokens = 262'144;  // 64 tokens an item on average
};

// What an engine has room for.
struct Room {
  int64_t rows = 0;    // decoder rows
  int64_t tokens = 0;  // encoder tokens of one admission
  int64_t blocks = 0;  // KV blocks
  bool idle = false;   // nothing is live: one job larger than `rows` or `tokens` may run alone
  int workers = 1;     // engines that share the queue: none takes more than its part of what waits
};

// KV blocks that a job may need at most: its source once, and max_tokens for each beam.
int64_t KvBlocksFor(const Job& job);

struct QueueGauges {
  int64_t items = 0;
  int64_t tokens = 0;
  absl::Duration oldest;
};

// Thread-safe.
class JobQueue {
 public:
  explicit JobQueue(const QueueLimits& limits) : limits_(limits) {}

  // All or nothing. RESOURCE_EXHAUSTED (naming the limit) when full, UNAVAILABLE when draining. On error no `done`
  // runs.
  absl::Status Submit(absl::Span<const JobPtr> jobs) ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes out at once whichever of these still wait and ends them with `status`; sets `cancelled` on the others, which
  // their engine drops between steps.
  void Cancel(absl::Span<const JobPtr> jobs, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  // Jobs that fit into `room`, in order; ends expired and cancelled ones on the way. Blocks up to `wait` while the
  // queue is empty. `live` are the target languages that the engine already runs. An empty answer may also mean that
  // the queue drained: see finished().
  std::vector<JobPtr> Take(const Room& room, absl::Span<const model_loader::Language* const> live, absl::Duration wait)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // No more Submit; Take returns what is left. Wakes waiting engines.
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_);
  // Draining, and nothing waits any more.
  bool finished() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends everything that still waits with `status`.
  void Abort(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  QueueGauges gauges() const ABSL_LOCKS_EXCLUDED(mutex_);
  const QueueLimits& limits() const { return limits_; }

 private:
  // Jobs to end once the lock is gone, each with its status.
  using Ended = std::vector<std::pair<JobPtr, absl::Status>>;
  using Place = std::pair<int64_t, uint64_t>;  // tag, arrival
  void Purge(Ended* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a job that waits out of every index.
  void Remove(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void End(const Ended& ended);

  const QueueLimits limits_;
  mutable absl::Mutex mutex_;
  std::map<Place, JobPtr> jobs_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<absl::Time, Place>> deadlines_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, absl::Time> enqueued_ ABSL_GUARDED_BY(mutex_);  // by arrival: the first is the oldest
  uint64_t arrivals_ ABSL_GUARDED_BY(mutex_) = 0;
  // The tag up to which everything has been taken. Rises by what is taken: 2^63 tokens are never reached.
  int64_t virtual_time_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_SCHEDULE_QUEUE_H_
