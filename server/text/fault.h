// Errors that carry google.rpc details, and the one table of reasons (serving-rules) for gRPC, HTTP and metrics.
//
// Inside the server an error is an absl::Status; details travel as its payloads, keyed by type URL, so that no layer
// below the wire knows a transport.
#ifndef KOINE_SERVER_TEXT_FAULT_H_
#define KOINE_SERVER_TEXT_FAULT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "google/rpc/status.pb.h"

namespace koine::server {

// Longest message that leaves the server. Clients refuse metadata over 8 KB: a message travels percent-encoded (up to
// 3 bytes a byte) and once more in base64 with the details (4/3), so 1,000 bytes stay below 6 KB whatever they hold.
inline constexpr size_t kMaxMessageBytes = 1000;

// Collects everything that is wrong with a request, then makes one INVALID_ARGUMENT with a BadRequest of it.
class Violations {
 public:
  void Add(std::string field, std::string description);
  bool empty() const { return violations_.empty(); }
  absl::Status ToStatus() const;  // OK if empty

 private:
  struct Violation {
    std::string field, description;
  };
  std::vector<Violation> violations_;
};

// INVALID_ARGUMENT "field: description" with BadRequest.
absl::Status InvalidField(std::string field, std::string description);
// An INVALID_ARGUMENT of somebody else gets `field` as its BadRequest detail; other codes pass unchanged.
absl::Status WithField(absl::Status status, std::string field);
// UNIMPLEMENTED naming the option.
absl::Status RefusedOption(absl::string_view option, absl::string_view why);
// RESOURCE_EXHAUSTED with RetryInfo: the caller may try again after `delay`.
absl::Status Overloaded(absl::string_view message, absl::Duration delay);

// The delay of `status`'s RetryInfo, if it has one.
absl::optional<absl::Duration> RetryDelay(const absl::Status& status);

// The same error as a message: details unpacked into Any, the text cut to kMaxMessageBytes.
google::rpc::Status ToProto(const absl::Status& status);

// The label `reason` of the status map.
enum class Reason : uint8_t {
  kValidation,
  kNotFound,
  kUnimplemented,
  kOverload,
  kSize,
  kDeadline,
  kCancelled,
  kDraining,
  kLanguage,  // one that cannot be loaded
  kInternal,
};
inline constexpr int kReasons = 10;
absl::string_view Name(Reason reason);
Reason ReasonOf(const absl::Status& status);  // REQUIRES !status.ok()

// What was refused or ended, by reason. Thread-safe.
class Rejections {
 public:
  void Count(const absl::Status& status) {
    counts_[static_cast<size_t>(ReasonOf(status))].fetch_add(1, std::memory_order_relaxed);
  }
  int64_t count(Reason reason) const { return counts_[static_cast<size_t>(reason)].load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<int64_t>, kReasons> counts_{};
};

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_FAULT_H_
