// The search against two references that share no code with it: an enumeration of all sequences of toy language
// models, and the documented rule written down once more in the slowest way, in double precision.
#include "kernels/decode/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace koine::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Ids = std::vector<int32_t>;

// Logits that depend on the whole prefix, the same on every machine.
using LanguageModel = std::function<std::vector<float>(const Ids& prefix)>;

LanguageModel RandomModel(uint32_t seed, int vocabulary, float spread = 4) {
  return [=](const Ids& prefix) {
    std::vector<uint32_t> key = {seed, static_cast<uint32_t>(prefix.size())};
    for (int32_t id : prefix) key.push_back(static_cast<uint32_t>(id));
    std::seed_seq sequence(key.begin(), key.end());
    std::mt19937 random(sequence);
    std::vector<float> logits(static_cast<size_t>(vocabulary));
    for (float& x : logits) x = (static_cast<float>(random()) / 4294967296.0f * 2 - 1) * spread;
    return logits;
  };
}

// Probabilities given per last token (row 0 is the start), as logits.
LanguageModel TableModel(std::map<Ids, std::vector<double>> probabilities) {
  return [table = std::move(probabilities)](const Ids& prefix) {
    std::vector<float> logits;
    for (double p : table.at(prefix)) logits.push_back(static_cast<float>(std::log(p)));
    return logits;
  };
}

struct Outcome {
  std::vector<Hypothesis> best;
  int64_t steps = 0;
  int64_t most_rows = 0;
};

