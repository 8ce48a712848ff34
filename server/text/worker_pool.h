// Threads for work on texts, so that neither callbacks nor engines do any.
#ifndef KOINE_SERVER_TEXT_WORKER_POOL_H_
#define KOINE_SERVER_TEXT_WORKER_POOL_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace koine::server {

// A fixed number of threads. Its queue needs no bound of its own: a call has at most one task waiting, and permits
// bound the calls. Thread-safe.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  ~WorkerPool();  // Stop
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Work on new texts, first come first served.
  void Post(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Work on finished texts: goes before all that was only posted, since it frees what others wait for.
  void PostFirst(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);

  // Runs what was posted and joins the threads. Tasks posted later run on the thread that posts them.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Add(std::function<void()> task, bool first) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  std::deque<std::function<void()>> first_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_WORKER_POOL_H_
