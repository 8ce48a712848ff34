#include "model_loader/verify/verify.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "kernels/attention/kv_pool.h"
#include "kernels/ops/ops.h"
#include "kernels/transformer/transformer.h"
#include "model_loader/model/prompts.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/writer/model_writer.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {
namespace {

using nlohmann::json;

// Reads the keys of one sample; keeps the first fault.
class SampleReader {
 public:
  SampleReader(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  absl::Status status() const { return status_; }

  void Text(const char* key, bool required, std::string* out) {
    Read(key, required, "a string", [&](const json& value) {
      if (!value.is_string()) return false;
      *out = value.get<std::string>();
      return true;
    });
  }
  void Integer(const char* key, bool required, int64_t* out) {
    Read(key, required, "a whole number", [&](const json& value) { return Whole(value, out); });
  }
  void Ids(const char* key, bool required, std::vector<int32_t>* out) {
    Read(key, required, "a list of ids", [&](const json& value) {
      if (!value.is_array()) return false;
      for (const json& element : value) {
        int64_t id = 0;
        if (!Whole(element, &id)) return false;
        out->push_back(static_cast<int32_t>(id));
      }
      return true;
    });
  }
  void Numbers(const char* key, std::vector<double>* out) {
    Read(key, false, "a list of numbers", [&](const json& value) {
      if (!value.is_array()) return false;
      for (const json& element : value) {
        if (!element.is_number()) return false;
        out->push_back(element.get<double>());
      }
      return true;
    });
  }
  void TopLogits(const char* key, std::vector<std::vector<Sample::TopLogit>>* out) {
    Read(key, false, "a list of lists of [id, value]", [&](const json& value) {
      if (!value.is_array()) return false;
      for (const json& step : value) {
        if (!step.is_array()) return false;
        auto& list = out->emplace_back();
        for (const json& pair : step) {
          int64_t id = 0;
          if (!pair.is_array() || pair.size() != 2 || !Whole(pair[0], &id) || !pair[1].is_number()) return false;
          list.push_back({static_cast<int32_t>(id), pair[1].get<double>()});
        }
      }
      return true;
    });
  }

 private:
  static bool Whole(const json& value, int64_t* out) {
    if (!value.is_number_integer()) return false;
    const auto number = value.get<int64_t>();
    if (number < 0 || number > INT32_MAX) return false;
    *out = number;
    return true;
  }

  template <typename Use>
  void Read(const char* key, bool required, const char* kind, const Use& use) {
    if (!status_.ok()) return;
    const auto found = object_.find(key);
    if (found == object_.end()) {
      if (required) status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": key \"", key, "\" is missing"));
      return;
    }
    if (!use(*found)) status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": key \"", key, "\" must be ", kind));
  }

  const json& object_;
  const std::string where_;
  absl::Status status_;
};

// Everything one recomputation needs; one sentence, one row a step.
class Recomputation {
 public:
  Recomputation(const Model& model, const Sample& sample)
      : model_(model), transformer_(model.transformer()), sample_(sample), workspace_(1) {}

  absl::Status Prepare() {
    auto source = model_.FindLanguage(sample_.source);
    if (!source.ok()) return source.status();
    source_ = *source;
    absl::Status status = Choose(*source_, sample_.source_adapter, &source_adapter_);
    if (!status.ok()) return status;
    // Where there are no languages, what is to be compared says whether the decoder takes part.
    const bool decodes = sample_.source.empty() && (!sample_.decoder_ids.empty() || !sample_.greedy_ids.empty());
    if (decodes && model_.config().kind == ModelKind::kEncoder) {
      return absl::InvalidArgumentError("decoder_ids and greedy_ids: the model is an encoder");
    }
    if (!sample_.target.empty() || decodes) {
      auto target = model_.FindLanguage(sample_.target);
      if (!target.ok()) return target.status();
      target_ = *target;
      status = Choose(*target_, sample_.target_adapter, &target_adapter_);
      if (!status.ok()) return status;
    }
    const int64_t positions = transformer_.config().max_positions;
    status = CheckIds("source_ids", sample_.source_ids, source_->weights().vocabulary, positions);
    if (!status.ok() || target_ == nullptr) return status;
    status = CheckIds("decoder_ids", sample_.decoder_ids, target_->weights().vocabulary, positions);
    if (!status.ok()) return status;
    return CheckIds("greedy_ids", sample_.greedy_ids, target_->weights().vocabulary, positions + 1);
  }

