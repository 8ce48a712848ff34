// koine-model params
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "model_loader/accounting/params.h"
#include "model_loader/tool/commands.h"

namespace koine::model_loader::tool {
namespace {

int Params(const ParamsOptions& options, bool json, const std::string& chart) {
  const auto output = Params(options);
  if (!output.ok()) {
    Fail(output.status());
    return kUsage;  // the arguments do not make a plan
  }
  if (!chart.empty()) {
    std::ofstream stream(chart, std::ios::trunc);
    stream << output->svg;
    stream.close();
    if (!stream) return Fail(absl::UnknownError(chart + ": cannot be written"));
  }
  std::cout << (json ? output->json : output->table);
  if (json) std::cout << "\n";
  return kFine;
}

// Adds an option whose absence leaves the preset's value.
template <typename T>
void Optional(CLI::App* app, const std::string& name, std::optional<T>* value, const std::string& description) {
  app->add_option_function<T>(
      name, [value](const T& given) { *value = given; }, description);
}

}  // namespace

Run AddParams(CLI::App* app) {
  struct Options {
    ParamsOptions plan;
    bool json = false;
    std::string chart;
  };
  const auto options = std::make_shared<Options>();
  ParamsOptions& o = options->plan;
  app->add_option("--preset", o.preset, "Start from: seed, nllb-600m, mt5-small or gpt3")->capture_default_str();
  Optional(app, "-N,--languages", &o.languages, "Number of languages");
  Optional(app, "-L,--layers", &o.layers, "Layers of every stack");
  Optional(app, "--encoder-layers", &o.encoder_layers, "Layers of the encoder");
  Optional(app, "--decoder-layers", &o.decoder_layers, "Layers of the decoder");
  Optional(app, "-H,--heads", &o.heads, "Attention heads of a layer");
  Optional(app, "--H1,--shared-heads", &o.shared_heads, "Heads that all languages share");
  Optional(app, "--H2,--language-heads", &o.language_heads, "Heads that each language owns");
  Optional(app, "-d,--d-model", &o.d_model, "Width of the model");
  Optional(app, "--d-k", &o.d_k, "Width of a head's queries and keys");
  Optional(app, "--d-v", &o.d_v, "Width of a head's values");
  Optional(app, "--d-ffn", &o.d_ffn, "Width of the feed-forward layer");
  Optional(app, "--own-layers", &o.own_layers, "Layers of every stack that each language owns");
  Optional(app, "--own-encoder-layers", &o.own_encoder_layers, "Of the encoder");
  Optional(app, "--own-decoder-layers", &o.own_decoder_layers, "Of the decoder");
  Optional(app, "--scope", &o.own_layer_scope, "What is owned in own layers: attention or layer");
  Optional(app, "--output-projection", &o.output_projection, "Count the attention output projection: true or false");
  Optional(app, "--cross-attention", &o.cross_attention, "true or false");
  Optional(app, "--linear-bias", &o.linear_bias, "true or false");
  Optional(app, "--gated-ffn", &o.gated_ffn, "true or false");
  Optional(app, "-V,--vocabulary", &o.vocabulary, "Rows of a table");
  Optional(app, "--shared-embedding", &o.shared_embedding, "One table for all: true or false");
  Optional(app, "--tied-output", &o.tied_output, "true or false");
  Optional(app, "--output-bias", &o.output_bias, "true or false");
  Optional(app, "--adapter", &o.adapter, "Each language's adapter: none, scale, bottleneck or lora");
  Optional(app, "-r,--rank", &o.adapter_rank, "Rank of bottleneck and lora adapters");
  app->add_option("--sites", o.adapter_sites,
                  "Where adapters sit (scale: self_attn, cross_attn, ffn; lora: self_attn.q, ...)")
      ->delimiter(',');
  Optional(app, "--dtype", &o.dtype, "Type of stored numbers: F32, F16, BF16 or I8");
  Optional(app, "--budget", &o.budget, "Bytes of memory: how many languages fit");
  app->add_option("--chart-languages", o.chart_languages, "N at the right end of the chart");
  app->add_flag("--json", options->json, "The counts as JSON");
  app->add_option("--chart", options->chart,
                  "Write a chart of memory against the number of languages (SVG) to this file");
  return [options] { return Params(options->plan, options->json, options->chart); };
}

}  // namespace koine::model_loader::tool
