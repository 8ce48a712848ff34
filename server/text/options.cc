#include "server/text/options.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/text/fault.h"
#include "server/text/utf8.h"

namespace koine::server {
namespace {

// Far above any use; keeps a request from carrying a second vocabulary.
constexpr int kMaxSuppressed = 1024;

// A field that this version's proto does not have is an option too, and must not be ignored.
absl::Status CheckKnown(const google::protobuf::Message& options) {
  const auto& unknown = options.GetReflection()->GetUnknownFields(options);
  if (unknown.empty()) return absl::OkStatus();
  return RefusedOption(absl::StrCat("options field ", unknown.field(0).number()), "it is unknown here");
}

// The option that is set but not implemented, if any.
absl::Status CheckImplemented(const v1::TranslateOptions& options) {
  const double penalty = options.repetition_penalty();
  if (penalty != 0 && penalty != 1) {
    return RefusedOption("options.repetition_penalty", "leave it out, or set 1");
  }
  if (options.no_repeat_ngram_size() != 0)
    return RefusedOption("options.no_repeat_ngram_size", "leave it out, or set 0");
  if (options.has_sampling()) return RefusedOption("options.sampling", "leave it out for greedy and beam search");
  if (!options.prefix().empty()) return RefusedOption("options.prefix", "leave it out");
  if (options.return_alignment()) return RefusedOption("options.return_alignment", "leave it out");
  if (options.split_sentences()) {
    return RefusedOption("options.split_sentences", "leave it out and send one item a sentence");
  }
  if (options.format() == v1::FORMAT_HTML) return RefusedOption("options.format FORMAT_HTML", "send plain text");
  return CheckKnown(options);
}

}  // namespace

absl::StatusOr<CheckedTranslateOptions> CheckOptions(const v1::TranslateOptions& options,
                                                     const model_loader::Generation& defaults,
                                                     const RequestLimits& limits) {
  Violations violations;
  CheckedTranslateOptions checked;
  kernels::SearchOptions& search = checked.search;
  const auto range = [&violations](const char* field, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
      violations.Add(absl::StrCat("options.", field), absl::StrCat("is ", value, ", allowed are ", low, " to ", high));
    }
  };
  range("beam_size", options.beam_size(), 0, limits.max_beams);
  range("num_hypotheses", options.num_hypotheses(), 0, limits.max_beams);
  range("max_tokens", options.max_tokens(), 0, limits.max_tokens);
  range("min_tokens", options.min_tokens(), 0, limits.max_tokens);
  range("no_repeat_ngram_size", options.no_repeat_ngram_size(), 0, limits.max_tokens);
  range("early_stopping", options.early_stopping(), v1::EARLY_STOPPING_FALSE, v1::EARLY_STOPPING_NEVER);
  range("format", options.format(), v1::FORMAT_UNSPECIFIED, v1::FORMAT_HTML);
  search.beam_size =
      options.beam_size() > 0 ? options.beam_size() : std::min(defaults.beam_size.value_or(1), limits.max_beams);
  search.num_hypotheses = std::max(1, options.num_hypotheses());
  if (search.num_hypotheses > search.beam_size) {
    violations.Add("options.num_hypotheses",
                   absl::StrCat("is ", search.num_hypotheses, ", more than beam_size ", search.beam_size));
  }
  search.length_penalty = options.has_length_penalty() ? options.length_penalty() : defaults.length_penalty.value_or(1);
  if (!std::isfinite(search.length_penalty) || std::abs(search.length_penalty) > 10) {
    violations.Add("options.length_penalty", absl::StrCat("is ", search.length_penalty, ", allowed are -10 to 10"));
  }
  const double penalty = options.repetition_penalty();
  if (!std::isfinite(penalty) || penalty < 0) {
    violations.Add("options.repetition_penalty", absl::StrCat("is ", penalty, ", must be positive"));
  }
  search.early_stopping = options.has_early_stopping() ? static_cast<kernels::EarlyStopping>(options.early_stopping())
                                                       : defaults.early_stopping.value_or(kernels::EarlyStopping::kNo);
  search.forced_end = options.has_forced_end() ? options.forced_end() : defaults.forced_end;
  const int64_t most = limits.max_tokens;
  search.max_tokens = options.max_tokens() > 0 ? options.max_tokens() : std::min(defaults.max_tokens.value_or(0), most);
  search.min_tokens = options.min_tokens();
  if (!options.has_min_tokens()) {
    search.min_tokens = std::min(defaults.min_tokens.value_or(0), search.max_tokens > 0 ? search.max_tokens : most);
  }
  if (options.max_tokens() > 0 && options.min_tokens() > options.max_tokens()) {
    violations.Add("options.min_tokens",
                   absl::StrCat("is ", options.min_tokens(), ", more than max_tokens ", options.max_tokens()));
  }
  range("suppressed_ids", options.suppressed_ids_size(), 0, kMaxSuppressed);
  search.suppressed.assign(options.suppressed_ids().begin(), options.suppressed_ids().end());
  range("forced_ids", options.forced_ids_size(), 0,
        (options.max_tokens() > 0 ? options.max_tokens() : limits.max_tokens) - 1);
  search.forced.assign(options.forced_ids().begin(), options.forced_ids().end());
  checked.return_scores = options.return_scores();
  checked.return_ids = options.return_ids();
  checked.truncate = options.truncate();
  if (!violations.empty()) return violations.ToStatus();
  absl::Status implemented = CheckImplemented(options);
  if (!implemented.ok()) return implemented;
  return checked;
}

