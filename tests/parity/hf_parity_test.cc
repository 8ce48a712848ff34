// Imported Hugging Face checkpoints answer what the transformers library answered (tests/data/hf-*, expected.json):
// token ids, encoder rows, logits of teacher-forced decoding, greedy and beam output with their scores, embeddings.
// Texts go the way of requests: tokenizer, batch, engine, detokenizer; all texts of a checkpoint in one request.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "model_loader/importer/importer.h"
#include "model_loader/model/prompts.h"
#include "model_loader/peft/add_adapter.h"
#include "model_loader/safetensors/safetensors.h"
#include "model_loader/verify/verify.h"
#include "nlohmann/json.hpp"
#include "server/text/text_service.h"
#include "tests/support/harness.h"

namespace koine {
namespace {

namespace fs = std::filesystem;
using model_loader::Sample;
using nlohmann::json;

constexpr double kLogits = 1e-4, kScores = 1e-4, kEmbeddings = 1e-5;
constexpr int kMaxTokens = 48;  // max_new_tokens of all stored values

json Expected(const std::string& checkpoint) {
  std::ifstream stream(testing::SourcePath("tests/data/" + checkpoint + "/expected.json"));
  EXPECT_TRUE(stream.good()) << checkpoint;
  return json::parse(stream);
}

std::vector<std::string> LanguagesOf(const json& cases) {
  std::set<std::string> languages;
  for (const json& one : cases) {
    languages.insert(one.at("source").get<std::string>());
    languages.insert(one.at("target").get<std::string>());
  }
  return {languages.begin(), languages.end()};
}

// Everything that serves one imported model.
class Served {
 public:
  // `adapters`: folders of tests/data that become adapters of their name, of the languages that cases name.
  Served(const std::string& checkpoint, const std::string& folder, model_loader::ImportOptions options = {},
         const std::vector<std::string>& adapters = {})
      : folder_(folder) {
    fs::remove_all(folder);
    options.folder = testing::SourcePath("tests/data/" + checkpoint);
    options.out = folder;
    const auto report = model_loader::Import(options);
    EXPECT_TRUE(report.ok()) << report.status();
    for (const std::string& adapter : adapters) {
      const auto added = model_loader::AddPeftAdapter(
          {folder, LanguagesOf(Expected(adapter).at("cases")), testing::SourcePath("tests/data/" + adapter), ""});
      EXPECT_TRUE(added.ok()) << added.status();
      EXPECT_EQ(added.ok() ? added->name : "", adapter);
    }
    if (report.ok()) Open();
  }
  ~Served() {
    text_.reset();
    if (queue_ != nullptr) queue_->Drain();
    engine_.reset();
    fs::remove_all(folder_);
  }

  void Open() {
    auto model = model_loader::Model::Load(folder_, {});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    languages_ = std::make_unique<server::LanguageStore>(model_, server::LanguageStoreOptions());
    const absl::Status started = languages_->Start();
    ASSERT_TRUE(started.ok()) << started;
    queue_ = std::make_unique<server::JobQueue>(server::QueueLimits());
    server::EngineOptions engine;
    engine.max_rows = 128;
    engine.kv_cache_bytes = 64 << 20;
    engine_ = std::make_unique<server::Engine>(model_, queue_.get(), engine);
    engine_->Start();
    server::TextService::Parts parts;
    parts.queue = queue_.get();
    parts.pool = &pool_;
    parts.languages = languages_.get();
    parts.rejections = &rejections_;
    auto text = server::TextService::Create("m", std::move(parts), {});
    ASSERT_TRUE(text.ok()) << text.status();
    text_ = *std::move(text);
  }

  bool ok() const { return text_ != nullptr; }
  const model_loader::Model& model() const { return *model_; }
  int64_t most_rows_in_a_step() const { return engine_->counters().max_step_rows.load(); }
  // Where the model has languages they are named, else left out.
  std::string Named(const std::string& code) const { return languages_->has_languages() ? code : ""; }

  v1::TranslateResponse Translate(const v1::TranslateRequest& request) {
    return Wait<v1::TranslateResponse>([&](auto done) {
      text_->Translate(std::make_unique<v1::TranslateRequest>(request), absl::InfiniteFuture(), done);
    });
  }
  v1::EncodeResponse Encode(const v1::EncodeRequest& request) {
    return Wait<v1::EncodeResponse>(
        [&](auto done) { text_->Encode(std::make_unique<v1::EncodeRequest>(request), absl::InfiniteFuture(), done); });
  }

