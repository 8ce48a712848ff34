// What may be in flight at once, counted at the edge before any work is done for it.
#ifndef KOINE_SERVER_TEXT_PERMITS_H_
#define KOINE_SERVER_TEXT_PERMITS_H_

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace koine::server {

class PermitPool;

// A share of a pool, given back by the destructor. Outlived by its pool.
class Permit {
 public:
  Permit() = default;
  Permit(Permit&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), items_(other.items_), bytes_(other.bytes_) {}
  Permit& operator=(Permit&& other) noexcept {
    if (this != &other) {
      Release();
      pool_ = std::exchange(other.pool_, nullptr);
      items_ = other.items_;
      bytes_ = other.bytes_;
    }
    return *this;
  }
  ~Permit() { Release(); }
  void Release();

 private:
  friend class PermitPool;
  Permit(PermitPool* pool, int64_t items, int64_t bytes) : pool_(pool), items_(items), bytes_(bytes) {}
  PermitPool* pool_ = nullptr;
  int64_t items_ = 0;
  int64_t bytes_ = 0;
};

// Thread-safe.
class PermitPool {
 public:
  PermitPool(int64_t max_items, int64_t max_bytes) : max_items_(max_items), max_bytes_(max_bytes) {}

  // All or nothing, at once: RESOURCE_EXHAUSTED naming the bound that is reached. A request larger than the whole
  // pool must have been refused before.
  absl::StatusOr<Permit> Take(int64_t items, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t items_in_use() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t bytes_in_use() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t max_items() const { return max_items_; }
  int64_t max_bytes() const { return max_bytes_; }

 private:
  friend class Permit;
  void Return(int64_t items, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const int64_t max_items_;
  const int64_t max_bytes_;
  mutable absl::Mutex mutex_;
  int64_t items_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_PERMITS_H_
