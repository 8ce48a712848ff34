#include "server/text/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "server/text/fault.h"

namespace koine::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kVocabulary = 100;
constexpr int64_t kPositions = 64;
constexpr int32_t kEnd = 2;

absl::StatusOr<kernels::SearchOptions> Search(const v1::TranslateOptions& options, int64_t source_tokens = 5,
                                              const std::vector<int32_t>& model_forced = {},
                                              const model_loader::Generation& defaults = {},
                                              const std::vector<int32_t>& model_suppressed = {}) {
  const RequestLimits limits;
  auto checked = CheckOptions(options, defaults, limits);
  if (!checked.ok()) return checked.status();
  return SearchFor(*checked, source_tokens, model_forced, model_suppressed, kEnd, kVocabulary, kPositions, limits);
}

TEST(Options, ASilentRequestGetsTheDocumentedDefaults) {
  const auto search = Search({});
  ASSERT_TRUE(search.ok()) << search.status();
  EXPECT_EQ(search->beam_size, 1);
  EXPECT_EQ(search->num_hypotheses, 1);
  EXPECT_EQ(search->length_penalty, 1);
  EXPECT_EQ(search->early_stopping, kernels::EarlyStopping::kNo);
  EXPECT_FALSE(search->forced_end);
  EXPECT_EQ(search->max_tokens, 2 * 5 + 10);
  EXPECT_EQ(search->min_tokens, 0);
  EXPECT_EQ(search->end_token, kEnd);
}

TEST(Options, TheDefaultLengthIsBoundedByTheModelAndLeavesRoomForWhatIsAskedFor) {
  EXPECT_EQ(Search({}, 60)->max_tokens, kPositions);
  v1::TranslateOptions options;
  options.set_min_tokens(40);
  EXPECT_EQ(Search(options, 1)->max_tokens, 40);
  v1::TranslateOptions forced;
  for (int i = 0; i < 20; ++i) forced.add_forced_ids(7);
  EXPECT_EQ(Search(forced, 1, {9})->max_tokens, 22);
  v1::TranslateOptions explicit_length;
  explicit_length.set_max_tokens(1000);  // within the limits, beyond the model
  EXPECT_EQ(Search(explicit_length)->max_tokens, kPositions);
}

TEST(Options, GivenValuesArrive) {
  v1::TranslateOptions options;
  options.set_beam_size(4);
  options.set_num_hypotheses(3);
  options.set_length_penalty(0);
  options.set_early_stopping(v1::EARLY_STOPPING_TRUE);
  options.set_max_tokens(30);
  options.set_min_tokens(3);
  options.add_suppressed_ids(8);
  options.add_forced_ids(11);
  options.set_format(v1::FORMAT_TEXT);
  options.set_repetition_penalty(1);
  const auto search = Search(options, 5, {50});
  ASSERT_TRUE(search.ok()) << search.status();
  EXPECT_EQ(search->beam_size, 4);
  EXPECT_EQ(search->num_hypotheses, 3);
  EXPECT_EQ(search->length_penalty, 0);
  EXPECT_EQ(search->early_stopping, kernels::EarlyStopping::kYes);
  EXPECT_EQ(search->max_tokens, 30);
  EXPECT_EQ(search->min_tokens, 3);
  EXPECT_THAT(search->suppressed, ElementsAre(8));
  EXPECT_THAT(search->forced, ElementsAre(50, 11));  // the model's own first
}

TEST(Options, AllThatIsOutOfRangeIsReportedAtOnce) {
  v1::TranslateOptions options;
  options.set_beam_size(33);
  options.set_num_hypotheses(-1);
  options.set_length_penalty(std::numeric_limits<double>::quiet_NaN());
  options.set_max_tokens(1025);
  options.set_min_tokens(-3);
  options.set_format(static_cast<v1::Format>(9));
  options.set_early_stopping(static_cast<v1::EarlyStopping>(3));
  const auto search = Search(options);
  ASSERT_TRUE(absl::IsInvalidArgument(search.status()));
  google::rpc::BadRequest bad_request;
  ASSERT_TRUE(ToProto(search.status()).details(0).UnpackTo(&bad_request));
  std::vector<std::string> fields;
  for (const auto& violation : bad_request.field_violations()) fields.push_back(violation.field());
  EXPECT_THAT(fields, ::testing::UnorderedElementsAre(
                          "options.beam_size", "options.num_hypotheses", "options.length_penalty", "options.max_tokens",
                          "options.min_tokens", "options.format", "options.early_stopping"));
}

