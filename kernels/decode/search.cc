#include "kernels/decode/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace koine::kernels {
namespace {

double Score(double sum, size_t length, double length_penalty) {
  if (length == 0) return sum;
  return sum / std::pow(static_cast<double>(length), length_penalty);
}

}  // namespace

Search::Search(const SearchOptions& options, int64_t vocabulary) : options_(options), vocabulary_(vocabulary) {
  live_.emplace_back();
}

void Search::Finish(Hypothesis hypothesis, FinishReason reason) {
  hypothesis.finish = reason;
  hypothesis.score = Score(hypothesis.sum, hypothesis.ids.size(), options_.length_penalty);
  // After those of equal score: the first found stays first.
  const auto place = std::upper_bound(finished_.begin(), finished_.end(), hypothesis.score,
                                      [](double score, const Hypothesis& kept) { return score > kept.score; });
  finished_.insert(place, std::move(hypothesis));
  if (finished_.size() > static_cast<size_t>(options_.beam_size)) finished_.pop_back();
}

void Search::FinishLive() {
  for (Hypothesis& hypothesis : live_) Finish(std::move(hypothesis), FinishReason::kLength);
  live_.clear();
  continuations_.clear();
  done_ = true;
}

void Search::AdvanceForced(int32_t token) {
  // Nothing has branched yet: forced tokens are the first ones.
  Hypothesis& only = live_.front();
  only.ids.push_back(token);
  only.log_probs.push_back(0);
  ++steps_;
  if (token == options_.end_token) {
    Finish(std::move(only), FinishReason::kStop);
    live_.clear();
    done_ = true;
  } else if (steps_ >= options_.max_tokens) {
    FinishLive();
  } else {
    continuations_.push_back({0, token});
  }
}

void Search::CollectCandidates(float* logits) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  const auto in_table = [this](int32_t id) { return id >= 0 && id < vocabulary_; };
  const bool end_masked = in_table(options_.end_token) && steps_ < options_.min_tokens;
  // Of 2 * beam candidates at most `beam` are end marks (one per row), so `beam` others are left to go on with. The
  // 2 * beam best of all rows are among the 2 * beam best of each.
  const int64_t wanted = std::min<int64_t>(2 * static_cast<int64_t>(options_.beam_size), vocabulary_);

  candidates_.clear();
  for (size_t row = 0; row < live_.size(); ++row) {
    float* x = logits + static_cast<int64_t>(row) * vocabulary_;
    const float log_normalizer = LogSumExp(x, vocabulary_);
    for (const int32_t id : options_.suppressed) {
      if (in_table(id)) x[id] = kMasked;
    }
    if (end_masked) x[options_.end_token] = kMasked;
    TopK(x, vocabulary_, static_cast<int>(wanted), &top_);
    for (size_t rank = 0; rank < top_.size(); ++rank) {
      // Rounding of the normaliser must not make a probability larger than 1.
      const float log_prob = std::min(top_[rank].value - log_normalizer, 0.0f);
      candidates_.push_back({live_[row].sum + static_cast<double>(log_prob), log_prob, static_cast<int32_t>(row),
                             static_cast<int32_t>(rank), top_[rank].id});
    }
  }

  // Ties: lower parent row, then lowest id. Comparing the rank says the same for equal logits, and keeps the order of
  // logits whose difference the subtraction has rounded away, so that beam 1 is the arg max.
  const size_t kept = std::min(candidates_.size(), 2 * static_cast<size_t>(options_.beam_size));
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(kept), candidates_.end(),
                    [](const Candidate& a, const Candidate& b) {
                      if (a.sum != b.sum) return a.sum > b.sum;
                      if (a.parent != b.parent) return a.parent < b.parent;
                      return a.rank < b.rank;
                    });
  candidates_.resize(kept);
}

bool Search::CannotImprove() const {
  if (finished_.size() < static_cast<size_t>(options_.beam_size)) return false;
  if (options_.early_stopping == EarlyStopping::kYes) return true;
  const Hypothesis& best = live_.front();
  const bool longest = options_.early_stopping == EarlyStopping::kNever && options_.length_penalty > 0;
  const size_t length = longest ? static_cast<size_t>(options_.max_tokens) : best.ids.size();
  return finished_.back().score >= Score(best.sum, length, options_.length_penalty);
}

bool Search::Advance(float* logits) {
  if (done_) return true;
  continuations_.clear();
  for (size_t row = 0; row < live_.size(); ++row) {
    if (!AllFinite(logits + static_cast<int64_t>(row) * vocabulary_, vocabulary_)) {
      FinishLive();
      return false;
    }
  }
  if (static_cast<size_t>(steps_) < options_.forced.size()) {
    AdvanceForced(options_.forced[static_cast<size_t>(steps_)]);
    return true;
  }

  const bool last = steps_ + 1 >= options_.max_tokens;
  if (last && options_.forced_end) {
    for (Hypothesis& hypothesis : live_) {
      hypothesis.ids.push_back(options_.end_token);
      hypothesis.log_probs.push_back(0);
    }
    ++steps_;
    FinishLive();
    return true;
  }
  CollectCandidates(logits);
  if (candidates_.empty()) {  // everything is masked
    FinishLive();
    return true;
  }

  std::vector<Hypothesis> next;
  const size_t beam = static_cast<size_t>(options_.beam_size);
  next.reserve(std::min(beam, candidates_.size()));
  for (size_t rank = 0; rank < candidates_.size(); ++rank) {
    const Candidate& candidate = candidates_[rank];
    const bool ends = candidate.token == options_.end_token;
    if (ends || last ? rank >= beam : next.size() == beam) continue;
    Hypothesis grown = live_[static_cast<size_t>(candidate.parent)];
    grown.ids.push_back(candidate.token);
    grown.log_probs.push_back(candidate.log_prob);
    grown.sum = candidate.sum;
    if (ends) {
      Finish(std::move(grown), FinishReason::kStop);
    } else {
      next.push_back(std::move(grown));
      continuations_.push_back({candidate.parent, candidate.token});
    }
  }
  live_ = std::move(next);
  ++steps_;

  if (last) {
    FinishLive();
  } else if (live_.empty() || CannotImprove()) {
    live_.clear();
    continuations_.clear();
    done_ = true;
  }
  return true;
}

std::vector<Hypothesis> Search::Best() const {
  const size_t count = std::min(finished_.size(), static_cast<size_t>(options_.num_hypotheses));
  return {finished_.begin(), finished_.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace koine::kernels