Outcome RunSearch(const SearchOptions& options, int64_t vocabulary, const LanguageModel& model) {
  Search search(options, vocabulary);
  Outcome run;
  std::vector<Ids> prefixes = {{}};
  while (!search.done()) {
    EXPECT_EQ(search.live_rows(), static_cast<int64_t>(prefixes.size()));
    run.most_rows = std::max(run.most_rows, search.live_rows());
    std::vector<float> logits;
    for (const Ids& prefix : prefixes) {
      const std::vector<float> row = model(prefix);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    EXPECT_TRUE(search.Advance(logits.data()));
    // The caller keeps caches by parents only; both views of the prefix must agree.
    std::vector<Ids> next;
    for (const Continuation& c : search.continuations()) {
      next.push_back(prefixes[static_cast<size_t>(c.parent)]);
      next.back().push_back(c.token);
    }
    prefixes = next;
    EXPECT_EQ(search.live_rows(), static_cast<int64_t>(prefixes.size()));
    for (size_t i = 0; i < prefixes.size(); ++i) {
      EXPECT_THAT(search.live_ids(static_cast<int64_t>(i)), ::testing::ElementsAreArray(prefixes[i]));
    }
    if (search.steps() > options.max_tokens) {
      ADD_FAILURE() << "search goes on past max_tokens";
      break;
    }
  }
  run.best = search.Best();
  run.steps = search.steps();
  return run;
}

// ---------------------------------------------------------------------------------------------------------------------
// References

std::vector<double> LogSoftmax(const std::vector<float>& logits) {
  double total = 0;
  const double top = *std::max_element(logits.begin(), logits.end());
  for (float x : logits) total += std::exp(static_cast<double>(x) - top);
  std::vector<double> out;
  for (float x : logits) out.push_back(static_cast<double>(x) - top - std::log(total));
  return out;
}

struct Reference {
  Ids ids;
  std::vector<double> log_probs;
  bool stopped = false;

  double sum() const {
    double total = 0;
    for (double x : log_probs) total += x;
    return total;
  }
  double score(double penalty) const { return ids.empty() ? 0 : sum() / std::pow(ids.size(), penalty); }
};

bool Allowed(const SearchOptions& options, size_t length, int32_t token) {
  if (token == options.end_token && static_cast<int64_t>(length) < options.min_tokens) return false;
  return std::count(options.suppressed.begin(), options.suppressed.end(), token) == 0;
}

// Every sequence that the options allow, best first.
std::vector<Reference> Enumerate(const SearchOptions& options, const LanguageModel& model) {
  std::vector<Reference> all;
  std::function<void(const Reference&)> grow = [&](const Reference& node) {
    if (node.stopped || static_cast<int64_t>(node.ids.size()) == options.max_tokens) {
      all.push_back(node);
      return;
    }
    const size_t length = node.ids.size();
    if (length < options.forced.size()) {
      Reference child = node;
      child.ids.push_back(options.forced[length]);
      child.log_probs.push_back(0);
      child.stopped = child.ids.back() == options.end_token;
      grow(child);
      return;
    }
    const std::vector<double> log_probs = LogSoftmax(model(node.ids));
    for (size_t token = 0; token < log_probs.size(); ++token) {
      if (!Allowed(options, length, static_cast<int32_t>(token))) continue;
      Reference child = node;
      child.ids.push_back(static_cast<int32_t>(token));
      child.log_probs.push_back(log_probs[token]);
      child.stopped = child.ids.back() == options.end_token;
      grow(child);
    }
  };
  grow({});
  std::stable_sort(all.begin(), all.end(), [&](const Reference& a, const Reference& b) {
    return a.score(options.length_penalty) > b.score(options.length_penalty);
  });
  return all;
}

// The rule of the header, all candidates sorted at every step.
std::vector<Reference> SlowBeam(const SearchOptions& options, const LanguageModel& model) {
  const size_t beam = static_cast<size_t>(options.beam_size);
  const auto by_score = [&](const Reference& a, const Reference& b) {
    return a.score(options.length_penalty) > b.score(options.length_penalty);
  };
  std::vector<Reference> live = {{}};
  std::vector<Reference> finished;
  const auto keep = [&](const Reference& r) {
    finished.push_back(r);
    std::stable_sort(finished.begin(), finished.end(), by_score);
    finished.resize(std::min(finished.size(), beam));
  };
  for (int64_t step = 0;; ++step) {
    if (options.forced_end && step + 1 == options.max_tokens) {
      for (Reference ended : live) {
        ended.ids.push_back(options.end_token);
        ended.log_probs.push_back(0);
        keep(ended);
      }
      return finished;
    }
    std::vector<Reference> candidates;
    for (const Reference& parent : live) {
      const std::vector<double> log_probs = LogSoftmax(model(parent.ids));
      for (size_t token = 0; token < log_probs.size(); ++token) {
        const bool forced = static_cast<size_t>(step) < options.forced.size();
        const int32_t id = static_cast<int32_t>(token);
        if (forced ? options.forced[static_cast<size_t>(step)] != id : !Allowed(options, parent.ids.size(), id)) {
          continue;
        }
        Reference child = parent;
        child.ids.push_back(id);
        child.log_probs.push_back(forced ? 0 : log_probs[token]);
        child.stopped = id == options.end_token;
        candidates.push_back(child);
      }
    }
    if (candidates.empty()) break;
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Reference& a, const Reference& b) { return a.sum() > b.sum(); });
    candidates.resize(std::min(candidates.size(), 2 * beam));
    if (step + 1 == options.max_tokens) {  // these are the last, whatever they end in
      candidates.resize(std::min(candidates.size(), beam));
      for (const Reference& candidate : candidates) keep(candidate);
      return finished;
    }
    live.clear();
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (candidates[i].stopped) {
        if (i < beam) keep(candidates[i]);
      } else if (live.size() < beam) {
        live.push_back(candidates[i]);
      }
    }
    if (live.empty()) return finished;
    if (finished.size() == beam) {
      const Reference& best = live.front();
      double reach = best.score(options.length_penalty);
      if (options.early_stopping == EarlyStopping::kNever && options.length_penalty > 0) {
        reach = best.sum() / std::pow(options.max_tokens, options.length_penalty);
      }
      if (options.early_stopping == EarlyStopping::kYes) return finished;
      if (finished.back().score(options.length_penalty) >= reach) return finished;
    }
  }
  for (const Reference& r : live) keep(r);  // everything is masked
  return finished;
}