  // Encoder rows [tokens, d_model].
  const std::vector<float>& Encode() {
    const int64_t tokens = static_cast<int64_t>(sample_.source_ids.size());
    rows_.assign(static_cast<size_t>(kernels::RowCapacity(tokens) * transformer_.config().d_model), 0.0F);
    const kernels::RowRun run{&source_->weights(), source_adapter_, 0, tokens};
    const kernels::Segment segment{0, tokens};
    transformer_.Encode(workspace_, sample_.source_ids, {&segment, 1}, {&run, 1}, rows_.data());
    return rows_;
  }

  // Starts a decoder over the encoded rows; after it, Next gives logits step by step.
  void StartDecoder(int64_t steps) {
    const int64_t tokens = static_cast<int64_t>(sample_.source_ids.size());
    const auto blocks = static_cast<int32_t>(kernels::BlocksFor(tokens) + kernels::BlocksFor(steps) + 1);
    pool_ = std::make_unique<kernels::KvPool>(transformer_.kv_shape(), blocks);
    self_ = {};
    cross_ = {};
    pool_->Reserve(&cross_, tokens);
    const kernels::RowRun run{&target_->weights(), target_adapter_, 0, tokens};
    const kernels::Segment segment{0, tokens};
    kernels::BlockList* memory = &cross_;
    transformer_.FillCrossMemory(workspace_, rows_.data(), {&segment, 1}, {&run, 1}, {&memory, 1}, *pool_);
  }

  const std::vector<float>& Next(int32_t token) {
    pool_->Extend(&self_);
    const kernels::DecodeRow row{token, &self_, &cross_};
    const kernels::RowRun run{&target_->weights(), target_adapter_, 0, 1};
    hidden_.assign(static_cast<size_t>(kernels::RowCapacity(1) * transformer_.config().d_model), 0.0F);
    logits_.resize(static_cast<size_t>(target_->weights().vocabulary));
    transformer_.DecodeStep(workspace_, {&row, 1}, {&run, 1}, *pool_, hidden_.data());
    transformer_.Logits(workspace_, target_->weights(), hidden_.data(), 1, logits_.data());
    return logits_;
  }

  // Greedy decoding over the encoded rows: `start` and at most `most` ids more, the end mark included.
  absl::StatusOr<std::vector<int32_t>> Greedy(int32_t start, int64_t most) {
    const absl::StatusOr<TargetPrompt> prompt = Target();
    if (!prompt.ok()) return prompt.status();
    const std::vector<int32_t> suppressed = SuppressedIds(model_.config().generation, target_->tokenizer());
    const int64_t steps = std::min(most, transformer_.config().max_positions);
    StartDecoder(steps);
    std::vector<int32_t> ids = {start};
    std::vector<kernels::Scored> best;
    for (int64_t step = 0; step < steps; ++step) {
      std::vector<float> logits = Next(ids.back());
      if (static_cast<size_t>(step) < prompt->forced.size()) {
        ids.push_back(prompt->forced[static_cast<size_t>(step)]);
        continue;
      }
      for (const int32_t id : suppressed) logits[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
      // Rows without a piece are never generated.
      kernels::TopK(logits.data(), target_->weights().vocabulary - target_->unusable_rows(), 1, &best);
      if (best.empty()) break;
      ids.push_back(best.front().id);
      if (ids.back() == model_.config().special_tokens.eos) break;
    }
    return ids;
  }

  const Language* target() const { return target_.get(); }
  absl::StatusOr<TargetPrompt> Target() const {
    return ResolveTarget(model_.config().prompt, source_->config(), target_->config(), target_->tokenizer());
  }
  kernels::Workspace& workspace() { return workspace_; }

 private:
  static absl::Status Choose(const Language& language, const std::string& name, const kernels::AdapterWeights** out) {
    if (name.empty()) {
      if (language.default_adapter() != nullptr) *out = &language.default_adapter()->weights();
      return absl::OkStatus();
    }
    if (name == "none") return absl::OkStatus();
    auto adapter = language.FindAdapter(name);
    if (!adapter.ok()) return adapter.status();
    *out = &(*adapter)->weights();
    return absl::OkStatus();
  }

  static absl::Status CheckIds(const char* key, const std::vector<int32_t>& ids, int64_t vocabulary, int64_t most) {
    if (static_cast<int64_t>(ids.size()) > most) {
      return absl::InvalidArgumentError(absl::StrCat(key, " has ", ids.size(), " ids, the model takes ", most));
    }
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocabulary) {
        return absl::InvalidArgumentError(absl::StrCat(key, " has id ", id, ", the table has ", vocabulary, " rows"));
      }
    }
    return absl::OkStatus();
  }

  const Model& model_;
  const kernels::Transformer& transformer_;
  const Sample& sample_;
  kernels::Workspace workspace_;
  std::shared_ptr<const Language> source_, target_;
  const kernels::AdapterWeights* source_adapter_ = nullptr;
  const kernels::AdapterWeights* target_adapter_ = nullptr;
  std::vector<float> rows_, hidden_, logits_;
  std::unique_ptr<kernels::KvPool> pool_;
  kernels::BlockList self_, cross_;
};

