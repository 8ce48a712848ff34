#include "model_loader/peft/add_adapter.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/ops/ops.h"
#include "model_loader/checkpoint/checkpoint_tensors.h"
#include "model_loader/format/config.h"
#include "model_loader/format/folder.h"
#include "model_loader/format/json_fields.h"
#include "model_loader/format/tensor_table.h"
#include "model_loader/importer/hf_names.h"
#include "model_loader/model/language_names.h"
#include "model_loader/peft/adapter_config.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/writer/checksums.h"
#include "model_loader/writer/model_writer.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;

// The two halves of a module's update.
struct Pair {
  const CheckpointTensor* a = nullptr;
  const CheckpointTensor* b = nullptr;
};

// "base_model.model.<module>.lora_A.weight", in older files "....lora_A.default.weight" -> the module, and which half.
std::optional<std::pair<std::string, bool>> SplitName(std::string_view name) {
  constexpr std::string_view kPrefix = "base_model.model.";
  if (name.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  for (const auto& [suffix, is_a] : {std::pair<std::string_view, bool>{".lora_A.weight", true},
                                     {".lora_B.weight", false},
                                     {".lora_A.default.weight", true},
                                     {".lora_B.default.weight", false}}) {
    if (name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix) {
      return std::pair(std::string(name.substr(0, name.size() - suffix.size())), is_a);
    }
  }
  return std::nullopt;
}

// What a tensor is that is no half of a pair.
const char* WhatElse(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (has("lora_magnitude_vector")) return "a magnitude of DoRA, which is not supported";
  if (has("lora_embedding_")) return "an update of an embedding table, which is not supported";
  if (has("lora_B.bias") || has("lora_A.bias")) return "a bias of the update, which is not supported";
  if (has("token_adapter")) return "trained rows of an embedding table, which are not supported";
  if (has("modules_to_save")) return "a whole module (modules_to_save), which is not supported";
  return "neither lora_A nor lora_B of a module: whole parameters (modules_to_save, biases, embeddings) are not "
         "supported";
}

bool AllNumbers(const CheckpointTensor& tensor) {
  std::vector<float> row(static_cast<size_t>(tensor.row_elements()));
  for (int64_t i = 0; i < tensor.rows(); ++i) {
    if (!tensor.ReadRows(i, 1, absl::MakeSpan(row)).ok()) return false;
    if (!kernels::AllFinite(row.data(), tensor.row_elements())) return false;
  }
  return true;
}

// Codes of the languages that are asked for.
absl::StatusOr<std::vector<std::string>> FindLanguages(const fs::path& model, const std::vector<std::string>& asked) {
  LanguageNames names;
  std::error_code error;
  for (const std::string& folder : FoldersIn((model / "languages").string())) {
    const absl::StatusOr<LanguageConfig> language = ReadLanguageConfig((model / "languages" / folder).string());
    if (!language.ok()) return language.status();
    if (const absl::Status added = names.Add(*language); !added.ok()) return added;
  }
  if (!fs::is_directory(model / "languages", error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(model.string(),
                     ": the model has no language folders, and an adapter belongs to a language; import the "
                     "checkpoint with --languages"));
  }
  std::vector<std::string> codes;
  for (const std::string& name : asked) {
    const absl::StatusOr<std::string> code = names.Find(name);
    if (!code.ok()) return code.status();
    if (std::find(codes.begin(), codes.end(), *code) == codes.end()) codes.push_back(*code);
  }
  if (codes.empty()) return absl::InvalidArgumentError("no language is given");
  return codes;
}

// Holds the pairs against the configuration and the model; fills the adapter's description.
class Fitting {
 public:
  Fitting(const ModelConfig& model, const PeftConfig& peft, Faults* faults) : peft_(peft), faults_(*faults) {
    adapter_.kind = AdapterKind::kLora;
    adapter_.rank = peft.rank;
    adapter_.alpha = peft.alpha;
    adapter_.rank_stabilised = peft.rank_stabilised;
    for (const TensorSpec& spec : AdapterTensors(model, adapter_)) specs_.emplace(spec.name, spec.shape);
  }

  // The projection's name in the layout; "" if something is wrong, which is noted.
  std::string Fit(const std::string& module, const Pair& pair) {
    const std::string projection = KoineModuleName(module);
    const auto a = specs_.find(projection + ".lora.a"), b = specs_.find(projection + ".lora.b");
    if (a == specs_.end() || b == specs_.end()) {
      Fault(module, projection == "embedding" || projection == "output"
                        ? "updates of the embedding table or the output are not supported"
                        : "the model has no such projection");
      return "";
    }
    if (!peft_.IsTarget(module)) Fault(module, "has an update, but target_modules or layers_to_transform exclude it");
    if (pair.a == nullptr || pair.b == nullptr) {
      Fault(module, pair.a == nullptr ? "lora_A is missing" : "lora_B is missing");
      return "";
    }
    const absl::StatusOr<int> rank = peft_.RankOf(module);
    const absl::StatusOr<double> alpha = peft_.AlphaOf(module);
    for (const absl::Status& status : {rank.status(), alpha.status()}) {
      if (!status.ok()) Fault(module, status.message());
    }
    if (!rank.ok() || !alpha.ok()) return "";
    const std::vector<int64_t> shape_a = {*rank, a->second[1]}, shape_b = {b->second[0], *rank};
    Check(module, "lora_A", *pair.a, shape_a);
    Check(module, "lora_B", *pair.b, shape_b);
    if (*rank != peft_.rank || *alpha != peft_.alpha) adapter_.pairs[projection] = {*rank, *alpha};
    ranks_.push_back(*rank);
    return projection;
  }

  const AdapterConfig& adapter() const { return adapter_; }
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  void Fault(const std::string& module, absl::string_view text) { faults_.Add(Printable(module), text); }

  void Check(const std::string& module, const char* half, const CheckpointTensor& tensor,
             const std::vector<int64_t>& shape) {
    if (tensor.shape != shape) {
      Fault(module, absl::StrCat(half, " is ", ShapeToString(tensor.shape), ", not ", ShapeToString(shape)));
    } else if (!tensor.is_float()) {
      Fault(module, absl::StrCat(half, " is ", Name(tensor.type), ", not F32, F16 or BF16"));
    } else if (!AllNumbers(tensor)) {
      Fault(module, absl::StrCat(half, " holds a NaN or an infinity"));
    }
  }

  const PeftConfig& peft_;
  Faults& faults_;
  AdapterConfig adapter_;
  std::map<std::string, std::vector<int64_t>> specs_;
  std::vector<int> ranks_;
};

absl::Status AddTensor(const std::string& name, const CheckpointTensor& tensor, SafetensorsWriter* writer) {
  return writer->AddRows(name, *tensor.float_type(), tensor.shape,
                         [&tensor](int64_t first, int64_t count, absl::Span<uint8_t> chunk) {
                           return tensor.ReadBytes(first, count, chunk);
                         });
}

}  // namespace

