#include "model_loader/importer/languages.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/uscript.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "model_loader/model/language_names.h"

namespace koine::model_loader {
namespace {

using icu::Locale;

// Languages that CLDR 42 has no English name for, or too wide a one.
struct NamedLanguage {
  const char* language;
  const char* name;
};
constexpr NamedLanguage kNames[] = {{"acm", "Mesopotamian Arabic"},
                                    {"acq", "Ta'izzi-Adeni Arabic"},
                                    {"ajp", "South Levantine Arabic"},
                                    {"apc", "North Levantine Arabic"},
                                    {"azb", "South Azerbaijani"},
                                    {"cjk", "Chokwe"},
                                    {"dik", "Southwestern Dinka"},
                                    {"fuv", "Nigerian Fulfulde"},
                                    {"hne", "Chhattisgarhi"},
                                    {"kbp", "Kabiyè"},
                                    {"kmr", "Northern Kurdish"},
                                    {"knc", "Central Kanuri"},
                                    {"nso", "Northern Sotho"},
                                    {"pbt", "Southern Pashto"},
                                    {"prs", "Dari"},
                                    {"quy", "Ayacucho Quechua"},
                                    {"taq", "Tamasheq"},
                                    {"tgl", "Tagalog"},
                                    {"tl", "Tagalog"},
                                    {"twi", "Twi"}};

// Codes that CLDR does not connect: by a tag's own language, or by that and a script.
struct ExtraAliases {
  const char* language;
  const char* aliases;
};
constexpr ExtraAliases kExtraAliases[] = {
    {"nob", "no nor"},  // Bokmål is what Norwegian means unless somebody says otherwise
    {"no", "nb nob"},
    {"ns", "nso"},  // M2M-100's code of Northern Sotho
    {"pbt", "ps pus"},
    {"quy", "qu que"},
    {"fuv", "ff ful"},
    {"tl", "fil tgl"},
    {"tgl", "tl fil"},
    {"he", "iw"},
    {"heb", "iw"},
    {"pt", "pt-BR pt-PT pb"},  // pb: LibreTranslate's
    {"por", "pt-BR pt-PT pb"},
    {"zh", "zh-CN zh-SG zh-Hans zho-Hans"},
    {"zh_Hans", "zh-CN zh-SG"},
    {"zho_Hans", "zh-CN zh-SG"},
    {"zh_Hant", "zh-TW zh-HK zt"},  // zt: LibreTranslate's
    {"zho_Hant", "zh-TW zh-HK zt"}};

std::string Utf8(const icu::UnicodeString& text) {
  std::string bytes;
  text.toUTF8String(bytes);
  return bytes;
}

Locale Maximized(const Locale& locale) {
  Locale full(locale);
  UErrorCode error = U_ZERO_ERROR;
  full.addLikelySubtags(error);
  return U_SUCCESS(error) ? full : locale;
}

// "Hang" is what "Kore" calls its letters, and so on: which of two script codes are the same to a reader.
std::string Folded(const std::string& script) { return script == "Hang" ? "Kore" : script; }

struct Facts {
  std::string own;        // the language as the tag has it: "arb"
  std::string canonical;  // CLDR's: "ar"
  std::string iso3;       // "ara"
  std::string script;     // "Arab"; "" if unknown
  std::string region;     // of the canonical form: "AF" for prs
  bool usual_script = false;
};

Facts FactsOf(const std::string& language) {
  Facts facts;
  const std::string name = language == "ns" ? "nso" : language;
  facts.own = language.substr(0, language.find_first_of("_-"));
  const Locale canonical = Locale::createCanonical(name.c_str());
  facts.canonical = canonical.getLanguage();
  facts.iso3 = canonical.getISO3Language();
  facts.region = canonical.getCountry();
  facts.script = canonical.getScript();
  const std::string usual = Maximized(Locale(canonical.getLanguage())).getScript();
  if (facts.script.empty()) facts.script = Maximized(canonical).getScript();
  facts.usual_script = !usual.empty() && Folded(usual) == Folded(facts.script);
  return facts;
}

std::string Capitalized(std::string text) {
  if (!text.empty() && absl::ascii_islower(static_cast<unsigned char>(text[0]))) {
    text[0] = absl::ascii_toupper(static_cast<unsigned char>(text[0]));
  }
  return text;
}

void AddNames(const std::string& language, const Facts& facts, LanguageConfig& config) {
  // The script belongs to the name only where it is not the usual one, or where the language has two (Chinese).
  const bool with_script = !facts.script.empty() && (!facts.usual_script || language.substr(0, 3) == "zho");
  const Locale locale =
      Locale::createCanonical(with_script ? (facts.canonical + "_" + facts.script).c_str() : facts.canonical.c_str());
  icu::UnicodeString english, native;
  locale.getDisplayName(Locale::getEnglish(), english);
  locale.getDisplayName(locale, native);
  config.name = Capitalized(Utf8(english));
  config.native_name = Utf8(native);
  // Without data for the language the native name is the English one, or a bare code; better none.
  if (config.native_name == Utf8(english) && facts.canonical != "en") config.native_name.clear();
  const auto named = std::find_if(std::begin(kNames), std::end(kNames), [&](const NamedLanguage& known) {
    return known.language == (language == "ns" ? "nso" : facts.own);
  });
  if (named != std::end(kNames)) {
    config.name = named->name;
    const bool other_script = !facts.usual_script && *Maximized(Locale(facts.canonical.c_str())).getScript() != '\0';
    if (other_script) {
      icu::UnicodeString script;
      Locale::createCanonical(("und_" + facts.script).c_str()).getDisplayScript(Locale::getEnglish(), script);
      config.name += " (" + Utf8(script) + ")";
    }
  } else if (Utf8(english) == facts.canonical) {
    config.name.clear();  // ICU knows no name and gives the code back
  }
}

struct Claim {
  size_t language;
  int rank;  // smaller is stronger
};

}  // namespace

std::vector<LanguageConfig> DescribeLanguages(const std::vector<TaggedLanguage>& languages) {
  std::vector<LanguageConfig> configs;
  std::vector<Facts> facts;
  std::map<std::string, int> of_language;  // how many languages of the list a canonical language has
  std::set<std::string> codes;             // normalised
  for (const TaggedLanguage& language : languages) {
    facts.push_back(FactsOf(language.language));
    ++of_language[facts.back().canonical];
    codes.insert(NormalizeLanguageCode(language.code));
  }
  // Claims on names; each name goes to its one strongest claimant.
  std::map<std::string, std::vector<Claim>> claims;
  std::vector<std::vector<std::string>> wanted(languages.size());
  for (size_t i = 0; i < languages.size(); ++i) {
    const Facts& fact = facts[i];
    const auto claim = [&](const std::string& name, int rank) {
      const std::string normal = NormalizeLanguageCode(name);
      if (name.size() < 2 || codes.count(normal) != 0) return;
      std::vector<Claim>& others = claims[normal];
      if (std::none_of(others.begin(), others.end(), [i](const Claim& other) { return other.language == i; })) {
        others.push_back({i, rank});
        wanted[i].push_back(name);
      }
    };
    // A bare language means the one written in its usual script, or the only one there is.
    const bool bare = fact.region.empty() && (fact.usual_script || of_language[fact.canonical] == 1);
    const std::set<std::string> subtags = {fact.canonical, fact.iso3, fact.own};
    if (bare) {
      // "aka" and "twi" are both "ak" to CLDR: the tag that is the language's own code is nearer to it.
      const int rank = fact.own == fact.iso3 || fact.own == fact.canonical ? 0 : 1;
      claim(fact.canonical, rank);
      claim(fact.iso3, rank);
    }
    if (bare || of_language[fact.canonical] == 1 || fact.own != fact.canonical)
      claim(fact.own, fact.usual_script ? 2 : 3);
    if (!fact.script.empty() && fact.region.empty()) {
      for (const std::string& subtag : subtags) {
        if (!subtag.empty()) claim(subtag + "-" + fact.script, 1);
      }
    }
    for (const ExtraAliases& extra : kExtraAliases) {
      if (fact.own != extra.language && languages[i].language != extra.language) continue;
      for (const std::string& alias : std::vector<std::string>(absl::StrSplit(extra.aliases, ' '))) claim(alias, 1);
    }
  }
  for (size_t i = 0; i < languages.size(); ++i) {
    LanguageConfig config;
    config.code = languages[i].code;
    config.tag = languages[i].tag;
    config.script = facts[i].script;
    const UScriptCode script = static_cast<UScriptCode>(u_getPropertyValueEnum(UCHAR_SCRIPT, facts[i].script.c_str()));
    config.direction = script != USCRIPT_INVALID_CODE && uscript_isRightToLeft(script) ? "rtl" : "ltr";
    AddNames(languages[i].language, facts[i], config);
    for (const std::string& name : wanted[i]) {
      const std::vector<Claim>& claimants = claims[NormalizeLanguageCode(name)];
      const auto mine =
          std::find_if(claimants.begin(), claimants.end(), [i](const Claim& c) { return c.language == i; });
      const bool strongest = std::none_of(claimants.begin(), claimants.end(), [&](const Claim& other) {
        return other.language != i && other.rank <= mine->rank;
      });
      if (strongest) config.aliases.push_back(name);
    }
    std::sort(config.aliases.begin(), config.aliases.end());
    configs.push_back(std::move(config));
  }
  return configs;
}

}  // namespace koine::model_loader
