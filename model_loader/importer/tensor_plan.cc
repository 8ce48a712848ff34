#include "model_loader/importer/tensor_plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "model_loader/format/tensor_table.h"
#include "model_loader/importer/families.h"
#include "model_loader/importer/hf_names.h"
#include "model_loader/safetensors/safetensors.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

// The number in "encoder.layers.12.ffn.up.weight", or -1; whether it is the decoder's.
int64_t LayerNumber(std::string_view koine_name, bool* decoder) {
  for (const std::string_view prefix : {std::string_view("encoder.layers."), std::string_view("decoder.layers.")}) {
    if (koine_name.substr(0, prefix.size()) != prefix) continue;
    *decoder = prefix.front() == 'd';
    int64_t number = 0;
    for (size_t i = prefix.size(); i < koine_name.size() && koine_name[i] != '.'; ++i) {
      number = number * 10 + (koine_name[i] - '0');  // at most six digits (hf_names)
    }
    return number;
  }
  return -1;
}

struct Named {
  std::string name;
  const CheckpointTensor* tensor;
};

class Planner {
 public:
  Planner(const CheckpointTensors& checkpoint, const CheckpointTensors* dense, const HfConfig& hf, std::string where,
          ModelConfig& config)
      : checkpoint_(checkpoint), dense_(dense), hf_(hf), where_(std::move(where)), config_(config) {}

  absl::StatusOr<TensorPlan> Plan() {
    absl::Status status = Sort();
    if (status.ok()) status = Tables();
    if (status.ok()) status = Match();
    if (!status.ok()) return status;
    return std::move(plan_);
  }

 private:
  template <typename... Parts>
  absl::Status Fault(const Parts&... parts) const {
    return absl::InvalidArgumentError(absl::StrCat(where_, ": ", parts...));
  }

  std::string Expected(const std::string& koine_name) const {
    if (dense_ != nullptr && absl::StartsWith(koine_name, "pooling.dense.")) {
      return absl::StrCat("linear.", absl::StripPrefix(koine_name, "pooling.dense."), " of the Dense module");
    }
    std::string name = HfParameterName(NamingOf(hf_.family), koine_name, hf_.gated_ffn);
    // The head is no part of the body.
    const bool head = absl::StartsWith(koine_name, "output.");
    return name.empty() ? koine_name : absl::StrCat(head ? "" : prefix_, name);
  }

