#include "server/schedule/queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/attention/kv_pool.h"

namespace koine::server {
namespace {

// How long a job may be passed over for others whose table is live, or which fit where it does not: about ten steps of
// a large model, so that affinity never costs anybody more than a fraction of an answer.
constexpr absl::Duration kAgeCap = absl::Milliseconds(50);
// How many of the first are looked at: some times what an engine has rows for.
constexpr size_t kWindow = 1024;

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
  int64_t tag = virtual_time_;
  for (const JobPtr& job : jobs) {
    tag += job->cost();
    job->enqueued = now;
    job->place = {tag, ++arrivals_};
    jobs_.emplace_hint(jobs_.end(), job->place, job);
    enqueued_.emplace_hint(enqueued_.end(), arrivals_, now);
    // One that was cancelled before it came is ended with the expired ones.
    const absl::Time end = job->cancelled.load() ? absl::InfinitePast() : job->deadline;
    if (end != absl::InfiniteFuture()) deadlines_.emplace(end, job->place);
  }
  tokens_ += tokens;
  return absl::OkStatus();
}

void JobQueue::Remove(const Job& job) {
  tokens_ -= job.tokens();
  deadlines_.erase({job.deadline, job.place});
  deadlines_.erase({absl::InfinitePast(), job.place});
  enqueued_.erase(job.place.second);
  jobs_.erase(job.place);
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
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const JobPtr job = jobs_.at(deadlines_.begin()->second);
    ended->emplace_back(job, job->cancelled.load() ? absl::CancelledError("cancelled while waiting")
                                                   : absl::DeadlineExceededError("the deadline passed while waiting"));
    Remove(*job);
  }
}

void JobQueue::Cancel(absl::Span<const JobPtr> jobs, const absl::Status& status) {
  for (const JobPtr& job : jobs) job->cancelled.store(true);
  Ended ended;
  {
    const absl::MutexLock lock(&mutex_);
    for (const JobPtr& job : jobs) {
      const auto found = jobs_.find(job->place);
      if (found == jobs_.end() || found->second != job) continue;
      ended.emplace_back(job, status);
      Remove(*job);
    }
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
    const absl::Time now = absl::Now();
    // Of what the map holds: a step under load looks at the whole window and takes few.
    std::vector<const JobPtr*> window;
    window.reserve(std::min(jobs_.size(), kWindow));
    for (auto it = jobs_.begin(); it != jobs_.end() && window.size() < kWindow; ++it) window.push_back(&it->second);
    std::vector<bool> chosen(window.size(), false);
    size_t end = 0;  // after the last one chosen
    bool blocked = false;
    const auto overdue = [now](const Job& job) { return now - job.passed_over > kAgeCap; };
    const auto consider = [&](size_t i) {
      const Job& job = **window[i];
      const bool alone = left.idle && taken.empty();
      const bool fits = job.rows() <= left.rows && job.tokens() <= left.tokens && KvBlocksFor(job) <= left.blocks;
      if (!fits && !(alone && KvBlocksFor(job) <= left.blocks)) {
        // Whoever has been passed over for too long keeps later ones from taking the room it needs.
        if (overdue(job)) blocked = true;
        return;
      }
      left.rows -= job.rows();
      left.tokens -= job.tokens();
      left.blocks -= KvBlocksFor(job);
      chosen[i] = true;
      end = std::max(end, i + 1);
      taken.push_back(*window[i]);
    };
    // Those passed over for too long and those whose table is live, then the rest; in order in both.
    for (size_t i = 0; i < window.size() && !blocked && taken.size() < part; ++i) {
      if (overdue(**window[i]) || Contains(live, (*window[i])->target.get())) consider(i);
    }
    for (size_t i = 0; i < window.size() && !blocked && taken.size() < part; ++i) {
      if (!chosen[i]) consider(i);
    }
    for (size_t i = 0; i < end; ++i) {
      if (!chosen[i]) (*window[i])->passed_over = std::min((*window[i])->passed_over, now);
    }
    int64_t last = virtual_time_;
    for (const JobPtr& job : taken) {
      last = std::max(last, job->place.first);
      Remove(*job);
    }
    // Never past one that still waits: a new call must not come behind what was passed over.
    virtual_time_ = std::max(virtual_time_, jobs_.empty() ? last : std::min(last, jobs_.begin()->first.first));
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
    for (auto& [place, job] : jobs_) ended.emplace_back(std::move(job), status);
    jobs_.clear();
    deadlines_.clear();
    enqueued_.clear();
    tokens_ = 0;
  }
  End(ended);
}

QueueGauges JobQueue::gauges() const {
  const absl::MutexLock lock(&mutex_);
  QueueGauges gauges;
  gauges.items = static_cast<int64_t>(jobs_.size());
  gauges.tokens = tokens_;
  if (!enqueued_.empty()) gauges.oldest = absl::Now() - enqueued_.begin()->second;
  return gauges;
}

}  // namespace koine::server
