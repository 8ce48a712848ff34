#include "server/text/introspection.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <vector>

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/matmul/matmul.h"
#include "model_loader/accounting/account.h"
#include "server/text/free_memory.h"
#include "server/text/utf8.h"

namespace koine::server {
namespace {

using kernels::LayerOwner;
using model_loader::Account;
using model_loader::Language;
using model_loader::Model;
using model_loader::OwnerAccount;

v1::LanguageState StateOf(LanguageState state) {
  switch (state) {
    case LanguageState::kCold:
      return v1::LANGUAGE_STATE_COLD;
    case LanguageState::kLoading:
      return v1::LANGUAGE_STATE_LOADING;
    case LanguageState::kLoaded:
      return v1::LANGUAGE_STATE_LOADED;
    case LanguageState::kDraining:
      return v1::LANGUAGE_STATE_DRAINING;
    case LanguageState::kFailed:
      return v1::LANGUAGE_STATE_FAILED;
  }
  return v1::LANGUAGE_STATE_UNSPECIFIED;
}

// Adds what `account` counts to `owner`: a language's own part, or one of its named adapters.
void AddAccount(const OwnerAccount& account, v1::OwnerParameters* owner) {
  for (const auto& [component, tally] : account.components) {
    const std::string name(model_loader::Name(component));
    auto* components = owner->mutable_components();
    auto found = std::find_if(components->begin(), components->end(),
                              [&name](const v1::ComponentParameters& known) { return known.component() == name; });
    v1::ComponentParameters& out = found == components->end() ? *owner->add_components() : *found;
    out.set_component(name);
    out.set_tensors(out.tensors() + static_cast<int32_t>(tally.tensors));
    out.set_parameters(out.parameters() + tally.parameters);
    out.set_file_bytes(out.file_bytes() + tally.bytes);
    for (size_t i = 0; i < model_loader::kDTypes; ++i) {
      if (tally.bytes_by_dtype[i] == 0) continue;
      const auto dtype = static_cast<kernels::DType>(i);
      const std::string dtype_name(kernels::Name(dtype));
      auto* dtypes = out.mutable_dtypes();
      auto known = std::find_if(dtypes->begin(), dtypes->end(),
                                [&dtype_name](const v1::DTypeCount& count) { return count.dtype() == dtype_name; });
      v1::DTypeCount& count = known == dtypes->end() ? *out.add_dtypes() : *known;
      count.set_dtype(dtype_name);
      count.set_bytes(count.bytes() + tally.bytes_by_dtype[i]);
      count.set_elements(count.bytes() / static_cast<int64_t>(kernels::SizeOf(dtype)));
    }
  }
  owner->set_parameters(owner->parameters() + account.total.parameters);
  owner->set_file_bytes(owner->file_bytes() + account.total.bytes);
  owner->set_mapped_bytes(owner->mapped_bytes() + account.mapped_bytes);
  owner->set_kernel_resident_bytes(owner->kernel_resident_bytes() + account.resident_bytes.value_or(0));
  owner->set_formula_parameters(owner->formula_parameters() + account.formula.value_or(0));
}

void AddPlan(const char* name, const char* formula, const absl::StatusOr<int64_t>& parameters, int64_t independent,
             v1::GetParameterStatsResponse* response) {
  if (!parameters.ok()) return;  // exceeds 2^63 - 1: there is no number to tell
  v1::PlanParameters& plan = *response->add_plans();
  plan.set_plan(name);
  plan.set_formula(formula);
  plan.set_parameters(*parameters);
  plan.set_saving(model_loader::SavingRatio(*parameters, independent));
}

void FillFormulas(const model_loader::ModelConfig& config, const Account& account, int32_t languages,
                  v1::GetParameterStatsResponse* response) {
  using model_loader::AttentionCount;
  if (languages == 0 || !account.saving.has_value()) return;
  const Account::Saving& saving = *account.saving;
  v1::SharingAccount& sharing = *response->mutable_sharing();
  sharing.set_languages(languages);
  sharing.set_independent_parameters(saving.independent_parameters);
  sharing.set_parameters(account.total.parameters);
  sharing.set_saving(saving.ratio);
  sharing.set_attention_qkv(saving.attention_qkv);
  sharing.set_independent_attention_qkv(saving.independent_attention_qkv);
  sharing.set_attention_qkv_saving(saving.attention_ratio);
  sharing.set_attention_qkvo(saving.attention_qkvo);
  sharing.set_independent_attention_qkvo(saving.independent_attention_qkvo);
  sharing.set_attention_qkvo_saving(
      model_loader::SavingRatio(saving.attention_qkvo, saving.independent_attention_qkvo));
  v1::LanguageCost& next = *response->mutable_next_language();
  next.set_parameters(saving.next_language_parameters);
  next.set_file_bytes(saving.next_language_bytes);
  next.set_mapped_bytes(saving.next_language_mapped_bytes);

  model_loader::PlanShape shape = model_loader::ShapeOf(config, {}, 0);
  shape.languages = languages;
  const int64_t independent = saving.independent_attention_qkv;
  const AttentionCount count = AttentionCount::kQkv;
  AddPlan("independent", "N*L*H*d*(2*d_k + d_v)", independent, independent, response);
  AddPlan("shared", "L*H*d*(2*d_k + d_v)", model_loader::SharedAttention(shape, count), independent, response);
  if (shape.language_heads > 0) {
    AddPlan("hybrid_heads", "L*(H1 + N*H2)*d*(2*d_k + d_v)", model_loader::HybridHeadsAttention(shape, count),
            independent, response);
  }
  if (shape.own_attention_blocks() > 0) {
    AddPlan("hybrid_layers", "(L_s + N*L_o)*H*d*(2*d_k + d_v)", model_loader::HybridLayersAttention(shape, count),
            independent, response);
  }
  AddPlan("model", "(L_s*(H1 + N*H2) + N*L_o*H)*d*(2*d_k + d_v)", saving.attention_qkv, independent, response);
}

// Parameters of a model and what is loaded of it, added up by the account; memory is not looked at.
absl::StatusOr<int64_t> CountLoaded(const Model& model, absl::Span<const LanguageInfo> languages) {
  model_loader::OwnerTensors shared;
  shared.owner = "shared";
  shared.tensors = model.shared_tensors();
  std::vector<model_loader::OwnerTensors> owners;
  for (const LanguageInfo& info : languages) {
    if (info.loaded == nullptr) continue;
    owners.push_back({info.code, "", info.loaded->tensors(), 0, std::nullopt, std::nullopt});
    for (const std::string& name : info.loaded->adapter_names()) {
      const auto adapter = info.loaded->FindAdapter(name);
      if (adapter.ok()) owners.push_back({info.code, name, (*adapter)->tensors(), 0, std::nullopt, std::nullopt});
    }
  }
  const absl::StatusOr<Account> account = model_loader::MakeAccount(shared, owners);
  if (!account.ok()) return account.status();
  return account->total.parameters;
}

std::string Hex(uint64_t checksum) { return absl::StrFormat("%016x", checksum); }

void FillLanguages(const LanguageStore& languages, v1::LanguageStats* out) {
  for (const LanguageInfo& info : languages.List()) {
    switch (info.state) {
      case LanguageState::kCold:
        out->set_cold(out->cold() + 1);
        break;
      case LanguageState::kLoading:
        out->set_loading(out->loading() + 1);
        break;
      case LanguageState::kLoaded:
        out->set_loaded(out->loaded() + 1);
        break;
      case LanguageState::kDraining:
        out->set_draining(out->draining() + 1);
        break;
      case LanguageState::kFailed:
        out->set_failed(out->failed() + 1);
        break;
    }
  }
  const LanguageStoreCounters counters = languages.counters();
  out->set_loads(counters.loads);
  out->set_failures(counters.failures);
  out->set_evictions(counters.evictions);
  out->set_waiting(counters.waiting);
  out->set_used_bytes(counters.used_bytes);
  out->set_budget_bytes(counters.budget_bytes);
}

void FillGeneration(const model_loader::Generation& generation, v1::GenerationDefaults* out) {
  if (generation.beam_size.has_value()) out->set_beam_size(*generation.beam_size);
  if (generation.length_penalty.has_value()) out->set_length_penalty(*generation.length_penalty);
  if (generation.early_stopping.has_value()) {
    out->set_early_stopping(static_cast<v1::EarlyStopping>(*generation.early_stopping));
  }
  if (generation.max_tokens.has_value()) out->set_max_tokens(static_cast<int32_t>(*generation.max_tokens));
  if (generation.min_tokens.has_value()) out->set_min_tokens(static_cast<int32_t>(*generation.min_tokens));
  for (const std::string& piece : generation.suppressed) out->add_suppressed(piece);
  out->set_forced_end(generation.forced_end);
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

absl::Status ModelHosts::Ready() const {
  std::vector<std::string> waiting;
  for (const auto& host : hosts_) {
    const std::vector<std::string> missing = host->languages->missing();
    if (!missing.empty()) waiting.push_back(absl::StrCat(host->name, ": ", absl::StrJoin(missing, ", ")));
  }
  if (waiting.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "languages that must be there cannot be served: ", absl::StrJoin(waiting, "; "), "; ListLanguages tells why"));
}

int64_t ProcessResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

v1::ListLanguagesResponse DescribeLanguages(const ModelHost& host) {
  v1::ListLanguagesResponse response;
  response.set_model(host.name);
  for (const LanguageInfo& info : host.languages->List()) *response.add_languages() = DescribeLanguage(info);
  return response;
}

v1::Language DescribeLanguage(const LanguageInfo& info) {
  const model_loader::LanguageConfig& config = info.plan.config;
  v1::Language out;
  out.set_code(info.code);
  out.set_state(StateOf(info.state));
  out.set_pinned(info.pinned);
  out.set_leases(info.leases);
  out.set_loads(info.loads);
  out.set_last_load_seconds(absl::ToDoubleSeconds(info.last_load));
  if (!info.failure.ok()) out.set_failure(ForMessage(info.failure.message(), kMaxMessageBytes));
  if (config.code.empty()) return out;  // a folder that could not be read
  out.set_name(config.name);
  out.set_native_name(config.native_name);
  out.set_script(config.script);
  out.set_direction(config.direction.empty() ? "ltr" : config.direction);
  for (const std::string& alias : config.aliases) out.add_aliases(alias);
  out.set_vocabulary(info.plan.vocabulary);
  out.set_parameters(info.plan.parameters);
  out.set_memory_bytes(info.plan.memory_bytes());
  for (const std::string& name : info.plan.adapters) out.add_adapters(name);
  out.set_default_adapter(model_loader::Name(config.adapter.kind));
  return out;
}

v1::ModelRescan Rescan(const ModelHost& host) {
  const RescanResult found = host.languages->Rescan();
  v1::ModelRescan out;
  out.set_model(host.name);
  for (const std::string& code : found.added) out.add_added(code);
  for (const std::string& code : found.replaced) out.add_replaced(code);
  for (const std::string& code : found.removed) out.add_removed(code);
  for (const auto& [code, status] : found.broken) {
    v1::BrokenLanguage& broken = *out.add_broken();
    broken.set_language(code);
    broken.set_failure(ForMessage(status.message(), kMaxMessageBytes));
    spdlog::warn("{}: language {} is broken: {}", host.name, code, std::string(status.message()));
  }
  const auto list = [](const std::vector<std::string>& codes) {
    return codes.empty() ? std::string("none") : absl::StrJoin(codes, " ");
  };
  spdlog::info("{}: rescanned; added {}; replaced {}; removed {}", host.name, list(found.added), list(found.replaced),
               list(found.removed));
  return out;
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
  limits.set_max_source_tokens(config.longest_source());
  for (const model_loader::LanguagePair& pair : config.zero_shot_pairs) {
    v1::LanguagePair& out = *response.add_zero_shot_pairs();
    out.set_source(pair.source);
    out.set_target(pair.target);
  }
  response.set_pooling(config.pooling.mode == model_loader::PoolingMode::kMean ? "mean" : "cls");
  response.set_normalize(config.pooling.normalize);
  const std::vector<LanguageInfo> languages = host.languages->List();
  response.set_languages(static_cast<int32_t>(languages.size()));
  int64_t parameters = CountLoaded(model, languages).value_or(0);
  for (const LanguageInfo& info : languages) {
    if (info.loaded == nullptr) parameters += info.plan.parameters;
  }
  response.set_parameters(parameters);
  response.set_load_seconds(host.load_seconds);
  response.set_embedding_size(static_cast<int32_t>(config.embedding_size()));
  for (const auto& [name, text] : config.prompts) (*response.mutable_prompts())[name] = text;
  response.set_default_prompt(config.default_prompt);
  if (config.kind == model_loader::ModelKind::kEncoderDecoder) {
    FillGeneration(config.generation, response.mutable_generation());
  }
  return response;
}

absl::StatusOr<v1::GetParameterStatsResponse> DescribeParameters(const ModelHost& host, bool checksums) {
  v1::GetParameterStatsResponse response;
  const Model& model = *host.model;
  const std::vector<LanguageInfo> languages = host.languages->List();
  std::vector<std::shared_ptr<const Language>> loaded;
  for (const LanguageInfo& info : languages) {
    if (info.loaded != nullptr) loaded.push_back(info.loaded);
  }
  absl::StatusOr<Account> account = model_loader::AccountOf(model, loaded);
  if (!account.ok()) return absl::InternalError(absl::StrCat("the account fails: ", account.status().message()));

  response.set_model(host.name);
  v1::OwnerParameters& shared = *response.add_owners();
  shared.set_owner("shared");
  shared.set_shared(true);
  shared.set_state(v1::LANGUAGE_STATE_LOADED);
  AddAccount(account->shared, &shared);
  shared.set_resident_bytes(model.shared_resident_bytes());
  shared.set_tokenizer_bytes(model.shared_tokenizer_bytes());
  if (checksums) shared.set_checksum(Hex(model.shared_checksum()));
  response.set_shared_parameters(shared.parameters());
  for (const LanguageInfo& info : languages) {
    v1::OwnerParameters& owner = *response.add_owners();
    owner.set_owner(info.code);
    owner.set_state(StateOf(info.state));
    if (info.loaded == nullptr) {
      owner.set_parameters(info.plan.parameters);
    } else {
      for (const OwnerAccount& part : account->languages) {
        if (part.owner == info.code) AddAccount(part, &owner);
      }
      owner.set_resident_bytes(info.loaded->resident_bytes());
      owner.set_tokenizer_bytes(info.loaded->tokenizer_bytes());
      if (checksums) owner.set_checksum(Hex(info.loaded->checksum()));
    }
    response.set_language_parameters(response.language_parameters() + owner.parameters());
  }
  for (const v1::OwnerParameters& owner : response.owners()) {
    response.set_parameters(response.parameters() + owner.parameters());
    response.set_file_bytes(response.file_bytes() + owner.file_bytes());
    response.set_resident_bytes(response.resident_bytes() + owner.resident_bytes());
    response.set_mapped_bytes(response.mapped_bytes() + owner.mapped_bytes());
    response.set_kernel_resident_bytes(response.kernel_resident_bytes() + owner.kernel_resident_bytes());
  }
  // What --language-memory counts of a language: its mapping and its tokenizer.
  if (account->saving.has_value() && !loaded.empty()) {
    int64_t tokenizers = 0;
    for (const auto& language : loaded) tokenizers += language->tokenizer_bytes();
    account->saving->next_language_mapped_bytes += tokenizers / static_cast<int64_t>(loaded.size());
  }
  FillFormulas(model.config(), *account, static_cast<int32_t>(loaded.size()), &response);

  v1::LanguageRoom& room = *response.mutable_room();
  const LanguageStoreCounters counters = host.languages->counters();
  if (counters.budget_bytes > 0) {
    room.set_free_bytes(std::max<int64_t>(0, counters.budget_bytes - counters.used_bytes));
    room.set_basis("language_memory");
  } else {
    const FreeMemory free = ReadFreeMemory();
    room.set_free_bytes(free.bytes);
    room.set_basis(free.basis);
  }
  const auto more = model_loader::MoreLanguagesThatFit(*account, room.free_bytes());
  if (more.has_value()) room.set_languages(*more);
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
    FillLanguages(*host->languages, out.mutable_languages());
    if (host->engine != nullptr) {
      out.set_live_jobs(host->engine->live_jobs());
      FillEngine(*host->engine, out.mutable_engine());
    }
  }
  return response;
}

}  // namespace koine::server
