#include "model_loader/accounting/account.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model_loader/accounting/count_internal.h"
#include "model_loader/accounting/mappings.h"

namespace koine::model_loader {
namespace {

std::string NameOf(const OwnerTensors& owner) {
  return owner.adapter.empty() ? owner.owner : absl::StrCat(owner.owner, ", adapter ", owner.adapter);
}

// Checked sum in place.
absl::Status Raise(int64_t by, const char* what, int64_t* sum) {
  absl::StatusOr<int64_t> raised = (Count(*sum) + by).Get(what);
  if (!raised.ok()) return raised.status();
  *sum = *raised;
  return absl::OkStatus();
}

absl::Status Add(const Tally& tally, Tally* sum) {
  absl::Status status = Raise(tally.tensors, "the number of tensors", &sum->tensors);
  status.Update(Raise(tally.parameters, "the parameter count", &sum->parameters));
  status.Update(Raise(tally.bytes, "the size in bytes", &sum->bytes));
  for (size_t i = 0; i < kDTypes; ++i) {
    status.Update(Raise(tally.parameters_by_dtype[i], "the parameter count", &sum->parameters_by_dtype[i]));
    status.Update(Raise(tally.bytes_by_dtype[i], "the size in bytes", &sum->bytes_by_dtype[i]));
  }
  return status;
}

absl::StatusOr<Tally> TallyOf(const LoadedTensor& tensor) {
  Count elements = 1;
  for (const int64_t dimension : tensor.shape) {
    if (dimension < 0) return absl::InvalidArgumentError(absl::StrCat("dimension ", dimension));
    elements = elements * dimension;
  }
  const absl::StatusOr<int64_t> count = elements.Get("its number of elements");
  if (!count.ok()) return count.status();
  if (*count != tensor.elements) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.elements, " elements in a shape of ", *count));
  }
  const absl::StatusOr<int64_t> bytes =
      (elements * static_cast<int64_t>(kernels::SizeOf(tensor.file_dtype))).Get("its size in bytes");
  if (!bytes.ok()) return bytes.status();
  if (*bytes != tensor.file_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.file_bytes, " bytes where ", tensor.elements, " elements of ",
                                                   std::string(kernels::Name(tensor.file_dtype)), " take ", *bytes));
  }
  Tally tally;
  tally.tensors = 1;
  tally.parameters = tensor.parameters();
  tally.bytes = *bytes;
  const size_t dtype = static_cast<size_t>(tensor.file_dtype);
  tally.parameters_by_dtype[dtype] = tally.parameters;
  tally.bytes_by_dtype[dtype] = tally.bytes;
  return tally;
}

bool SameTensor(const LoadedTensor& a, const LoadedTensor& b) {
  return a.component == b.component && a.shape == b.shape && a.file_dtype == b.file_dtype && a.elements == b.elements &&
         a.file_bytes == b.file_bytes;
}

absl::StatusOr<OwnerAccount> OwnerAccountOf(const OwnerTensors& owner) {
  OwnerAccount account;
  account.owner = owner.owner;
  account.adapter = owner.adapter;
  account.mapped_bytes = owner.mapped_bytes;
  account.resident_bytes = owner.resident_bytes;
  account.formula = owner.formula;
  std::map<std::string_view, const LoadedTensor*> seen;
  for (const LoadedTensor& tensor : owner.tensors) {
    const auto [found, first] = seen.emplace(tensor.name, &tensor);
    if (!first) {
      if (SameTensor(*found->second, tensor)) continue;  // tied: one tensor
      return absl::InvalidArgumentError(
          absl::StrCat(NameOf(owner), ": ", tensor.name, " occurs twice and the two disagree"));
    }
    const absl::StatusOr<Tally> tally = TallyOf(tensor);
    if (!tally.ok()) {
      return absl::Status(tally.status().code(),
                          absl::StrCat(NameOf(owner), ": ", tensor.name, ": ", tally.status().message()));
    }
    absl::Status status = Add(*tally, &account.components[tensor.component]);
    status.Update(Add(*tally, &account.total));
    if (!status.ok()) return status;
  }
  return account;
}

int64_t Parameters(const OwnerAccount& owner, Component component) {
  const auto found = owner.components.find(component);
  return found == owner.components.end() ? 0 : found->second.parameters;
}

int64_t TableParameters(const OwnerAccount& owner) {
  return Parameters(owner, Component::kEmbedding) + Parameters(owner, Component::kOutput);
}

std::vector<std::string_view> NamesOf(absl::Span<const LoadedTensor> tensors) {
  std::vector<std::string_view> names;
  for (const LoadedTensor& tensor : tensors) names.emplace_back(tensor.name);
  return names;
}

