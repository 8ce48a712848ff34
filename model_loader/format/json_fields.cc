#include "model_loader/format/json_fields.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

using nlohmann::json;

constexpr size_t kMaxFaults = 64;
constexpr size_t kMaxStringBytes = 1024;
constexpr size_t kMaxListEntries = 4096;

// Levenshtein (1966) in one row.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string Show(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return absl::StrCat("\"", Printable(value.get_ref<const std::string&>()), "\"");
  return Printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

// The value as a 64-bit integer; 4.0 is not one.
std::optional<int64_t> AsInt(const json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

}  // namespace

std::string NearMiss(absl::string_view word, absl::Span<const std::string> candidates) {
  constexpr size_t kLongest = 64;  // nobody mistypes a longer word; keeps hostile input cheap
  std::string best;
  if (word.empty() || word.size() > kLongest) return best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(word.size(), candidate.size());
    if (candidate.size() > kLongest || longer - std::min(word.size(), candidate.size()) >= best_distance) continue;
    const size_t distance = EditDistance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

void Faults::Add(absl::string_view path, absl::string_view text) {
  ++count_;
  if (texts_.size() < kMaxFaults) texts_.push_back(absl::StrCat(path, path.empty() ? "" : ": ", text));
}

absl::Status Faults::ToStatus() const {
  if (count_ == 0) return absl::OkStatus();
  std::string more;
  if (count_ > static_cast<int64_t>(texts_.size())) {
    more = absl::StrCat("; and ", count_ - static_cast<int64_t>(texts_.size()), " more");
  }
  return absl::InvalidArgumentError(absl::StrCat(where_, ": ", absl::StrJoin(texts_, "; "), more));
}

Fields::Fields(const json* value, std::string path, Faults* faults) : path_(std::move(path)), faults_(faults) {
  if (value == nullptr) return;
  if (!value->is_object()) {
    faults_->Add(path_, absl::StrCat("must be an object, not ", Show(*value)));
    return;
  }
  object_ = value;
}

bool Fields::Has(const char* key) const { return object_ != nullptr && object_->contains(key); }

std::string Fields::Path(absl::string_view key) const {
  if (key.empty()) return path_;
  return path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key);
}

const json* Fields::Find(const char* key, bool required) {
  known_.insert(key);
  if (object_ == nullptr) return nullptr;
  const auto found = object_->find(key);
  if (found != object_->end()) return &*found;
  if (required) Fault(key, "is missing");
  return nullptr;
}

const json* Fields::Any(const char* key) { return Find(key, false); }

int64_t Fields::Int(const char* key, int64_t minimum, int64_t maximum, std::optional<int64_t> otherwise) {
  const int64_t fallback = otherwise.value_or(minimum);
  const json* value = Find(key, !otherwise.has_value());
  if (value == nullptr) return fallback;
  const std::optional<int64_t> number = AsInt(*value);
  if (!number.has_value() || *number < minimum || *number > maximum) {
    Fault(key, absl::StrCat("must be an integer from ", minimum, " to ", maximum, ", not ", Show(*value)));
    return fallback;
  }
  return *number;
}

double Fields::Number(const char* key, double minimum, bool above, double maximum, std::optional<double> otherwise) {
  const double fallback = otherwise.value_or(maximum);
  const json* value = Find(key, !otherwise.has_value());
  if (value == nullptr) return fallback;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!std::isfinite(number) || number < minimum || (above && number <= minimum) || number > maximum) {
    Fault(key, absl::StrCat("must be a number ", above ? "above " : "from ", minimum, " to ", maximum, ", not ",
                            Show(*value)));
    return fallback;
  }
  return number;
}

bool Fields::Bool(const char* key, std::optional<bool> otherwise) {
  const json* value = Find(key, !otherwise.has_value());
  if (value == nullptr) return otherwise.value_or(false);
  if (!value->is_boolean()) {
    Fault(key, absl::StrCat("must be true or false, not ", Show(*value)));
    return otherwise.value_or(false);
  }
  return value->get<bool>();
}

std::string Fields::String(const char* key, std::optional<std::string> otherwise) {
  const json* value = Find(key, !otherwise.has_value());
  if (value == nullptr) return otherwise.value_or("");
  if (!value->is_string()) {
    Fault(key, absl::StrCat("must be a string, not ", Show(*value)));
    return otherwise.value_or("");
  }
  std::string text = value->get<std::string>();
  if (text.size() > kMaxStringBytes || text.find('\0') != std::string::npos) {
    Fault(key, absl::StrCat("must be at most ", kMaxStringBytes, " bytes without NUL"));
    return otherwise.value_or("");
  }
  return text;
}

std::vector<std::string> Fields::Strings(const char* key, bool required) {
  std::vector<std::string> result;
  const json* value = Find(key, required);
  if (value == nullptr) return result;
  if (!value->is_array() || value->size() > kMaxListEntries) {
    Fault(key, absl::StrCat("must be a list of at most ", kMaxListEntries, " strings, not ", Show(*value)));
    return result;
  }
  for (const json& element : *value) {
    if (!element.is_string() || element.get_ref<const std::string&>().empty() ||
        element.get_ref<const std::string&>().size() > kMaxStringBytes ||
        element.get_ref<const std::string&>().find('\0') != std::string::npos) {
      Fault(key, absl::StrCat("must hold non-empty strings of at most ", kMaxStringBytes, " bytes without NUL, not ",
                              Show(element)));
      continue;
    }
    result.push_back(element.get<std::string>());
  }
  return result;
}

std::vector<int64_t> Fields::Ints(const char* key, int64_t minimum, int64_t maximum) {
  std::vector<int64_t> result;
  const json* value = Find(key, false);
  if (value == nullptr) return result;
  if (!value->is_array() || value->size() > kMaxListEntries) {
    Fault(key, absl::StrCat("must be a list of at most ", kMaxListEntries, " integers, not ", Show(*value)));
    return result;
  }
  for (const json& element : *value) {
    const std::optional<int64_t> number = AsInt(element);
    if (!number.has_value() || *number < minimum || *number > maximum) {
      Fault(key, maximum < minimum
                     ? absl::StrCat("must be empty, not hold ", Show(element))
                     : absl::StrCat("must hold integers from ", minimum, " to ", maximum, ", not ", Show(element)));
      continue;
    }
    if (std::find(result.begin(), result.end(), *number) != result.end()) {
      Fault(key, absl::StrCat("holds ", *number, " twice"));
      continue;
    }
    result.push_back(*number);
  }
  return result;
}

Fields Fields::Object(const char* key, bool required) { return Fields(Find(key, required), Path(key), faults_); }

std::optional<size_t> Fields::EnumIndex(const char* key, const std::vector<std::string>& names, bool required) {
  const json* value = Find(key, required);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) {
    const auto found = std::find(names.begin(), names.end(), value->get_ref<const std::string&>());
    if (found != names.end()) return static_cast<size_t>(found - names.begin());
  }
  Fault(key, absl::StrCat("must be \"", absl::StrJoin(names, "\" or \""), "\", not ", Show(*value)));
  return std::nullopt;
}

void Fields::Done() {
  if (object_ == nullptr) return;
  const std::vector<std::string> known(known_.begin(), known_.end());
  for (const auto& [key, value] : object_->items()) {
    if (known_.count(key) != 0) continue;
    const std::string meant = NearMiss(key, known);
    Fault(Printable(key), meant.empty() ? absl::StrCat("unknown key (known: ", absl::StrJoin(known, ", "), ")")
                                        : absl::StrCat("unknown key; did you mean \"", meant, "\"?"));
  }
}

}  // namespace koine::model_loader
