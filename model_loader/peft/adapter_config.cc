#include "model_loader/peft/adapter_config.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model_loader/format/json_fields.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

using nlohmann::json;

// The limits of adapter.json (FORMAT.md), which this becomes.
constexpr int64_t kMaxRank = 65'536;
constexpr double kMaxAlpha = 1e6;
constexpr size_t kMaxPatterns = 4096;
constexpr int64_t kMaxLayer = 1'023;

// Null, false, empty: what a feature that is not used leaves in the file.
bool IsUnset(const json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         ((value.is_array() || value.is_object()) && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

std::string Shown(const json& value) { return Printable(value.dump(-1, ' ', false, json::error_handler_t::replace)); }

// Keys that say nothing about the arithmetic of a finished adapter: how it was trained.
// `eva_config` and `corda_config` belong to init_lora_weights, which is checked. fan_in_fan_out is for layers that
// store their weight transposed; the low-rank pair has the same shapes either way, and no family here has such layers.
constexpr const char* kHarmless[] = {"revision",       "task_type",       "peft_version",        "auto_mapping",
                                     "inference_mode", "lora_dropout",    "megatron_core",       "qalora_group_size",
                                     "loftq_config",   "eva_config",      "corda_config",        "lora_ga_config",
                                     "layers_pattern", "exclude_modules", "ensure_weight_tying", "fan_in_fan_out",
                                     "runtime_config", "megatron_config"};

// Keys that change what the adapter computes, and what they are.
constexpr std::pair<const char*, const char*> kRefused[] = {
    {"use_dora", "DoRA rescales the base model's weights"},
    {"modules_to_save", "it replaces whole modules of the base model"},
    {"trainable_token_indices", "it changes rows of the embedding table"},
    {"target_parameters", "it changes parameters that are no linear layers"},
    {"lora_bias", "it adds biases"},
    {"use_qalora", "QALoRA pools the inputs"},
    {"use_bdlora", "its matrices are block-diagonal"},
    {"layer_replication", "it repeats layers of the base model"},
    {"alora_invocation_tokens", "it is switched on by tokens of the text"},
};

class Reader {
 public:
  Reader(const json& root, Faults* faults) : root_(root), faults_(*faults), fields_(&root, "", faults) {}

  PeftConfig Read() {
    PeftConfig config;
    const std::string type = fields_.String("peft_type");
    if (fields_.Has("peft_type") && type != "LORA") {
      fields_.Fault("peft_type", absl::StrCat("is \"", Printable(type), "\"; LORA adapters are read"));
    }
    if (const json* base = Take("base_model_name_or_path"); base != nullptr && base->is_string()) {
      config.base_model = base->get<std::string>();
    }
    config.rank = static_cast<int>(fields_.Int("r", 1, kMaxRank, 8));
    config.alpha = fields_.Number("lora_alpha", 0, true, kMaxAlpha, 8);
    config.rank_stabilised = fields_.Bool("use_rslora", false);
    const json* bias = Take("bias");
    if (bias != nullptr && !IsUnset(*bias) && *bias != "none") {
      fields_.Fault("bias", absl::StrCat("is ", Shown(*bias), ": trained biases are not supported"));
    }
    for (const auto& [key, why] : kRefused) {
      const json* value = Take(key);
      if (value != nullptr && !IsUnset(*value)) {
        fields_.Fault(key, absl::StrCat("is ", Shown(*value), ", which is not supported: ", why));
      }
    }
    Initialisation();
    Targets(config);
    Patterns("rank_pattern", [&](const ModulePattern& pattern, const std::string& key, const json& value) {
      const bool whole = value.is_number_integer() && value >= 1 && value <= kMaxRank;
      if (whole) config.ranks.emplace_back(pattern, value.get<int>());
      if (!whole) Bad("rank_pattern", key, value, absl::StrCat("an integer from 1 to ", kMaxRank));
    });
    Patterns("alpha_pattern", [&](const ModulePattern& pattern, const std::string& key, const json& value) {
      const double number = value.is_number() ? value.get<double>() : 0;
      const bool fine = std::isfinite(number) && number > 0 && number <= kMaxAlpha;
      if (fine) config.alphas.emplace_back(pattern, number);
      if (!fine) Bad("alpha_pattern", key, value, absl::StrCat("a number above 0 to ", kMaxAlpha));
    });
    Layers(config);
    Rest();
    return config;
  }

 private:
  const json* Take(const char* key) {
    taken_.insert(key);
    return fields_.Any(key);
  }

  void Bad(const char* key, const std::string& name, const json& value, absl::string_view expected) {
    fields_.Fault(key, absl::StrCat("\"", Printable(name), "\" must be ", expected, ", not ", Shown(value)));
  }

  // Some ways of starting subtract their start from the base model: the pair then fits a base model that nobody has.
  void Initialisation() {
    const json* value = Take("init_lora_weights");
    if (value == nullptr || value->is_boolean() || value->is_null()) return;
    for (const char* harmless : {"gaussian", "eva", "orthogonal"}) {
      if (*value == harmless) return;
    }
    fields_.Fault("init_lora_weights",
                  absl::StrCat("is ", Shown(*value),
                               ", which may change the base model's weights: save the adapter converted to plain LoRA "
                               "(save_pretrained with path_initial_model_for_weight_conversion)"));
  }

  void Targets(PeftConfig& config) {
    const json* value = Take("target_modules");
    if (value == nullptr || value->is_null() || value->is_string()) return;
    if (!value->is_array() || value->size() > kMaxPatterns) {
      fields_.Fault("target_modules", "must be a list of module names or a regular expression");
      return;
    }
    config.targets = fields_.Strings("target_modules", true);
  }

  template <typename Use>
  void Patterns(const char* key, const Use& use) {
    const json* value = Take(key);
    if (value == nullptr || value->is_null()) return;
    if (!value->is_object() || value->size() > kMaxPatterns) {
      fields_.Fault(key, absl::StrCat("must be an object of at most ", kMaxPatterns, " values by modules"));
      return;
    }
    for (const auto& [name, element] : value->items()) {
      ModulePattern pattern;
      std::string_view text = name;
      if (!text.empty() && text.front() == '^') {
        pattern.whole = true;
        text.remove_prefix(1);
      }
      if (!text.empty() && text.back() == '$') text.remove_suffix(1);
      // An escaped dot is a dot.
      for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == '.') ++i;
        pattern.text += text[i];
      }
      const bool plain = !pattern.text.empty() && std::all_of(pattern.text.begin(), pattern.text.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
      });
      if (!plain) {
        fields_.Fault(key, absl::StrCat("\"", Printable(name),
                                        "\" is a regular expression; names of modules, or of their ends, are read"));
        continue;
      }
      use(pattern, name, element);
    }
  }

  void Layers(PeftConfig& config) {
    const json* value = Take("layers_to_transform");
    if (value == nullptr || value->is_null()) return;
    if (value->is_array()) {
      config.layers = fields_.Ints("layers_to_transform", 0, kMaxLayer);
    } else {
      config.layers = {fields_.Int("layers_to_transform", 0, kMaxLayer)};
    }
  }

  void Rest() {
    for (const char* key : {"peft_type", "r", "lora_alpha", "use_rslora"}) taken_.insert(key);
    for (const char* key : kHarmless) taken_.insert(key);
    if (!root_.is_object()) return;
    for (const auto& [key, value] : root_.items()) {
      if (taken_.count(key) != 0 || IsUnset(value)) continue;
      faults_.Add(Printable(key), absl::StrCat("is ", Shown(value), ", and its meaning is not known"));
    }
  }

  const json& root_;
  Faults& faults_;
  Fields fields_;
  std::set<std::string, std::less<>> taken_;
};