// Rows of the shared table; 0 if each language has its own.
int64_t SharedVocabulary(const Model& model) {
  for (const LoadedTensor& tensor : model.shared_tensors()) {
    if (tensor.component == Component::kEmbedding && !tensor.shape.empty()) return tensor.shape[0];
  }
  return 0;
}

}  // namespace

ComponentCounts OwnerAccount::parameters() const {
  ComponentCounts counts{};
  for (const auto& [component, tally] : components) counts[static_cast<size_t>(component)] = tally.parameters;
  return counts;
}

absl::StatusOr<Account> MakeAccount(const OwnerTensors& shared, absl::Span<const OwnerTensors> languages) {
  Account account;
  account.resident_bytes = 0;
  std::set<std::pair<std::string, std::string>> owners = {{shared.owner, shared.adapter}};
  const auto add = [&account](const OwnerTensors& tensors, OwnerAccount* out) -> absl::Status {
    absl::StatusOr<OwnerAccount> owner = OwnerAccountOf(tensors);
    if (!owner.ok()) return owner.status();
    absl::Status status = Add(owner->total, &account.total);
    status.Update(Raise(owner->mapped_bytes, "the mapped size", &account.mapped_bytes));
    if (!owner->resident_bytes.has_value()) account.resident_bytes.reset();
    if (account.resident_bytes.has_value()) {
      status.Update(Raise(*owner->resident_bytes, "the resident size", &*account.resident_bytes));
    }
    *out = *std::move(owner);
    return status;
  };
  absl::Status status = add(shared, &account.shared);
  if (!status.ok()) return status;
  for (const OwnerTensors& language : languages) {
    if (!owners.emplace(language.owner, language.adapter).second) {
      return absl::InvalidArgumentError(absl::StrCat("owner ", NameOf(language), " occurs twice"));
    }
    status = add(language, &account.languages.emplace_back());
    if (!status.ok()) return status;
  }
  return account;
}

absl::Status AddSaving(const ModelConfig& config, Account& account) {
  PlanShape shape = ShapeOf(config, {}, 0);
  int64_t languages = 0;
  for (const OwnerAccount& owner : account.languages) languages += owner.adapter.empty() ? 1 : 0;
  shape.languages = std::max<int64_t>(1, languages);

  Account::Saving saving;
  // The body of a whole model is that of the plan with nothing owned by languages, and no table.
  const absl::StatusOr<PlanCounts> counts = CountPlan(shape);
  if (!counts.ok()) return counts.status();
  Count independent = counts->independent;
  if (config.shared_embedding) independent += Count(shape.languages) * TableParameters(account.shared);
  for (const OwnerAccount& owner : account.languages) {
    if (owner.adapter.empty()) independent += TableParameters(owner);
  }
  absl::StatusOr<int64_t> total = independent.Get("the parameter count of independent models");
  if (!total.ok()) return total.status();
  saving.independent_parameters = *total;
  saving.ratio = SavingRatio(account.total.parameters, *total);

  const auto attention = [&](absl::StatusOr<int64_t> count, int64_t* out) -> absl::Status {
    if (count.ok()) *out = *count;
    return count.status();
  };
  absl::Status status = attention(PlanAttention(shape, AttentionCount::kQkv), &saving.attention_qkv);
  status.Update(attention(PlanAttention(shape, AttentionCount::kQkvo), &saving.attention_qkvo));
  status.Update(attention(IndependentAttention(shape, AttentionCount::kQkv), &saving.independent_attention_qkv));
  status.Update(attention(IndependentAttention(shape, AttentionCount::kQkvo), &saving.independent_attention_qkvo));
  if (!status.ok()) return status;
  saving.attention_ratio = SavingRatio(saving.attention_qkv, saving.independent_attention_qkv);

  if (languages > 0) {
    // One more language is one more folder, its further adapters included. The sums were checked with the totals.
    for (const OwnerAccount& owner : account.languages) {
      saving.next_language_parameters += owner.total.parameters;
      saving.next_language_bytes += owner.total.bytes;
      saving.next_language_mapped_bytes += owner.mapped_bytes;
    }
    saving.next_language_parameters /= languages;
    saving.next_language_bytes /= languages;
    saving.next_language_mapped_bytes /= languages;
  }
  account.saving = saving;
  return absl::OkStatus();
}

std::optional<int64_t> MoreLanguagesThatFit(const Account& account, int64_t free_bytes) {
  if (!account.saving.has_value()) return std::nullopt;
  return LanguagesThatFit(free_bytes, 0, account.saving->next_language_mapped_bytes);
}