absl::StatusOr<kernels::SearchOptions> SearchFor(const CheckedTranslateOptions& options, int64_t source_tokens,
                                                 const std::vector<int32_t>& model_forced,
                                                 const std::vector<int32_t>& model_suppressed, int32_t end_token,
                                                 int64_t vocabulary, int64_t max_positions,
                                                 const RequestLimits& limits) {
  kernels::SearchOptions search = options.search;
  search.end_token = end_token;
  const auto inside = [vocabulary](int32_t id) { return id >= 0 && id < vocabulary; };
  for (const int32_t id : search.forced) {
    if (!inside(id)) {
      return InvalidField("options.forced_ids", absl::StrCat(id, " is not in the target's vocabulary of ", vocabulary));
    }
  }
  std::unordered_set<int32_t> suppressed(search.suppressed.begin(), search.suppressed.end());
  for (const int32_t id : suppressed) {
    if (!inside(id)) {
      return InvalidField("options.suppressed_ids",
                          absl::StrCat(id, " is not in the target's vocabulary of ", vocabulary));
    }
    if (id == end_token) return InvalidField("options.suppressed_ids", "the end mark cannot be suppressed");
  }
  suppressed.insert(model_suppressed.begin(), model_suppressed.end());
  search.suppressed.insert(search.suppressed.end(), model_suppressed.begin(), model_suppressed.end());
  // Beside the end mark, which min_tokens may forbid, something must be left.
  if (static_cast<int64_t>(suppressed.size()) + 1 >= vocabulary) {
    return InvalidField("options.suppressed_ids", "leaves nothing to generate");
  }
  search.forced.insert(search.forced.begin(), model_forced.begin(), model_forced.end());
  const int64_t longest = std::min<int64_t>(limits.max_tokens, max_positions);
  const int64_t forced = static_cast<int64_t>(search.forced.size());
  if (search.max_tokens == 0) {
    // Translations rarely take twice the tokens of their source; the rest is for very short ones.
    search.max_tokens = std::min(longest, std::max({2 * source_tokens + 10, forced + 1, search.min_tokens}));
  }
  search.max_tokens = std::min(search.max_tokens, max_positions);
  if (search.min_tokens > search.max_tokens) {
    return InvalidField("options.min_tokens", absl::StrCat("is ", search.min_tokens,
                                                           ", but the model generates at most ", search.max_tokens));
  }
  if (forced >= search.max_tokens) {
    return InvalidField("options.max_tokens", absl::StrCat("is ", search.max_tokens, ", which leaves no room after ",
                                                           forced, " forced tokens"));
  }
  return search;
}

absl::StatusOr<CheckedEncodeOptions> CheckOptions(const v1::EncodeOptions& options, int64_t embedding_size,
                                                  bool normalize_by_default) {
  const int64_t dimensions = options.dimensions();
  if (dimensions < 0 || dimensions > embedding_size) {
    return InvalidField("options.dimensions",
                        absl::StrCat("is ", dimensions, ", the model's vectors have ", embedding_size));
  }
  if (dimensions != 0 && dimensions != embedding_size) {
    return RefusedOption("options.dimensions", absl::StrCat("leave it out, or set ", embedding_size));
  }
  absl::Status known = CheckKnown(options);
  if (!known.ok()) return known;
  CheckedEncodeOptions checked;
  checked.normalize = options.has_normalize() ? options.normalize() : normalize_by_default;
  checked.token_states = options.token_states();
  checked.truncate = options.truncate();
  checked.return_ids = options.return_ids();
  return checked;
}

absl::StatusOr<std::string> ChoosePrompt(const model_loader::ModelConfig& config, const std::string& name) {
  if (name == "none") return std::string();
  const std::string& chosen = name.empty() ? config.default_prompt : name;
  if (chosen.empty()) return std::string();
  const auto found = config.prompts.find(chosen);
  if (found != config.prompts.end()) return found->second;
  const std::string names = absl::StrJoin(
      config.prompts, ", ", [](std::string* out, const auto& prompt) { absl::StrAppend(out, prompt.first); });
  return InvalidField("prompt", absl::StrCat("\"", ForMessage(name), "\" is no prompt of this model; it has ",
                                             names.empty() ? "none" : names));
}

}  // namespace koine::server
