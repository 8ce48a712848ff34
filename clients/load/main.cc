// koine-load: see load.h for what is measured and how.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "clients/cli/numbers.h"
#include "clients/load/load.h"

namespace {

// As the exit codes of `koine`.
enum ExitCode : int { kOk = 0, kRequestsFailed = 1, kUsage = 2, kUnreachable = 3, kRefused = 4 };

int Fail(const absl::Status& status) {
  std::cerr << "koine-load: " << status.message() << std::endl;
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) return kUnreachable;
  return kRefused;
}

int Usage(const absl::Status& status) {
  std::cerr << "koine-load: " << status.message() << " (see --help)" << std::endl;
  return kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  using koine::load::LoadOptions;
  LoadOptions options;
  std::string clients_text = "1,8,64", pairs_text = "all", texts_path = "deploy/demo_model/test.jsonl",
              op = "translate";
  double timeout = 60;
  bool json = false;

  CLI::App app("Closed-loop load on a Koine server: N clients, each with one request in flight.", "koine-load");
  app.set_version_flag("--version", std::string("koine-load ") + KOINE_VERSION);
  app.footer(
      "Rates count what was answered within the window; latencies are those of whole requests. rows/step and\n"
      "languages/step are the server's own count and include other callers.\n"
      "Exit codes: 0 ok; 1 requests failed; 2 usage; 3 server unreachable; 4 request refused.");
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return absl::StrCat("koine-load: ", error.what(), " (see --help)\n");
  });
  app.add_option("--server", options.client.address, "Address of the server")
      ->envname("KOINE_SERVER")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_option("--model", options.model, "Name of the model, where the server has several");
  app.add_option("--clients", clients_text, "Numbers of clients, one run for each")->capture_default_str();
  CLI::Option* seconds = app.add_option("--seconds", options.seconds, "Length of each run's window")
                             ->capture_default_str()
                             ->check(koine::cli::Between(0.01, 86400));
  app.add_option("--requests", options.requests, "Send so many requests in each run instead")
      ->check(koine::cli::WholeBetween(1, int64_t{1} << 40))
      ->excludes(seconds);
  app.add_option("--warmup", options.warmup_seconds, "Seconds before each window")
      ->capture_default_str()
      ->check(koine::cli::Between(0, 3600));
  app.add_option("--pairs", pairs_text, "en-de,fr-en,... (zh-Hans>de where a code has a hyphen), or all")
      ->capture_default_str();
  app.add_option("--texts", texts_path, "Lines of JSON, one key for each language")->capture_default_str();
  app.add_option("--op", op, "translate or encode")
      ->capture_default_str()
      ->check(CLI::IsMember(std::set<std::string>{"translate", "encode"}));
  app.add_option("--beam", options.beam, "Beam size")->capture_default_str()->check(koine::cli::WholeBetween(1, 1024));
  app.add_option("--items", options.items, "Texts of each request")
      ->capture_default_str()
      ->check(koine::cli::WholeBetween(1, 100000));
  app.add_option("--seed", options.seed, "Of the order of texts and pairs")->capture_default_str();
  app.add_option("--timeout", timeout, "Seconds that a request may take")
      ->capture_default_str()
      ->check(koine::cli::Between(0.001, 86400));
  app.add_flag("--json", json, "Print one JSON object");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    app.exit(error, std::cout, std::cerr);
    return dynamic_cast<const CLI::Success*>(&error) != nullptr ? kOk : kUsage;
  }
  options.encode = op == "encode";
  options.client.timeout = absl::Seconds(timeout);

  const auto counts = koine::load::ParseClients(clients_text);
  if (!counts.ok()) return Usage(counts.status());
  if (pairs_text != "all") {
    const auto pairs = koine::load::ParsePairs(pairs_text);
    if (!pairs.ok()) return Usage(pairs.status());
    options.pairs = *pairs;
  }
  const auto texts = koine::load::ReadTexts(texts_path);
  if (!texts.ok()) return Usage(texts.status());

  const auto client = koine::client::Client::Connect(options.client);
  if (!client.ok()) return Fail(client.status());
  const auto environment = koine::load::ReadEnvironment(*client, options.model);
  if (!environment.ok()) return Fail(environment.status());
  if (pairs_text == "all") {
    koine::v1::ListLanguagesRequest request;
    request.set_model(options.model);
    const auto languages = client->ListLanguages(request);
    if (!languages.ok()) return Fail(languages.status());
    std::vector<std::string> codes;
    for (const auto& language : languages->languages()) codes.push_back(language.code());
    for (const koine::load::Pair& pair : koine::load::AllPairs(codes)) {
      if (texts->count(pair.source) > 0) options.pairs.push_back(pair);
    }
    for (const std::string& code : codes) {
      if (texts->count(code) == 0)
        std::cerr << "koine-load: no texts from \"" << code << "\" in " << texts_path << "\n";
    }
  }

  nlohmann::json report = {
      {"version", KOINE_VERSION},       {"environment", ToJson(*environment)}, {"op", op},
      {"beam", options.beam},           {"items_per_request", options.items},  {"pairs", options.pairs.size()},
      {"runs", nlohmann::json::array()}};
  if (!json) {
    std::cout << "koine-load " << KOINE_VERSION << "\n"
              << EnvironmentText(*environment) << "load         " << op << ", " << options.pairs.size()
              << " pairs mixed, " << options.items << " items a request";
    if (!options.encode) std::cout << ", beam " << options.beam;
    std::cout << "\n\n" << koine::load::ResultHead() << std::flush;
  }
  bool failed = false;
  for (const int count : *counts) {
    const auto result = RunLoad(options, *texts, count);
    if (!result.ok()) return Fail(result.status());
    failed = failed || !result->errors.empty();
    if (json) {
      report["runs"].push_back(ToJson(*result));
    } else {
      std::cout << ResultLine(*result) << ErrorText(*result) << std::flush;
    }
  }
  if (json) std::cout << report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  std::cout.flush();
  return failed ? kRequestsFailed : kOk;
}
