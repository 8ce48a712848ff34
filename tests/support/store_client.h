// Requests against a LanguageStore and an engine, as the text service makes them but without texts: lease both
// languages, run one job, let go.
#ifndef KOINE_TESTS_SUPPORT_STORE_CLIENT_H_
#define KOINE_TESTS_SUPPORT_STORE_CLIENT_H_

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "server/languages/language_store.h"
#include "server/schedule/queue.h"

namespace koine::testing {

// Blocks until the answer. `ids` are pieces valid in every table; the end mark is appended. *waited: for a language.
inline server::JobResult TranslateIds(server::LanguageStore& store, server::JobQueue& queue, const std::string& source,
                                      const std::string& target, std::vector<int32_t> ids, int64_t tokens,
                                      bool* waited = nullptr) {
  server::JobResult result;
  absl::Notification done;
  const uint64_t ticket = store.Acquire({source, target}, absl::Now() + absl::Seconds(60),
                                        [&](absl::StatusOr<std::vector<server::LanguageLease>> leases) {
                                          if (!leases.ok()) {
                                            result.status = leases.status();
                                            done.Notify();
                                            return;
                                          }
                                          const auto job = std::make_shared<server::Job>();
                                          job->source = (*leases)[0];
                                          job->target = (*leases)[1];
                                          job->source_adapter = job->source->default_adapter();
                                          job->target_adapter = job->target->default_adapter();
                                          const auto& special = store.model().config().special_tokens;
                                          job->source_ids = std::move(ids);
                                          job->source_ids.push_back(special.eos);
                                          job->start_token = special.bos;
                                          job->search.max_tokens = job->search.min_tokens = tokens;
                                          job->search.end_token = special.eos;
                                          job->done = [&](server::JobResult answer) {
                                            result = std::move(answer);
                                            done.Notify();
                                          };
                                          const absl::Status submitted = queue.Submit({job});
                                          if (!submitted.ok()) {
                                            result.status = submitted;
                                            done.Notify();
                                          }
                                        });
  done.WaitForNotification();
  if (waited != nullptr) *waited = ticket != 0;
  return result;
}

// Bytes that the kernel says are resident in this process's memfd mappings whose names start so.
inline int64_t ResidentBySmaps(const std::string& prefix) {
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  int64_t bytes = 0;
  while (std::getline(smaps, line)) {
    if (line.find('-') != std::string::npos && line.find("kB") == std::string::npos) {
      inside = line.find("/memfd:" + prefix) != std::string::npos;
    } else if (inside && line.rfind("Rss:", 0) == 0) {
      bytes += std::stoll(line.substr(4)) * 1024;
    }
  }
  return bytes;
}

}  // namespace koine::testing

#endif  // KOINE_TESTS_SUPPORT_STORE_CLIENT_H_
