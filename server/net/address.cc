#include "server/net/address.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace koine::server {

std::string Address::ToString() const {
  const bool brackets = absl::StrContains(host, ":");
  return absl::StrCat(brackets ? "[" : "", host, brackets ? "]" : "", ":", port);
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  const auto wrong = [text](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("address \"", text, "\": ", why));
  };
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return wrong("must be HOST:PORT");
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  Address address;
  // SimpleAtoi takes signs and spaces.
  if (port.empty() || port.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(port, &address.port) || address.port > 65535) {
    return wrong("the port must be a number from 0 to 65535");
  }
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]") || host.empty()) return wrong("an IPv6 address stands in brackets");
  } else if (absl::StrContains(host, ":")) {
    return wrong("an IPv6 address stands in brackets");
  }
  if (host.find_first_of(" \t/[]") != absl::string_view::npos) return wrong("the host is no name and no address");
  address.host = std::string(host);
  return address;
}

}  // namespace koine::server
