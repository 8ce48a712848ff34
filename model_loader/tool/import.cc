// koine-model import DIR --out DIR
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model_loader/importer/importer.h"
#include "model_loader/importer/text_lines.h"
#include "model_loader/model/language_names.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/tool/choice.h"
#include "model_loader/tool/commands.h"
#include "model_loader/tool/long_work.h"

namespace koine::model_loader::tool {
namespace {

// "en-de=FILE", "en=FILE" or "FILE": whose lines become samples.
struct SampleFile {
  std::string languages, path;
};

// Finds the languages of "en-de", where codes may have hyphens themselves; "en" alone has no target.
absl::StatusOr<SampleRequest> Direction(const Model& model, const std::string& languages) {
  const auto known = [&model](const std::string& name) { return model.FindLanguage(name).ok(); };
  std::vector<LanguagePair> readings = ReadPair(languages, known);
  if (languages.empty() || known(languages)) readings.push_back({languages, ""});
  if (readings.size() == 1) {
    SampleRequest request;
    request.source = readings.front().source;
    request.target = readings.front().target;
    return request;
  }
  return absl::InvalidArgumentError(absl::StrCat("--sample-texts: \"", Printable(languages),
                                                 "\" is not a language, or SOURCE-TARGET, of the imported ones"));
}

// The answers to the lines of the files, as samples.json of the model in `folder`.
absl::Status AddSampleFiles(const std::string& folder, const std::vector<SampleFile>& files) {
  const auto model = Model::Load(folder, {kernels::Precision::kF32});
  if (!model.ok()) return model.status();
  std::vector<SampleRequest> requests;
  for (const SampleFile& file : files) {
    absl::StatusOr<SampleRequest> request = Direction(**model, file.languages);
    if (!request.ok()) return request.status();
    const absl::Status read = ForLinesOfFile(file.path, [&](int64_t, const std::string& line) {
      request->text = line;
      if (!line.empty()) requests.push_back(*request);
      return absl::OkStatus();
    });
    if (!read.ok()) return absl::Status(read.code(), absl::StrCat("--sample-texts: ", read.message()));
    if (request->text.empty() && requests.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--sample-texts: ", file.path, " has no text"));
    }
  }
  return WriteSamples(**model, folder, requests);
}

int RunImport(ImportOptions options, const std::vector<std::string>& samples,
              const std::vector<std::string>& sample_texts) {
  for (const std::string& sample : samples) {
    const size_t equals = sample.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == sample.size()) {
      std::cerr << "koine-model: --sample " << sample << ": must be LANGUAGE=FILE\n";
      return kUsage;
    }
    options.samples.emplace_back(sample.substr(0, equals), sample.substr(equals + 1));
  }
  std::vector<SampleFile> files;
  for (const std::string& text : sample_texts) {
    const size_t equals = text.find('=');
    files.push_back(equals == std::string::npos ? SampleFile{"", text}
                                                : SampleFile{text.substr(0, equals), text.substr(equals + 1)});
  }
  if (!files.empty()) {
    options.before_publishing = [files](const std::string& folder) { return AddSampleFiles(folder, files); };
  }
  absl::StatusOr<ImportReport> report = absl::UnknownError("");
  {
    LongWork work;
    options.cancelled = LongWork::Interrupted;
    options.progress = [&work](int64_t done, int64_t total) { work.Show(done, total); };
    report = Import(options);
  }
  if (!report.ok()) return Fail(report.status());
  std::cout << Render(*report) << std::flush;
  return kFine;
}

}  // namespace

Run AddImport(CLI::App* app) {
  struct Options {
    ImportOptions import;
    std::vector<std::string> samples, sample_texts;
  };
  const auto options = std::make_shared<Options>();
  ImportOptions& import = options->import;
  app->add_option("DIR", import.folder, "Folder of the checkpoint: config.json, weights, tokenizer")->required();
  app->add_option("--out", import.out, "Folder of the model to write; must not exist")->required();
  app->add_option("--name", import.name, "Name of the model (default: the checkpoint folder's)");
  app->add_option(
         "--languages", import.languages,
         "Languages to take over, by code or alias (default: all that the checkpoint has tags for). Where it has "
         "none (T5, BERT, one-direction MarianMT): the languages that shall have folders of their own")
      ->delimiter(',');
  AddChoice<TableMode>(
      app, "--tables", [options](const TableMode& mode) { options->import.tables = mode; },
      {{"full", TableMode::kFull}, {"sample", TableMode::kSample}, {"script", TableMode::kScript}},
      "full: one table for all, outputs as the original's; sample, script: a smaller table for each language, of the "
      "pieces of its --sample or of its script");
  app->add_option("--sample", options->samples, "LANGUAGE=FILE: text of a language, UTF-8; may be repeated")
      ->take_all();
  AddChoice<kernels::DType>(
      app, "--dtype", [options](const kernels::DType& type) { options->import.dtype = type; },
      {{"f32", kernels::DType::kF32}, {"f16", kernels::DType::kF16}, {"bf16", kernels::DType::kBF16}},
      "Type of the stored weights (default: each tensor's own)");
  app->add_flag_function(
      "--legacy-source-order,!--new-source-order",
      [options](int64_t count) { options->import.legacy_source_order = count > 0; },
      "NLLB: text, end mark, source tag; or source tag, text, end mark (default: as tokenizer_config.json says)");
  AddChoice<PoolingChoice>(
      app, "--pooling", [options](const PoolingChoice& pooling) { options->import.pooling = pooling; },
      {{"mean", PoolingChoice::kMean}, {"cls", PoolingChoice::kCls}, {"pooler", PoolingChoice::kPooler}},
      "How Encode makes one vector, where the checkpoint has no modules.json (default: mean)");
  app->add_option("--zero-shot", import.zero_shot, "SOURCE-TARGET,...: directions that training never saw")
      ->delimiter(',');
  app->add_option(
         "--sample-texts", options->sample_texts,
         "SOURCE-TARGET=FILE, LANGUAGE=FILE or FILE: the answers to its lines become the model's samples.json, "
         "which verify recomputes; may be repeated")
      ->take_all();
  return [options] { return RunImport(options->import, options->samples, options->sample_texts); };
}

}  // namespace koine::model_loader::tool
