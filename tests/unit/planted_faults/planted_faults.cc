// Faults on purpose, one for each thing that tests/sanitize.sh relies on. Built with the options of the suite.
//
//   planted_faults FAULT
//
// exits 0 only if nobody noticed; 2 for an unknown name.
#include <climits>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/unit/planted_faults/rpc_faults.h"

namespace {

// Volatile: the compiler may not know what it holds.
volatile int one = 1;

void Overflow() {
  std::vector<int> values(4);
  int* data = values.data();
  data[3 + one] = 1;
}

void UseAfterFree() {
  auto value = std::make_unique<int>(1);
  const int* left = value.get();
  value.reset();
  std::printf("%d\n", *left);
}

void Leak() {
  // Through a volatile that is then lost: no pointer to the block stays on the stack or in a register.
  volatile auto* block = new int[1024];
  block[0] = one;
  block = nullptr;
  std::printf("%d\n", block == nullptr);
}

void Undefined() {
  int value = INT_MAX;
  value += one;
  std::printf("%d\n", value);
}

void Race() {
  int counter = 0;
  auto add = [&counter] {
    for (int i = 0; i < 100000; ++i) counter += one;
  };
  std::thread first(add);
  std::thread second(add);
  first.join();
  second.join();
  std::printf("%d\n", counter);
}

void Deadlock() {
  std::mutex a;
  std::mutex b;
  // One after the other, so that it never really hangs; the order alone is the fault.
  std::thread([&] {
    std::lock_guard<std::mutex> hold_a(a);
    std::lock_guard<std::mutex> hold_b(b);
  }).join();
  std::thread([&] {
    std::lock_guard<std::mutex> hold_b(b);
    std::lock_guard<std::mutex> hold_a(a);
  }).join();
}

// No fault: everything is handed over by Abseil, in each of the ways that the server and its tests use. A report here
// would be a false one.
void Guarded() {
  absl::Mutex mutex;
  absl::Notification begun;
  absl::BlockingCounter left(2);
  int counter = 0;
  int result = 0;
  std::vector<int> given;
  std::thread taker([&] {
    begun.WaitForNotification();
    auto any = [&given] { return !given.empty(); };
    mutex.Lock();
    mutex.Await(absl::Condition(&any));
    result = given.front();
    mutex.Unlock();
    left.DecrementCount();
  });
  std::thread adder([&] {
    for (int i = 0; i < 100000; ++i) {
      absl::MutexLock lock(&mutex);
      counter += one;
    }
    left.DecrementCount();
  });
  given.reserve(1);
  begun.Notify();
  for (int i = 0; i < 100000; ++i) {
    absl::MutexLock lock(&mutex);
    counter += one;
  }
  {
    absl::MutexLock lock(&mutex);
    given.push_back(7);
  }
  left.Wait();
  std::printf("%d %d\n", counter, result);
  taker.join();
  adder.join();
}

// No fault: a team reads what was there before it, each member writes a part, and all of it is read behind the team.
void OrderedTeam() {
  std::vector<int> parts(2 * static_cast<size_t>(one));
  parts[0] = parts[1] = 3;
#pragma omp parallel for num_threads(2)
  for (int i = 0; i < 2; ++i) parts[static_cast<size_t>(i)] += one;
  std::printf("%d\n", parts[0] + parts[1]);
}

void RacingTeam() {
  int counter = 0;
#pragma omp parallel for num_threads(2)
  for (int i = 0; i < 200000; ++i) counter += one;
  std::printf("%d\n", counter);
}

// A variable that one thread guards with an Abseil lock, and the other does not.
void HalfGuarded() {
  absl::Mutex mutex;
  int counter = 0;
  std::thread first([&] {
    for (int i = 0; i < 100000; ++i) {
      absl::MutexLock lock(&mutex);
      counter += one;
    }
  });
  std::thread second([&] {
    for (int i = 0; i < 100000; ++i) counter += one;
  });
  first.join();
  second.join();
  std::printf("%d\n", counter);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view fault = argc == 2 ? argv[1] : "";
  if (fault == "overflow") {
    Overflow();
  } else if (fault == "use-after-free") {
    UseAfterFree();
  } else if (fault == "leak") {
    Leak();
  } else if (fault == "undefined") {
    Undefined();
  } else if (fault == "race") {
    Race();
  } else if (fault == "deadlock") {
    Deadlock();
  } else if (fault == "half-guarded-race") {
    HalfGuarded();
  } else if (fault == "racing-team") {
    RacingTeam();
  } else if (fault == "racing-handlers") {
    koine::planted::RacingHandlers();
  } else if (fault == "use-after-finish") {
    koine::planted::UseAfterFinish();
  } else if (fault == "none") {
    Guarded();
    OrderedTeam();
    koine::planted::GuardedCalls();
  } else {
    std::fprintf(stderr,
                 "usage: planted_faults overflow|use-after-free|leak|undefined|race|half-guarded-race|deadlock|"
                 "racing-team|racing-handlers|use-after-finish|none\n");
    return 2;
  }
  return 0;
}
