// koine-model verify DIR
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "model_loader/model/model.h"
#include "model_loader/tool/commands.h"
#include "model_loader/verify/verify.h"
#include "model_loader/writer/checksums.h"

namespace koine::model_loader::tool {
namespace {

// Files against SHA256SUMS, where there is one. Returns how many are not what they should be.
absl::StatusOr<size_t> VerifyFiles(const std::string& directory, bool* listed) {
  const auto files = CheckChecksums(directory);
  if (!files.ok()) return files.status();
  *listed = files->present;
  if (!files->present) {
    std::printf("no %s: files are not compared with checksums\n", kChecksumFile);
    return 0;
  }
  for (const std::string& fault : files->faults) std::printf("  FAILED %s\n", fault.c_str());
  for (const std::string& file : files->unknown) std::printf("  %s is not in %s\n", file.c_str(), kChecksumFile);
  std::printf("%ld files of %s, %zu failed\n", static_cast<long>(files->files), kChecksumFile, files->faults.size());
  return files->faults.size();
}

int Verify(const std::string& directory, const Tolerances& tolerances) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return Fail(absl::NotFoundError(absl::StrCat(directory, ": no such folder")));
  }
  bool listed = false;
  const auto wrong_files = VerifyFiles(directory, &listed);
  if (!wrong_files.ok()) return Fail(wrong_files.status());
  if (listed && !std::filesystem::exists(std::filesystem::path(directory) / "samples.json", error)) {
    // What reading checks: the schema, every tensor's name, shape and type.
    if (const auto model = Model::Load(directory, {kernels::Precision::kF32}); !model.ok()) return Fail(model.status());
    std::printf("no samples.json: the model loads, answers are not compared (koine-model samples makes some)\n");
    return *wrong_files == 0 ? kFine : kFailed;
  }
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
  if (reports->empty()) std::printf("  FAILED samples.json: holds no sample\n");
  std::printf("%zu sample%s, %d failed\n", reports->size(), reports->size() == 1 ? "" : "s", failed);
  return failed == 0 && *wrong_files == 0 && !reports->empty() ? kFine : kFailed;
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
