// The tokens around a text and before a translation: model.json's `prompt`, resolved to ids.
#ifndef KOINE_SERVER_TEXT_PROMPTS_H_
#define KOINE_SERVER_TEXT_PROMPTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
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

// Prompts of one model, each resolved once. Thread-safe.
class Prompts {
 public:
  // Resolves every language with itself, so that a missing piece ends the start and not a request.
  static absl::StatusOr<std::unique_ptr<Prompts>> Create(std::shared_ptr<const model_loader::Model> model);

  absl::StatusOr<SourcePrompt> Source(const model_loader::Language& source, const model_loader::Language* target)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<TargetPrompt> Target(const model_loader::Language& source, const model_loader::Language& target)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit Prompts(std::shared_ptr<const model_loader::Model> model);
  using Pair = std::pair<const model_loader::Language*, const model_loader::Language*>;

  const std::shared_ptr<const model_loader::Model> model_;  // keeps the languages that are keys
  const bool source_names_target_;
  const bool target_names_source_;
  absl::Mutex mutex_;
  std::map<Pair, absl::StatusOr<SourcePrompt>> sources_ ABSL_GUARDED_BY(mutex_);
  std::map<Pair, absl::StatusOr<TargetPrompt>> targets_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_PROMPTS_H_
