#include "server/rpc/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

namespace koine::server {
namespace {

sigset_t StopSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = StopSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  thread_ = std::thread([this] { Run(); });
}

StopSignals::~StopSignals() {
  closing_.store(true);
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void StopSignals::Run() {
  const sigset_t set = StopSet();
  while (true) {
    int number = 0;
    if (sigwait(&set, &number) != 0) continue;
    if (closing_.load()) return;
    if (number == SIGHUP) {
      const absl::MutexLock lock(&mutex_);
      rescan_ = armed_.load();
      continue;
    }
    if (!armed_.load()) _exit(0);
    const absl::MutexLock lock(&mutex_);
    if (stopped_) _exit(128 + number);
    stopped_ = true;
  }
}

StopSignals::Event StopSignals::Wait(absl::Duration timeout) {
  const absl::MutexLock lock(&mutex_);
  const auto woken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || rescan_; };
  mutex_.AwaitWithTimeout(absl::Condition(&woken), timeout);
  if (stopped_) return Event::kStop;
  return std::exchange(rescan_, false) ? Event::kRescan : Event::kNone;
}

}  // namespace koine::server