 private:
  template <typename Response, typename Start>
  Response Wait(const Start& start) {
    absl::StatusOr<Response> answer = absl::UnknownError("none");
    absl::Notification ended;
    start([&](absl::StatusOr<Response> response) {
      answer = std::move(response);
      ended.Notify();
    });
    ended.WaitForNotification();
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : Response();
  }

  const std::string folder_;
  std::shared_ptr<const model_loader::Model> model_;
  std::unique_ptr<server::LanguageStore> languages_;
  std::unique_ptr<server::JobQueue> queue_;
  std::unique_ptr<server::Engine> engine_;
  server::WorkerPool pool_{1};
  server::Rejections rejections_;
  std::unique_ptr<server::TextService> text_;
};

// One import a checkpoint, for all tests.
Served& ServedOf(const std::string& checkpoint) {
  static auto& all = *new std::map<std::string, std::unique_ptr<Served>>;
  std::unique_ptr<Served>& served = all[checkpoint];
  if (served == nullptr) served = std::make_unique<Served>(checkpoint, ::testing::TempDir() + "/parity_" + checkpoint);
  return *served;
}

template <typename Values>
std::vector<int32_t> Ids(const Values& values) {
  return std::vector<int32_t>(values.begin(), values.end());
}
std::vector<int32_t> Ids(const json& values) { return values.get<std::vector<int32_t>>(); }

// The largest difference; infinity where the sizes differ or one is no number.
template <typename Values>
double Largest(const json& expected, const Values& got) {
  if (expected.size() != static_cast<size_t>(got.size())) return HUGE_VAL;
  double largest = 0;
  size_t i = 0;
  for (const auto& value : got) {
    const double difference = std::abs(expected[i++].get<double>() - static_cast<double>(value));
    largest = std::isnan(difference) ? HUGE_VAL : std::max(largest, difference);
  }
  return largest;
}

// What stands between the start token and the padding after the end mark.
std::vector<int32_t> Generated(const json& sequence, int32_t end) {
  std::vector<int32_t> ids = Ids(sequence);
  ids.erase(ids.begin());
  const auto first_end = std::find(ids.begin(), ids.end(), end);
  if (first_end != ids.end()) ids.erase(first_end + 1, ids.end());
  return ids;
}

v1::TranslateRequest TranslateAll(Served& served, const json& cases) {
  v1::TranslateRequest request;
  v1::TranslateOptions& options = *request.mutable_options();
  options.set_max_tokens(kMaxTokens);
  options.set_return_ids(true);
  options.set_return_scores(true);
  options.set_early_stopping(v1::EARLY_STOPPING_FALSE);
  options.set_length_penalty(1);
  options.set_beam_size(1);
  for (const json& one : cases) {
    v1::TranslateItem& item = *request.add_items();
    item.set_text(one.at("text").get<std::string>());
    item.set_source(served.Named(one.at("source")));
    item.set_target(served.Named(one.at("target")));
  }
  return request;
}

void ExpectIds(Served& served, const json& texts) {
  for (const json& one : texts) {
    const std::string text = one.at("text");
    const auto source = served.model().FindLanguage(served.Named(one.value("source", "")));
    ASSERT_TRUE(source.ok()) << source.status();
    const auto encoded = (*source)->tokenizer().Encode(text);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    const auto prompt = model_loader::ResolveSource(served.model().config().prompt, (*source)->config(),
                                                    (*source)->tokenizer(), nullptr);
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    std::vector<int32_t> ids = prompt->before;
    ids.insert(ids.end(), encoded->ids.begin(), encoded->ids.end());
    ids.insert(ids.end(), prompt->after.begin(), prompt->after.end());
    EXPECT_EQ(ids, Ids(one.at("source_ids"))) << text;
  }
}

// Greedy and beam output of all cases, each kind in one request.
void ExpectSearches(Served& served, const json& cases, const char* name, const std::string& adapter = "") {
  const int32_t end = served.model().config().special_tokens.eos;
  v1::TranslateRequest request = TranslateAll(served, cases);
  // The values of hf-mbart50 were computed without the forced end mark that its generation_config.json asks for: one of
  // its hypotheses has 48 tokens and none. Those of hf-marian were computed with it.
  if (std::string(name) == "hf-mbart50") request.mutable_options()->set_forced_end(false);
  request.set_source_adapter(adapter);
  request.set_target_adapter(adapter);
  double log_probs = 0, scores = 0;
  const v1::TranslateResponse greedy = served.Translate(request);
  ASSERT_EQ(static_cast<size_t>(greedy.results_size()), cases.size());
  for (int i = 0; i < greedy.results_size(); ++i) {
    const json& one = cases[static_cast<size_t>(i)];
    const v1::TranslateResult& result = greedy.results(i);
    SCOPED_TRACE(one.at("text").get<std::string>());
    ASSERT_EQ(result.status().code(), 0) << result.status().message();
    EXPECT_EQ(Ids(result.source_ids()), Ids(one.at("source_ids")));
    ASSERT_EQ(result.hypotheses_size(), 1);
    EXPECT_EQ(Ids(result.hypotheses(0).ids()), Generated(one.at("greedy_ids"), end));
    json expected = one.at("greedy_token_log_probs");
    // The stored number of a forced end mark is the model's own log-probability; forced tokens count 0.
    if (served.model().config().generation.forced_end && expected.size() == kMaxTokens) expected.back() = 0;
    log_probs = std::max(log_probs, Largest(expected, result.hypotheses(0).token_log_probs()));
  }
  EXPECT_LE(log_probs, kScores);

  for (size_t setting = 0; setting < cases[0].at("beam").size(); ++setting) {
    const json& first = cases[0].at("beam")[setting];
    v1::TranslateOptions& options = *request.mutable_options();
    options.set_beam_size(first.at("num_beams"));
    options.set_num_hypotheses(static_cast<int>(first.at("sequences").size()));
    options.set_length_penalty(first.at("length_penalty"));
    options.set_early_stopping(first.at("early_stopping").get<bool>() ? v1::EARLY_STOPPING_TRUE
                                                                      : v1::EARLY_STOPPING_FALSE);
    const v1::TranslateResponse beams = served.Translate(request);
    ASSERT_EQ(static_cast<size_t>(beams.results_size()), cases.size());
    for (int i = 0; i < beams.results_size(); ++i) {
      const json& beam = cases[static_cast<size_t>(i)].at("beam")[setting];
      const v1::TranslateResult& result = beams.results(i);
      SCOPED_TRACE(absl::StrCat(cases[static_cast<size_t>(i)].at("text").get<std::string>(), ", penalty ",
                                options.length_penalty(), ", early stopping ", int{options.early_stopping()}));
      ASSERT_EQ(beam.at("length_penalty"), first.at("length_penalty"));
      ASSERT_EQ(static_cast<size_t>(result.hypotheses_size()), beam.at("sequences").size());
      std::vector<double> got;
      for (int h = 0; h < result.hypotheses_size(); ++h) {
        EXPECT_EQ(Ids(result.hypotheses(h).ids()), Generated(beam.at("sequences")[static_cast<size_t>(h)], end)) << h;
        got.push_back(result.hypotheses(h).score());
      }
      scores = std::max(scores, Largest(beam.at("sequences_scores"), got));
    }
  }
  EXPECT_LE(scores, kScores);
  std::printf("%s: %zu cases; largest differences: greedy log-probabilities %.2g, beam scores %.2g\n", name,
              cases.size(), log_probs, scores);
}

// Encoder rows and logits, teacher-forced, through koine-model verify's recomputation: every stored logit of every
// step, the whole first row, and the sums.
void ExpectLogits(Served& served, const json& cases, const char* name, const std::string& adapter = "") {
  double rows = 0, logits = 0, sums = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const json& one = cases[i];
    Sample sample;
    sample.source = served.Named(one.at("source"));
    sample.target = served.Named(one.at("target"));
    sample.source_adapter = sample.target_adapter = adapter;
    sample.source_ids = Ids(one.at("source_ids"));
    sample.decoder_ids = Ids(one.at("decoder_input_ids"));
    sample.encoder_last_row = one.at("encoder_last_row").get<std::vector<double>>();
    sample.logits_sum = one.at("logits_sum").get<std::vector<double>>();
    for (const json& step : one.at("logits_top8")) {
      auto& top = sample.logits_top.emplace_back();
      for (const json& pair : step) top.push_back({pair[0].get<int32_t>(), pair[1].get<double>()});
    }
    const json& first = one.at("logits_first_row");
    for (size_t id = 0; id < first.size(); ++id) {
      sample.logits_top[0].push_back({static_cast<int32_t>(id), first[id].get<double>()});
    }
    const auto report = model_loader::VerifySample(served.model(), sample, i, {kLogits});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_THAT(report->faults, ::testing::IsEmpty()) << report->name;
    rows = std::max(rows, report->encoder);
    logits = std::max(logits, report->logits);
    sums = std::max(sums, report->sums);
  }
  std::printf("%s: largest differences: encoder rows %.2g, logits %.2g, sums %.2g of what is allowed\n", name, rows,
              logits, sums);
}

class Translation : public ::testing::TestWithParam<const char*> {};

TEST_P(Translation, TokenIdsAreTheReferences) {
  Served& served = ServedOf(GetParam());
  ASSERT_TRUE(served.ok());
  const json expected = Expected(GetParam());
  ExpectIds(served, expected.at("cases"));
  ExpectIds(served, expected.at("edge_texts"));
}

TEST_P(Translation, EncoderRowsAndLogitsAreTheReferences) {
  Served& served = ServedOf(GetParam());
  ASSERT_TRUE(served.ok());
  const json expected = Expected(GetParam());
  ExpectLogits(served, expected.at("cases"), GetParam());
  // The first row too: token states of the encoder, all texts in one batch.
  v1::EncodeRequest request;
  request.mutable_options()->set_token_states(true);
  for (const json& one : expected.at("cases")) {
    v1::EncodeItem& item = *request.add_items();
    item.mutable_ids()->Add(one.at("source_ids").begin(), one.at("source_ids").end());
    item.set_language(served.Named(one.at("source")));
  }
  const v1::EncodeResponse encoded = served.Encode(request);
  ASSERT_EQ(static_cast<size_t>(encoded.results_size()), expected.at("cases").size());
  for (int i = 0; i < encoded.results_size(); ++i) {
    const json& one = expected.at("cases")[static_cast<size_t>(i)];
    const auto& states = encoded.results(i).token_states();
    const auto width = static_cast<std::ptrdiff_t>(one.at("encoder_first_row").size());
    ASSERT_EQ(states.size(), width * static_cast<std::ptrdiff_t>(one.at("source_ids").size()));
    EXPECT_LE(Largest(one.at("encoder_first_row"), std::vector<float>(states.begin(), states.begin() + width)),
              kLogits);
    EXPECT_LE(Largest(one.at("encoder_last_row"), std::vector<float>(states.end() - width, states.end())), kLogits);
  }
}

TEST_P(Translation, GreedyAndBeamOutputAreTheReferences) {
  Served& served = ServedOf(GetParam());
  ASSERT_TRUE(served.ok());
  ExpectSearches(served, Expected(GetParam()).at("cases"), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Translation,
                         ::testing::Values("hf-nllb", "hf-m2m100", "hf-mbart50", "hf-mt5", "hf-t5", "hf-marian"),
                         [](const auto& parameter) { return std::string(parameter.param).substr(3); });

TEST(Nllb, LegacySourceOrderPutsTheTagAtTheEnd) {
  model_loader::ImportOptions options;
  options.legacy_source_order = true;
  Served served("hf-nllb", ::testing::TempDir() + "/parity_hf-nllb-legacy", std::move(options));
  ASSERT_TRUE(served.ok());
  ExpectIds(served, Expected("hf-nllb").at("legacy_source_order"));
}

class SentenceVectors : public ::testing::TestWithParam<const char*> {};

TEST_P(SentenceVectors, AreTheReferences) {
  Served& served = ServedOf(GetParam());
  ASSERT_TRUE(served.ok());
  const json expected = Expected(GetParam());
  v1::EncodeRequest request;
  request.mutable_options()->set_token_states(true);
  request.mutable_options()->set_return_ids(true);
  request.mutable_options()->set_truncate(true);
  request.set_prompt("none");
  for (const json& one : expected.at("cases")) request.add_items()->set_text(one.at("text").get<std::string>());
  const v1::EncodeResponse encoded = served.Encode(request);
  ASSERT_EQ(static_cast<size_t>(encoded.results_size()), expected.at("cases").size());
  double rows = 0, values = 0, cosine = 1;
  int cut = 0;
  for (int i = 0; i < encoded.results_size(); ++i) {
    const json& one = expected.at("cases")[static_cast<size_t>(i)];
    const v1::EncodeResult& result = encoded.results(i);
    SCOPED_TRACE(one.at("text").get<std::string>().substr(0, 60));
    ASSERT_EQ(result.status().code(), 0) << result.status().message();
    EXPECT_EQ(Ids(result.ids()), Ids(one.at("ids")));
    const auto& states = result.token_states();
    const auto width = static_cast<std::ptrdiff_t>(one.at("first_row").size());
    ASSERT_GE(states.size(), width);
    rows = std::max(rows, Largest(one.at("first_row"), std::vector<float>(states.begin(), states.begin() + width)));
    rows = std::max(rows, Largest(one.at("last_row"), std::vector<float>(states.end() - width, states.end())));
    values = std::max(values, Largest(one.at("embedding"), result.embedding()));
    double dot = 0, ours = 0, theirs = 0;
    for (int k = 0; k < result.embedding_size(); ++k) {
      const double a = static_cast<double>(result.embedding(k));
      const double b = one.at("embedding")[static_cast<size_t>(k)].get<double>();
      dot += a * b;
      ours += a * a;
      theirs += b * b;
    }
    cosine = std::min(cosine, dot / std::sqrt(ours * theirs));
    cut += result.truncated() ? 1 : 0;
  }
  EXPECT_LE(rows, kLogits);
  EXPECT_LE(values, kEmbeddings);
  EXPECT_GE(cosine, 1 - kEmbeddings);
  EXPECT_EQ(cut, 1) << "one text is longer than the model reads";
  std::printf("%s: %d texts; largest differences: rows %.2g, embeddings %.2g, cosine %.2g\n", GetParam(),
              encoded.results_size(), rows, values, 1 - cosine);
}

TEST(ByteLevelBpe, GivesTheReferencesIdsForEveryEdgeText) {
  Served& served = ServedOf("hf-roberta");
  ASSERT_TRUE(served.ok());
  v1::EncodeRequest request;
  request.mutable_options()->set_return_ids(true);
  std::vector<std::vector<int32_t>> ids;
  const json expected = Expected("hf-roberta");
  for (const json& one : expected.at("edge_texts")) {
    if (one.at("ids").size() > 128) continue;  // longer than the model reads
    request.add_items()->set_text(one.at("text").get<std::string>());
    ids.push_back(Ids(one.at("ids")));
  }
  const v1::EncodeResponse encoded = served.Encode(request);
  ASSERT_EQ(static_cast<size_t>(encoded.results_size()), ids.size());
  int compared = 0;
  for (int i = 0; i < encoded.results_size(); ++i) {
    const v1::EncodeResult& result = encoded.results(i);
    if (result.status().message().find("is blank") != std::string::npos) continue;  // such texts have no vector
    EXPECT_EQ(result.status().code(), 0) << result.status().message();
    EXPECT_EQ(Ids(result.ids()), ids[static_cast<size_t>(i)]) << request.items(i).text();
    ++compared;
  }
  EXPECT_GE(compared, 80);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, SentenceVectors, ::testing::Values("hf-xlmr", "hf-bert", "hf-roberta"),
                         [](const auto& parameter) { return std::string(parameter.param).substr(3); });

TEST(PeftAdapters, AnswerAsTheReferenceNamedOnBothSidesAndMixedWithRowsThatUseNone) {
  const std::vector<std::string> adapters = {"hf-nllb-lora-de", "hf-nllb-lora-fr"};
  Served served("hf-nllb", ::testing::TempDir() + "/parity_adapters", {}, adapters);
  ASSERT_TRUE(served.ok());
  v1::TranslateRequest mixed;
  std::vector<std::vector<int32_t>> expected_ids;
  // Cases of the model without an adapter, and of both adapters, in one request: the engine batches them together.
  for (const std::string& folder : {std::string("hf-nllb"), adapters[0], adapters[1]}) {
    const std::string adapter = folder == "hf-nllb" ? "" : folder;
    const json cases = Expected(folder).at("cases");
    if (!adapter.empty()) {
      ExpectLogits(served, cases, folder.c_str(), adapter);
      ExpectSearches(served, cases, folder.c_str(), adapter);
    }
    v1::TranslateRequest all = TranslateAll(served, cases);
    *mixed.mutable_options() = all.options();
    for (int i = 0; i < all.items_size(); ++i) {
      v1::TranslateItem& item = *mixed.add_items();
      item = all.items(i);
      item.set_source_adapter(adapter);
      item.set_target_adapter(adapter);
      expected_ids.push_back(Generated(cases[static_cast<size_t>(i)].at("greedy_ids"), 2));
    }
  }
  const v1::TranslateResponse answers = served.Translate(mixed);
  ASSERT_EQ(static_cast<size_t>(answers.results_size()), expected_ids.size());
  for (int i = 0; i < answers.results_size(); ++i) {
    ASSERT_EQ(answers.results(i).status().code(), 0) << answers.results(i).status().message();
    EXPECT_EQ(Ids(answers.results(i).hypotheses(0).ids()), expected_ids[static_cast<size_t>(i)]) << i;
  }
  EXPECT_GE(served.most_rows_in_a_step(), static_cast<int64_t>(expected_ids.size())) << "all of them in one step";
}

TEST(SentenceVectorPrompts, ByNameEqualThoseInTheText) {
  Served& served = ServedOf("hf-xlmr");
  ASSERT_TRUE(served.ok());
  int found = 0;
  const json expected = Expected("hf-xlmr");
  for (const json& one : expected.at("cases")) {
    const std::string text = one.at("text");
    for (const std::string name : {"query", "passage"}) {
      if (text.rfind(name + ": ", 0) != 0) continue;
      v1::EncodeRequest request;
      request.set_prompt(name);
      request.mutable_options()->set_return_ids(true);
      request.add_items()->set_text(text.substr(name.size() + 2));
      const v1::EncodeResponse encoded = served.Encode(request);
      ASSERT_EQ(encoded.results_size(), 1);
      EXPECT_EQ(Ids(encoded.results(0).ids()), Ids(one.at("ids")));
      EXPECT_LE(Largest(one.at("embedding"), encoded.results(0).embedding()), kEmbeddings);
      ++found;
    }
  }
  EXPECT_EQ(found, 2);
}

// Tables cut to the rows that the cases' texts use: greedy ids and the kept rows' logits stay those of the whole model
// wherever its choices lie in the table.
class Sliced : public ::testing::TestWithParam<const char*> {};

// For each language the texts that its table must hold: sources, what the whole model translates into it, and what it
// is made to write step by step.
std::map<std::string, std::string> SampleTexts(Served& whole, const json& cases) {
  std::map<std::string, std::string> texts;
  for (const json& one : cases) {
    const auto target = whole.model().FindLanguage(whole.Named(one.at("target").get<std::string>()));
    EXPECT_TRUE(target.ok()) << target.status();
    texts[one.at("source")] += one.at("text").get<std::string>() + "\n";
    for (const char* written : {"greedy_ids", "decoder_input_ids"}) {
      const auto text = (*target)->tokenizer().Decode(Ids(one.at(written)));
      EXPECT_TRUE(text.ok()) << text.status();
      texts[one.at("target")] += *text + "\n";
    }
  }
  return texts;
}

TEST_P(Sliced, EqualsTheWholeModelWhereItsChoicesLieInTheTable) {
  const std::string checkpoint = GetParam();
  Served& whole = ServedOf(checkpoint);
  ASSERT_TRUE(whole.ok());
  const json cases = Expected(checkpoint).at("cases");
  const std::string folder = ::testing::TempDir() + "/parity_sliced_" + checkpoint;
  model_loader::ImportOptions options;
  options.tables = model_loader::TableMode::kSample;
  for (const auto& [code, text] : SampleTexts(whole, cases)) {
    const std::string path = absl::StrCat(folder, ".", code, ".txt");
    std::ofstream(path) << text;
    options.languages.push_back(code);
    options.samples.emplace_back(code, path);
  }
  Served sliced(checkpoint, folder, std::move(options));
  ASSERT_TRUE(sliced.ok());

  // Rows of each table by their number in the whole one.
  std::map<std::string, std::map<int32_t, int32_t>> rows;
  const int64_t all_rows = whole.model().FindLanguage(whole.Named("en")).value()->weights().vocabulary;
  double largest_share = 0;
  for (const auto& language : sliced.model().languages()) {
    const auto file = model_loader::SafetensorsFile::Open(
        absl::StrCat(folder, "/languages/", language->code(), "/language.safetensors"));
    ASSERT_TRUE(file.ok()) << file.status();
    const model_loader::TensorView* ids = (*file)->Find("vocab.ids");
    ASSERT_NE(ids, nullptr) << language->code();
    std::vector<int32_t> numbers(static_cast<size_t>(ids->elements()));
    std::memcpy(numbers.data(), ids->data.data(), ids->data.size());
    for (size_t row = 0; row < numbers.size(); ++row) {
      rows[language->code()][numbers[row]] = static_cast<int32_t>(row);
    }
    const double share = static_cast<double>(numbers.size()) / static_cast<double>(all_rows);
    EXPECT_LE(share, 0.6) << language->code() << ": " << numbers.size() << " of " << all_rows;
    largest_share = std::max(largest_share, share);
  }
  const auto mapped = [&](const std::string& code, const std::vector<int32_t>& ids, std::vector<int32_t>* out) {
    const auto& table = rows[sliced.model().FindLanguage(code).value()->code()];
    out->clear();
    for (const int32_t id : ids) {
      const auto found = table.find(id);
      if (found == table.end()) return false;
      out->push_back(found->second);
    }
    return true;
  };

  const v1::TranslateResponse greedy = sliced.Translate(TranslateAll(sliced, cases));
  ASSERT_EQ(static_cast<size_t>(greedy.results_size()), cases.size());
  const int32_t end = whole.model().config().special_tokens.eos;
  size_t compared = 0;
  double logits = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const json& one = cases[i];
    const std::string source = one.at("source"), target = one.at("target");
    SCOPED_TRACE(one.at("text").get<std::string>());
    const v1::TranslateResult& result = greedy.results(static_cast<int>(i));
    ASSERT_EQ(result.status().code(), 0) << result.status().message();
    std::vector<int32_t> ids;
    ASSERT_TRUE(mapped(source, Ids(one.at("source_ids")), &ids));
    EXPECT_EQ(Ids(result.source_ids()), ids);
    Sample sample;
    sample.source = source;
    sample.target = target;
    sample.source_ids = ids;
    sample.encoder_last_row = one.at("encoder_last_row").get<std::vector<double>>();
    ASSERT_TRUE(mapped(target, Ids(one.at("decoder_input_ids")), &sample.decoder_ids));
    for (const json& step : one.at("logits_top8")) {
      auto& top = sample.logits_top.emplace_back();
      for (const json& pair : step) {
        if (mapped(target, {pair[0].get<int32_t>()}, &ids)) top.push_back({ids[0], pair[1].get<double>()});
      }
    }
    const json& first = one.at("logits_first_row");
    for (size_t id = 0; id < first.size(); ++id) {
      if (mapped(target, {static_cast<int32_t>(id)}, &ids)) {
        sample.logits_top[0].push_back({ids[0], first[id].get<double>()});
      }
    }
    const auto report = model_loader::VerifySample(sliced.model(), sample, i, {kLogits});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_THAT(report->faults, ::testing::IsEmpty());
    logits = std::max(logits, report->logits);
    if (!mapped(target, Generated(one.at("greedy_ids"), end), &ids)) continue;
    ++compared;
    EXPECT_EQ(Ids(result.hypotheses(0).ids()), ids);
  }
  EXPECT_EQ(compared, cases.size()) << "the tables were made from these very texts";
  std::printf("%s: %zu cases with tables of at most %.0f %% of the rows; largest difference of kept logits %.2g\n",
              GetParam(), compared, 100 * largest_share, logits);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Sliced,
                         ::testing::Values("hf-nllb", "hf-m2m100", "hf-mbart50", "hf-mt5", "hf-t5", "hf-marian"),
                         [](const auto& parameter) { return std::string(parameter.param).substr(3); });

}  // namespace
}  // namespace koine
