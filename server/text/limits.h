// What one request may ask for, and what may be in flight.
#ifndef KOINE_SERVER_TEXT_LIMITS_H_
#define KOINE_SERVER_TEXT_LIMITS_H_

#include <cstdint>

namespace koine::server {

struct RequestLimits {
  int64_t max_items = 1024;
  int64_t max_characters = 32'768;  // code points of one text
  int max_beams = 32;
  int max_tokens = 1024;                // generated, end mark included
  int64_t max_message_bytes = 4 << 20;  // of a request and of a reply
};

struct TextServiceOptions {
  RequestLimits limits;
  // In flight in one service, from arrival to answer.
  int64_t max_inflight_items = 8192;
  int64_t max_inflight_bytes = 256 << 20;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_LIMITS_H_
