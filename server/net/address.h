// "HOST:PORT", as the flags of every port take it.
#ifndef KOINE_SERVER_NET_ADDRESS_H_
#define KOINE_SERVER_NET_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace koine::server {

struct Address {
  std::string host;  // without brackets; empty: every address of this machine
  int port = 0;      // 0: a free one

  // The text again; IPv6 in brackets.
  std::string ToString() const;
};

// HOST is a name, an IPv4 address, an IPv6 address in brackets, or nothing; PORT is 0 to 65535. INVALID_ARGUMENT saying
// what is wrong otherwise. Looks nothing up.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

}  // namespace koine::server

#endif  // KOINE_SERVER_NET_ADDRESS_H_
