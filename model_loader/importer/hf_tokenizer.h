// The tokenizer of a Hugging Face folder as one of Koine's kinds, with the ids that the library gives: which files, the
// numbers of marks and language tags, what surrounds a text.
//
// Sources: transformers/models/{nllb,m2m_100,mbart,mbart50,marian,t5,xlm_roberta,bert,roberta}/tokenization_*.py.
#ifndef KOINE_MODEL_LOADER_IMPORTER_HF_TOKENIZER_H_
#define KOINE_MODEL_LOADER_IMPORTER_HF_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model_loader/format/config.h"
#include "model_loader/importer/hf_config.h"
#include "model_loader/tokenizer/tokenizer.h"

namespace koine::model_loader {

// A language that the checkpoint has a tag for.
struct TaggedLanguage {
  std::string code;      // "eng_Latn", "en", "en_XX": what people write to the library
  std::string tag;       // "eng_Latn", "__en__", "en_XX", ">>deu<<": the piece; "" for a language without one
  std::string language;  // for ICU: "eng_Latn", "en", "en"
};

struct HfTokenizer {
  TokenizerConfig config;
  std::vector<std::string> contents;           // of config.files
  std::shared_ptr<const Tokenizer> tokenizer;  // the whole vocabulary
  std::vector<TaggedLanguage> languages;       // in the checkpoint's order; empty where it has no tags
  Prompt prompt;                               // decoder_start is "" unless the tokenizer rules it
  std::string pad, bos, eos, unk;              // pieces; "" where there is none
  int64_t model_max_length = 0;                // 0: none
  std::vector<std::string> notes;              // for the report
};

// `lower_case`: the sentence-transformers switch that lower-cases texts before the tokenizer sees them.
// `legacy_source_order`: overrides tokenizer_config.json's legacy_behaviour (NLLB).
// Errors: NOT_FOUND (no file that a tokenizer could be made of, with what was looked for), INVALID_ARGUMENT.
absl::StatusOr<HfTokenizer> ReadHfTokenizer(const std::string& folder, const HfConfig& config, bool lower_case,
                                            std::optional<bool> legacy_source_order);

// The language codes of families whose files need not list them, in the order of their ids.
const std::vector<std::string>& NllbCodes();     // 202
const std::vector<std::string>& M2M100Codes();   // 100
const std::vector<std::string>& MBart50Codes();  // 52; the first 25 are mBART-25's

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_IMPORTER_HF_TOKENIZER_H_
