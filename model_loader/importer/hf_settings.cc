#include "model_loader/importer/hf_settings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "model_loader/format/json_fields.h"
#include "model_loader/importer/hf_files.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

using nlohmann::json;

// "sentence_transformers.models.Pooling" -> "Pooling"
std::string LastPart(const std::string& type) { return type.substr(type.rfind('.') + 1); }

// Names of prompts are words of requests: letters, digits, '-' and '_'.
std::string PromptName(std::string name) {
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') c = '_';
  }
  while (!name.empty() && !absl::ascii_isalnum(static_cast<unsigned char>(name.front()))) name.erase(0, 1);
  return name.substr(0, 64);
}

absl::StatusOr<json> NeedObject(const std::string& path) {
  absl::StatusOr<json> value = ReadHfJson(path);
  if (value.ok() && !value->is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": must be an object"));
  return value;
}

absl::Status ReadPoolingModule(const std::string& path, Pooling& pooling, bool& include_prompt) {
  const absl::StatusOr<json> value = NeedObject(path);
  if (!value.ok()) return value.status();
  Faults faults(path);
  Fields fields(&*value, "", &faults);
  const std::map<std::string, std::string> flags = {{"pooling_mode_cls_token", "cls"},
                                                    {"pooling_mode_mean_tokens", "mean"},
                                                    {"pooling_mode_max_tokens", "max"},
                                                    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"},
                                                    {"pooling_mode_weightedmean_tokens", "weightedmean"},
                                                    {"pooling_mode_lasttoken", "lasttoken"}};
  std::vector<std::string> modes;
  if (const json* mode = fields.Any("pooling_mode"); mode != nullptr) {
    if (mode->is_string()) modes.push_back(mode->get<std::string>());
    if (mode->is_array()) {
      for (const json& one : *mode) modes.push_back(one.is_string() ? one.get<std::string>() : "?");
    }
  } else {
    for (const auto& [flag, mode_name] : flags) {
      // Pooling.__init__: mean_tokens is true unless said otherwise.
      if (fields.Bool(flag.c_str(), flag == "pooling_mode_mean_tokens" && !fields.Has("pooling_mode_cls_token"))) {
        modes.push_back(mode_name);
      }
    }
  }
  if (modes.size() != 1) {
    faults.Add("", absl::StrCat(modes.size(), " pooling modes are on; exactly one is supported"));
  } else if (modes.front() == "mean") {
    pooling.mode = PoolingMode::kMean;
  } else if (modes.front() == "cls") {
    pooling.mode = PoolingMode::kCls;
  } else {
    faults.Add("", absl::StrCat("pooling mode \"", Printable(modes.front()), "\" is not supported (mean, cls)"));
  }
  include_prompt = fields.Bool("include_prompt", true);
  return faults.ToStatus();
}

