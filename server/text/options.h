// TranslateOptions and EncodeOptions as checked values.
#ifndef KOINE_SERVER_TEXT_OPTIONS_H_
#define KOINE_SERVER_TEXT_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/decode/search.h"
#include "koine/v1/koine.pb.h"
#include "model_loader/format/config.h"
#include "server/text/limits.h"

namespace koine::server {

// What the options of a request mean before a source text or a target language is known.
struct CheckedTranslateOptions {
  kernels::SearchOptions search;  // max_tokens 0: not given; end_token and the model's forced tokens not filled
  bool return_scores = false, return_ids = false, truncate = false;
};

// Where `options` are silent, `defaults` count, as far as the limits allow. INVALID_ARGUMENT with all values out of
// range, by field; UNIMPLEMENTED naming the first option that this version does not know how to do.
absl::StatusOr<CheckedTranslateOptions> CheckOptions(const v1::TranslateOptions& options,
                                                     const model_loader::Generation& defaults,
                                                     const RequestLimits& limits);

// Fills what depends on the item. `source_tokens` counts prompt tokens; `model_forced` comes before the request's
// own, `model_suppressed` is added to them. INVALID_ARGUMENT if ids lie outside the target's table, nothing is left to
// generate, or max_tokens leaves no room after the forced tokens.
absl::StatusOr<kernels::SearchOptions> SearchFor(const CheckedTranslateOptions& options, int64_t source_tokens,
                                                 const std::vector<int32_t>& model_forced,
                                                 const std::vector<int32_t>& model_suppressed, int32_t end_token,
                                                 int64_t vocabulary, int64_t max_positions,
                                                 const RequestLimits& limits);

struct CheckedEncodeOptions {
  bool normalize = true, token_states = false, truncate = false, return_ids = false;
};
absl::StatusOr<CheckedEncodeOptions> CheckOptions(const v1::EncodeOptions& options, int64_t embedding_size,
                                                  bool normalize_by_default);

// The text that goes before a request's texts. INVALID_ARGUMENT naming the prompts there are.
absl::StatusOr<std::string> ChoosePrompt(const model_loader::ModelConfig& config, const std::string& name);

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_OPTIONS_H_
