// Private: whole numbers that remember when they stopped fitting.
#ifndef KOINE_MODEL_LOADER_ACCOUNTING_COUNT_INTERNAL_H_
#define KOINE_MODEL_LOADER_ACCOUNTING_COUNT_INTERNAL_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace koine::model_loader {

// A 64-bit count. Once an operation overflows, every result of it is overflowed too and Get() says so: formulas stay
// readable as formulas and are checked once at their end.
class Count {
 public:
  Count(int64_t value) : value_(value) {}  // NOLINT(google-explicit-constructor): formulas mix counts and literals

  friend Count operator+(Count a, Count b) {
    Count sum(0);
    sum.overflow_ =
        static_cast<bool>(__builtin_add_overflow(a.value_, b.value_, &sum.value_)) || a.overflow_ || b.overflow_;
    return sum;
  }
  friend Count operator-(Count a, Count b) {
    Count difference(0);
    difference.overflow_ =
        static_cast<bool>(__builtin_sub_overflow(a.value_, b.value_, &difference.value_)) || a.overflow_ || b.overflow_;
    return difference;
  }
  friend Count operator*(Count a, Count b) {
    Count product(0);
    product.overflow_ =
        static_cast<bool>(__builtin_mul_overflow(a.value_, b.value_, &product.value_)) || a.overflow_ || b.overflow_;
    return product;
  }
  Count& operator+=(Count other) { return *this = *this + other; }

  // OUT_OF_RANGE naming `what`.
  absl::StatusOr<int64_t> Get(const char* what) const {
    if (overflow_) return absl::OutOfRangeError(absl::StrCat(what, " exceeds 2^63 - 1"));
    return value_;
  }

 private:
  int64_t value_;
  bool overflow_ = false;
};

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_ACCOUNTING_COUNT_INTERNAL_H_
