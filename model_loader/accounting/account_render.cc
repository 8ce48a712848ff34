// An account as a table and as JSON.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model_loader/accounting/account.h"
#include "model_loader/accounting/text_internal.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {
namespace {

using Json = nlohmann::ordered_json;

Json TallyJson(const Tally& tally) {
  Json json = {{"tensors", tally.tensors}, {"parameters", tally.parameters}, {"bytes", tally.bytes}};
  json["by_dtype"] = Json::object();
  for (size_t i = 0; i < kDTypes; ++i) {
    if (tally.bytes_by_dtype[i] == 0) continue;
    json["by_dtype"][std::string(kernels::Name(static_cast<kernels::DType>(i)))] = {
        {"parameters", tally.parameters_by_dtype[i]}, {"bytes", tally.bytes_by_dtype[i]}};
  }
  return json;
}

Json Optional(const std::optional<int64_t>& value) { return value.has_value() ? Json(*value) : Json(nullptr); }

Json OwnerJson(const OwnerAccount& owner) {
  Json json = {{"owner", owner.owner}};
  if (!owner.adapter.empty()) json["adapter"] = owner.adapter;
  json["total"] = TallyJson(owner.total);
  json["formula_parameters"] = Optional(owner.formula);
  json["mapped_bytes"] = owner.mapped_bytes;
  json["resident_bytes"] = Optional(owner.resident_bytes);
  json["components"] = Json::object();
  for (const auto& [component, tally] : owner.components) {
    json["components"][std::string(Name(component))] = TallyJson(tally);
  }
  return json;
}

std::string Label(const OwnerAccount& owner) {
  return owner.adapter.empty() ? owner.owner : absl::StrCat("  ", owner.owner, "/", owner.adapter);
}

// Formula and count agree, or by how much they do not.
std::string FormulaText(const OwnerAccount& owner) {
  if (!owner.formula.has_value()) return "";
  if (*owner.formula == owner.total.parameters) return "equal";
  return Grouped(*owner.formula);
}

}  // namespace

std::string RenderTable(const Account& account) {
  // A model that is not loaded maps nothing: no columns of memory then.
  const bool loaded = account.mapped_bytes > 0;
  const auto row = [loaded](std::string owner, const std::string& formula, const Tally& total, int64_t mapped,
                            const std::optional<int64_t>& resident) {
    std::vector<std::string> cells = {std::move(owner), Grouped(total.parameters), formula, HumanBytes(total.bytes),
                                      Grouped(total.tensors)};
    if (loaded) {
      cells.push_back(HumanBytes(mapped));
      cells.push_back(resident.has_value() ? HumanBytes(*resident) : "");
    }
    return cells;
  };
  std::vector<std::string> header = {"owner", "parameters", "by formula", "file bytes", "tensors"};
  if (loaded) header.insert(header.end(), {"mapped", "resident"});
  TextTable owners(std::move(header));
  const auto add = [&](const OwnerAccount& owner) {
    owners.Add(row(Label(owner), FormulaText(owner), owner.total, owner.mapped_bytes, owner.resident_bytes));
  };
  add(account.shared);
  for (const OwnerAccount& language : account.languages) add(language);
  owners.Rule();
  owners.Add(row("total", "", account.total, account.mapped_bytes, account.resident_bytes));
  std::string text = owners.Render() + "\n";

  TextTable components({"component", "shared", "languages", "all", "bytes"});
  for (size_t i = 0; i < kComponents; ++i) {
    const Component component = static_cast<Component>(i);
    int64_t shared = 0, languages = 0, bytes = 0;
    if (const auto found = account.shared.components.find(component); found != account.shared.components.end()) {
      shared = found->second.parameters;
      bytes = found->second.bytes;
    }
    for (const OwnerAccount& language : account.languages) {
      const auto found = language.components.find(component);
      if (found == language.components.end()) continue;
      languages += found->second.parameters;
      bytes += found->second.bytes;
    }
    if (bytes == 0) continue;
    components.Add({std::string(Name(component)), Grouped(shared), Grouped(languages), Grouped(shared + languages),
                    HumanBytes(bytes)});
  }
  text += components.Render() + "\n";

  TextTable dtypes({"dtype", "parameters", "bytes"});
  for (size_t i = 0; i < kDTypes; ++i) {
    if (account.total.bytes_by_dtype[i] == 0) continue;
    dtypes.Add({std::string(kernels::Name(static_cast<kernels::DType>(i))),
                Grouped(account.total.parameters_by_dtype[i]), HumanBytes(account.total.bytes_by_dtype[i])});
  }
  text += dtypes.Render();
  if (!account.saving.has_value()) return text;

  const Account::Saving& saving = *account.saving;
  TextTable savings({"saving", "this model", "independent models", "saved"});
  savings.Add({"all parameters", Grouped(account.total.parameters), Grouped(saving.independent_parameters),
               Percent(saving.ratio)});
  savings.Add({"attention Q, K, V", Grouped(saving.attention_qkv), Grouped(saving.independent_attention_qkv),
               Percent(saving.attention_ratio)});
  savings.Add({"attention with O", Grouped(saving.attention_qkvo), Grouped(saving.independent_attention_qkvo),
               Percent(SavingRatio(saving.attention_qkvo, saving.independent_attention_qkvo))});
  absl::StrAppend(&text, "\n", savings.Render());
  if (saving.next_language_parameters > 0 || saving.next_language_bytes > 0) {
    absl::StrAppend(&text, "\nOne more language: about ", Grouped(saving.next_language_parameters), " parameters, ",
                    HumanBytes(saving.next_language_bytes), " of files, ",
                    HumanBytes(saving.next_language_mapped_bytes), " mapped.\n");
  }
  return text;
}

std::string ToJson(const Account& account) {
  Json json;
  json["shared"] = OwnerJson(account.shared);
  json["languages"] = Json::array();
  for (const OwnerAccount& language : account.languages) json["languages"].push_back(OwnerJson(language));
  json["total"] = TallyJson(account.total);
  json["mapped_bytes"] = account.mapped_bytes;
  json["resident_bytes"] = Optional(account.resident_bytes);
  if (account.saving.has_value()) {
    const Account::Saving& saving = *account.saving;
    json["saving"] = {{"independent_parameters", saving.independent_parameters},
                      {"ratio", saving.ratio},
                      {"attention_qkv", saving.attention_qkv},
                      {"attention_qkvo", saving.attention_qkvo},
                      {"independent_attention_qkv", saving.independent_attention_qkv},
                      {"independent_attention_qkvo", saving.independent_attention_qkvo},
                      {"attention_ratio", saving.attention_ratio},
                      {"next_language_parameters", saving.next_language_parameters},
                      {"next_language_bytes", saving.next_language_bytes},
                      {"next_language_mapped_bytes", saving.next_language_mapped_bytes}};
  }
  // Names come from model files: bytes that are no UTF-8 become U+FFFD instead of an exception.
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace koine::model_loader
