// What requests tell about themselves when they end: the seam between serving and metrics.
#ifndef KOINE_SERVER_TEXT_OBSERVER_H_
#define KOINE_SERVER_TEXT_OBSERVER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace koine::server {

// Where a request was when its caller left or its deadline passed.
enum class Stage : uint8_t { kTokenize, kLanguage, kQueue, kCompute };

// Implementations are thread-safe, fast, and never throw: they run on the threads that serve.
class Observer {
 public:
  virtual ~Observer() = default;
  // A request has ended, with whatever code. `model` is the name of one of the server's models, or empty where the
  // request named none of them or ended before that was known; `op` is the method's name ("Translate").
  virtual void RequestDone(absl::string_view model, absl::string_view op, absl::StatusCode code,
                           absl::Duration total) noexcept = 0;
  // One item of a request was computed.
  virtual void ItemDone(absl::string_view op, absl::Duration queued, absl::Duration computed, int64_t tokens_in,
                        int64_t tokens_out) noexcept = 0;
  // A request ended with CANCELLED or DEADLINE_EXCEEDED.
  virtual void Cancelled(Stage stage) noexcept = 0;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_OBSERVER_H_
