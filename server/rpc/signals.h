// SIGTERM, SIGINT and SIGHUP, from the first line of main to the last.
#ifndef KOINE_SERVER_RPC_SIGNALS_H_
#define KOINE_SERVER_RPC_SIGNALS_H_

#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace koine::server {

// Create it before any other thread: all threads inherit the mask that leaves the signals to its own thread.
//   before Arm     a signal ends the process at once, with exit code 0: there is nothing to finish yet
//   after Arm      the first wakes Wait; the second ends the process at once, with 128 + its number
// SIGHUP never ends the process: after Arm it wakes Wait with kRescan, before there is nothing to look at again.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  void Arm() { armed_.store(true); }

  enum class Event { kStop, kRescan, kNone };
  // What has come, the stop first; several SIGHUPs that nobody has waited for are one. kNone after `timeout`. From one
  // thread.
  Event Wait(absl::Duration timeout = absl::InfiniteDuration()) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  std::atomic<bool> armed_{false};
  std::atomic<bool> closing_{false};
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool rescan_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_RPC_SIGNALS_H_
