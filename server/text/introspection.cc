#include "server/text/introspection.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/matmul/matmul.h"
#include "server/text/utf8.h"

namespace koine::server {
namespace {

using kernels::LayerOwner;
using model_loader::Component;
using model_loader::Language;
using model_loader::LoadedTensor;
using model_loader::Model;

bool IsParameter(const LoadedTensor& tensor) { return tensor.component != Component::kVocabularyIds; }

int64_t CountParameters(absl::Span<const LoadedTensor> tensors) {
  int64_t sum = 0;
  for (const LoadedTensor& tensor : tensors) {
    if (IsParameter(tensor)) sum += tensor.elements;
  }
  return sum;
}

// Tensors of a language: its own file and its named adapters.
std::vector<LoadedTensor> AllTensors(const Language& language) {
  std::vector<LoadedTensor> tensors(language.tensors().begin(), language.tensors().end());
  for (const std::string& name : language.adapter_names()) {
    const auto adapter = language.FindAdapter(name);
    if (adapter.ok()) tensors.insert(tensors.end(), (*adapter)->tensors().begin(), (*adapter)->tensors().end());
  }
  return tensors;
}

absl::string_view NameOf(model_loader::AdapterKind kind) {
  switch (kind) {
    case model_loader::AdapterKind::kNone:
      return "none";
    case model_loader::AdapterKind::kScale:
      return "scale";
    case model_loader::AdapterKind::kBottleneck:
      return "bottleneck";
    case model_loader::AdapterKind::kLora:
      return "lora";
  }
  return "none";
}

void FillComponents(absl::Span<const LoadedTensor> tensors, v1::OwnerParameters* owner) {
  std::map<Component, std::vector<const LoadedTensor*>> by_component;
  for (const LoadedTensor& tensor : tensors) by_component[tensor.component].push_back(&tensor);
  for (const auto& [component, members] : by_component) {
    v1::ComponentParameters& out = *owner->add_components();
    out.set_component(std::string(model_loader::Name(component)));
    out.set_tensors(static_cast<int32_t>(members.size()));
    std::map<kernels::DType, std::pair<int64_t, int64_t>> dtypes;
    for (const LoadedTensor* tensor : members) {
      if (IsParameter(*tensor)) out.set_parameters(out.parameters() + tensor->elements);
      out.set_file_bytes(out.file_bytes() + tensor->file_bytes);
      dtypes[tensor->file_dtype].first += tensor->elements;
      dtypes[tensor->file_dtype].second += tensor->file_bytes;
    }
    for (const auto& [dtype, counts] : dtypes) {
      v1::DTypeCount& count = *out.add_dtypes();
      count.set_dtype(std::string(kernels::Name(dtype)));
      count.set_elements(counts.first);
      count.set_bytes(counts.second);
    }
    owner->set_parameters(owner->parameters() + out.parameters());
    owner->set_file_bytes(owner->file_bytes() + out.file_bytes());
  }
}

std::string Hex(uint64_t checksum) { return absl::StrFormat("%016x", checksum); }

int64_t ProcessResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

void FillEngine(const Engine& engine, v1::EngineStats* out) {
  const EngineCounters& counters = engine.counters();
  const EngineOptions& options = engine.options();
  const auto read = [](const std::atomic<int64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  out->set_workers(options.workers);
  out->set_threads(options.threads);
  const int64_t steps = read(counters.steps);
  out->set_steps(steps);
  out->set_step_rows(read(counters.step_rows));
  out->set_max_step_rows(read(counters.max_step_rows));
  out->set_max_step_languages(read(counters.max_step_languages));
  if (steps > 0) {
    out->set_mean_step_rows(static_cast<double>(out->step_rows()) / static_cast<double>(steps));
    out->set_mean_step_languages(static_cast<double>(read(counters.step_languages)) / static_cast<double>(steps));
  }
  out->set_encoded_tokens(read(counters.encoded_tokens));
  out->set_generated_tokens(read(counters.generated_tokens));
  out->set_finished(read(counters.finished));
  out->set_cancelled(read(counters.cancelled));
  out->set_expired(read(counters.expired));
  out->set_failed(read(counters.failed));
  out->set_multiply_adds(read(counters.multiply_adds));
  out->set_table_bytes(read(counters.table_bytes));
  out->set_partial_block_copies(read(counters.partial_block_copies));
  out->set_full_block_copies(read(counters.full_block_copies));
  out->set_max_batch_rows(options.max_rows);
  out->set_max_batch_tokens(options.max_tokens);
  out->set_kv_cache_bytes(options.kv_cache_bytes);
}

}  // namespace

absl::StatusOr<ModelHost*> ModelHosts::Find(absl::string_view name) const {
  if (name.empty() && hosts_.size() == 1) return hosts_.front().get();
  for (const auto& host : hosts_) {
    if (host->name == name) return host.get();
  }
  const std::string names = absl::StrJoin(
      hosts_, ", ", [](std::string* out, const std::unique_ptr<ModelHost>& host) { absl::StrAppend(out, host->name); });
  if (name.empty()) return InvalidField("model", absl::StrCat("is missing; this server has ", names));
  return absl::NotFoundError(absl::StrCat("no model \"", ForMessage(name), "\"; this server has ", names));
}

v1::ListLanguagesResponse DescribeLanguages(const ModelHost& host) {
  v1::ListLanguagesResponse response;
  response.set_model(host.name);
  for (const std::shared_ptr<const Language>& language : host.model->languages()) {
    const model_loader::LanguageConfig& config = language->config();
    v1::Language& out = *response.add_languages();
    out.set_code(config.code);
    out.set_name(config.name);
    out.set_native_name(config.native_name);
    out.set_script(config.script);
    out.set_direction(config.direction.empty() ? "ltr" : config.direction);
    for (const std::string& alias : config.aliases) out.add_aliases(alias);
    out.set_vocabulary(language->weights().vocabulary);
    out.set_parameters(CountParameters(language->tensors()));
    out.set_state(v1::LANGUAGE_STATE_LOADED);
    for (const std::string& name : language->adapter_names()) out.add_adapters(name);
    out.set_default_adapter(std::string(NameOf(config.adapter.kind)));
  }
  return response;
}

v1::GetModelInfoResponse DescribeModel(const ModelHost& host) {
  v1::GetModelInfoResponse response;
  const Model& model = *host.model;
  const model_loader::ModelConfig& config = model.config();
  response.set_model(host.name);
  response.set_name(config.name);
  response.set_license(config.license);
  if (config.translates) response.add_tasks("translate");
  if (config.encodes) response.add_tasks("encode");

  const kernels::TransformerConfig& sizes = config.architecture;
  v1::Architecture& architecture = *response.mutable_architecture();
  architecture.set_kind(config.kind == model_loader::ModelKind::kEncoderDecoder ? "encoder-decoder" : "encoder");
  architecture.set_d_model(sizes.d_model);
  architecture.set_heads(sizes.heads);
  architecture.set_language_heads(sizes.language_heads);
  architecture.set_d_head(sizes.d_head);
  architecture.set_d_ffn(sizes.d_ffn);
  architecture.set_encoder_layers(static_cast<int32_t>(sizes.encoder_layers.size()));
  architecture.set_decoder_layers(static_cast<int32_t>(sizes.decoder_layers.size()));
  for (size_t i = 0; i < sizes.encoder_layers.size(); ++i) {
    if (sizes.encoder_layers[i] != LayerOwner::kShared) {
      architecture.add_language_encoder_layers(static_cast<int32_t>(i));
    }
  }
  for (size_t i = 0; i < sizes.decoder_layers.size(); ++i) {
    if (sizes.decoder_layers[i] != LayerOwner::kShared) {
      architecture.add_language_decoder_layers(static_cast<int32_t>(i));
    }
  }
  architecture.set_max_positions(sizes.max_positions);
  architecture.set_shared_embedding(config.shared_embedding);
  architecture.set_tied_output(sizes.tied_output);

  response.set_precision(std::string(kernels::Name(model.precision())));
  response.set_matmul_backend(kernels::MatmulBackend());
  const RequestLimits& request = host.text->options().limits;
  v1::Limits& limits = *response.mutable_limits();
  limits.set_max_items(request.max_items);
  limits.set_max_characters(request.max_characters);
  limits.set_max_beams(request.max_beams);
  limits.set_max_tokens(request.max_tokens);
  limits.set_max_message_bytes(request.max_message_bytes);
  limits.set_queue_items(host.queue->limits().max_items);
  limits.set_queue_tokens(host.queue->limits().max_tokens);
  limits.set_max_source_tokens(sizes.max_positions);
  for (const model_loader::LanguagePair& pair : config.zero_shot_pairs) {
    v1::LanguagePair& out = *response.add_zero_shot_pairs();
    out.set_source(pair.source);
    out.set_target(pair.target);
  }
  response.set_pooling(config.pooling.mode == model_loader::PoolingMode::kMean ? "mean" : "cls");
  response.set_normalize(config.pooling.normalize);
  response.set_languages(static_cast<int32_t>(model.languages().size()));
  int64_t parameters = CountParameters(model.shared_tensors());
  for (const auto& language : model.languages()) parameters += CountParameters(AllTensors(*language));
  response.set_parameters(parameters);
  response.set_load_seconds(host.load_seconds);
  return response;
}

std::map<std::string, int64_t> ResidentBytes(std::istream& smaps, absl::string_view prefix) {
  // A mapping begins with "START-END PERMS OFFSET DEV INODE   PATH" and goes on with lines such as "Rss:   12 kB".
  std::map<std::string, int64_t> resident;
  std::string line;
  std::optional<std::string> name;
  while (std::getline(smaps, line)) {
    const absl::string_view view = line;
    const size_t colon = view.find(':');
    const size_t space = view.find(' ');
    if (colon == absl::string_view::npos || space < colon) {
      name.reset();
      constexpr absl::string_view kMark = " /memfd:";
      const size_t mark = view.find(kMark);
      if (mark == absl::string_view::npos) continue;
      const absl::string_view path = absl::StripSuffix(view.substr(mark + kMark.size()), " (deleted)");
      if (absl::StartsWith(path, prefix)) name = std::string(path);
    } else if (name && absl::StartsWith(view, "Rss:")) {
      int64_t kilobytes = 0;
      const absl::string_view value = absl::StripAsciiWhitespace(absl::StripSuffix(view.substr(4), "kB"));
      if (absl::SimpleAtoi(value, &kilobytes)) resident[*name] += kilobytes * 1024;
    }
  }
  return resident;
}

v1::GetParameterStatsResponse DescribeParameters(const ModelHost& host, bool checksums) {
  v1::GetParameterStatsResponse response;
  const Model& model = *host.model;
  response.set_model(host.name);
  const std::string prefix = absl::StrCat("koine:", model.config().name, ":");
  std::ifstream smaps("/proc/self/smaps");
  const std::map<std::string, int64_t> resident = ResidentBytes(smaps, prefix);
  // A mapping "PREFIXowner" or "PREFIXowner:part" is of this owner.
  const auto kernel_bytes = [&](const std::string& owner) {
    int64_t sum = 0;
    for (const auto& [name, bytes] : resident) {
      const std::string full = prefix + owner;
      if (name == full || absl::StartsWith(name, full + ":")) sum += bytes;
    }
    return sum;
  };

  v1::OwnerParameters& shared = *response.add_owners();
  shared.set_owner("shared");
  shared.set_shared(true);
  FillComponents(model.shared_tensors(), &shared);
  shared.set_resident_bytes(model.shared_resident_bytes());
  shared.set_mapped_bytes(model.shared_mapped_bytes());
  shared.set_kernel_resident_bytes(kernel_bytes("shared"));
  if (checksums) shared.set_checksum(Hex(model.shared_checksum()));
  response.set_shared_parameters(shared.parameters());
  for (const std::shared_ptr<const Language>& language : model.languages()) {
    v1::OwnerParameters& owner = *response.add_owners();
    owner.set_owner(language->code());
    FillComponents(AllTensors(*language), &owner);
    owner.set_resident_bytes(language->resident_bytes());
    owner.set_mapped_bytes(language->mapped_bytes());
    owner.set_kernel_resident_bytes(kernel_bytes(language->code()));
    if (checksums) owner.set_checksum(Hex(language->checksum()));
    response.set_language_parameters(response.language_parameters() + owner.parameters());
  }
  for (const v1::OwnerParameters& owner : response.owners()) {
    response.set_parameters(response.parameters() + owner.parameters());
    response.set_file_bytes(response.file_bytes() + owner.file_bytes());
    response.set_resident_bytes(response.resident_bytes() + owner.resident_bytes());
    response.set_mapped_bytes(response.mapped_bytes() + owner.mapped_bytes());
    response.set_kernel_resident_bytes(response.kernel_resident_bytes() + owner.kernel_resident_bytes());
  }
  return response;
}

v1::GetServerStatsResponse DescribeServer(const ServerFacts& facts, const Rejections& rejections,
                                          const ModelHosts& hosts) {
  v1::GetServerStatsResponse response;
  response.set_version(facts.version);
  response.set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - facts.started));
  response.set_process_resident_bytes(ProcessResidentBytes());
  response.set_inflight_requests(facts.inflight_requests);
  response.set_finished_requests(facts.finished_requests);
  response.set_draining(facts.draining);
  for (int i = 0; i < kReasons; ++i) {
    const auto reason = static_cast<Reason>(i);
    (*response.mutable_rejected())[std::string(Name(reason))] = rejections.count(reason);
  }
  for (const auto& host : hosts.all()) {
    v1::ModelStats& out = *response.add_models();
    out.set_model(host->name);
    const QueueGauges gauges = host->queue->gauges();
    out.set_queue_items(gauges.items);
    out.set_queue_tokens(gauges.tokens);
    out.set_queue_oldest_seconds(absl::ToDoubleSeconds(gauges.oldest));
    out.set_queue_items_limit(host->queue->limits().max_items);
    out.set_queue_tokens_limit(host->queue->limits().max_tokens);
    out.set_permits_in_use(host->text->permits().items_in_use());
    out.set_permits_limit(host->text->permits().max_items());
    if (host->engine != nullptr) {
      out.set_live_jobs(host->engine->live_jobs());
      FillEngine(*host->engine, out.mutable_engine());
    }
  }
  return response;
}

}  // namespace koine::server