TEST(Options, MoreHypothesesThanBeamsAreRefused) {
  v1::TranslateOptions options;
  options.set_num_hypotheses(2);
  EXPECT_TRUE(absl::IsInvalidArgument(Search(options).status()));
  options.set_beam_size(2);
  EXPECT_TRUE(Search(options).ok());
}

TEST(Options, WhatIsNotImplementedIsRefusedByName) {
  const std::pair<std::string, std::function<void(v1::TranslateOptions*)>> refused[] = {
      {"repetition_penalty", [](v1::TranslateOptions* o) { o->set_repetition_penalty(1.2); }},
      {"no_repeat_ngram_size", [](v1::TranslateOptions* o) { o->set_no_repeat_ngram_size(3); }},
      {"sampling", [](v1::TranslateOptions* o) { o->mutable_sampling()->set_top_k(5); }},
      {"prefix", [](v1::TranslateOptions* o) { o->set_prefix("Der"); }},
      {"return_alignment", [](v1::TranslateOptions* o) { o->set_return_alignment(true); }},
      {"split_sentences", [](v1::TranslateOptions* o) { o->set_split_sentences(true); }},
      {"FORMAT_HTML", [](v1::TranslateOptions* o) { o->set_format(v1::FORMAT_HTML); }},
  };
  for (const auto& [name, set] : refused) {
    v1::TranslateOptions options;
    set(&options);
    const absl::Status status = Search(options).status();
    EXPECT_TRUE(absl::IsUnimplemented(status)) << name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

TEST(Options, AnOptionOfALaterVersionIsRefusedAndNotIgnored) {
  v1::TranslateOptions options;
  ASSERT_TRUE(options.ParseFromString(std::string("\xC8\x3E\x01", 3)));  // field 1001, varint
  const absl::Status status = Search(options).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("1001"));
}

TEST(Options, IdsOutsideTheTableAndTheEndMarkAreRefused) {
  for (const int32_t id : {-1, 100, 1'000'000}) {
    v1::TranslateOptions suppressed;
    suppressed.add_suppressed_ids(id);
    EXPECT_TRUE(absl::IsInvalidArgument(Search(suppressed).status())) << id;
    v1::TranslateOptions forced;
    forced.add_forced_ids(id);
    EXPECT_TRUE(absl::IsInvalidArgument(Search(forced).status())) << id;
  }
  v1::TranslateOptions end;
  end.add_suppressed_ids(kEnd);
  EXPECT_TRUE(absl::IsInvalidArgument(Search(end).status()));
  v1::TranslateOptions all;
  for (int id = 0; id < kVocabulary; ++id) {
    if (id != kEnd) all.add_suppressed_ids(id);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Search(all).status()));
}

TEST(Options, ForcedTokensMustLeaveRoom) {
  v1::TranslateOptions options;
  options.set_max_tokens(3);
  options.add_forced_ids(5);
  options.add_forced_ids(6);
  EXPECT_TRUE(Search(options).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Search(options, 5, {50}).status()));  // the model forces one more
  options.add_forced_ids(7);
  EXPECT_TRUE(absl::IsInvalidArgument(Search(options).status()));
}

TEST(Options, MinimumAboveWhatTheModelGeneratesIsRefused) {
  v1::TranslateOptions options;
  options.set_min_tokens(kPositions + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(Search(options).status()));
  options.set_min_tokens(20);
  options.set_max_tokens(19);
  EXPECT_TRUE(absl::IsInvalidArgument(Search(options).status()));
}

