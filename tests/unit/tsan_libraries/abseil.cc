// Abseil's locks: a lock acquires what the last unlock released. And its counted errors: whoever frees one comes after
// all others that had it.
//
// Waiting for a condition is done here by polling. The real functions let whoever unlocks evaluate the conditions of
// those who wait, in the middle of Unlock(), where no statement of ours could order it.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tests/unit/tsan_libraries/real.h"

namespace {

using koine::tsan::Acquire;
using koine::tsan::Release;
using Clock = std::chrono::steady_clock;

Clock::time_point DeadlineAfter(absl::Duration timeout) {
  if (timeout > absl::Hours(24)) timeout = absl::Hours(24);
  return Clock::now() + std::chrono::nanoseconds(absl::ToInt64Nanoseconds(timeout));
}
Clock::time_point DeadlineAt(absl::Time deadline) { return DeadlineAfter(deadline - absl::Now()); }
const Clock::time_point kNever = Clock::time_point::max();

// With the lock held: returns with it held, when `condition` is true or the time has come.
template <typename Lock, typename Unlock>
bool Poll(const absl::Condition& condition, Clock::time_point deadline, Lock lock, Unlock unlock) {
  while (!condition.Eval()) {
    if (Clock::now() >= deadline) return false;
    unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    lock();
  }
  return true;
}

bool PollExclusive(absl::Mutex* mutex, const absl::Condition& condition, Clock::time_point deadline) {
  return Poll(
      condition, deadline, [mutex] { mutex->Lock(); }, [mutex] { mutex->Unlock(); });
}
bool PollShared(absl::Mutex* mutex, const absl::Condition& condition, Clock::time_point deadline) {
  return Poll(
      condition, deadline, [mutex] { mutex->ReaderLock(); }, [mutex] { mutex->ReaderUnlock(); });
}

}  // namespace

void absl::Mutex::Lock() {
  KOINE_REAL("_ZN4absl7debian35Mutex4LockEv", void, absl::Mutex*)(this);
  Acquire(this);
}
void absl::Mutex::Unlock() {
  Release(this);
  KOINE_REAL("_ZN4absl7debian35Mutex6UnlockEv", void, absl::Mutex*)(this);
}
bool absl::Mutex::TryLock() {
  const bool locked = KOINE_REAL("_ZN4absl7debian35Mutex7TryLockEv", bool, absl::Mutex*)(this);
  if (locked) Acquire(this);
  return locked;
}
void absl::Mutex::ReaderLock() {
  KOINE_REAL("_ZN4absl7debian35Mutex10ReaderLockEv", void, absl::Mutex*)(this);
  Acquire(this);
}
void absl::Mutex::ReaderUnlock() {
  Release(this);
  KOINE_REAL("_ZN4absl7debian35Mutex12ReaderUnlockEv", void, absl::Mutex*)(this);
}
bool absl::Mutex::ReaderTryLock() {
  const bool locked = KOINE_REAL("_ZN4absl7debian35Mutex13ReaderTryLockEv", bool, absl::Mutex*)(this);
  if (locked) Acquire(this);
  return locked;
}

void absl::Mutex::Await(const Condition& condition) { PollExclusive(this, condition, kNever); }
bool absl::Mutex::AwaitWithTimeout(const Condition& condition, absl::Duration timeout) {
  return PollExclusive(this, condition, DeadlineAfter(timeout));
}
bool absl::Mutex::AwaitWithDeadline(const Condition& condition, absl::Time deadline) {
  return PollExclusive(this, condition, DeadlineAt(deadline));
}
void absl::Mutex::LockWhen(const Condition& condition) {
  Lock();
  PollExclusive(this, condition, kNever);
}
bool absl::Mutex::LockWhenWithTimeout(const Condition& condition, absl::Duration timeout) {
  const Clock::time_point deadline = DeadlineAfter(timeout);
  Lock();
  return PollExclusive(this, condition, deadline);
}
bool absl::Mutex::LockWhenWithDeadline(const Condition& condition, absl::Time deadline) {
  Lock();
  return PollExclusive(this, condition, DeadlineAt(deadline));
}
void absl::Mutex::ReaderLockWhen(const Condition& condition) {
  ReaderLock();
  PollShared(this, condition, kNever);
}
bool absl::Mutex::ReaderLockWhenWithTimeout(const Condition& condition, absl::Duration timeout) {
  const Clock::time_point deadline = DeadlineAfter(timeout);
  ReaderLock();
  return PollShared(this, condition, deadline);
}
bool absl::Mutex::ReaderLockWhenWithDeadline(const Condition& condition, absl::Time deadline) {
  ReaderLock();
  return PollShared(this, condition, DeadlineAt(deadline));
}

void absl::CondVar::Wait(Mutex* mutex) {
  Release(mutex);
  KOINE_REAL("_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE", void, absl::CondVar*, Mutex*)(this, mutex);
  Acquire(mutex);
}
bool absl::CondVar::WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
  Release(mutex);
  const bool timed_out = KOINE_REAL("_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE", bool,
                                    absl::CondVar*, Mutex*, absl::Duration)(this, mutex, timeout);
  Acquire(mutex);
  return timed_out;
}
bool absl::CondVar::WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
  Release(mutex);
  const bool timed_out = KOINE_REAL("_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", bool,
                                    absl::CondVar*, Mutex*, absl::Time)(this, mutex, deadline);
  Acquire(mutex);
  return timed_out;
}

void absl::Notification::Notify() {
  Release(this);
  KOINE_REAL("_ZN4absl7debian312Notification6NotifyEv", void, absl::Notification*)(this);
}
void absl::Notification::WaitForNotification() const {
  KOINE_REAL("_ZNK4absl7debian312Notification19WaitForNotificationEv", void, const absl::Notification*)(this);
  Acquire(this);
}
bool absl::Notification::WaitForNotificationWithTimeout(absl::Duration timeout) const {
  const bool notified = KOINE_REAL("_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE",
                                   bool, const absl::Notification*, absl::Duration)(this, timeout);
  if (notified) Acquire(this);
  return notified;
}
bool absl::Notification::WaitForNotificationWithDeadline(absl::Time deadline) const {
  const bool notified = KOINE_REAL("_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE", bool,
                                   const absl::Notification*, absl::Time)(this, deadline);
  if (notified) Acquire(this);
  return notified;
}

bool absl::BlockingCounter::DecrementCount() {
  Release(this);
  return KOINE_REAL("_ZN4absl7debian315BlockingCounter14DecrementCountEv", bool, absl::BlockingCounter*)(this);
}
void absl::BlockingCounter::Wait() {
  KOINE_REAL("_ZN4absl7debian315BlockingCounter4WaitEv", void, absl::BlockingCounter*)(this);
  Acquire(this);
}

void absl::Status::UnrefNonInlined(uintptr_t rep) {
  // One at a time, by means that ThreadSanitizer does not see: the last one to let go has acquired from all others.
  static std::atomic_flag busy = ATOMIC_FLAG_INIT;
  while (busy.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  Release(reinterpret_cast<void*>(rep));
  Acquire(reinterpret_cast<void*>(rep));
  KOINE_REAL("_ZN4absl7debian36Status15UnrefNonInlinedEm", void, uintptr_t)(rep);
  busy.clear(std::memory_order_release);
}
