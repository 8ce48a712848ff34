// TranslateOptions and EncodeOptions as checked values.
#ifndef KOINE_SERVER_TEXT_OPTIONS_H_
#define KOINE_SERVER_TEXT_OPTIONS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/decode/search.h"
#include "koine/v1/koine.pb.h"
#include "server/text/limits.h"

namespace koine::server {

// What the options of a request mean before a source text or a target language is known.
struct CheckedTranslateOptions {
  kernels::SearchOptions search;  // max_tokens 0: not given; end_token and the model's forced tokens not filled
  bool return_scores = false, return_ids = false, truncate = false;
};

// INVALID_ARGUMENT with all values out of range, by field; UNIMPLEMENTED naming the first option that this version
// does not know how to do.
absl::StatusOr<CheckedTranslateOptions> CheckOptions(const v1::TranslateOptions& options, const RequestLimits& limits);

// Fills what depends on the item. `source_tokens` counts prompt tokens; `model_forced` comes before the request's
// own. INVALID_ARGUMENT if ids lie outside the target's table, nothing is left to generate, or max_tokens leaves no
// room after the forced tokens.
absl::StatusOr<kernels::SearchOptions> SearchFor(const CheckedTranslateOptions& options, int64_t source_tokens,
                                                 const std::vector<int32_t>& model_forced, int32_t end_token,
                                                 int64_t vocabulary, int64_t max_positions,
                                                 const RequestLimits& limits);

struct CheckedEncodeOptions {
  bool normalize = true, token_states = false, truncate = false, return_ids = false;
};
absl::StatusOr<CheckedEncodeOptions> CheckOptions(const v1::EncodeOptions& options, int d_model,
                                                  bool normalize_by_default);

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_OPTIONS_H_