TEST(Options, TheModelsDefaultsCountWhereTheRequestIsSilent) {
  model_loader::Generation defaults;
  defaults.beam_size = 5;
  defaults.length_penalty = 0.6;
  defaults.early_stopping = kernels::EarlyStopping::kNever;
  defaults.max_tokens = 40;
  defaults.min_tokens = 3;
  defaults.forced_end = true;
  auto search = Search({}, 5, {}, defaults, {8, 9});
  ASSERT_TRUE(search.ok()) << search.status();
  EXPECT_EQ(search->beam_size, 5);
  EXPECT_EQ(search->length_penalty, 0.6);
  EXPECT_EQ(search->early_stopping, kernels::EarlyStopping::kNever);
  EXPECT_EQ(search->max_tokens, 40);
  EXPECT_EQ(search->min_tokens, 3);
  EXPECT_TRUE(search->forced_end);
  EXPECT_THAT(search->suppressed, ElementsAre(8, 9));

  // What is set counts, also where it is the server's own default.
  v1::TranslateOptions options;
  options.set_beam_size(1);
  options.set_length_penalty(1);
  options.set_early_stopping(v1::EARLY_STOPPING_FALSE);
  options.set_max_tokens(10);
  options.set_min_tokens(0);
  options.set_forced_end(false);
  options.add_suppressed_ids(7);
  search = Search(options, 5, {}, defaults, {8});
  ASSERT_TRUE(search.ok()) << search.status();
  EXPECT_EQ(search->beam_size, 1);
  EXPECT_EQ(search->length_penalty, 1);
  EXPECT_EQ(search->early_stopping, kernels::EarlyStopping::kNo);
  EXPECT_EQ(search->max_tokens, 10);
  EXPECT_FALSE(search->forced_end);
  EXPECT_EQ(search->min_tokens, 0);
  EXPECT_THAT(search->suppressed, ElementsAre(7, 8));
}

TEST(Options, TheModelsDefaultsStayWithinTheLimits) {
  model_loader::Generation defaults;
  defaults.beam_size = 1000;
  defaults.max_tokens = 1'000'000;
  defaults.min_tokens = 30;
  EXPECT_EQ(Search({}, 5, {}, defaults)->beam_size, RequestLimits().max_beams);
  EXPECT_EQ(Search({}, 5, {}, defaults)->max_tokens, kPositions);
  v1::TranslateOptions options;
  options.set_max_tokens(4);
  const auto search = Search(options, 5, {}, defaults);
  ASSERT_TRUE(search.ok()) << search.status();
  EXPECT_EQ(search->min_tokens, 4) << "the request's length counts, not the model's minimum";
}

TEST(Options, PromptsAreChosenByName) {
  model_loader::ModelConfig config;
  EXPECT_EQ(*ChoosePrompt(config, ""), "");
  EXPECT_EQ(*ChoosePrompt(config, "none"), "");
  EXPECT_THAT(std::string(ChoosePrompt(config, "query").status().message()), HasSubstr("it has none"));
  config.prompts = {{"query", "query: "}, {"passage", "passage: "}};
  EXPECT_EQ(*ChoosePrompt(config, ""), "");
  EXPECT_EQ(*ChoosePrompt(config, "query"), "query: ");
  config.default_prompt = "passage";
  EXPECT_EQ(*ChoosePrompt(config, ""), "passage: ");
  EXPECT_EQ(*ChoosePrompt(config, "none"), "");
  const absl::Status unknown = ChoosePrompt(config, "Query").status();
  EXPECT_TRUE(absl::IsInvalidArgument(unknown));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("\"Query\" is no prompt of this model; it has passage, query"));
}

TEST(Options, EncodeKeepsDimensionsWhole) {
  v1::EncodeOptions options;
  EXPECT_TRUE(CheckOptions(options, 256, true)->normalize);
  EXPECT_FALSE(CheckOptions(options, 256, false)->normalize);
  options.set_normalize(false);
  options.set_dimensions(256);
  EXPECT_FALSE(CheckOptions(options, 256, true)->normalize);
  options.set_dimensions(128);
  EXPECT_TRUE(absl::IsUnimplemented(CheckOptions(options, 256, true).status()));
  options.set_dimensions(257);
  EXPECT_TRUE(absl::IsInvalidArgument(CheckOptions(options, 256, true).status()));
  options.set_dimensions(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(CheckOptions(options, 256, true).status()));
}

}  // namespace
}  // namespace koine::server