// Raises *largest to the largest difference and reports what exceeds the tolerance (or is no number).
void Compare(const char* what, const std::vector<double>& expected, const float* computed, double tolerance,
             double* largest, std::vector<std::string>* faults) {
  double most = 0;
  size_t at = 0;
  bool broken = false;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(expected[i] - double{computed[i]});
    if (!(difference <= most)) {
      most = difference;
      at = i;
      broken = broken || !std::isfinite(difference);
    }
  }
  *largest = std::max(*largest, most);
  if (broken || most > tolerance) {
    faults->push_back(absl::StrCat(what, " differs by ", most, " at ", at, " (expected ", expected[at], ", computed ",
                                   computed[at], ", tolerance ", tolerance, ")"));
  }
}

}  // namespace

absl::StatusOr<std::vector<Sample>> ParseSamples(std::string_view text, const std::string& where) {
  const json root = json::parse(text.begin(), text.end(), nullptr, false);
  if (root.is_discarded() || !root.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": must be a JSON list of samples"));
  }
  std::vector<Sample> samples;
  for (const json& element : root) {
    const std::string name = absl::StrCat(where, ": sample ", samples.size());
    if (!element.is_object()) return absl::InvalidArgumentError(absl::StrCat(name, " must be an object"));
    Sample sample;
    SampleReader reader(element, name);
    reader.Text("source", false, &sample.source);
    reader.Text("target", false, &sample.target);
    reader.Text("text", false, &sample.text);
    reader.Text("source_adapter", false, &sample.source_adapter);
    reader.Text("target_adapter", false, &sample.target_adapter);
    reader.Ids("source_ids", true, &sample.source_ids);
    reader.Ids("decoder_ids", false, &sample.decoder_ids);
    reader.Numbers("encoder_last_row", &sample.encoder_last_row);
    reader.Numbers("embedding", &sample.embedding);
    reader.Numbers("logits_sum", &sample.logits_sum);
    reader.TopLogits("logits_top4", &sample.logits_top);
    reader.Ids("greedy_ids", false, &sample.greedy_ids);
    reader.Integer("max_steps", !sample.greedy_ids.empty(), &sample.max_steps);
    if (!reader.status().ok()) return reader.status();
    if (sample.source_ids.empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": source_ids is empty"));
    samples.push_back(std::move(sample));
  }
  return samples;
}

// 10,000 samples of a model of width 1,024: two rows of 1,024 numbers of 12 digits each.
constexpr std::uintmax_t kMaxSamplesBytes = 256 << 20;

absl::StatusOr<std::vector<Sample>> ReadSamples(const std::string& model_directory) {
  const std::string path = (std::filesystem::path(model_directory) / "samples.json").string();
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file; koine-model samples makes one"));
  }
  const absl::StatusOr<std::string> text = ReadJsonText(path, kMaxSamplesBytes);
  if (!text.ok()) return text.status();
  return ParseSamples(*text, path);
}