// Laws that hold for every answer.
void CheckLaws(const SearchOptions& options, const std::vector<Hypothesis>& best) {
  ASSERT_FALSE(best.empty());
  ASSERT_LE(best.size(), static_cast<size_t>(options.num_hypotheses));
  double last = std::numeric_limits<double>::infinity();
  for (const Hypothesis& h : best) {
    ASSERT_EQ(h.ids.size(), h.log_probs.size());
    EXPECT_LE(static_cast<int64_t>(h.ids.size()), options.max_tokens);
    double sum = 0;
    for (float x : h.log_probs) {
      EXPECT_TRUE(std::isfinite(x));
      EXPECT_LE(x, 0);
      sum += static_cast<double>(x);
    }
    EXPECT_NEAR(h.sum, sum, 1e-6);
    EXPECT_LE(h.sum, 0);
    if (!h.ids.empty()) {
      EXPECT_NEAR(h.score, sum / std::pow(h.ids.size(), options.length_penalty), 1e-6);
    }
    EXPECT_LE(h.score, last);
    last = h.score;
    for (size_t i = 0; i < h.ids.size(); ++i) {
      if (i < options.forced.size()) {
        EXPECT_EQ(h.ids[i], options.forced[i]);
        EXPECT_EQ(h.log_probs[i], 0);
        continue;
      }
      if (options.forced_end && static_cast<int64_t>(i) + 1 == options.max_tokens) {
        EXPECT_EQ(h.ids[i], options.end_token);
        EXPECT_EQ(h.log_probs[i], 0);
        continue;
      }
      EXPECT_TRUE(Allowed(options, i, h.ids[i]));
      if (i + 1 < h.ids.size()) {
        EXPECT_NE(h.ids[i], options.end_token) << "goes on after its end mark";
      }
    }
    const bool forced_end = options.forced_end && static_cast<int64_t>(h.ids.size()) == options.max_tokens;
    EXPECT_EQ(h.finish == FinishReason::kStop, !forced_end && !h.ids.empty() && h.ids.back() == options.end_token);
  }
}

std::string Describe(const SearchOptions& o, int vocabulary) {
  return "V " + std::to_string(vocabulary) + " beam " + std::to_string(o.beam_size) + " n " +
         std::to_string(o.num_hypotheses) + " penalty " + std::to_string(o.length_penalty) + " early " +
         std::to_string(static_cast<int>(o.early_stopping)) + " max " + std::to_string(o.max_tokens) + " min " +
         std::to_string(o.min_tokens) + " suppressed " + std::to_string(o.suppressed.size()) + " forced " +
         std::to_string(o.forced.size());
}

void ExpectEqual(const std::vector<Hypothesis>& got, const std::vector<Reference>& want, size_t count, double penalty) {
  ASSERT_EQ(got.size(), std::min(count, want.size()));
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].ids, want[i].ids) << "hypothesis " << i;
    EXPECT_NEAR(got[i].sum, want[i].sum(), 1e-5);
    EXPECT_NEAR(got[i].score, want[i].score(penalty), 1e-5);
    EXPECT_EQ(got[i].finish == FinishReason::kStop, want[i].stopped);
  }
}

// ---------------------------------------------------------------------------------------------------------------------

TEST(SearchTest, FullWidthFindsTheBestOfAllSequencesInOrder) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SearchOptions options;
    const int vocabulary = 3 + static_cast<int>(seed % 4);
    options.max_tokens = 1 + static_cast<int64_t>(seed / 4 % 4);
    options.end_token = static_cast<int32_t>(seed % static_cast<uint32_t>(vocabulary));
    options.length_penalty = 0.5 * (seed % 5);
    options.early_stopping = static_cast<EarlyStopping>(seed % 3);
    options.beam_size = static_cast<int>(std::pow(vocabulary, options.max_tokens));
    options.num_hypotheses = options.beam_size;
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + Describe(options, vocabulary));
    const LanguageModel model = RandomModel(seed, vocabulary);
    const std::vector<Reference> all = Enumerate(options, model);
    const Outcome run = RunSearch(options, vocabulary, model);
    CheckLaws(options, run.best);
    // Scores in order. With hundreds of sequences two may lie closer than single precision tells apart, so the ids are
    // compared as a whole, and in order where the gap is clear.
    ASSERT_EQ(run.best.size(), all.size());
    std::map<Ids, double> found;
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_NEAR(run.best[i].score, all[i].score(options.length_penalty), 1e-5);
      found[run.best[i].ids] = run.best[i].score;
    }
    for (const Reference& r : all) {
      ASSERT_EQ(found.count(r.ids), 1u);
      EXPECT_NEAR(found[r.ids], r.score(options.length_penalty), 1e-5);
    }
    EXPECT_EQ(run.best[0].ids, all[0].ids);
    double mass = 0;  // the sequences partition the space
    for (const Hypothesis& h : run.best) mass += std::exp(h.sum);
    EXPECT_NEAR(mass, 1, 1e-4);
  }
}

