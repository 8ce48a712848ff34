// koine-model: works on model folders. Exit codes: 0 fine, 1 the model is not what it should be, 2 wrong usage.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "model_loader/verify/verify.h"

namespace {

int Verify(const std::string& directory, const koine::model_loader::Tolerances& tolerances) {
  const auto reports = koine::model_loader::VerifyModel(directory, tolerances);
  if (!reports.ok()) {
    std::fprintf(stderr, "koine-model: %s\n", std::string(reports.status().message()).c_str());
    return 1;
  }
  std::printf("%-24s %12s %12s %12s %16s\n", "sample", "encoder", "embedding", "logits", "sums/tolerance");
  int failed = 0;
  for (const auto& report : *reports) {
    std::printf("%-24s %12.3g %12.3g %12.3g %16.3g\n", report.name.c_str(), report.encoder, report.embedding,
                report.logits, report.sums);
    for (const std::string& fault : report.faults) std::printf("  FAILED %s: %s\n", report.name.c_str(), fault.c_str());
    if (!report.faults.empty()) ++failed;
  }
  std::printf("%zu samples, %d failed\n", reports->size(), failed);
  return failed == 0 && !reports->empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Work on Koine model folders.", "koine-model"};
  app.set_version_flag("--version", KOINE_VERSION);
  app.require_subcommand(1);

  std::string directory;
  koine::model_loader::Tolerances tolerances;
  CLI::App* verify = app.add_subcommand("verify", "Recompute samples.json in f32 and compare.");
  verify->add_option("DIR", directory, "Model folder")->required();
  verify->add_option("--tolerance", tolerances.values, "Largest difference of values and logits")
      ->capture_default_str();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return Verify(directory, tolerances);
}