absl::StatusOr<SampleReport> VerifySample(const Model& model, const Sample& sample, size_t number,
                                          const Tolerances& tolerances) {
  SampleReport report;
  report.name = absl::StrCat(
      "sample ", number,
      sample.source.empty() ? ""
                            : absl::StrCat(" (", sample.source, sample.target.empty() ? "" : "-", sample.target, ")"));
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(report.name, ": ", status.message()));
  };
  Recomputation recomputation(model, sample);
  const absl::Status prepared = recomputation.Prepare();
  if (!prepared.ok()) return named(prepared);
  const int64_t d = model.config().architecture.d_model;
  const int64_t pooled = model.config().embedding_size();
  for (const auto& [key, size, right] :
       {std::tuple<const char*, size_t, int64_t>{"encoder_last_row", sample.encoder_last_row.size(), d},
        {"embedding", sample.embedding.size(), pooled}}) {
    if (size != 0 && static_cast<int64_t>(size) != right) {
      return named(absl::InvalidArgumentError(absl::StrCat(key, " has ", size, " numbers, not ", right)));
    }
  }
  const std::vector<float>& rows = recomputation.Encode();
  const int64_t tokens = static_cast<int64_t>(sample.source_ids.size());
  if (!sample.encoder_last_row.empty()) {
    Compare("encoder_last_row", sample.encoder_last_row, rows.data() + (tokens - 1) * d, tolerances.values,
            &report.encoder, &report.faults);
  }
  if (!sample.embedding.empty()) {
    std::vector<float> embedding(static_cast<size_t>(pooled));
    model.Pool(recomputation.workspace(), rows.data(), tokens, model.config().pooling.normalize, embedding.data());
    Compare("embedding", sample.embedding, embedding.data(), tolerances.values, &report.embedding, &report.faults);
  }
  if (recomputation.target() == nullptr) return report;
  const int64_t vocabulary = recomputation.target()->weights().vocabulary;

  if (!sample.decoder_ids.empty()) {
    const size_t steps = sample.decoder_ids.size();
    if ((!sample.logits_sum.empty() && sample.logits_sum.size() != steps) ||
        (!sample.logits_top.empty() && sample.logits_top.size() != steps)) {
      return named(absl::InvalidArgumentError("logits_sum and logits_top4 need one entry per decoder id"));
    }
    recomputation.StartDecoder(static_cast<int64_t>(steps));
    for (size_t step = 0; step < steps; ++step) {
      const std::vector<float>& logits = recomputation.Next(sample.decoder_ids[step]);
      if (!sample.logits_sum.empty()) {
        double sum = 0;
        for (const float logit : logits) sum += logit;
        const double expected = sample.logits_sum[step];
        const double allowed =
            tolerances.values * std::sqrt(static_cast<double>(vocabulary)) + 1e-6 * std::abs(expected);
        const double difference = std::abs(sum - expected);
        report.sums = std::max(report.sums, difference / allowed);
        if (!(difference <= allowed)) {
          report.faults.push_back(absl::StrCat("logits_sum of step ", step, " differs by ", difference, " (expected ",
                                               expected, ", computed ", sum, ", tolerance ", allowed, ")"));
        }
      }
      if (sample.logits_top.empty()) continue;
      for (const Sample::TopLogit& top : sample.logits_top[step]) {
        if (top.id >= vocabulary) {
          return named(
              absl::InvalidArgumentError(absl::StrCat("logits_top4 names id ", top.id, ", outside the table")));
        }
        Compare(absl::StrCat("logit of id ", top.id, " in step ", step).c_str(), {top.value},
                &logits[static_cast<size_t>(top.id)], tolerances.values, &report.logits, &report.faults);
      }
    }
  }

  if (!sample.greedy_ids.empty()) {
    const absl::StatusOr<std::vector<int32_t>> greedy =
        recomputation.Greedy(sample.greedy_ids.front(), sample.max_steps);
    if (!greedy.ok()) return named(greedy.status());
    const std::vector<int32_t>& ids = *greedy;
    if (ids != sample.greedy_ids) {
      size_t at = 0;
      while (at < ids.size() && at < sample.greedy_ids.size() && ids[at] == sample.greedy_ids[at]) ++at;
      report.faults.push_back(
          absl::StrCat("greedy_ids differ at ", at, ": expected ",
                       at < sample.greedy_ids.size() ? absl::StrCat(sample.greedy_ids[at]) : std::string("the end"),
                       ", computed ", at < ids.size() ? absl::StrCat(ids[at]) : std::string("the end")));
    }
  }
  return report;
}

