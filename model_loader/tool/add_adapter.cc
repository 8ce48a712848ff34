// koine-model add-adapter MODEL LANG[,LANG...] ADAPTER_DIR
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "model_loader/peft/add_adapter.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/tool/commands.h"

namespace koine::model_loader::tool {

Run AddAddAdapter(CLI::App* app) {
  struct Options {
    AddAdapterOptions add;
    std::string languages;
  };
  const auto options = std::make_shared<Options>();
  app->add_option("MODEL", options->add.model, "Model folder")->required();
  app->add_option("LANG", options->languages, "Languages that get the adapter: codes, separated by commas")->required();
  app->add_option("ADAPTER_DIR", options->add.adapter,
                  "PEFT's folder: adapter_config.json and adapter_model.safetensors or .bin")
      ->required();
  app->add_option("--name", options->add.name, "What requests call it; the folder's name if not given");
  return [options] {
    options->add.languages = absl::StrSplit(options->languages, ',', absl::SkipEmpty());
    const auto report = AddPeftAdapter(options->add);
    if (!report.ok()) return Fail(report.status());
    for (const std::string& warning : report->warnings) std::cerr << "koine-model: " << warning << "\n";
    const std::string ranks = report->smallest_rank == report->largest_rank
                                  ? absl::StrCat(report->largest_rank)
                                  : absl::StrCat(report->smallest_rank, " to ", report->largest_rank);
    std::printf("adapter \"%s\" of %s: %ld projections of rank %s, %ld parameters, %ld bytes a language\n",
                report->name.c_str(), absl::StrJoin(report->languages, ", ").c_str(), static_cast<long>(report->pairs),
                ranks.c_str(), static_cast<long>(report->parameters), static_cast<long>(report->bytes));
    if (!report->base_model.empty()) {
      // A path of whoever trained it, or a name on the hub: it cannot be compared with anything here.
      std::printf("trained on \"%s\": it fits no other weights, even of the same shape\n",
                  Printable(report->base_model).c_str());
    }
    return kFine;
  };
}

}  // namespace koine::model_loader::tool
