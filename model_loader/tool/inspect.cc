// koine-model inspect DIR
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model_loader/accounting/account.h"
#include "model_loader/model/model.h"
#include "model_loader/tool/commands.h"

namespace koine::model_loader::tool {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) { return "[" + absl::StrJoin(shape, ", ") + "]"; }

void PrintTensors(const std::string& owner, absl::Span<const LoadedTensor> tensors) {
  for (const LoadedTensor& tensor : tensors) {
    std::printf("%-10s %-52s %-14s %-5s %s\n", owner.c_str(), tensor.name.c_str(), ShapeText(tensor.shape).c_str(),
                kernels::Name(tensor.file_dtype), std::string(Name(tensor.component)).c_str());
  }
}

int Inspect(const std::string& directory, bool json, bool tensors) {
  const auto model = Model::Load(directory, {});
  if (!model.ok()) return Fail(model.status());
  auto account = AccountOf(**model);
  if (!account.ok()) return Fail(account.status());
  if (const absl::Status saving = AddSaving((*model)->config(), *account); !saving.ok()) return Fail(saving);
  if (json) {
    std::cout << ToJson(*account) << "\n";
    return kFine;
  }
  const ModelConfig& config = (*model)->config();
  const auto& a = config.architecture;
  std::printf("%s%s: %s, d_model %d, %d heads of %d (%d each language's own), feed-forward %d, %zu + %zu layers\n",
              config.name.c_str(), config.license.empty() ? "" : absl::StrCat(" (", config.license, ")").c_str(),
              config.kind == ModelKind::kEncoder ? "encoder" : "encoder-decoder", a.d_model, a.heads, a.d_head,
              a.language_heads, a.d_ffn, a.encoder_layers.size(), a.decoder_layers.size());
  for (const auto& language : (*model)->languages()) {
    // The default one by its kind, the others by their names.
    const AdapterKind kind = language->config().adapter.kind;
    std::vector<std::string> adapters = language->adapter_names();
    if (kind != AdapterKind::kNone) adapters.insert(adapters.begin(), absl::StrCat(Name(kind), " (default)"));
    std::printf("%-10s %-24s %7ld rows, adapters: %s\n", language->code().c_str(), language->config().name.c_str(),
                static_cast<long>(language->weights().vocabulary),
                adapters.empty() ? "-" : absl::StrJoin(adapters, ", ").c_str());
  }
  std::cout << "\n" << RenderTable(*account);
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
  return kFine;
}

}  // namespace

Run AddInspect(CLI::App* app) {
  struct Options {
    std::string directory;
    bool json = false, tensors = false;
  };
  const auto options = std::make_shared<Options>();
  app->add_option("DIR", options->directory, "Model folder")->required();
  app->add_flag("--json", options->json, "The account as JSON");
  app->add_flag("--tensors", options->tensors, "List every tensor too");
  return [options] { return Inspect(options->directory, options->json, options->tensors); };
}

}  // namespace koine::model_loader::tool
