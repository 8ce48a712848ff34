#include "server/text/prompts.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace koine::server {
namespace {

using model_loader::Language;
using model_loader::LanguageConfig;
using model_loader::Tokenizer;

// The piece that `element` stands for: a language's tag or itself.
absl::StatusOr<std::string> Piece(const std::string& element, const LanguageConfig& source,
                                  const LanguageConfig& target) {
  if (element != "$source" && element != "$target") return element;
  const LanguageConfig& language = element == "$source" ? source : target;
  if (language.tag.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the prompt asks for ", element, ", but language ", language.code, " has no tag"));
  }
  return language.tag;
}

absl::StatusOr<int32_t> PieceId(const std::string& element, const LanguageConfig& source, const LanguageConfig& target,
                                const LanguageConfig& owner, const Tokenizer& tokenizer) {
  absl::StatusOr<std::string> piece = Piece(element, source, target);
  if (!piece.ok()) return piece.status();
  const int32_t id = tokenizer.PieceToId(*piece);
  if (id < 0) {
    return absl::FailedPreconditionError(absl::StrCat("the prompt needs the piece \"", *piece,
                                                      "\", which the vocabulary of language ", owner.code,
                                                      " does not have"));
  }
  return id;
}

bool Contains(const std::vector<std::string>& elements, absl::string_view element) {
  return std::find(elements.begin(), elements.end(), element) != elements.end();
}

}  // namespace

absl::StatusOr<SourcePrompt> ResolveSource(const model_loader::Prompt& prompt, const LanguageConfig& source,
                                           const Tokenizer& source_tokenizer, const LanguageConfig* target) {
  SourcePrompt resolved;
  if (std::count(prompt.source.begin(), prompt.source.end(), "$text") != 1) {
    return absl::FailedPreconditionError("prompt.source must have \"$text\" exactly once");
  }
  bool text_seen = false;
  for (const std::string& element : prompt.source) {
    if (element == "$text") {
      text_seen = true;
      continue;
    }
    if (element == "$target" && target == nullptr) continue;
    absl::StatusOr<int32_t> id =
        PieceId(element, source, target == nullptr ? source : *target, source, source_tokenizer);
    if (!id.ok()) return id.status();
    (text_seen ? resolved.after : resolved.before).push_back(*id);
  }
  return resolved;
}

absl::StatusOr<TargetPrompt> ResolveTarget(const model_loader::Prompt& prompt, const LanguageConfig& source,
                                           const LanguageConfig& target, const Tokenizer& target_tokenizer) {
  TargetPrompt resolved;
  absl::StatusOr<int32_t> start = PieceId(prompt.decoder_start, source, target, target, target_tokenizer);
  if (!start.ok()) return start.status();
  resolved.start = *start;
  for (const std::string& element : prompt.decoder_forced) {
    absl::StatusOr<int32_t> id = PieceId(element, source, target, target, target_tokenizer);
    if (!id.ok()) return id.status();
    resolved.forced.push_back(*id);
  }
  return resolved;
}

Prompts::Prompts(std::shared_ptr<const model_loader::Model> model)
    : model_(std::move(model)),
      source_names_target_(Contains(model_->config().prompt.source, "$target")),
      target_names_source_(model_->config().prompt.decoder_start == "$source" ||
                           Contains(model_->config().prompt.decoder_forced, "$source")) {}

absl::StatusOr<std::unique_ptr<Prompts>> Prompts::Create(std::shared_ptr<const model_loader::Model> model) {
  std::unique_ptr<Prompts> prompts(new Prompts(std::move(model)));
  const model_loader::ModelConfig& config = prompts->model_->config();
  for (const std::shared_ptr<const Language>& language : prompts->model_->languages()) {
    absl::Status status = prompts->Source(*language, nullptr).status();
    if (status.ok() && config.translates) {
      status = prompts->Source(*language, language.get()).status();
      if (status.ok()) status = prompts->Target(*language, *language).status();
    }
    if (!status.ok()) return status;
  }
  return prompts;
}

absl::StatusOr<SourcePrompt> Prompts::Source(const Language& source, const Language* target) {
  // Without "$target" one entry serves all targets.
  const Pair key(&source, source_names_target_ ? target : nullptr);
  absl::MutexLock lock(&mutex_);
  auto found = sources_.find(key);
  if (found == sources_.end()) {
    found = sources_
                .emplace(key, ResolveSource(model_->config().prompt, source.config(), source.tokenizer(),
                                            target == nullptr ? nullptr : &target->config()))
                .first;
  }
  return found->second;
}

absl::StatusOr<TargetPrompt> Prompts::Target(const Language& source, const Language& target) {
  const Pair key(target_names_source_ ? &source : nullptr, &target);
  absl::MutexLock lock(&mutex_);
  auto found = targets_.find(key);
  if (found == targets_.end()) {
    found =
        targets_
            .emplace(key, ResolveTarget(model_->config().prompt, source.config(), target.config(), target.tokenizer()))
            .first;
  }
  return found->second;
}

}  // namespace koine::server