absl::StatusOr<std::vector<SampleReport>> VerifyModel(const std::string& model_directory,
                                                      const Tolerances& tolerances) {
  auto samples = ReadSamples(model_directory);
  if (!samples.ok()) return samples.status();
  auto model = Model::Load(model_directory, {kernels::Precision::kF32});
  if (!model.ok()) return model.status();
  std::vector<SampleReport> reports;
  for (size_t i = 0; i < samples->size(); ++i) {
    auto report = VerifySample(**model, (*samples)[i], i, tolerances);
    if (!report.ok()) return report.status();
    reports.push_back(*std::move(report));
  }
  return reports;
}

namespace {

// A sample's text as ids, with everything around it.
absl::StatusOr<std::vector<int32_t>> SourceIds(const Model& model, const SampleRequest& request, const Language& source,
                                               const LanguageConfig* target) {
  const ModelConfig& config = model.config();
  // What JSON cannot hold comes back changed.
  const std::string written = json(request.text).dump(-1, ' ', false, json::error_handler_t::replace);
  if (json::parse(written, nullptr, false) != json(request.text)) {
    return absl::InvalidArgumentError("the text is not valid UTF-8");
  }
  const auto prompt = ResolveSource(config.prompt, source.config(), source.tokenizer(), target);
  if (!prompt.ok()) return prompt.status();
  const auto before = config.prompts.find(config.default_prompt);
  const auto encoded =
      source.tokenizer().Encode((before == config.prompts.end() ? std::string() : before->second) + request.text);
  if (!encoded.ok()) return encoded.status();
  if (request.text.find_first_not_of(" \t\r\n") == std::string::npos || encoded->ids.empty()) {
    return absl::InvalidArgumentError("a blank text is no sample");
  }
  std::vector<int32_t> ids = prompt->before;
  ids.insert(ids.end(), encoded->ids.begin(), encoded->ids.end());
  ids.insert(ids.end(), prompt->after.begin(), prompt->after.end());
  if (static_cast<int64_t>(ids.size()) > config.longest_source()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text makes ", ids.size(), " tokens; the model takes ", config.longest_source()));
  }
  return ids;
}

nlohmann::ordered_json SampleJson(const Sample& sample) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  const auto text = [&](const char* key, const std::string& value) {
    if (!value.empty()) object[key] = value;
  };
  const auto list = [&](const char* key, const auto& values) {
    if (!values.empty()) object[key] = values;
  };
  text("source", sample.source);
  text("target", sample.target);
  text("source_adapter", sample.source_adapter);
  text("target_adapter", sample.target_adapter);
  text("text", sample.text);
  list("source_ids", sample.source_ids);
  list("decoder_ids", sample.decoder_ids);
  list("encoder_last_row", sample.encoder_last_row);
  list("embedding", sample.embedding);
  list("logits_sum", sample.logits_sum);
  for (const auto& step : sample.logits_top) {
    auto& top = object["logits_top4"].emplace_back(nlohmann::ordered_json::array());
    for (const Sample::TopLogit& logit : step) top.push_back({logit.id, logit.value});
  }
  list("greedy_ids", sample.greedy_ids);
  if (!sample.greedy_ids.empty()) object["max_steps"] = sample.max_steps;
  return object;
}

}  // namespace

