// Closed-loop load: N clients, each with one request in flight, texts of many languages mixed.
//
// Each client sends its next request when its last one is answered, so a slow server gets less load: right for "how
// much can it do with N callers", wrong for "how long do callers wait at R requests a second". Numbers are counted
// within a window in which all clients are busy: the warm-up runs into it and the drain is left out.
#ifndef KOINE_CLIENTS_LOAD_LOAD_H_
#define KOINE_CLIENTS_LOAD_LOAD_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/cpp/client.h"

namespace koine::load {

struct Pair {
  std::string source, target;
  bool operator==(const Pair& other) const { return source == other.source && target == other.target; }
};

// "en-de,fr-en". A code with a hyphen of its own needs '>' instead: "zh-Hans>en".
absl::StatusOr<std::vector<Pair>> ParsePairs(absl::string_view text);
// Every ordered pair of two different languages.
std::vector<Pair> AllPairs(const std::vector<std::string>& languages);
// "1,8,64": numbers from 1 to 10,000.
absl::StatusOr<std::vector<int>> ParseClients(absl::string_view text);

// The smallest value that at least `share` of all values do not exceed (nearest rank). 0 if there are none.
// REQUIRES sorted values, 0 < share <= 1.
double Percentile(const std::vector<double>& sorted, double share);

// Texts by language, from lines of JSON with one key per language; other values than texts are passed over.
using Texts = std::map<std::string, std::vector<std::string>>;
absl::StatusOr<Texts> ReadTexts(const std::string& path);

struct LoadOptions {
  client::ClientOptions client;
  std::string model;
  bool encode = false;      // else translate
  std::vector<Pair> pairs;  // encode uses their sources
  int items = 1;            // of each request, all of one pair
  int beam = 1;
  double seconds = 10;   // length of the window, if requests is 0
  int64_t requests = 0;  // send exactly so many instead
  double warmup_seconds = 1;
  uint64_t seed = 1;  // of the order of texts and pairs
};

struct LoadResult {
  int clients = 0;
  double seconds = 0;         // of the window
  int64_t requests = 0;       // answered within it
  int64_t items = 0;          // answered without an error
  int64_t source_tokens = 0;  // as the replies count them
  int64_t target_tokens = 0;  // of the best translations
  // Of requests answered within the window, in seconds.
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
  std::map<std::string, int64_t> errors;  // requests by code; "item CODE" for items
  // By the server's own count, in the window; 0 where it took no step. Other callers of the server count too.
  int64_t steps = 0;
  double rows_per_step = 0, languages_per_step = 0;
  double client_cpu_seconds = 0;  // of this process: what the generator took away, if it shares the machine
};

// One run. REQUIRES clients >= 1, options.items >= 1. INVALID_ARGUMENT if a pair has no texts; the connection's error
// if the server cannot be reached. Errors of requests are counted, not returned.
absl::StatusOr<LoadResult> RunLoad(const LoadOptions& options, const Texts& texts, int clients);

// What a reader must know to judge the numbers.
struct Environment {
  std::string cpu;  // of this machine
  int cores = 0;
  bool assertions = false;  // this program was built with them: do not trust its numbers
  std::string address, server_version, model, precision, backend;
  int workers = 0, threads = 0;
  int languages = 0;
  int64_t parameters = 0;
};
absl::StatusOr<Environment> ReadEnvironment(const client::Client& client, const std::string& model);

std::string EnvironmentText(const Environment& environment);
// The table's head, one line of it, and the errors of a run (empty if none).
std::string ResultHead();
std::string ResultLine(const LoadResult& result);
std::string ErrorText(const LoadResult& result);

nlohmann::json ToJson(const Environment& environment);
nlohmann::json ToJson(const LoadResult& result);

}  // namespace koine::load

#endif  // KOINE_CLIENTS_LOAD_LOAD_H_
