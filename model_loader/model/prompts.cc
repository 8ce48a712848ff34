#include "model_loader/model/prompts.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace koine::model_loader {
namespace {

// The piece that `element` stands for: a language's tag or itself.
absl::StatusOr<std::string> Piece(const std::string& element, const LanguageConfig& source,
                                  const LanguageConfig& target) {
  if (element != "$source" && element != "$target") return element;
  const LanguageConfig& language = element == "$source" ? source : target;
  if (language.tag.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("language ", language.code, " cannot be the ",
                                                      element == "$source" ? "source" : "target",
                                                      ": the prompt asks for ", element, ", and it has no tag"));
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

}  // namespace

absl::StatusOr<SourcePrompt> ResolveSource(const Prompt& prompt, const LanguageConfig& source,
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

absl::StatusOr<TargetPrompt> ResolveTarget(const Prompt& prompt, const LanguageConfig& source,
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

std::vector<int32_t> SuppressedIds(const Generation& generation, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const std::string& piece : generation.suppressed) {
    const int32_t id = tokenizer.PieceToId(piece);
    if (id >= 0) ids.push_back(id);
  }
  return ids;
}

absl::Status CheckPrompt(const ModelConfig& config, const Language& language) {
  const LanguageConfig& own = language.config();
  const Prompt& prompt = config.prompt;
  absl::Status status = ResolveSource(prompt, own, language.tokenizer(), nullptr).status();
  const auto asks = [](const std::vector<std::string>& pieces) {
    return std::find(pieces.begin(), pieces.end(), "$target") != pieces.end();
  };
  // MarianMT tells its targets by tags and has none for what it translates from.
  const bool source_only =
      own.tag.empty() && (asks(prompt.source) || asks(prompt.decoder_forced) || prompt.decoder_start == "$target");
  if (status.ok() && config.translates && !source_only) {
    status = ResolveSource(prompt, own, language.tokenizer(), &own).status();
    if (status.ok()) status = ResolveTarget(prompt, own, own, language.tokenizer()).status();
  }
  return status;
}

}  // namespace koine::model_loader
