// koine-model: works on model folders. Exit codes: 0 fine, 1 the model is not what it should be, 2 wrong usage.
#include <CLI/CLI.hpp>
#include <iostream>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "model_loader/tool/commands.h"

namespace koine::model_loader::tool {
namespace {

struct Command {
  const char* name;
  const char* description;
  Run (*add)(CLI::App*);
};

constexpr Command kCommands[] = {
    {"import", "Make a Koine model of a Hugging Face checkpoint.", AddImport},
    {"verify", "Hold a model against its checksums, its schema and its samples, recomputed in f32.", AddVerify},
    {"inspect", "Show a model's languages and its parameter account.", AddInspect},
    {"params", "Count the parameters of a sharing plan; needs no model.", AddParams},
    {"add-adapter", "Add a PEFT LoRA adapter to languages of a model.", AddAddAdapter},
    {"samples", "Compute answers to texts and add them to samples.json.", AddSamples},
    {"quantize", "Write a model with its matrices in int8 or bf16, and what that costs each.", AddQuantize},
};

}  // namespace

int Fail(const absl::Status& status) {
  std::cerr << "koine-model: " << std::string(status.message()) << "\n";
  return kFailed;
}

}  // namespace koine::model_loader::tool

int main(int argc, char** argv) {
  namespace tool = koine::model_loader::tool;
  CLI::App app{"Work on Koine model folders.", "koine-model"};
  app.set_version_flag("--version", KOINE_VERSION);
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, tool::Run>> commands;
  for (const tool::Command& command : tool::kCommands) {
    CLI::App* sub = app.add_subcommand(command.name, command.description);
    commands.emplace_back(sub, command.add(sub));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? tool::kFine : tool::kUsage;
  }
  for (const auto& [sub, run] : commands) {
    if (!sub->parsed()) continue;
    try {
      return run();
    } catch (const std::bad_alloc&) {
      return tool::Fail(absl::ResourceExhaustedError("there is not enough memory"));
    }
  }
  return tool::kUsage;
}