absl::Status ReadDenseModule(const std::string& path, PoolingDense& dense) {
  const absl::StatusOr<json> value = NeedObject(path);
  if (!value.ok()) return value.status();
  Faults faults(path);
  Fields fields(&*value, "", &faults);
  dense.size = fields.Int("out_features", 1, 65'536);
  dense.bias = fields.Bool("bias", true);
  const std::string activation = LastPart(fields.String("activation_function", "torch.nn.modules.activation.Tanh"));
  if (activation == "Tanh") {
    dense.activation = DenseActivation::kTanh;
  } else if (activation == "Identity") {
    dense.activation = DenseActivation::kIdentity;
  } else {
    fields.Fault("activation_function",
                 absl::StrCat("\"", Printable(activation), "\" is not supported (Tanh, Identity)"));
  }
  return faults.ToStatus();
}

absl::Status ReadPromptFile(const std::string& path, SentenceSettings& settings) {
  const absl::StatusOr<std::optional<json>> value = ReadHfJsonIfThere(path);
  if (!value.ok()) return value.status();
  if (!value->has_value()) return absl::OkStatus();
  if (!(*value)->is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": must be an object"));
  const json& object = **value;
  if (const auto prompts = object.find("prompts"); prompts != object.end()) {
    if (!prompts->is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": prompts: must be an object"));
    for (const auto& [name, text] : prompts->items()) {
      if (!text.is_string()) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": prompts.", Printable(name), ": must be a text"));
      }
      // An empty prompt is none, which a request can say anyway.
      if (!text.get_ref<const std::string&>().empty()) settings.prompts[PromptName(name)] = text.get<std::string>();
    }
  }
  if (const auto name = object.find("default_prompt_name"); name != object.end() && name->is_string()) {
    const std::string chosen = PromptName(name->get<std::string>());
    if (settings.prompts.count(chosen) != 0) settings.default_prompt = chosen;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SentenceSettings> ReadSentenceSettings(const std::string& folder) {
  SentenceSettings settings;
  const std::string path = absl::StrCat(folder, "/modules.json");
  absl::StatusOr<std::optional<json>> modules = ReadHfJsonIfThere(path);
  if (!modules.ok()) return modules.status();
  if (!modules->has_value()) return settings;
  settings.present = true;
  settings.pooling.normalize = false;
  const auto fault = [&path](auto&&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", parts...));
  };
  if (!(*modules)->is_array() || (*modules)->size() < 2 || (*modules)->size() > 16) {
    return fault("must be a list of modules: a Transformer, a Pooling, perhaps a Dense and a Normalize");
  }
  // The one order that makes sense here, each but the first two optional.
  const std::vector<std::string> order = {"Transformer", "Pooling", "Dense", "Normalize"};
  size_t next = 0;
  std::string pooling_config;
  bool include_prompt = true;
  for (const json& module : **modules) {
    const json* type = module.is_object() && module.contains("type") ? &module["type"] : nullptr;
    const json* where = module.is_object() && module.contains("path") ? &module["path"] : nullptr;
    if (type == nullptr || where == nullptr || !type->is_string() || !where->is_string()) {
      return fault("every module must have a type and a path");
    }
    const std::string name = LastPart(type->get<std::string>());
    const std::string place = where->get<std::string>();
    const auto found = std::find(order.begin(), order.end(), name);
    const auto index = static_cast<size_t>(found - order.begin());
    if (found == order.end()) return fault("modules of type \"", Printable(name), "\" are not supported");
    if (index < next || (next < 2 && index != next)) {
      return fault("a ", name, " at this place is not supported (the order is Transformer, Pooling, Dense, Normalize)");
    }
    next = index + 1;
    if (!place.empty() && !IsPlainFileName(place)) {
      return fault("\"", Printable(place), "\" is no name of a folder beside it");
    }
    const std::string config = absl::StrCat(folder, "/", place, place.empty() ? "" : "/", "config.json");
    absl::Status status;
    if (name == "Transformer") {
      settings.transformer_folder = place;
    } else if (name == "Pooling") {
      pooling_config = config;
      status = ReadPoolingModule(config, settings.pooling, include_prompt);
    } else if (name == "Dense") {
      settings.dense_folder = place;
      settings.pooling.dense.emplace();
      status = ReadDenseModule(config, *settings.pooling.dense);
    } else {
      settings.pooling.normalize = true;
    }
    if (!status.ok()) return status;
  }
  if (next < 2) return fault("has no Pooling");
  const std::string inner =
      settings.transformer_folder.empty() ? folder : absl::StrCat(folder, "/", settings.transformer_folder);
  const std::string length_path = absl::StrCat(inner, "/sentence_bert_config.json");
  absl::StatusOr<std::optional<json>> length = ReadHfJsonIfThere(length_path);
  if (!length.ok()) return length.status();
  if (length->has_value()) {
    Faults faults(length_path);
    Fields fields(&**length, "", &faults);
    settings.max_seq_length = fields.Int("max_seq_length", 0, 1'048'576, 0);
    settings.lower_case = fields.Bool("do_lower_case", false);
    if (!faults.empty()) return faults.ToStatus();
  }
  if (absl::Status status = ReadPromptFile(absl::StrCat(folder, "/config_sentence_transformers.json"), settings);
      !status.ok()) {
    return status;
  }
  // Without prompts there is nothing to leave out.
  if (!include_prompt && !settings.prompts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        pooling_config, ": include_prompt: is false: leaving the prompt's tokens out of the mean is not supported"));
  }
  return settings;
}

