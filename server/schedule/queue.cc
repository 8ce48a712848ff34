#include "server/schedule/queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/attention/kv_pool.h"

namespace koine::server {
namespace {

// How long a job may be passed over for others whose table is live, or which fit where it does not: about ten steps of
// a large model, so that affinity never costs anybody more than a fraction of an answer.
constexpr absl::Duration kAgeCap = absl::Milliseconds(50);

bool Contains(absl::Span<const model_loader::Language* const> languages, const model_loader::Language* language) {
  return std::find(languages.begin(), languages.end(), language) != languages.end();
}

}  // namespace

int64_t KvBlocksFor(const Job& job) {
  if (job.task != Job::Task::kTranslate) return 0;
  return kernels::BlocksFor(job.tokens()) + job.search.beam_size * kernels::BlocksFor(job.search.max_tokens);
}

absl::Status JobQueue::Submit(absl::Span<const JobPtr> jobs) {
  int64_t tokens = 0;
  for (const JobPtr& job : jobs) tokens += job->tokens();
  const absl::MutexLock lock(&mutex_);
  if (draining_) return absl::UnavailableError("the server is shutting down");
  const int64_t items = static_cast<int64_t>(jobs_.size() + jobs.size());
  if (items > limits_.max_items) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", jobs_.size(), " items wait, ", jobs.size(),
                                                     " more would pass the limit of ", limits_.max_items));
  }
  if (tokens_ + tokens > limits_.max_tokens) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", tokens_, " tokens wait, ", tokens,
                                                     " more would pass the limit of ", limits_.max_tokens));
  }
  const absl::Time now = absl::Now();
  for (const JobPtr& job : jobs) {
    job->enqueued = now;
    jobs_.push_back(job);
  }
  tokens_ += tokens;
  return absl::OkStatus();
}

void JobQueue::End(const Ended& ended) {
  for (const auto& [job, status] : ended) {
    JobResult result;
    result.status = status;
    result.queued = absl::Now() - job->enqueued;
    job->done(std::move(result));
  }
}

void JobQueue::Purge(Ended* ended) {
  const absl::Time now = absl::Now();
  const auto gone = [&](const JobPtr& job) {
    absl::Status status;
    if (job->cancelled.load()) {
      status = absl::CancelledError("cancelled while waiting");
    } else if (job->deadline <= now) {
      status = absl::DeadlineExceededError("the deadline passed while waiting");
    } else {
      return false;
    }
    tokens_ -= job->tokens();
    ended->emplace_back(job, std::move(status));
    return true;
  };
  jobs_.erase(std::remove_if(jobs_.begin(), jobs_.end(), gone), jobs_.end());
}

void JobQueue::Cancel(absl::Span<const JobPtr> jobs, const absl::Status& status) {
  for (const JobPtr& job : jobs) job->cancelled.store(true);
  Ended ended;
  {
    const absl::MutexLock lock(&mutex_);
    const auto wanted = [&](const JobPtr& job) {
      if (!job->cancelled.load() || std::find(jobs.begin(), jobs.end(), job) == jobs.end()) return false;
      tokens_ -= job->tokens();
      ended.emplace_back(job, status);
      return true;
    };
    jobs_.erase(std::remove_if(jobs_.begin(), jobs_.end(), wanted), jobs_.end());
  }
  End(ended);
}

std::vector<JobPtr> JobQueue::Take(const Room& room, absl::Span<const model_loader::Language* const> live,
                                   absl::Duration wait) {
  Ended ended;
  std::vector<JobPtr> taken;
  {
    const absl::MutexLock lock(&mutex_);
    const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !jobs_.empty() || draining_; };
    if (wait > absl::ZeroDuration()) mutex_.AwaitWithTimeout(absl::Condition(&ready), wait);
    Purge(&ended);
    // An even part of what waits, so that one worker does not take everything while another is idle.
    const size_t part = (jobs_.size() + static_cast<size_t>(room.workers) - 1) / static_cast<size_t>(room.workers);
    Room left = room;
    std::vector<bool> chosen(jobs_.size(), false);
    const absl::Time now = absl::Now();
    bool blocked = false;
    const auto consider = [&](size_t i) {
      const Job& job = *jobs_[i];
      const bool alone = left.idle && taken.empty();
      const bool fits = job.rows() <= left.rows && job.tokens() <= left.tokens && KvBlocksFor(job) <= left.blocks;
      if (!fits && !(alone && KvBlocksFor(job) <= left.blocks)) {
        // Whoever has waited too long keeps later ones from taking the room it needs.
        if (now - job.enqueued > kAgeCap) blocked = true;
        return;
      }
      left.rows -= job.rows();
      left.tokens -= job.tokens();
      left.blocks -= KvBlocksFor(job);
      chosen[i] = true;
      taken.push_back(jobs_[i]);
    };
    // Those over the age cap and those whose table is live, then the rest; oldest first in both.
    for (size_t i = 0; i < jobs_.size() && !blocked && taken.size() < part; ++i) {
      if (now - jobs_[i]->enqueued > kAgeCap || Contains(live, jobs_[i]->target.get())) consider(i);
    }
    for (size_t i = 0; i < jobs_.size() && !blocked && taken.size() < part; ++i) {
      if (!chosen[i]) consider(i);
    }
    std::deque<JobPtr> rest;
    for (size_t i = 0; i < jobs_.size(); ++i) {
      if (chosen[i]) {
        tokens_ -= jobs_[i]->tokens();
      } else {
        rest.push_back(std::move(jobs_[i]));
      }
    }
    jobs_ = std::move(rest);
  }
  End(ended);
  return taken;
}

void JobQueue::Drain() {
  const absl::MutexLock lock(&mutex_);
  draining_ = true;
}

bool JobQueue::finished() const {
  const absl::MutexLock lock(&mutex_);
  return draining_ && jobs_.empty();
}

void JobQueue::Abort(const absl::Status& status) {
  Ended ended;
  {
    const absl::MutexLock lock(&mutex_);
    for (JobPtr& job : jobs_) ended.emplace_back(std::move(job), status);
    jobs_.clear();
    tokens_ = 0;
  }
  End(ended);
}

QueueGauges JobQueue::gauges() const {
  const absl::MutexLock lock(&mutex_);
  QueueGauges gauges;
  gauges.items = static_cast<int64_t>(jobs_.size());
  gauges.tokens = tokens_;
  if (!jobs_.empty()) gauges.oldest = absl::Now() - jobs_.front()->enqueued;
  return gauges;
}

}  // namespace koine::server
