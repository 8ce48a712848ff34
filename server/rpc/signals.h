// SIGTERM and SIGINT, from the first line of main to the last.
#ifndef KOINE_SERVER_RPC_SIGNALS_H_
#define KOINE_SERVER_RPC_SIGNALS_H_

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"

namespace koine::server {

// Create it before any other thread: all threads inherit the mask that leaves the signals to its own thread.
//   before Arm     a signal ends the process at once, with exit code 0: there is nothing to finish yet
//   after Arm      the first wakes Wait; the second ends the process at once, with 128 + its number
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  void Arm() { armed_.store(true); }
  void Wait() { stopped_.WaitForNotification(); }

 private:
  void Run();

  std::atomic<bool> armed_{false};
  std::atomic<bool> closing_{false};
  absl::Notification stopped_;
  std::thread thread_;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_RPC_SIGNALS_H_