TEST(SearchTest, BeamOneIsTheArgMaxPath) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const int vocabulary = 2 + static_cast<int>(seed % 30);
    SearchOptions options;
    options.end_token = 0;
    options.max_tokens = 20;
    options.length_penalty = 0.5 * (seed % 4);
    const LanguageModel model = RandomModel(seed, vocabulary);
    Ids want;
    while (want.size() < 20 && (want.empty() || want.back() != 0)) {
      const std::vector<float> logits = model(want);
      want.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    }
    const Outcome run = RunSearch(options, vocabulary, model);
    ASSERT_EQ(run.best.size(), 1u);
    EXPECT_EQ(run.best[0].ids, want) << seed;
    EXPECT_EQ(run.steps, static_cast<int64_t>(want.size()));
    EXPECT_EQ(run.most_rows, 1);
  }
}

TEST(SearchTest, BeamOneIsTheArgMaxWhereTheNormaliserRoundsDifferencesAway) {
  // 0.5f and its next neighbour are the same number after 8 has been subtracted in single precision.
  std::vector<float> logits(3000, 0.0f);
  logits[5] = 0.5f;
  logits[9] = std::nextafter(0.5f, 1.0f);
  SearchOptions options;
  options.max_tokens = 1;
  Search search(options, 3000);
  ASSERT_TRUE(search.Advance(logits.data()));
  EXPECT_THAT(search.Best().at(0).ids, ElementsAre(9));
}

TEST(SearchTest, EqualsTheSlowRuleOnRandomModelsAndOptions) {
  std::mt19937 random(7);
  const auto below = [&](uint32_t n) { return static_cast<int>(random() % n); };
  int stopped = 0, cut = 0, early = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const int vocabulary = 2 + below(9);
    SearchOptions options;
    options.beam_size = 1 + below(6);
    options.num_hypotheses = 1 + below(static_cast<uint32_t>(options.beam_size));
    options.length_penalty = std::vector<double>{0, 0.6, 1, 1.4, 2, -0.5}[static_cast<size_t>(below(6))];
    options.early_stopping = static_cast<EarlyStopping>(below(3));
    options.max_tokens = 1 + below(9);
    options.min_tokens = below(3) == 0 ? below(6) : 0;
    options.end_token = below(8) == 0 ? -1 : below(static_cast<uint32_t>(vocabulary));
    options.forced_end = options.end_token >= 0 && below(4) == 0;
    for (int i = below(3); i > 0; --i) options.suppressed.push_back(below(static_cast<uint32_t>(vocabulary)));
    for (int i = below(4) - 1; i > 0; --i) options.forced.push_back(below(static_cast<uint32_t>(vocabulary)));
    // A forced end mark ends everything; has its own test.
    if (std::count(options.forced.begin(), options.forced.end(), options.end_token) > 0) options.forced.clear();
    // Callers leave room for a token after the forced ones.
    if (options.forced_end && static_cast<int64_t>(options.forced.size()) >= options.max_tokens) options.forced.clear();
    SCOPED_TRACE("trial " + std::to_string(trial) + " " + Describe(options, vocabulary));
    const LanguageModel model =
        RandomModel(static_cast<uint32_t>(trial), vocabulary, 1.0f + static_cast<float>(below(4)));
    const Outcome run = RunSearch(options, vocabulary, model);
    CheckLaws(options, run.best);
    ExpectEqual(run.best, SlowBeam(options, model), static_cast<size_t>(options.num_hypotheses),
                options.length_penalty);
    EXPECT_LE(run.most_rows, options.beam_size);
    for (const Hypothesis& h : run.best) ++(h.finish == FinishReason::kStop ? stopped : cut);
    early += run.steps < options.max_tokens;
    if (HasFailure()) return;
  }
  // The trials must have reached all endings.
  EXPECT_GT(stopped, 500);
  EXPECT_GT(cut, 500);
  EXPECT_GT(early, 500);
}

