// Strict reading of JSON objects: every fault is noted with its path, none stops the reading, unknown keys are faults.
#ifndef KOINE_MODEL_LOADER_FORMAT_JSON_FIELDS_H_
#define KOINE_MODEL_LOADER_FORMAT_JSON_FIELDS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {

// The candidate that `word` was probably meant to be (edit distance at most a third of its length), or "".
std::string NearMiss(absl::string_view word, absl::Span<const std::string> candidates);

// Collects what is wrong with one file.
class Faults {
 public:
  explicit Faults(std::string where) : where_(std::move(where)) {}
  void Add(absl::string_view path, absl::string_view text);
  bool empty() const { return count_ == 0; }
  // OK if nothing was added; else one INVALID_ARGUMENT that names the file and lists every fault (the first 64 of them,
  // and how many more there are).
  absl::Status ToStatus() const;

 private:
  std::string where_;
  std::vector<std::string> texts_;
  int64_t count_ = 0;
};

// One JSON object. Each getter marks its key as known; Done() reports the keys nobody asked for. A getter without a
// default reports a missing key. After a fault a getter returns its default or a harmless value.
class Fields {
 public:
  // A null `value`, or one that is no object, gives an object that is empty and reports no missing keys: the fault has
  // been noted already.
  Fields(const nlohmann::json* value, std::string path, Faults* faults);

  bool present() const { return object_ != nullptr; }
  bool Has(const char* key) const;
  std::string Path(absl::string_view key) const;
  void Fault(absl::string_view key, absl::string_view text) { faults_->Add(Path(key), text); }

  int64_t Int(const char* key, int64_t minimum, int64_t maximum, std::optional<int64_t> otherwise = std::nullopt);
  // REQUIRES minimum >= 0; finite numbers only. `above` excludes the minimum itself.
  double Number(const char* key, double minimum, bool above, double maximum,
                std::optional<double> otherwise = std::nullopt);
  bool Bool(const char* key, std::optional<bool> otherwise = std::nullopt);
  std::string String(const char* key, std::optional<std::string> otherwise = std::nullopt);
  std::vector<std::string> Strings(const char* key, bool required);
  std::vector<int64_t> Ints(const char* key, int64_t minimum, int64_t maximum);
  Fields Object(const char* key, bool required);
  const nlohmann::json* Any(const char* key);

  template <typename T>
  T Enum(const char* key, const std::vector<std::pair<std::string, T>>& values,
         std::optional<T> otherwise = std::nullopt) {
    std::vector<std::string> names;
    for (const auto& [name, value] : values) names.push_back(name);
    const std::optional<size_t> index = EnumIndex(key, names, !otherwise.has_value());
    return index.has_value() ? values[*index].second : otherwise.value_or(values.front().second);
  }

  void Done();

 private:
  const nlohmann::json* Find(const char* key, bool required);
  std::optional<size_t> EnumIndex(const char* key, const std::vector<std::string>& names, bool required);

  const nlohmann::json* object_ = nullptr;
  std::string path_;
  Faults* faults_;
  std::set<std::string> known_;
};

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_FORMAT_JSON_FIELDS_H_