absl::StatusOr<AddAdapterReport> AddPeftAdapter(const AddAdapterOptions& options) {
  AddAdapterReport report;
  const absl::StatusOr<ModelConfig> model = ReadModelConfig(options.model);
  if (!model.ok()) return model.status();
  auto codes = FindLanguages(options.model, options.languages);
  if (!codes.ok()) return codes.status();
  report.languages = *std::move(codes);
  fs::path folder(options.adapter);
  if (!folder.has_filename()) folder = folder.parent_path();
  report.name = options.name.empty() ? folder.filename().string() : options.name;
  if (!IsLanguageCode(report.name) || report.name == "none") {
    return absl::InvalidArgumentError(absl::StrCat("\"", Printable(report.name), "\" is no name of an adapter (",
                                                   kCodeRule, ", and not \"none\"); give one with --name"));
  }

  const std::string config_path = (folder / "adapter_config.json").string();
  const absl::StatusOr<std::string> text = ReadJsonText(config_path);
  if (!text.ok()) return text.status();
  const absl::StatusOr<PeftConfig> peft = ParsePeftConfig(*text, config_path);
  const auto tensors = CheckpointTensors::Open(options.adapter, CheckpointKind::kAdapter);
  // The configuration says why before the tensors say that.
  if (!peft.ok()) return peft.status();
  if (!tensors.ok()) return tensors.status();
  if (const absl::Status status = (*tensors)->VerifyChecksums(); !status.ok()) return status;
  report.base_model = peft->base_model;
  report.warnings = (*tensors)->warnings();

  Faults faults((*tensors)->files().front());
  std::map<std::string, Pair> pairs;
  for (const auto& [name, tensor] : (*tensors)->tensors()) {
    const auto split = SplitName(name);
    if (!split.has_value()) {
      faults.Add(Printable(name), WhatElse(name));
      continue;
    }
    Pair& pair = pairs[split->first];
    const CheckpointTensor*& half = split->second ? pair.a : pair.b;
    if (half != nullptr) faults.Add(Printable(name), "stands there twice, once as \"default\"");
    half = &tensor;
  }
  if (pairs.empty() && faults.empty()) faults.Add("", "holds no lora_A and lora_B");

  Fitting fitting(*model, *peft, &faults);
  SafetensorsWriter writer;
  absl::Status status;
  std::map<std::string, std::string> modules;  // by projection
  for (const auto& [module, pair] : pairs) {
    const std::string projection = fitting.Fit(module, pair);
    if (projection.empty() || !faults.empty()) continue;
    const auto [other, fresh] = modules.emplace(projection, module);
    if (!fresh) {
      faults.Add(Printable(module), absl::StrCat("is the same projection as ", Printable(other->second)));
      continue;
    }
    status.Update(AddTensor(projection + ".lora.a", *pair.a, &writer));
    status.Update(AddTensor(projection + ".lora.b", *pair.b, &writer));
    report.parameters += pair.a->elements() + pair.b->elements();
  }
  if (!faults.empty()) return faults.ToStatus();
  if (!status.ok()) return status;
  report.pairs = static_cast<int64_t>(pairs.size());
  report.smallest_rank = *std::min_element(fitting.ranks().begin(), fitting.ranks().end());
  report.largest_rank = *std::max_element(fitting.ranks().begin(), fitting.ranks().end());
  report.bytes = static_cast<int64_t>(writer.data_bytes());

  const auto place = [&](const std::string& code) {
    return fs::path(options.model) / "languages" / code / "adapters" / report.name;
  };
  std::error_code error;
  for (const std::string& code : report.languages) {
    if (fs::exists(place(code), error)) {
      return absl::AlreadyExistsError(absl::StrCat(place(code).string(), " exists already"));
    }
  }
  const ModelWriter folder_writer(options.model);
  for (size_t i = 0; i < report.languages.size() && status.ok(); ++i) {
    status = folder_writer.WriteAdapter(*model, report.languages[i], report.name, fitting.adapter(), writer);
    if (status.ok()) continue;
    while (i-- > 0) fs::remove_all(place(report.languages[i]), error);
    return status;
  }
  for (const std::string& code : report.languages) {
    status = AddChecksums(options.model, place(code).lexically_relative(options.model).string());
    if (!status.ok()) report.warnings.emplace_back(status.message());
  }
  return report;
}

}  // namespace koine::model_loader
