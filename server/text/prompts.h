// The tokens around a text and before a translation: model.json's `prompt`, resolved to ids.
#ifndef KOINE_SERVER_TEXT_PROMPTS_H_
#define KOINE_SERVER_TEXT_PROMPTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model_loader/format/config.h"
#include "model_loader/model/model.h"
#include "model_loader/tokenizer/tokenizer.h"

namespace koine::server {

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
absl::StatusOr<SourcePrompt> ResolveSource(const model_loader::Prompt& prompt,
                                           const model_loader::LanguageConfig& source,
                                           const model_loader::Tokenizer& source_tokenizer,
                                           const model_loader::LanguageConfig* target);
absl::StatusOr<TargetPrompt> ResolveTarget(const model_loader::Prompt& prompt,
                                           const model_loader::LanguageConfig& source,
                                           const model_loader::LanguageConfig& target,
                                           const model_loader::Tokenizer& target_tokenizer);

// What a model's prompt asks of a language, held against its vocabulary: resolves it from the language to itself.
absl::Status CheckPrompt(const model_loader::ModelConfig& config, const model_loader::Language& language);

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_PROMPTS_H_
