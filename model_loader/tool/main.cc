// koine-model: works on model folders. Exit codes: 0 fine, 1 the model is not what it should be, 2 wrong usage.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "model_loader/accounting/account.h"
#include "model_loader/accounting/params.h"
#include "model_loader/model/model.h"
#include "model_loader/verify/verify.h"

namespace {

namespace ml = koine::model_loader;

int Fail(const absl::Status& status) {
  std::cerr << "koine-model: " << std::string(status.message()) << "\n";
  return 1;
}

int Verify(const std::string& directory, const ml::Tolerances& tolerances) {
  const auto reports = ml::VerifyModel(directory, tolerances);
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
  return failed == 0 && !reports->empty() ? 0 : 1;
}

std::string ShapeText(const std::vector<int64_t>& shape) { return "[" + absl::StrJoin(shape, ", ") + "]"; }

void PrintTensors(const std::string& owner, absl::Span<const ml::LoadedTensor> tensors) {
  for (const ml::LoadedTensor& tensor : tensors) {
    std::printf("%-10s %-52s %-14s %-5s %s\n", owner.c_str(), tensor.name.c_str(), ShapeText(tensor.shape).c_str(),
                koine::kernels::Name(tensor.file_dtype), std::string(ml::Name(tensor.component)).c_str());
  }
}

int Inspect(const std::string& directory, bool json, bool tensors) {
  const auto model = ml::Model::Load(directory, {});
  if (!model.ok()) return Fail(model.status());
  auto account = ml::AccountOf(**model);
  if (!account.ok()) return Fail(account.status());
  if (const absl::Status saving = ml::AddSaving((*model)->config(), *account); !saving.ok()) return Fail(saving);
  if (json) {
    std::cout << ml::ToJson(*account) << "\n";
    return 0;
  }
  const ml::ModelConfig& config = (*model)->config();
  const auto& a = config.architecture;
  std::printf("%s (%s): %s, d_model %d, %d heads of %d (%d each language's own), feed-forward %d, %zu + %zu layers\n",
              config.name.c_str(), config.license.c_str(),
              config.kind == ml::ModelKind::kEncoder ? "encoder" : "encoder-decoder", a.d_model, a.heads, a.d_head,
              a.language_heads, a.d_ffn, a.encoder_layers.size(), a.decoder_layers.size());
  for (const auto& language : (*model)->languages()) {
    std::printf("%-10s %-24s %7ld rows, adapters: %s\n", language->code().c_str(), language->config().name.c_str(),
                static_cast<long>(language->weights().vocabulary),
                language->adapter_names().empty() ? "-" : absl::StrJoin(language->adapter_names(), ", ").c_str());
  }
  std::cout << "\n" << ml::RenderTable(*account);
  if (tensors) {
    std::cout << "\n";
    PrintTensors("shared", (*model)->shared_tensors());
    for (const auto& language : (*model)->languages()) {
      PrintTensors(language->code(), language->tensors());
      for (const std::string& name : language->adapter_names()) {
        PrintTensors(language->code() + ":" + name, (*language->FindAdapter(name))->tensors());
      }
    }
  }
  return 0;
}

int Params(const ml::ParamsOptions& options, bool json, const std::string& chart) {
  const auto output = ml::Params(options);
  if (!output.ok()) {
    Fail(output.status());
    return 2;  // the arguments do not make a plan
  }
  if (!chart.empty()) {
    std::ofstream stream(chart, std::ios::trunc);
    stream << output->svg;
    stream.close();
    if (!stream) return Fail(absl::UnknownError(chart + ": cannot be written"));
  }
  std::cout << (json ? output->json : output->table);
  if (json) std::cout << "\n";
  return 0;
}

// Adds an option whose absence leaves the preset's value.
template <typename T>
void Optional(CLI::App* app, const std::string& name, std::optional<T>* value, const std::string& description) {
  app->add_option_function<T>(
      name, [value](const T& given) { *value = given; }, description);
}

CLI::App* AddParams(CLI::App* app, ml::ParamsOptions* o) {
  CLI::App* params = app->add_subcommand("params", "Count the parameters of a sharing plan; needs no model.");
  params->add_option("--preset", o->preset, "Start from: seed, nllb-600m, mt5-small or gpt3")->capture_default_str();
  Optional(params, "-N,--languages", &o->languages, "Number of languages");
  Optional(params, "-L,--layers", &o->layers, "Layers of every stack");
  Optional(params, "--encoder-layers", &o->encoder_layers, "Layers of the encoder");
  Optional(params, "--decoder-layers", &o->decoder_layers, "Layers of the decoder");
  Optional(params, "-H,--heads", &o->heads, "Attention heads of a layer");
  Optional(params, "--H1,--shared-heads", &o->shared_heads, "Heads that all languages share");
  Optional(params, "--H2,--language-heads", &o->language_heads, "Heads that each language owns");
  Optional(params, "-d,--d-model", &o->d_model, "Width of the model");
  Optional(params, "--d-k", &o->d_k, "Width of a head's queries and keys");
  Optional(params, "--d-v", &o->d_v, "Width of a head's values");
  Optional(params, "--d-ffn", &o->d_ffn, "Width of the feed-forward layer");
  Optional(params, "--own-layers", &o->own_layers, "Layers of every stack that each language owns");
  Optional(params, "--own-encoder-layers", &o->own_encoder_layers, "Of the encoder");
  Optional(params, "--own-decoder-layers", &o->own_decoder_layers, "Of the decoder");
  Optional(params, "--scope", &o->own_layer_scope, "What is owned in own layers: attention or layer");
  Optional(params, "--output-projection", &o->output_projection,
           "Count the attention output projection: true or false");
  Optional(params, "--cross-attention", &o->cross_attention, "true or false");
  Optional(params, "--linear-bias", &o->linear_bias, "true or false");
  Optional(params, "--gated-ffn", &o->gated_ffn, "true or false");
  Optional(params, "-V,--vocabulary", &o->vocabulary, "Rows of a table");
  Optional(params, "--shared-embedding", &o->shared_embedding, "One table for all: true or false");
  Optional(params, "--tied-output", &o->tied_output, "true or false");
  Optional(params, "--output-bias", &o->output_bias, "true or false");
  Optional(params, "--adapter", &o->adapter, "Each language's adapter: none, scale, bottleneck or lora");
  Optional(params, "-r,--rank", &o->adapter_rank, "Rank of bottleneck and lora adapters");
  params
      ->add_option("--sites", o->adapter_sites,
                   "Where adapters sit (scale: self_attn, cross_attn, ffn; lora: self_attn.q, ...)")
      ->delimiter(',');
  Optional(params, "--dtype", &o->dtype, "Type of stored numbers: F32, F16, BF16 or I8");
  Optional(params, "--budget", &o->budget, "Bytes of memory: how many languages fit");
  params->add_option("--chart-languages", o->chart_languages, "N at the right end of the chart");
  return params;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Work on Koine model folders.", "koine-model"};
  app.set_version_flag("--version", KOINE_VERSION);
  app.require_subcommand(1);

  std::string directory;
  ml::Tolerances tolerances;
  CLI::App* verify = app.add_subcommand("verify", "Recompute samples.json in f32 and compare.");
  verify->add_option("DIR", directory, "Model folder")->required();
  verify->add_option("--tolerance", tolerances.values, "Largest difference of values and logits")
      ->capture_default_str();

  bool json = false;
  bool tensors = false;
  CLI::App* inspect = app.add_subcommand("inspect", "Show a model's languages and its parameter account.");
  inspect->add_option("DIR", directory, "Model folder")->required();
  inspect->add_flag("--json", json, "The account as JSON");
  inspect->add_flag("--tensors", tensors, "List every tensor too");

  ml::ParamsOptions plan;
  std::string chart;
  CLI::App* params = AddParams(&app, &plan);
  params->add_flag("--json", json, "The counts as JSON");
  params->add_option("--chart", chart, "Write a chart of memory against the number of languages (SVG) to this file");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (verify->parsed()) return Verify(directory, tolerances);
  if (inspect->parsed()) return Inspect(directory, json, tensors);
  return Params(plan, json, chart);
}
