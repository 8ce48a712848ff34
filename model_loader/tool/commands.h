// The subcommands of koine-model.
#ifndef KOINE_MODEL_LOADER_TOOL_COMMANDS_H_
#define KOINE_MODEL_LOADER_TOOL_COMMANDS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model_loader/model/model.h"
#include "model_loader/verify/verify.h"

namespace koine::model_loader::tool {

// What a parsed subcommand does; the result is the exit code.
using Run = std::function<int()>;

// Each adds its options to `app` (whose name and description are set) and returns what runs once they are parsed. One
// file a subcommand, in the order of the table in main.cc.
Run AddImport(CLI::App* app);
Run AddVerify(CLI::App* app);
Run AddInspect(CLI::App* app);
Run AddParams(CLI::App* app);
Run AddQuantize(CLI::App* app);
Run AddAddAdapter(CLI::App* app);
Run AddSamples(CLI::App* app);

// Exit codes: 0 fine, 1 the model (or what it was to be made of) is not what it should be, 2 wrong usage.
inline constexpr int kFine = 0, kFailed = 1, kUsage = 2;

// One line on standard error; kFailed.
int Fail(const absl::Status& status);

// Computes the answers and adds them to the folder's samples.json. Errors name the text.
absl::Status WriteSamples(const Model& model, const std::string& directory, const std::vector<SampleRequest>& requests);

}  // namespace koine::model_loader::tool

#endif  // KOINE_MODEL_LOADER_TOOL_COMMANDS_H_
