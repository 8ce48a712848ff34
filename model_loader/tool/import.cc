// koine-model import DIR --out DIR
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model_loader/importer/importer.h"
#include "model_loader/tool/commands.h"

namespace koine::model_loader::tool {
namespace {

// The first signal ends the import between two chunks, so that it can clean up; a second one ends the process.
std::atomic<bool> interrupted{false};
extern "C" void OnSignal(int number) {
  interrupted = true;
  signal(number, SIG_DFL);
}

// One line that is written over, on terminals only.
class Progress {
 public:
  Progress() : terminal_(isatty(STDERR_FILENO) != 0) {}
  void Show(int64_t done, int64_t total) {
    if (!terminal_ || total <= 0) return;
    const auto percent = static_cast<int>(100 * static_cast<double>(done) / static_cast<double>(total));
    if (percent == last_) return;
    last_ = percent;
    constexpr double kMega = 1e6;
    std::fprintf(stderr, "\r%3d %%  %.0f of %.0f MB", percent, static_cast<double>(done) / kMega,
                 static_cast<double>(total) / kMega);
  }
  void Clear() const {
    if (terminal_ && last_ >= 0) std::fprintf(stderr, "\r%40s\r", "");
  }

 private:
  const bool terminal_;
  int last_ = -1;
};

int RunImport(ImportOptions options, const std::vector<std::string>& samples) {
  for (const std::string& sample : samples) {
    const size_t equals = sample.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == sample.size()) {
      std::cerr << "koine-model: --sample " << sample << ": must be LANGUAGE=FILE\n";
      return kUsage;
    }
    options.samples.emplace_back(sample.substr(0, equals), sample.substr(equals + 1));
  }
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &action, nullptr);
  // A reader of our output that goes away must not leave half a model either.
  signal(SIGPIPE, SIG_IGN);
  // A limit on file sizes is an error of the write, not the end of the process.
  signal(SIGXFSZ, SIG_IGN);
  Progress progress;
  options.cancelled = [] { return interrupted.load(); };
  options.progress = [&progress](int64_t done, int64_t total) { progress.Show(done, total); };
  const absl::StatusOr<ImportReport> report = Import(options);
  progress.Clear();
  if (!report.ok()) return Fail(report.status());
  std::cout << Render(*report) << std::flush;
  return kFine;
}

}  // namespace

Run AddImport(CLI::App* app) {
  struct Options {
    ImportOptions import;
    std::vector<std::string> samples;
  };
  const auto options = std::make_shared<Options>();
  ImportOptions& import = options->import;
  app->add_option("DIR", import.folder, "Folder of the checkpoint: config.json, weights, tokenizer")->required();
  app->add_option("--out", import.out, "Folder of the model to write; must not exist")->required();
  app->add_option("--name", import.name, "Name of the model (default: the checkpoint folder's)");
  app->add_option("--languages", import.languages, "Languages to take over, by code or alias (default: all)")
      ->delimiter(',');
  const std::map<std::string, TableMode> tables = {
      {"full", TableMode::kFull}, {"sample", TableMode::kSample}, {"script", TableMode::kScript}};
  app->add_option("--tables", import.tables,
                  "full: one table for all, outputs as the original's; sample, script: a smaller table for each "
                  "language, of the pieces of its --sample or of its script")
      ->transform(CLI::CheckedTransformer(tables, CLI::ignore_case).description("{full,sample,script}"));
  app->add_option("--sample", options->samples, "LANGUAGE=FILE: text of a language, UTF-8; may be repeated")
      ->take_all();
  const std::map<std::string, kernels::DType> types = {
      {"f32", kernels::DType::kF32}, {"f16", kernels::DType::kF16}, {"bf16", kernels::DType::kBF16}};
  app->add_option_function<kernels::DType>(
         "--dtype", [options](const kernels::DType& type) { options->import.dtype = type; },
         "Type of the stored weights (default: each tensor's own)")
      ->transform(CLI::CheckedTransformer(types, CLI::ignore_case).description("{f32,f16,bf16}"));
  app->add_flag_function(
      "--legacy-source-order,!--new-source-order",
      [options](int64_t count) { options->import.legacy_source_order = count > 0; },
      "NLLB: text, end mark, source tag; or source tag, text, end mark (default: as tokenizer_config.json says)");
  const std::map<std::string, PoolingChoice> poolings = {
      {"mean", PoolingChoice::kMean}, {"cls", PoolingChoice::kCls}, {"pooler", PoolingChoice::kPooler}};
  app->add_option_function<PoolingChoice>(
         "--pooling", [options](const PoolingChoice& pooling) { options->import.pooling = pooling; },
         "How Encode makes one vector, where the checkpoint has no modules.json (default: mean)")
      ->transform(CLI::CheckedTransformer(poolings, CLI::ignore_case).description("{mean,cls,pooler}"));
  app->add_option("--zero-shot", import.zero_shot, "SOURCE-TARGET,...: directions that training never saw")
      ->delimiter(',');
  return [options] { return RunImport(options->import, options->samples); };
}

}  // namespace koine::model_loader::tool