  // Puts every tensor under Koine's name, or among what is dropped.
  absl::Status Sort() {
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      if (absl::StartsWith(name, "model.")) prefix_ = "model.";
      const std::string ours = KoineTensorName(name);
      const bool computed =
          absl::EndsWith(ours, ".positions.weight") && config_.positions.type != PositionType::kLearned;
      if (ours.empty() || computed) {
        (computed || IsKnownIgnorable(name) ? plan_.ignored : plan_.dropped).push_back(name);
      } else if (ours == "embedding.weight") {
        embeddings_.push_back({name, &tensor});
      } else if (const auto [other, fresh] = found_.emplace(ours, Named{name, &tensor}); !fresh) {
        return Fault("\"", Printable(other->second.name), "\" and \"", Printable(name), "\" are the same parameter");
      }
    }
    // shared before encoder.embed_tokens before decoder.embed_tokens, in every naming.
    std::stable_sort(embeddings_.begin(), embeddings_.end(), [](const Named& a, const Named& b) {
      const auto rank = [](const std::string& name) {
        return absl::StrContains(name, "shared") ? 0 : absl::StrContains(name, "encoder") ? 1 : 2;
      };
      return rank(a.name) < rank(b.name);
    });
    return absl::OkStatus();
  }

  // The table of tokens and the output projection (model-semantics, section 3; B043).
  absl::Status Tables() {
    const bool decodes = config_.kind == ModelKind::kEncoderDecoder;
    const bool t5 = hf_.family == HfFamily::kT5 || hf_.family == HfFamily::kMT5;
    const auto head = found_.find("output.weight");
    Named output = head == found_.end() ? Named{"", nullptr} : head->second;
    if (embeddings_.empty() && output.tensor != nullptr && hf_.tied && decodes) {
      embeddings_.push_back(output);  // one table under the head's name alone
    }
    if (embeddings_.empty()) {
      std::vector<std::string> names;
      if (NamingOf(hf_.family) == HfNaming::kBert) {
        names = {"embeddings.word_embeddings.weight"};
      } else {
        for (const char* name : {"shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}) {
          names.push_back(absl::StrCat(prefix_, name));
        }
        if (hf_.tied) names.push_back("lm_head.weight");
      }
      return Fault("no embedding table: none of ", absl::StrJoin(names, ", "), " is there");
    }
    const Named& table = embeddings_.front();
    plan_.tied.push_back(table.name);
    for (size_t i = 1; i < embeddings_.size(); ++i) {
      if (config_.kind == ModelKind::kEncoder && absl::StrContains(embeddings_[i].name, "decoder.")) continue;
      if (embeddings_[i].name == table.name) continue;
      if (!SameValues(*table.tensor, *embeddings_[i].tensor)) {
        return Fault("\"", table.name, "\" and \"", embeddings_[i].name,
                     "\" differ, but the encoder and the decoder of this family have one table");
      }
      embeddings_[i].tensor->DropPages();
      plan_.tied.push_back(embeddings_[i].name);
    }
    plan_.sources.emplace("embedding.weight", TensorSource{*table.tensor, table.name, std::nullopt});
    plan_.rows = table.tensor->rows();
    if (table.tensor->shape.size() != 2 || plan_.rows != hf_.rows) {
      return Fault("\"", table.name, "\" is ", ShapeToString(table.tensor->shape), ", but config.json says vocab_size ",
                   hf_.rows);
    }
    config_.architecture.tied_output = true;
    if (!decodes) {
      if (head != found_.end()) plan_.dropped.push_back(output.name);
      found_.erase("output.weight");
      if (const auto bias = found_.find("output.bias"); bias != found_.end()) {
        plan_.dropped.push_back(bias->second.name);
        found_.erase(bias);
      }
      return absl::OkStatus();
    }
    if (output.tensor != nullptr && output.name != table.name) {
      const bool same = SameValues(*table.tensor, *output.tensor);
      output.tensor->DropPages();
      if (same) {
        plan_.tied.push_back(output.name);
      } else if (hf_.tied && !t5) {
        return Fault("\"", output.name, "\" and \"", table.name,
                     "\" differ, but config.json says that they are tied (tie_word_embeddings)");
      } else {
        // T5's rule: a head of its own is used where there is one.
        if (hf_.tied) {
          plan_.notes.push_back(
              absl::StrCat("\"", output.name, "\" differs from \"", table.name,
                           "\" although config.json says tie_word_embeddings: the head's own is used"));
        }
        config_.architecture.tied_output = false;
        plan_.sources.emplace("output.weight", TensorSource{*output.tensor, output.name, std::nullopt});
      }
      table.tensor->DropPages();
    } else if (output.tensor == nullptr && !hf_.tied && !t5) {
      config_.architecture.tied_output = false;  // Match() says that it is missing
    }
    if (head != found_.end()) found_.erase(head);
    return Bias();
  }

  // final_logits_bias is [1, V] there; zeros, as in most published models, are no bias.
  absl::Status Bias() {
    const auto bias = found_.find("output.bias");
    if (bias == found_.end()) return absl::OkStatus();
    const Named source = bias->second;
    found_.erase(bias);
    CheckpointTensor flat = *source.tensor;
    const bool row = flat.shape.size() == 2 && flat.shape[0] == 1;
    if (!row && flat.shape.size() != 1) {
      return Fault("\"", source.name, "\" is ", ShapeToString(flat.shape), ", not [1, ", plan_.rows, "]");
    }
    if (row) {
      flat.shape.erase(flat.shape.begin());
      flat.strides.erase(flat.strides.begin());
    }
    if (!flat.is_float() || flat.rows() != plan_.rows) {
      return Fault("\"", source.name, "\" is ", Name(flat.type), " ", ShapeToString(flat.shape), ", but the table has ",
                   plan_.rows, " rows");
    }
    std::vector<float> values(static_cast<size_t>(flat.rows()));
    if (absl::Status status = flat.ReadRows(0, flat.rows(), absl::MakeSpan(values)); !status.ok()) return status;
    if (std::all_of(values.begin(), values.end(), [](float value) { return value == 0; })) {
      plan_.ignored.push_back(source.name);
      return absl::OkStatus();
    }
    config_.architecture.output_bias = true;
    plan_.sources.emplace("output.bias", TensorSource{flat, source.name, std::nullopt});
    return absl::OkStatus();
  }

  absl::Status Match() {
    if (dense_ != nullptr) {
      // The checkpoint's own pooler is another layer.
      for (const char* kind : {"weight", "bias"}) {
        if (const auto own = found_.find(absl::StrCat("pooling.dense.", kind)); own != found_.end()) {
          plan_.dropped.push_back(own->second.name);
          found_.erase(own);
        }
        const CheckpointTensor* tensor = dense_->Find(absl::StrCat("linear.", kind));
        if (tensor != nullptr) {
          found_.emplace(absl::StrCat("pooling.dense.", kind), Named{absl::StrCat("linear.", kind), tensor});
        }
      }
    }
    std::vector<std::string> missing, shapes, types, beyond;
    std::vector<TensorSpec> specs = SharedTensors(config_);
    if (!config_.shared_embedding) {
      const std::vector<TensorSpec> own = LanguageTensors(config_, AdapterConfig{});
      specs.insert(specs.end(), own.begin(), own.end());
    }
    for (const TensorSpec& spec : specs) {
      if (spec.integer) continue;
      auto source = plan_.sources.find(spec.name);
      if (source == plan_.sources.end()) {
        const auto found = found_.find(spec.name);
        if (found == found_.end()) {
          if (spec.required) missing.push_back(Expected(spec.name));
          continue;
        }
        source = plan_.sources.emplace(spec.name, TensorSource{*found->second.tensor, found->second.name, std::nullopt})
                     .first;
        found_.erase(found);
      }
      std::vector<int64_t> shape = spec.shape;
      for (int64_t& size : shape) {
        if (size == kVocabularyRows) size = plan_.rows;
      }
      const TensorSource& plan = source->second;
      if (plan.tensor.shape != shape) {
        shapes.push_back(absl::StrCat("\"", plan.name, "\" is ", ShapeToString(plan.tensor.shape),
                                      ", but config.json makes it ", ShapeToString(shape)));
      }
      if (!plan.tensor.is_float()) types.push_back(absl::StrCat("\"", plan.name, "\" is ", Name(plan.tensor.type)));
    }
    if (hf_.types > 0) Types(missing, shapes);
    for (const auto& [ours, named] : found_) {
      bool decoder = false;
      const int64_t layer = LayerNumber(ours, &decoder);
      const bool wanted = !decoder || config_.kind == ModelKind::kEncoderDecoder;
      if (layer >= (decoder ? hf_.decoder_layers : hf_.encoder_layers) && wanted) {
        beyond.push_back(named.name);
      } else {
        plan_.dropped.push_back(named.name);
      }
    }
    std::vector<std::string> groups;
    AppendGroup("missing tensors", missing, groups);
    AppendGroup("wrong shapes", shapes, groups);
    AppendGroup("types that hold no weights", types, groups);
    AppendGroup(absl::StrCat("layers that config.json, with ", hf_.encoder_layers,
                             hf_.encoder_only ? "" : absl::StrCat(" + ", hf_.decoder_layers), ", does not have"),
                beyond, groups);
    if (!groups.empty()) return Fault(absl::StrJoin(groups, "; "));
    std::sort(plan_.dropped.begin(), plan_.dropped.end());
    return absl::OkStatus();
  }

  void Types(std::vector<std::string>& missing, std::vector<std::string>& shapes) {
    const auto found = found_.find("encoder.types.weight");
    if (found == found_.end()) {
      missing.push_back(Expected("encoder.types.weight"));
      return;
    }
    const CheckpointTensor& types = *found->second.tensor;
    if (types.shape != std::vector<int64_t>{hf_.types, hf_.d_model} || !types.is_float()) {
      shapes.push_back(absl::StrCat("\"", found->second.name, "\" is ", ShapeToString(types.shape),
                                    ", but config.json makes it ", ShapeToString({hf_.types, hf_.d_model})));
    } else if (const auto positions = plan_.sources.find("encoder.positions.weight");
               positions != plan_.sources.end()) {
      positions->second.added_row = types;
    }
    found_.erase(found);
  }

  const CheckpointTensors& checkpoint_;
  const CheckpointTensors* const dense_;
  const HfConfig& hf_;
  const std::string where_;
  ModelConfig& config_;
  std::string prefix_;
  std::vector<Named> embeddings_;
  std::map<std::string, Named, std::less<>> found_;
  TensorPlan plan_;
};

}  // namespace

absl::StatusOr<TensorPlan> PlanTensors(const CheckpointTensors& checkpoint, const CheckpointTensors* dense,
                                       const HfConfig& hf, const std::string& where, ModelConfig& config) {
  return Planner(checkpoint, dense, hf, where, config).Plan();
}

}  // namespace koine::model_loader