TEST(SearchTest, TopDoesNotDependOnTheNumberOfHypothesesAsked) {  // B024
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SearchOptions options;
    options.beam_size = 5;
    options.length_penalty = 0.8;
    options.end_token = 1;
    options.max_tokens = 12;
    const LanguageModel model = RandomModel(seed, 9, 3);
    options.num_hypotheses = 5;
    const Outcome all = RunSearch(options, 9, model);
    ASSERT_EQ(all.best.size(), 5u);
    for (int n = 1; n < 5; ++n) {
      options.num_hypotheses = n;
      const Outcome some = RunSearch(options, 9, model);
      ASSERT_EQ(some.best.size(), static_cast<size_t>(n));
      EXPECT_EQ(some.steps, all.steps);
      for (size_t i = 0; i < some.best.size(); ++i) {
        EXPECT_EQ(some.best[i].ids, all.best[i].ids);
        EXPECT_EQ(some.best[i].score, all.best[i].score);
      }
    }
  }
}

TEST(SearchTest, BeamMayBeWiderThanTheVocabulary) {  // B022
  for (const int beam : {4, 6, 8, 40}) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      SearchOptions options;
      options.beam_size = beam;
      options.num_hypotheses = beam;
      options.max_tokens = 3;
      options.end_token = 2;
      options.suppressed = {0, 4};  // 4 of 6 remain
      const Outcome run = RunSearch(options, 6, RandomModel(seed, 6));
      CheckLaws(options, run.best);
      ExpectEqual(run.best, SlowBeam(options, RandomModel(seed, 6)), static_cast<size_t>(beam), 1);
    }
  }
}

TEST(SearchTest, LengthCapStillGivesAllHypotheses) {  // B025
  SearchOptions options;
  options.beam_size = 6;
  options.num_hypotheses = 6;
  options.max_tokens = 3;
  options.end_token = 0;
  // The end mark is far from likely anywhere.
  const LanguageModel model = [](const Ids& prefix) {
    std::vector<float> logits = RandomModel(3, 20)(prefix);
    logits[0] = -30;
    return logits;
  };
  const Outcome run = RunSearch(options, 20, model);
  ASSERT_EQ(run.best.size(), 6u);
  for (const Hypothesis& h : run.best) {
    EXPECT_EQ(h.finish, FinishReason::kLength);
    EXPECT_EQ(h.ids.size(), 3u);
  }
  CheckLaws(options, run.best);
}

TEST(SearchTest, EndMarkBelowTheBeamIsDropped) {
  // Step 1: tokens 1 and 2 rank above the end mark (0). With beam 2 it ranks third: dropped, although "0" alone would
  // win at the end by a strong length penalty on sums (penalty 0 ranks by sum).
  const LanguageModel model = TableModel({{{}, {0.3, 0.36, 0.34}}, {{1}, {0.4, 0.3, 0.3}}, {{2}, {0.4, 0.3, 0.3}}});
  SearchOptions options;
  options.beam_size = 2;
  options.num_hypotheses = 2;
  options.length_penalty = 0;
  options.max_tokens = 2;
  options.end_token = 0;
  const Outcome run = RunSearch(options, 3, model);
  ASSERT_EQ(run.best.size(), 2u);
  EXPECT_THAT(run.best[0].ids, ElementsAre(1, 0));
  EXPECT_THAT(run.best[1].ids, ElementsAre(2, 0));
  options.beam_size = 3;  // now it ranks within the beam
  EXPECT_THAT(RunSearch(options, 3, model).best[0].ids, ElementsAre(0));
}

