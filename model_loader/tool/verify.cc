// koine-model verify DIR
#include <cstdio>
#include <memory>
#include <string>

#include "model_loader/tool/commands.h"
#include "model_loader/verify/verify.h"

namespace koine::model_loader::tool {
namespace {

int Verify(const std::string& directory, const Tolerances& tolerances) {
  const auto reports = VerifyModel(directory, tolerances);
  if (!reports.ok()) return Fail(reports.status());
  std::printf("%-24s %12s %12s %12s %16s\n", "sample", "encoder", "embedding", "logits", "sums/tolerance");
  int failed = 0;
  for (const auto& report : *reports) {
    std::printf("%-24s %12.3g %12.3g %12.3g %16.3g\n", report.name.c_str(), report.encoder, report.embedding,
                report.logits, report.sums);
    for (const std::string& fault : report.faults) std::printf("  FAILED %s: %s\n", report.name.c_str(), fault.c_str());
    if (!report.faults.empty()) ++failed;
  }
  std::printf("%zu samples, %d failed\n", reports->size(), failed);
  return failed == 0 && !reports->empty() ? kFine : kFailed;
}

}  // namespace

Run AddVerify(CLI::App* app) {
  struct Options {
    std::string directory;
    Tolerances tolerances;
  };
  const auto options = std::make_shared<Options>();
  app->add_option("DIR", options->directory, "Model folder")->required();
  app->add_option("--tolerance", options->tolerances.values, "Largest difference of values and logits")
      ->capture_default_str();
  return [options] { return Verify(options->directory, options->tolerances); };
}

}  // namespace koine::model_loader::tool
