// Which language a request means: codes and aliases, whatever their letter case, '-' and '_' alike.
#ifndef KOINE_MODEL_LOADER_MODEL_LANGUAGE_NAMES_H_
#define KOINE_MODEL_LOADER_MODEL_LANGUAGE_NAMES_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model_loader/format/config.h"

namespace koine::model_loader {

// "pt_BR" -> "pt-br": how codes and aliases are compared.
std::string NormalizeLanguageCode(std::string_view code);

// The readings of "SOURCE-TARGET" of which `known` knows both sides: codes may have hyphens themselves.
std::vector<LanguagePair> ReadPair(const std::string& text, const std::function<bool(const std::string&)>& known);

// Not thread-safe while it is being filled; then any thread may ask.
class LanguageNames {
 public:
  // INVALID_ARGUMENT, and nothing changed, if the code is taken or an alias belongs to another language. A code is
  // never shadowed by another language's alias: it takes the name over.
  absl::Status Add(const LanguageConfig& language);
  void Remove(std::string_view code);

  // The canonical code, which is "" for "" in a model without languages. INVALID_ARGUMENT naming what was given, near
  // ones, and (up to 20 of) what there is.
  absl::StatusOr<std::string> Find(std::string_view name) const;

 private:
  struct Target {
    std::string code;
    bool alias = false;
  };
  std::map<std::string, Target, std::less<>> names_;  // by normalised name
  std::vector<std::string> codes_;                    // in the order they were added
};

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_MODEL_LANGUAGE_NAMES_H_
