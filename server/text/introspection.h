// Answers about the server and its models.
#ifndef KOINE_SERVER_TEXT_INTROSPECTION_H_
#define KOINE_SERVER_TEXT_INTROSPECTION_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "koine/v1/koine.pb.h"
#include "server/text/fault.h"
#include "server/text/model_host.h"

namespace koine::server {

// Loads nothing.
v1::ListLanguagesResponse DescribeLanguages(const ModelHost& host);
v1::Language DescribeLanguage(const LanguageInfo& info);
v1::GetModelInfoResponse DescribeModel(const ModelHost& host);

// The account of model_loader/accounting, as a message. Reads /proc/self/smaps, and with `checksums` every parameter
// byte: not for callback threads. INTERNAL if the account does not add up.
absl::StatusOr<v1::GetParameterStatsResponse> DescribeParameters(const ModelHost& host, bool checksums);

// LanguageStore::Rescan, logged, and its result as a message. Blocks; not for callback threads.
v1::ModelRescan Rescan(const ModelHost& host);

// What the transport knows.
struct ServerFacts {
  std::string version;
  absl::Time started;
  int64_t inflight_requests = 0;
  int64_t finished_requests = 0;
  bool draining = false;
};
int64_t ProcessResidentBytes();
v1::GetServerStatsResponse DescribeServer(const ServerFacts& facts, const Rejections& rejections,
                                          const ModelHosts& hosts);

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_INTROSPECTION_H_
