#include "server/text/permits.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace koine::server {

void Permit::Release() {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->Return(items_, bytes_);
}

absl::StatusOr<Permit> PermitPool::Take(int64_t items, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (items > max_items_ - items_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(items_, " items are in flight, ", items, " more would pass the limit of ", max_items_));
  }
  if (bytes > max_bytes_ - bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(bytes_, " bytes are in flight, ", bytes, " more would pass the limit of ", max_bytes_));
  }
  items_ += items;
  bytes_ += bytes;
  return Permit(this, items, bytes);
}

void PermitPool::Return(int64_t items, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  items_ -= items;
  bytes_ -= bytes;
}

int64_t PermitPool::items_in_use() const {
  absl::MutexLock lock(&mutex_);
  return items_;
}

int64_t PermitPool::bytes_in_use() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

}  // namespace koine::server