absl::StatusOr<GenerationSettings> ReadGenerationSettings(const std::string& folder, const HfConfig& config,
                                                          const Tokenizer& tokenizer) {
  GenerationSettings settings;
  std::string path = absl::StrCat(folder, "/generation_config.json");
  absl::StatusOr<std::optional<json>> own = ReadHfJsonIfThere(path);
  if (!own.ok()) return own.status();
  const bool separate = own->has_value();
  if (!separate) path = absl::StrCat(folder, "/config.json");
  const json& object = separate ? **own : config.raw;
  Faults faults(path);
  Fields fields(&object, "", &faults);
  Generation& generation = settings.generation;
  constexpr int64_t kMost = 1'048'576;
  const auto integer = [&](const char* key, int64_t least) -> std::optional<int64_t> {
    return fields.Has(key) ? std::optional<int64_t>(fields.Int(key, least, kMost)) : std::nullopt;
  };
  if (const auto beams = integer("num_beams", 1); beams.has_value()) generation.beam_size = static_cast<int>(*beams);
  if (const json* penalty = fields.Any("length_penalty"); penalty != nullptr) {
    if (penalty->is_number()) {
      generation.length_penalty = penalty->get<double>();
    } else {
      fields.Fault("length_penalty", "must be a number");
    }
  }
  if (const json* early = fields.Any("early_stopping"); early != nullptr) {
    if (early->is_boolean()) {
      generation.early_stopping = *early == true ? kernels::EarlyStopping::kYes : kernels::EarlyStopping::kNo;
    } else if (*early == "never") {
      generation.early_stopping = kernels::EarlyStopping::kNever;
    } else {
      fields.Fault("early_stopping", "must be true, false or \"never\"");
    }
  }
  // The library's lengths count the start token, which is not generated.
  if (const auto length = integer("max_length", 1); length.has_value() && *length > 1) {
    generation.max_tokens = *length - 1;
  }
  if (const auto length = integer("max_new_tokens", 1); length.has_value()) generation.max_tokens = length;
  if (const auto length = integer("min_length", 0); length.has_value() && *length > 1) {
    generation.min_tokens = *length - 1;
  }
  if (const auto length = integer("min_new_tokens", 0); length.has_value()) generation.min_tokens = length;

  const auto id = [&](const char* key, std::optional<int64_t> otherwise) -> std::optional<int64_t> {
    const json* value = fields.Any(key);
    if (value == nullptr) return otherwise;
    if (value->is_array() && value->size() == 1) value = &value->front();
    if (!value->is_number_integer()) {
      fields.Fault(key, "must be one integer");
      return otherwise;
    }
    const int64_t number = value->get<int64_t>();
    return number < 0 ? std::nullopt : std::optional<int64_t>(number);
  };
  settings.decoder_start = id("decoder_start_token_id", config.decoder_start);
  // What ends a translation is what the tokenizer puts behind a text, too.
  if (const auto end = id("eos_token_id", config.eos); end != config.eos) {
    fields.Fault("eos_token_id", absl::StrCat("is ", end.value_or(-1), ", but config.json's is ",
                                              config.eos.value_or(-1), ": another end mark is not supported"));
  }
  settings.forced_start = id("forced_bos_token_id", std::nullopt);
  // Only the configuration classes of these two set it by themselves, and only where no file of its own says it all.
  const bool by_default = !separate && (config.family == HfFamily::kMBart || config.family == HfFamily::kMarian);
  if (const auto end = id("forced_eos_token_id", by_default ? config.eos : std::nullopt); end.has_value()) {
    if (end == config.eos) {
      generation.forced_end = true;
    } else {
      fields.Fault("forced_eos_token_id", absl::StrCat("is ", *end, ", which is not the end mark"));
    }
  }
  const auto suppress = [&](const json& number, const char* key) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() >= uint64_t{1} << 22) {
      fields.Fault(key, "must hold ids");
      return;
    }
    const auto token = static_cast<int32_t>(number.get<uint64_t>());
    std::string piece = tokenizer.IdToPiece(token);
    // An id that no piece has is never generated anyway.
    if (!piece.empty()) generation.suppressed.push_back(std::move(piece));
  };
  if (const json* words = fields.Any("bad_words_ids"); words != nullptr) {
    if (!words->is_array() || words->size() > 4'096) fields.Fault("bad_words_ids", "must be a list of at most 4096");
    for (const json& word : words->is_array() ? *words : json::array()) {
      if (word.is_array() && word.size() == 1) {
        suppress(word.front(), "bad_words_ids");
      } else if (word.is_array()) {
        settings.notes.push_back("bad_words_ids: a sequence of several tokens is not carried over");
      } else {
        fields.Fault("bad_words_ids", "must be a list of lists of ids");
      }
    }
  }
  if (const json* tokens = fields.Any("suppress_tokens"); tokens != nullptr) {
    if (!tokens->is_array() || tokens->size() > 4'096)
      fields.Fault("suppress_tokens", "must be a list of at most 4096");
    for (const json& token : tokens->is_array() ? *tokens : json::array()) suppress(token, "suppress_tokens");
  }
  // What changes outputs there and has no place here as a default.
  const std::pair<const char*, json> neutral[] = {{"do_sample", false},
                                                  {"repetition_penalty", 1.0},
                                                  {"no_repeat_ngram_size", 0},
                                                  {"encoder_no_repeat_ngram_size", 0},
                                                  {"diversity_penalty", 0.0},
                                                  {"num_beam_groups", 1},
                                                  {"exponential_decay_length_penalty", json()},
                                                  {"begin_suppress_tokens", json()},
                                                  {"renormalize_logits", false}};
  for (const auto& [key, value] : neutral) {
    const json* found = fields.Any(key);
    if (found != nullptr && *found != value) {
      settings.notes.push_back(absl::StrCat(key, " ", Printable(found->dump(-1, ' ', true)),
                                            " is not carried over: it is no default of a model here"));
    }
  }
  if (!faults.empty()) return faults.ToStatus();
  return settings;
}

std::map<std::string, std::string> TaskPrompts(const HfConfig& config) {
  std::map<std::string, std::string> prompts;
  const auto tasks = config.raw.find("task_specific_params");
  if (tasks == config.raw.end() || !tasks->is_object()) return prompts;
  for (const auto& [task, settings] : tasks->items()) {
    if (!settings.is_object()) continue;
    const auto prefix = settings.find("prefix");
    const std::string name = PromptName(task);
    if (prefix == settings.end() || !prefix->is_string() || name.empty() || name == "none") continue;
    if (!prefix->get_ref<const std::string&>().empty()) prompts[name] = prefix->get<std::string>();
  }
  return prompts;
}

}  // namespace koine::model_loader
