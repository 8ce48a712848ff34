// Greedy and beam search over one sentence's logits: pure bookkeeping, no model and no caches.
//
// Rules (DESIGN section 6, after the current `generate` of Hugging Face transformers): log-probabilities are natural,
// over all rows of the table; suppressed tokens are masked after the log-softmax without renormalising; ties go to
// the lowest id. Beam search takes the 2 * beam best continuations of all live hypotheses; an end mark counts only if
// it ranks within the first `beam`; the others fill the next beam. A finished hypothesis scores
// sum / generated_length^length_penalty, forced tokens and the end mark included, the start token excluded.
// At max_tokens the first `beam` continuations are the last, finished or not. EarlyStopping says when search ends
// before.
#ifndef KOINE_KERNELS_DECODE_SEARCH_H_
#define KOINE_KERNELS_DECODE_SEARCH_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/ops/ops.h"

namespace koine::kernels {

// When beam search ends although live hypotheses are left. kNo: when the worst kept score is at least what the best
// live one would have at its present length. kYes: when `beam_size` hypotheses have finished. kNever: as kNo, but with
// the score that the best live one would have at max_tokens, if length_penalty is above 0.
enum class EarlyStopping : uint8_t { kNo, kYes, kNever };

struct SearchOptions {
  // Change results:
  int beam_size = 1;       // 1 is greedy
  int num_hypotheses = 1;  // <= beam_size; does not influence the search itself
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kNo;
  int64_t max_tokens = 256;  // generated tokens, end mark included; >= 1
  int64_t min_tokens = 0;    // no end mark before this many tokens
  int32_t end_token = -1;
  std::vector<int32_t> suppressed;  // never chosen
  std::vector<int32_t> forced;      // the first tokens; their log-probability counts 0
  bool forced_end = false;          // the last of max_tokens tokens is the end mark, with log-probability 0
};

enum class FinishReason : uint8_t { kStop, kLength };

struct Hypothesis {
  std::vector<int32_t> ids;      // generated tokens, forced ones and the end mark included
  std::vector<float> log_probs;  // one per id
  double sum = 0;                // of log_probs
  double score = 0;              // sum / length^length_penalty
  FinishReason finish = FinishReason::kStop;
};

// One live row after a step: continue hypothesis `parent` (a row of the step before) with `token`.
struct Continuation {
  int32_t parent = 0;
  int32_t token = 0;
};

// The search of one sentence. Not thread-safe.
class Search {
 public:
  // REQUIRES valid options (1 <= num_hypotheses <= beam_size, max_tokens >= 1, ids within the vocabulary).
  Search(const SearchOptions& options, int64_t vocabulary);

  // Live rows that the next Advance wants logits of: 1 at first, then at most beam_size; 0 when done.
  int64_t live_rows() const { return static_cast<int64_t>(live_.size()); }

  // One step. `logits` [live_rows, vocabulary] with row stride vocabulary; masked in place. Afterwards either done(),
  // or continuations() has the next live rows, best first. False (and done, with what there is) if a row of logits is
  // not finite everywhere. If masks leave no continuation at all, search ends with what there is (kLength). A forced
  // end mark ends the search. Does nothing and returns true when already done().
  bool Advance(float* logits);
  absl::Span<const Continuation> continuations() const { return continuations_; }
  bool done() const { return done_; }
  // Generated tokens of each live row, forced ones included.
  int64_t steps() const { return steps_; }

  // The num_hypotheses best, best first (fewer only where the masks and the vocabulary allow no more); hypotheses cut
  // by max_tokens have finish kLength. Never empty.
  // REQUIRES done().
  std::vector<Hypothesis> Best() const;

  // REQUIRES i < live_rows(). Ids of live row i so far (for prefixes and streaming).
  absl::Span<const int32_t> live_ids(int64_t i) const { return live_[static_cast<size_t>(i)].ids; }

 private:
  // A continuation that competes for the next beam.
  struct Candidate {
    double sum = 0;  // parent's sum + log_prob
    float log_prob = 0;
    int32_t parent = 0;  // live row
    int32_t rank = 0;    // among its row's best
    int32_t token = 0;
  };

  void Finish(Hypothesis hypothesis, FinishReason reason);
  void FinishLive();
  void AdvanceForced(int32_t token);
  void CollectCandidates(float* logits);
  bool CannotImprove() const;

  const SearchOptions options_;
  const int64_t vocabulary_;
  std::vector<Hypothesis> live_;      // best first; `score` and `finish` unused
  std::vector<Hypothesis> finished_;  // at most beam_size, best first
  std::vector<Continuation> continuations_;
  std::vector<Candidate> candidates_;  // scratch of one step
  std::vector<Scored> top_;            // scratch of one row
  int64_t steps_ = 0;
  bool done_ = false;
};

}  // namespace koine::kernels

#endif  // KOINE_KERNELS_DECODE_SEARCH_H_