absl::StatusOr<Sample> ComputeSample(const Model& model, const SampleRequest& request) {
  const ModelConfig& config = model.config();
  Sample sample;
  sample.text = request.text;
  sample.source_adapter = request.source_adapter;
  sample.target_adapter = request.target_adapter;
  const auto source = model.FindLanguage(request.source);
  if (!source.ok()) return source.status();
  sample.source = (*source)->code();
  // Without languages there is no target to ask for: the decoder takes part where there is one.
  const bool decodes = config.kind == ModelKind::kEncoderDecoder && (!request.target.empty() || sample.source.empty());
  if (!request.target.empty() && !decodes) return absl::InvalidArgumentError("the model is an encoder: no target");
  std::shared_ptr<const Language> target;
  if (decodes) {
    auto found = model.FindLanguage(request.target);
    if (!found.ok()) return found.status();
    target = *std::move(found);
    sample.target = target->code();
    const auto prompt = ResolveTarget(config.prompt, (*source)->config(), target->config(), target->tokenizer());
    if (!prompt.ok()) return prompt.status();
    sample.max_steps = std::min(request.max_steps, config.architecture.max_positions);
    if (sample.max_steps < 1) return absl::InvalidArgumentError("at least one step is decoded");
    sample.greedy_ids = {prompt->start};
  }
  auto ids = SourceIds(model, request, **source, target == nullptr ? nullptr : &target->config());
  if (!ids.ok()) return ids.status();
  sample.source_ids = *std::move(ids);

  Recomputation recomputation(model, sample);
  const absl::Status prepared = recomputation.Prepare();
  if (!prepared.ok()) return prepared;
  const std::vector<float>& rows = recomputation.Encode();
  const int64_t tokens = static_cast<int64_t>(sample.source_ids.size());
  const int64_t d = config.architecture.d_model;
  sample.encoder_last_row.assign(rows.begin() + (tokens - 1) * d, rows.begin() + tokens * d);
  if (config.encodes) {
    std::vector<float> embedding(static_cast<size_t>(config.embedding_size()));
    model.Pool(recomputation.workspace(), rows.data(), tokens, config.pooling.normalize, embedding.data());
    sample.embedding.assign(embedding.begin(), embedding.end());
  }
  if (!decodes) return sample;

  auto greedy = recomputation.Greedy(sample.greedy_ids.front(), sample.max_steps);
  if (!greedy.ok()) return greedy.status();
  sample.greedy_ids = *std::move(greedy);
  // Teacher-forced with what greedy chose: a logit of every choice is among the four.
  sample.decoder_ids.assign(sample.greedy_ids.begin(), sample.greedy_ids.end() - 1);
  recomputation.StartDecoder(static_cast<int64_t>(sample.decoder_ids.size()));
  for (const int32_t id : sample.decoder_ids) {
    const std::vector<float>& logits = recomputation.Next(id);
    double sum = 0;
    for (const float logit : logits) sum += logit;
    sample.logits_sum.push_back(sum);
    constexpr int kTop = 4;
    std::vector<kernels::Scored> best;
    kernels::TopK(logits.data(), static_cast<int64_t>(logits.size()), kTop, &best);
    auto& top = sample.logits_top.emplace_back();
    for (const kernels::Scored& scored : best) {
      top.push_back({scored.id, double{logits[static_cast<size_t>(scored.id)]}});
    }
  }
  return sample;
}

absl::Status AppendSamples(const std::string& model_directory, absl::Span<const Sample> samples) {
  const std::string path = (std::filesystem::path(model_directory) / "samples.json").string();
  // Another process may add some at the same time.
  const FolderLock lock(model_directory);
  auto list = nlohmann::ordered_json::array();
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    const auto present = ReadSamples(model_directory);
    if (!present.ok()) return present.status();
    std::ifstream stream(path, std::ios::binary);
    list = nlohmann::ordered_json::parse(stream, nullptr, false);
    if (!list.is_array()) return absl::InvalidArgumentError(absl::StrCat(path, ": must be a JSON list of samples"));
  }
  for (const Sample& sample : samples) list.push_back(SampleJson(sample));
  // One sample a line: a list that grows shows what was added.
  std::string text = "[";
  for (size_t i = 0; i < list.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "\n" : ",\n",
                    list[i].dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  text += "\n]\n";
  return WriteSmallFile(path, text);
}

}  // namespace koine::model_loader
