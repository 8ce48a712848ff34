// Answers about the server and its models.
#ifndef KOINE_SERVER_TEXT_INTROSPECTION_H_
#define KOINE_SERVER_TEXT_INTROSPECTION_H_

#include <cstdint>
#include <istream>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "koine/v1/koine.pb.h"
#include "server/text/fault.h"
#include "server/text/model_host.h"

namespace koine::server {

v1::ListLanguagesResponse DescribeLanguages(const ModelHost& host);
v1::GetModelInfoResponse DescribeModel(const ModelHost& host);

// Reads /proc/self/smaps, and with `checksums` every parameter byte: not for callback threads.
v1::GetParameterStatsResponse DescribeParameters(const ModelHost& host, bool checksums);

// What the transport knows.
struct ServerFacts {
  std::string version;
  absl::Time started;
  int64_t inflight_requests = 0;
  int64_t finished_requests = 0;
  bool draining = false;
};
v1::GetServerStatsResponse DescribeServer(const ServerFacts& facts, const Rejections& rejections,
                                          const ModelHosts& hosts);

// Resident bytes (Rss) by mapping name, of mappings named "/memfd:NAME (deleted)" with NAME starting with `prefix`,
// from text in the form of /proc/<pid>/smaps.
std::map<std::string, int64_t> ResidentBytes(std::istream& smaps, absl::string_view prefix);

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_INTROSPECTION_H_
