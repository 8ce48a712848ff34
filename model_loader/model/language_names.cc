#include "model_loader/model/language_names.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace koine::model_loader {
namespace {

// Levenshtein distance, for "did you mean".
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// What was given, fit for a message: it may be anything a stranger sends. Cut between characters, control characters
// escaped; what is no UTF-8 stays so.
std::string Shown(std::string_view name) {
  size_t end = std::min<size_t>(name.size(), 40);
  while (end < name.size() && end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
  std::string shown;
  for (const char c : name.substr(0, end)) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    shown += control ? absl::StrCat("\\x", absl::Hex(c, absl::kZeroPad2)) : std::string(1, c);
  }
  return shown;
}

}  // namespace

std::string NormalizeLanguageCode(std::string_view code) {
  std::string normal(code);
  for (char& c : normal) {
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return normal;
}

std::vector<LanguagePair> ReadPair(const std::string& text, const std::function<bool(const std::string&)>& known) {
  std::vector<LanguagePair> readings;
  for (size_t dash = text.find('-'); dash != std::string::npos; dash = text.find('-', dash + 1)) {
    LanguagePair pair = {text.substr(0, dash), text.substr(dash + 1)};
    if (known(pair.source) && known(pair.target)) readings.push_back(std::move(pair));
  }
  return readings;
}

absl::Status LanguageNames::Add(const LanguageConfig& language) {
  const std::string code = NormalizeLanguageCode(language.code);
  const auto taken = names_.find(code);
  if (taken != names_.end() && !taken->second.alias) {
    return absl::InvalidArgumentError(
        taken->second.code == language.code
            ? absl::StrCat("language ", language.code, " is there twice")
            : absl::StrCat("languages ", taken->second.code, " and ", language.code, " differ only in letter case"));
  }
  for (const std::string& alias : language.aliases) {
    const auto found = names_.find(NormalizeLanguageCode(alias));
    if (found != names_.end() && found->second.alias && found->second.code != language.code && found->first != code) {
      return absl::InvalidArgumentError(
          absl::StrCat("alias \"", alias, "\" is claimed by languages ", found->second.code, " and ", language.code));
    }
  }
  names_[code] = {language.code, false};
  codes_.push_back(language.code);
  for (const std::string& alias : language.aliases) {
    names_.emplace(NormalizeLanguageCode(alias), Target{language.code, true});
  }
  return absl::OkStatus();
}

void LanguageNames::Remove(std::string_view code) {
  for (auto it = names_.begin(); it != names_.end();) {
    it = it->second.code == code ? names_.erase(it) : std::next(it);
  }
  codes_.erase(std::remove(codes_.begin(), codes_.end(), code), codes_.end());
}

absl::StatusOr<std::string> LanguageNames::Find(std::string_view name) const {
  const std::string normal = NormalizeLanguageCode(name);
  const auto found = names_.find(normal);
  if (found != names_.end()) return found->second.code;
  if (codes_.size() == 1 && codes_.front().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Shown(name), "\": this model has no languages; leave the language out"));
  }
  // Near ones: codes and aliases within two edits, or with the same primary subtag.
  constexpr size_t kLongestCode = 32;
  std::set<std::string> near;
  if (normal.size() < kLongestCode) {
    const std::string primary = normal.substr(0, normal.find('-'));
    const size_t limit = std::min<size_t>(2, std::max<size_t>(1, normal.size() / 2));
    for (const auto& [other, target] : names_) {
      const bool same_primary = primary.size() >= 2 && other.substr(0, other.find('-')) == primary;
      if (same_primary || EditDistance(normal, other) <= limit) near.insert(target.code);
    }
  }
  // Both lists are cut: a model may have hundreds of languages.
  constexpr size_t kListed = 20;
  std::vector<std::string> shown_near(near.begin(), near.end());
  if (shown_near.size() > kListed) shown_near.resize(kListed);
  std::vector<std::string> shown(codes_.begin(),
                                 codes_.begin() + static_cast<std::ptrdiff_t>(std::min(kListed, codes_.size())));
  return absl::InvalidArgumentError(absl::StrCat(
      name.empty() ? std::string("no language given") : absl::StrCat("unknown language \"", Shown(name), "\""),
      shown_near.empty() ? "" : absl::StrCat("; near ones: ", absl::StrJoin(shown_near, ", ")),
      "; this model has: ", absl::StrJoin(shown, ", "),
      codes_.size() > kListed ? absl::StrCat(" and ", codes_.size() - kListed, " more") : ""));
}

}  // namespace koine::model_loader
