// koine-model quantize MODEL --out DIR --dtype int8|bf16
#include "model_loader/quantize/quantize.h"

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "model_loader/safetensors/safetensors.h"
#include "model_loader/tool/choice.h"
#include "model_loader/tool/commands.h"
#include "model_loader/tool/long_work.h"

namespace koine::model_loader::tool {
namespace {

void Print(const QuantizeReport& report) {
  std::printf("%-34s %-44s %-15s %-11s %9s %10s %8s %9s\n", "file", "matrix", "shape", "type", "rel. RMS", "max. abs.",
              "worst", "its RMS");
  int64_t outliers = 0, converted = 0;
  for (const TensorError& error : report.matrices) {
    std::printf("%-34s %-44s %-15s %-11s %9.2e %10.3e %8ld %9.2e%s\n", error.file.c_str(), error.name.c_str(),
                ShapeToString(error.shape).c_str(),
                absl::StrCat(kernels::Name(error.from), " > ", kernels::Name(error.to)).c_str(), error.relative_rms,
                error.max_abs, static_cast<long>(error.worst_row), error.worst_row_rms,
                error.outlier_rows == 0 ? "" : absl::StrCat("  ", error.outlier_rows, " outlier rows").c_str());
    outliers += error.outlier_rows == 0 ? 0 : 1;
    converted += error.converted() ? 1 : 0;
  }
  std::printf(
      "%ld of %zu matrices converted, %ld with outlier rows (largest weight over %g times the RMS of the others)\n",
      static_cast<long>(converted), report.matrices.size(), static_cast<long>(outliers), kOutlierRatio);
  std::printf("%ld bytes of tensors before, %ld after (%.2f x)\n", static_cast<long>(report.bytes_before),
              static_cast<long>(report.bytes_after),
              static_cast<double>(report.bytes_after) / static_cast<double>(report.bytes_before));
  if (report.samples_left_out) {
    std::printf(
        "samples.json was left out: its values are those of the weights before; koine-model samples makes new "
        "ones\n");
  }
}

}  // namespace

Run AddQuantize(CLI::App* app) {
  struct Options {
    std::string directory, out;
    kernels::DType dtype = kernels::DType::kI8;
  };
  const auto options = std::make_shared<Options>();
  app->add_option("MODEL", options->directory, "Model folder")->required();
  app->add_option("--out", options->out, "Folder to write; it must not exist")->required();
  AddChoice<kernels::DType>(
      app, "--dtype", [options](const kernels::DType& type) { options->dtype = type; },
      {{"int8", kernels::DType::kI8}, {"bf16", kernels::DType::kBF16}}, "int8 (one scale a row) or bf16")
      ->required();
  return [options] {
    absl::StatusOr<QuantizeReport> report = absl::UnknownError("");
    {
      LongWork work;
      report = QuantizeModel(options->directory, options->out, options->dtype,
                             {[&work](int64_t done, int64_t total) { work.Show(done, total); }, LongWork::Interrupted});
    }
    if (!report.ok()) return Fail(report.status());
    Print(*report);
    return kFine;
  };
}

}  // namespace koine::model_loader::tool
