// koine-model samples MODEL --from a --to b TEXT...
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model_loader/importer/text_lines.h"
#include "model_loader/model/model.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/tool/commands.h"
#include "model_loader/tool/long_work.h"
#include "model_loader/verify/verify.h"

namespace koine::model_loader::tool {
namespace {

struct Options {
  std::string directory;
  SampleRequest request;
  std::vector<std::string> texts;
};

int Samples(const Options& options) {
  std::vector<std::string> texts = options.texts;
  if (texts.empty()) {
    const absl::Status read = ForLines(std::cin, "standard input", [&texts](int64_t, const std::string& line) {
      if (!line.empty()) texts.push_back(line);
      return absl::OkStatus();
    });
    if (!read.ok()) return Fail(read);
  }
  if (texts.empty()) {
    std::fprintf(stderr, "koine-model: no text: give texts, or lines on standard input\n");
    return kUsage;
  }
  const auto model = Model::Load(options.directory, {kernels::Precision::kF32});
  if (!model.ok()) return Fail(model.status());
  std::vector<SampleRequest> requests(texts.size(), options.request);
  for (size_t i = 0; i < texts.size(); ++i) requests[i].text = texts[i];
  const absl::Status added = WriteSamples(**model, options.directory, requests);
  if (!added.ok()) return Fail(added);
  std::printf("%zu sample%s added to %s/samples.json\n", requests.size(), requests.size() == 1 ? "" : "s",
              options.directory.c_str());
  return kFine;
}

}  // namespace

absl::Status WriteSamples(const Model& model, const std::string& directory,
                          const std::vector<SampleRequest>& requests) {
  std::vector<Sample> samples;
  for (const SampleRequest& request : requests) {
    if (LongWork::Interrupted()) return absl::CancelledError("interrupted; nothing was written");
    auto sample = ComputeSample(model, request);
    if (!sample.ok()) {
      return absl::Status(sample.status().code(),
                          absl::StrCat("\"", Printable(request.text), "\": ", sample.status().message()));
    }
    samples.push_back(*std::move(sample));
  }
  return AppendSamples(directory, samples);
}

Run AddSamples(CLI::App* app) {
  const auto options = std::make_shared<Options>();
  app->add_option("MODEL", options->directory, "Model folder")->required();
  app->add_option("TEXT", options->texts, "Texts; none: the lines of standard input");
  app->add_option("--from,--language", options->request.source, "Language of the texts");
  app->add_option("--to", options->request.target, "Language to translate into; none: the encoder's values alone");
  app->add_option("--source-adapter", options->request.source_adapter, "A further adapter of --from, or none");
  app->add_option("--target-adapter", options->request.target_adapter, "A further adapter of --to, or none");
  app->add_option("--max-steps", options->request.max_steps, "Greedy decoding ends after this many tokens")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  return [options] { return Samples(*options); };
}

}  // namespace koine::model_loader::tool
