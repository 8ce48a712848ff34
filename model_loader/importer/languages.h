// What a language tag of a checkpoint means to people: names, script, direction, and the other codes that requests may
// use (BCP-47, ISO 639-1, ISO 639-3). From ICU (CLDR), and a small table of what CLDR lacks.
#ifndef KOINE_MODEL_LOADER_IMPORTER_LANGUAGES_H_
#define KOINE_MODEL_LOADER_IMPORTER_LANGUAGES_H_

#include <string>
#include <vector>

#include "model_loader/format/config.h"
#include "model_loader/importer/hf_tokenizer.h"

namespace koine::model_loader {

// One LanguageConfig for each, in the same order: code, tag, names, script, direction and aliases. Aliases depend on
// the whole list: a code that could mean two of its languages ("ace" where there are ace_Arab and ace_Latn) is the
// one's whose usual script it is, and nobody's if that does not tell; Traditional Chinese never answers to "zh" beside
// Simplified. No alias is another language's code. Any thread.
std::vector<LanguageConfig> DescribeLanguages(const std::vector<TaggedLanguage>& languages);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_IMPORTER_LANGUAGES_H_