// The value of the pattern that matches, or `otherwise`.
template <typename T>
absl::StatusOr<T> Value(const std::vector<std::pair<ModulePattern, T>>& patterns, std::string_view module, T otherwise,
                        const char* key) {
  std::optional<T> found;
  for (const auto& [pattern, value] : patterns) {
    if (!pattern.Matches(module)) continue;
    if (found.has_value() && *found != value) {
      return absl::InvalidArgumentError(
          absl::StrCat(key, " gives ", Printable(module), " both ", *found, " and ", value));
    }
    found = value;
  }
  return found.value_or(otherwise);
}

bool EndsAtDot(std::string_view module, std::string_view end) {
  return module == end || (module.size() > end.size() && module.substr(module.size() - end.size()) == end &&
                           module[module.size() - end.size() - 1] == '.');
}

}  // namespace

bool ModulePattern::Matches(std::string_view module) const { return whole ? module == text : EndsAtDot(module, text); }

bool PeftConfig::IsTarget(std::string_view module) const {
  if (targets.has_value() && std::none_of(targets->begin(), targets->end(),
                                          [&](const std::string& target) { return EndsAtDot(module, target); })) {
    return false;
  }
  if (layers.empty()) return true;
  // Which of the numbers in a name is the layer's depends on the family; one of them must be listed.
  for (size_t begin = 0; begin <= module.size();) {
    const size_t end = std::min(module.find('.', begin), module.size());
    const std::string_view part = module.substr(begin, end - begin);
    begin = end + 1;
    if (part.empty() || part.size() > 4 || part.find_first_not_of("0123456789") != std::string_view::npos) continue;
    int64_t number = 0;
    for (const char c : part) number = 10 * number + (c - '0');
    if (std::find(layers.begin(), layers.end(), number) != layers.end()) return true;
  }
  return false;
}

absl::StatusOr<int> PeftConfig::RankOf(std::string_view module) const {
  return Value(ranks, module, rank, "rank_pattern");
}

absl::StatusOr<double> PeftConfig::AlphaOf(std::string_view module) const {
  return Value(alphas, module, alpha, "alpha_pattern");
}

absl::StatusOr<PeftConfig> ParsePeftConfig(std::string_view text, const std::string& where) {
  const absl::StatusOr<json> root = ParseStrictJson(text);
  if (!root.ok()) return absl::Status(root.status().code(), absl::StrCat(where, ": ", root.status().message()));
  Faults faults(where);
  PeftConfig config = Reader(*root, &faults).Read();
  if (!faults.empty()) return faults.ToStatus();
  return config;
}

}  // namespace koine::model_loader
