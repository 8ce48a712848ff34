#include "server/rpc/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

namespace koine::server {
namespace {

sigset_t StopSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
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
    if (!armed_.load()) _exit(0);
    if (stopped_.HasBeenNotified()) _exit(128 + number);
    stopped_.Notify();
  }
}

}  // namespace koine::server