TEST(SearchTest, EarlyStoppingEndsWhenTheBeamIsFullOfFinishedOnes) {
  // "0" and "1 0" finish within two steps; "2 2 0" is better per token but longer.
  const LanguageModel model = TableModel({{{}, {0.3, 0.3, 0.4}},
                                          {{1}, {0.9, 0.05, 0.05}},
                                          {{2}, {0.05, 0.05, 0.9}},
                                          {{2, 1}, {0.4, 0.3, 0.3}},
                                          {{2, 2}, {0.99, 0.005, 0.005}}});
  SearchOptions options;
  options.beam_size = 2;
  options.length_penalty = 1;
  options.max_tokens = 3;
  options.end_token = 0;
  options.early_stopping = EarlyStopping::kYes;
  const Outcome eager = RunSearch(options, 3, model);
  EXPECT_THAT(eager.best[0].ids, ElementsAre(1, 0));
  EXPECT_EQ(eager.steps, 2);
  options.early_stopping = EarlyStopping::kNo;
  const Outcome patient = RunSearch(options, 3, model);
  EXPECT_THAT(patient.best[0].ids, ElementsAre(2, 2, 0));
  EXPECT_EQ(patient.steps, 3);
}

TEST(SearchTest, NeverStopsBeforeNoLongerHypothesisCanWin) {
  // After two steps "0" and "1 0" have finished. The best live one, "1 1", scores less than both at its present length,
  // but the longer it grows the better: "1 1 1 1 0" has ln(0.15 * 0.98^3) / 5 = -0.39 against ln(0.25) / 2 = -0.69.
  const LanguageModel model = [](const Ids& prefix) -> std::vector<float> {
    const std::vector<std::vector<double>> after_ones = {
        {0.4, 0.5, 0.1}, {0.5, 0.3, 0.2}, {0.01, 0.98, 0.01}, {0.01, 0.98, 0.01}, {0.98, 0.01, 0.01}};
    const bool ones = std::all_of(prefix.begin(), prefix.end(), [](int32_t id) { return id == 1; });
    if (prefix.size() >= after_ones.size() || !ones) return {0, 0, 0};
    std::vector<float> logits;
    for (const double p : after_ones[prefix.size()]) logits.push_back(static_cast<float>(std::log(p)));
    return logits;
  };
  SearchOptions options;
  options.beam_size = 2;
  options.length_penalty = 1;
  options.max_tokens = 8;
  options.end_token = 0;
  const Outcome present = RunSearch(options, 3, model);
  EXPECT_THAT(present.best[0].ids, ElementsAre(1, 0));
  EXPECT_EQ(present.steps, 2);
  options.early_stopping = EarlyStopping::kNever;
  EXPECT_THAT(RunSearch(options, 3, model).best[0].ids, ElementsAre(1, 1, 1, 1, 0));
  // Without a penalty on length the length makes no difference.
  options.length_penalty = 0;
  EXPECT_EQ(RunSearch(options, 3, model).steps, 2);
}

TEST(SearchTest, ForcedEndIsTheLastTokenAndCostsNothing) {
  SearchOptions options;
  options.beam_size = 3;
  options.num_hypotheses = 3;
  options.max_tokens = 4;
  options.end_token = 0;
  options.forced_end = true;
  // The end mark is all but impossible by itself.
  const LanguageModel model = [](const Ids&) { return std::vector<float>{-50.0f, 1.0f, 0.5f, 0.0f}; };
  const Outcome run = RunSearch(options, 4, model);
  ASSERT_EQ(run.best.size(), 3u);
  for (const Hypothesis& h : run.best) {
    ASSERT_EQ(h.ids.size(), 4u);
    EXPECT_EQ(h.ids.back(), 0);
    EXPECT_EQ(h.log_probs.back(), 0);
    EXPECT_EQ(h.finish, FinishReason::kLength);
  }
  options.max_tokens = 1;
  EXPECT_THAT(RunSearch(options, 4, model).best.at(0).ids, ElementsAre(0));
}