absl::StatusOr<std::vector<LoadedTensor>> ExpectedTensors(absl::Span<const TensorSpec> specs, int64_t vocabulary,
                                                          kernels::DType dtype) {
  std::vector<LoadedTensor> tensors;
  for (const TensorSpec& spec : specs) {
    LoadedTensor tensor;
    tensor.name = spec.name;
    tensor.component = spec.component;
    tensor.file_dtype = spec.integer ? kernels::DType::kI32 : dtype;
    Count elements = 1;
    for (const int64_t dimension : spec.shape) {
      tensor.shape.push_back(dimension == kVocabularyRows ? vocabulary : dimension);
      elements = elements * tensor.shape.back();
    }
    const absl::StatusOr<int64_t> count = elements.Get(spec.name.c_str());
    if (!count.ok()) return count.status();
    tensor.elements = *count;
    const absl::StatusOr<int64_t> bytes =
        (elements * static_cast<int64_t>(kernels::SizeOf(tensor.file_dtype))).Get(spec.name.c_str());
    if (!bytes.ok()) return bytes.status();
    tensor.file_bytes = *bytes;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

absl::StatusOr<Account> AccountOf(const Model& model) { return AccountOf(model, model.languages()); }

absl::StatusOr<Account> AccountOf(const Model& model, absl::Span<const std::shared_ptr<const Language>> languages) {
  const ModelConfig& config = model.config();
  const auto mappings = ReadNamedMappings();
  const auto resident = [&](const std::string& part) -> std::optional<int64_t> {
    if (!mappings.ok()) return std::nullopt;
    // Mappings are named "koine:MODEL:OWNER", further adapters' "koine:MODEL:CODE:NAME" (model.h), cut to what a memfd
    // takes. An owner without bytes has none.
    constexpr size_t kLongestName = 240;
    const auto found = mappings->find(absl::StrCat("koine:", config.name, ":", part).substr(0, kLongestName));
    return found == mappings->end() ? 0 : found->second.resident;
  };

  const int64_t shared_vocabulary = SharedVocabulary(model);
  const absl::StatusOr<PlanCounts> shared_formula = FormulaCount(config, {}, shared_vocabulary);
  if (!shared_formula.ok()) return shared_formula.status();
  OwnerTensors shared;
  shared.owner = "shared";
  shared.tensors = model.shared_tensors();
  shared.mapped_bytes = model.shared_mapped_bytes();
  shared.resident_bytes = resident("shared");
  shared.formula = shared_formula->shared_total;

  std::vector<OwnerTensors> owners;
  for (const std::shared_ptr<const Language>& language : languages) {
    if (language->code().empty()) continue;  // a model without languages: it owns nothing
    const int64_t vocabulary = language->weights().vocabulary;
    const LoraCounts lora = LoraCountsOf(config, language->config().adapter, NamesOf(language->tensors()));
    const absl::StatusOr<PlanCounts> formula = FormulaCount(config, language->config().adapter, vocabulary, lora);
    if (!formula.ok()) return formula.status();
    OwnerTensors owner;
    owner.owner = language->code();
    owner.tensors = language->tensors();
    owner.mapped_bytes = language->mapped_bytes();
    owner.resident_bytes = resident(language->code());
    owner.formula = formula->language_total;
    const size_t place = owners.size();
    owners.push_back(owner);
    for (const std::string& name : language->adapter_names()) {
      const absl::StatusOr<const Adapter*> adapter = language->FindAdapter(name);
      if (!adapter.ok()) return adapter.status();
      const LoraCounts pairs = LoraCountsOf(config, (*adapter)->config(), NamesOf((*adapter)->tensors()));
      const absl::StatusOr<int64_t> count = AdapterParameters(ShapeOf(config, (*adapter)->config(), vocabulary, pairs));
      if (!count.ok()) return count.status();
      OwnerTensors further;
      further.owner = language->code();
      further.adapter = name;
      further.tensors = (*adapter)->tensors();
      further.mapped_bytes = (*adapter)->mapped_bytes();
      owners[place].mapped_bytes -= further.mapped_bytes;  // the language's sum includes it
      further.resident_bytes = resident(absl::StrCat(language->code(), ":", name));
      further.formula = *count;
      owners.push_back(further);
    }
  }
  absl::StatusOr<Account> account = MakeAccount(shared, owners);
  if (!account.ok()) return account;
  if (absl::Status status = AddSaving(config, *account); !status.ok()) return status;
  return account;
}

}  // namespace koine::model_loader
