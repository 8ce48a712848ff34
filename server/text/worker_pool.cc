#include "server/text/worker_pool.h"

#include <utility>

namespace koine::server {

WorkerPool::WorkerPool(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkerPool::~WorkerPool() { Stop(); }

void WorkerPool::Post(std::function<void()> task) { Add(std::move(task), false); }

void WorkerPool::PostFirst(std::function<void()> task) { Add(std::move(task), true); }

void WorkerPool::Add(std::function<void()> task, bool first) {
  {
    absl::MutexLock lock(&mutex_);
    if (!stopped_) {
      (first ? first_ : tasks_).push_back(std::move(task));
      return;
    }
  }
  task();
}

void WorkerPool::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkerPool::Run() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopped_ || !first_.empty() || !tasks_.empty();
      };
      mutex_.Await(absl::Condition(&ready));
      std::deque<std::function<void()>>& from = first_.empty() ? tasks_ : first_;
      if (from.empty()) return;  // stopped, and nothing is left
      task = std::move(from.front());
      from.pop_front();
    }
    task();
  }
}

}  // namespace koine::server
