// The tokens around a text and before a translation: model.json's `prompt`, resolved to ids.
#ifndef KOINE_MODEL_LOADER_MODEL_PROMPTS_H_
#define KOINE_MODEL_LOADER_MODEL_PROMPTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model_loader/format/config.h"
#include "model_loader/model/model.h"
#include "model_loader/tokenizer/tokenizer.h"

namespace koine::model_loader {

// Ids of the source language's vocabulary that stand around the text.
struct SourcePrompt {
  std::vector<int32_t> before, after;
  int64_t size() const { return static_cast<int64_t>(before.size() + after.size()); }
};

// Ids of the target language's vocabulary that a translation starts with.
struct TargetPrompt {
  int32_t start = 0;
  std::vector<int32_t> forced;
};

// `target` is null for Encode, which has none: then "$target" stands for nothing. FAILED_PRECONDITION naming the
// language and the piece if the vocabulary lacks a piece, a language has no tag, or the prompt has not exactly one
// "$text".
absl::StatusOr<SourcePrompt> ResolveSource(const Prompt& prompt, const LanguageConfig& source,
                                           const Tokenizer& source_tokenizer, const LanguageConfig* target);
absl::StatusOr<TargetPrompt> ResolveTarget(const Prompt& prompt, const LanguageConfig& source,
                                           const LanguageConfig& target, const Tokenizer& target_tokenizer);

// Ids of the pieces that are never generated. Pieces that the vocabulary lacks, as a slice may, cannot be anyway.
std::vector<int32_t> SuppressedIds(const Generation& generation, const Tokenizer& tokenizer);

// What a model's prompt asks of a language, held against its vocabulary: resolves it from the language to itself. A
// language without a tag, where the prompt asks for the target's, need only do as a source.
absl::Status CheckPrompt(const ModelConfig& config, const Language& language);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_MODEL_PROMPTS_H_