TEST(SearchTest, TiesGoToTheLowestIdThenToTheLowerParent) {
  const LanguageModel flat = [](const Ids&) { return std::vector<float>(7, 0.25f); };
  SearchOptions options;
  options.beam_size = 3;
  options.num_hypotheses = 3;
  options.max_tokens = 2;
  Search search(options, 7);
  std::vector<float> logits = flat({});
  ASSERT_TRUE(search.Advance(logits.data()));
  ASSERT_EQ(search.continuations().size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(search.continuations()[static_cast<size_t>(i)].token, i);
  const Outcome run = RunSearch(options, 7, flat);
  ASSERT_EQ(run.best.size(), 3u);
  EXPECT_THAT(run.best[0].ids, ElementsAre(0, 0));
  EXPECT_THAT(run.best[1].ids, ElementsAre(0, 1));
  EXPECT_THAT(run.best[2].ids, ElementsAre(0, 2));
  EXPECT_EQ(run.best[0].score, run.best[2].score);
}

TEST(SearchTest, SearchEndsWhenTheBestLiveOneCanOnlyDrawLevel) {
  SearchOptions options;
  options.end_token = 0;
  options.max_tokens = 5;
  const Outcome run = RunSearch(options, 2, [](const Ids&) { return std::vector<float>{0.5f, 0.5f}; });
  EXPECT_THAT(run.best[0].ids, ElementsAre(0));
  EXPECT_EQ(run.steps, 1);
}

TEST(SearchTest, MasksLeaveTheProbabilitiesOfTheOthersAlone) {
  const LanguageModel model = [](const Ids&) {
    return std::vector<float>{std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  };
  SearchOptions options;
  options.max_tokens = 1;
  options.end_token = 0;
  options.min_tokens = 1;
  options.suppressed = {1};
  const Outcome run = RunSearch(options, 3, model);
  EXPECT_THAT(run.best[0].ids, ElementsAre(2));
  EXPECT_NEAR(run.best[0].sum, std::log(0.2), 1e-6);
  EXPECT_EQ(run.best[0].finish, FinishReason::kLength);
}

TEST(SearchTest, NoEndMarkBeforeMinTokens) {
  const LanguageModel eager = [](const Ids&) { return std::vector<float>{9, 0, 0, 0}; };
  for (int64_t min = 0; min <= 5; ++min) {
    for (const int beam : {1, 3}) {
      SearchOptions options;
      options.beam_size = beam;
      options.end_token = 0;
      options.min_tokens = min;
      options.max_tokens = 10;
      const Outcome run = RunSearch(options, 4, eager);
      EXPECT_EQ(run.best[0].ids.size(), static_cast<size_t>(min) + 1);
      EXPECT_EQ(run.best[0].finish, FinishReason::kStop);
    }
  }
}

TEST(SearchTest, MinTokensOverMaxTokensIsCutByLength) {
  SearchOptions options;
  options.end_token = 0;
  options.min_tokens = 9;
  options.max_tokens = 4;
  const Outcome run = RunSearch(options, 4, [](const Ids&) { return std::vector<float>{9, 0, 0, 0}; });
  EXPECT_EQ(run.best[0].ids.size(), 4u);
  EXPECT_EQ(run.best[0].finish, FinishReason::kLength);
}

TEST(SearchTest, ForcedTokensComeFirstAndCountNothing) {
  SearchOptions options;
  options.beam_size = 3;
  options.end_token = 0;
  options.max_tokens = 6;
  options.forced = {4, 2};
  options.suppressed = {4};  // forcing is stronger
  const LanguageModel model = RandomModel(11, 6);
  Search search(options, 6);
  for (const int32_t token : options.forced) {
    ASSERT_EQ(search.live_rows(), 1);
    std::vector<float> logits = model(Ids(search.live_ids(0).begin(), search.live_ids(0).end()));
    ASSERT_TRUE(search.Advance(logits.data()));
    ASSERT_EQ(search.continuations().size(), 1u);
    EXPECT_EQ(search.continuations()[0].parent, 0);
    EXPECT_EQ(search.continuations()[0].token, token);
  }
  const Outcome run = RunSearch(options, 6, model);
  CheckLaws(options, run.best);
  EXPECT_EQ(run.best[0].ids[0], 4);
  EXPECT_EQ(run.best[0].ids[1], 2);
}

TEST(SearchTest, ForcedTokensEndAtTheLengthCapAndAtAForcedEndMark) {
  SearchOptions options;
  options.end_token = 0;
  options.max_tokens = 2;
  options.forced = {4, 2, 3};
  const LanguageModel model = RandomModel(11, 6);
  Outcome run = RunSearch(options, 6, model);
  EXPECT_THAT(run.best[0].ids, ElementsAre(4, 2));
  EXPECT_EQ(run.best[0].finish, FinishReason::kLength);
  EXPECT_EQ(run.best[0].sum, 0);
  options.max_tokens = 9;
  options.forced = {4, 0, 3};
  run = RunSearch(options, 6, model);
  EXPECT_THAT(run.best[0].ids, ElementsAre(4, 0));
  EXPECT_EQ(run.best[0].finish, FinishReason::kStop);
}

TEST(SearchTest, EverythingMaskedEndsWithWhatThereIs) {
  SearchOptions options;
  options.beam_size = 2;
  options.num_hypotheses = 2;
  options.end_token = 0;
  options.min_tokens = 5;
  options.suppressed = {1, 2};
  Outcome run = RunSearch(options, 3, RandomModel(1, 3));
  ASSERT_EQ(run.best.size(), 1u);
  EXPECT_THAT(run.best[0].ids, IsEmpty());
  EXPECT_EQ(run.best[0].finish, FinishReason::kLength);
  EXPECT_EQ(run.best[0].score, 0);
  options.forced = {2};
  run = RunSearch(options, 3, RandomModel(1, 3));
  ASSERT_EQ(run.best.size(), 1u);
  EXPECT_THAT(run.best[0].ids, ElementsAre(2));
  EXPECT_EQ(run.best[0].finish, FinishReason::kLength);
}

TEST(SearchTest, NumbersThatAreNotFiniteAreReported) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (size_t row = 0; row < 2; ++row) {
      SearchOptions options;
      options.beam_size = 2;
      options.num_hypotheses = 2;
      options.end_token = 0;
      Search search(options, 40);
      std::vector<float> logits = RandomModel(5, 40)({});
      logits[0] = -9;
      ASSERT_TRUE(search.Advance(logits.data()));
      ASSERT_EQ(search.live_rows(), 2);
      const Ids first(search.live_ids(0).begin(), search.live_ids(0).end());
      std::vector<float> next(80, 0.5f);
      next[row * 40 + 39] = bad;
      EXPECT_FALSE(search.Advance(next.data()));
      EXPECT_TRUE(search.done());
      EXPECT_EQ(search.live_rows(), 0);
      EXPECT_THAT(search.continuations(), IsEmpty());
      ASSERT_EQ(search.Best().size(), 2u);
      EXPECT_EQ(search.Best()[0].ids, first);
    }
  }
}

TEST(SearchTest, AdvanceAfterTheEndChangesNothing) {
  SearchOptions options;
  options.max_tokens = 1;
  Search search(options, 3);
  std::vector<float> logits = {0, 1, 2};
  ASSERT_TRUE(search.Advance(logits.data()));
  ASSERT_TRUE(search.done());
  EXPECT_TRUE(search.Advance(logits.data()));
  EXPECT_EQ(search.steps(), 1);
  EXPECT_THAT(search.Best().at(0).ids, ElementsAre(2));
}

TEST(SearchTest, LargeLogitsGiveNoProbabilityAboveOne) {
  SearchOptions options;
  options.beam_size = 2;
  options.num_hypotheses = 2;
  options.max_tokens = 4;
  options.end_token = 0;
  for (const float size : {1e3f, 1e6f, 1e30f}) {
    const Outcome run = RunSearch(options, 5, RandomModel(2, 5, size));
    CheckLaws(options, run.best);
  }
}

}  // namespace
}  // namespace koine::kernels
