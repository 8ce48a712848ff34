// adapter_config.json of Hugging Face's PEFT: what a LoRA adapter is (peft/tuners/lora/config.py).
#ifndef KOINE_MODEL_LOADER_PEFT_ADAPTER_CONFIG_H_
#define KOINE_MODEL_LOADER_PEFT_ADAPTER_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace koine::model_loader {

// A key of rank_pattern or alpha_pattern: the end of a module's name, from a dot on, or ('^' before it) the whole name.
struct ModulePattern {
  std::string text;  // without '^' and '$'
  bool whole = false;
  bool Matches(std::string_view module) const;
};

struct PeftConfig {
  std::string base_model;  // what it says that it was trained on; "" where it does not
  int rank = 0;
  double alpha = 0;
  bool rank_stabilised = false;
  std::vector<std::pair<ModulePattern, int>> ranks;      // exceptions
  std::vector<std::pair<ModulePattern, double>> alphas;  // exceptions
  // Ends of module names; absent where target_modules is a regular expression or "all-linear": then the tensors alone
  // say which modules have an update. (A stranger's regular expression is not evaluated.)
  std::optional<std::vector<std::string>> targets;
  std::vector<int64_t> layers;  // layers_to_transform; empty: all

  bool IsTarget(std::string_view module) const;
  // Of one module. INVALID_ARGUMENT where two patterns match and disagree.
  absl::StatusOr<int> RankOf(std::string_view module) const;
  absl::StatusOr<double> AlphaOf(std::string_view module) const;
};

// Everything that makes the adapter more than low-rank pairs beside the base model's own weights is refused by its key:
// DoRA, biases, modules_to_save, trainable tokens, initialisations that change the base model (PiSSA, OLoRA, CorDA,
// LoftQ), and keys that are not known and are set. All faults at once, in one INVALID_ARGUMENT that begins with
// `where`.
absl::StatusOr<PeftConfig> ParsePeftConfig(std::string_view json, const std::string& where);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_PEFT_ADAPTER_CONFIG_H_
