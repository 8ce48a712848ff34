#include "model_loader/model/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/support/harness.h"

namespace koine::model_loader {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A vocabulary that is a list of pieces.
class Pieces final : public Tokenizer {
 public:
  explicit Pieces(std::map<std::string, int32_t> pieces) : pieces_(std::move(pieces)) {}
  absl::StatusOr<Encoded> Encode(std::string_view) const override { return Encoded{}; }
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t>) const override { return std::string(); }
  int64_t size() const override { return static_cast<int64_t>(pieces_.size()); }
  int32_t unknown_id() const override { return 3; }
  int32_t PieceToId(std::string_view piece) const override {
    const auto found = pieces_.find(std::string(piece));
    return found == pieces_.end() ? -1 : found->second;
  }
  std::string IdToPiece(int32_t) const override { return ""; }
  bool IsMarker(int32_t) const override { return false; }
  bool IsByte(int32_t) const override { return false; }

 private:
  const std::map<std::string, int32_t> pieces_;
};

LanguageConfig Named(const std::string& code, const std::string& tag) {
  LanguageConfig config;
  config.code = code;
  config.tag = tag;
  return config;
}

Prompt Rules(std::vector<std::string> source, std::string start, std::vector<std::string> forced) {
  Prompt prompt;
  prompt.source = std::move(source);
  prompt.decoder_start = std::move(start);
  prompt.decoder_forced = std::move(forced);
  return prompt;
}

const Pieces kEnglish({{"</s>", 2}, {"<en>", 10}, {"<de>", 11}, {">>de<<", 12}});
const Pieces kGerman({{"<s>", 1}, {"</s>", 2}, {"<en>", 20}, {"<de>", 21}});

TEST(Prompts, NllbPutsTheSourceTagFirstAndForcesTheTargetTag) {
  const Prompt prompt = Rules({"$source", "$text", "</s>"}, "</s>", {"$target"});
  const auto source = ResolveSource(prompt, Named("en", "<en>"), kEnglish, nullptr);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(source->before, ElementsAre(10));
  EXPECT_THAT(source->after, ElementsAre(2));
  const auto target = ResolveTarget(prompt, Named("en", "<en>"), Named("de", "<de>"), kGerman);
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_EQ(target->start, 2);
  EXPECT_THAT(target->forced, ElementsAre(21));
}

TEST(Prompts, TheOldNllbFormPutsItBehind) {
  const auto source =
      ResolveSource(Rules({"$text", "</s>", "$source"}, "</s>", {}), Named("en", "<en>"), kEnglish, nullptr);
  ASSERT_TRUE(source.ok());
  EXPECT_THAT(source->before, IsEmpty());
  EXPECT_THAT(source->after, ElementsAre(2, 10));
}

TEST(Prompts, MarianNamesTheTargetInTheSourcesOwnVocabulary) {
  const Prompt prompt = Rules({"$target", "$text", "</s>"}, "</s>", {});
  const LanguageConfig german = Named("de", ">>de<<");
  const auto source = ResolveSource(prompt, Named("en", ""), kEnglish, &german);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(source->before, ElementsAre(12));
  // Encode has no target: the element falls away.
  const auto encode = ResolveSource(prompt, Named("en", ""), kEnglish, nullptr);
  ASSERT_TRUE(encode.ok());
  EXPECT_THAT(encode->before, IsEmpty());
}

TEST(Prompts, MBart25StartsWithTheTargetTag) {
  const auto target = ResolveTarget(Rules({"$text"}, "$target", {}), Named("en", "<en>"), Named("de", "<de>"), kGerman);
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->start, 21);
}

TEST(Prompts, AMissingPieceIsNamedWithItsLanguage) {
  const auto source = ResolveSource(Rules({"<bos>", "$text"}, "</s>", {}), Named("en", ""), kEnglish, nullptr);
  EXPECT_TRUE(absl::IsFailedPrecondition(source.status()));
  EXPECT_THAT(std::string(source.status().message()), HasSubstr("<bos>"));
  EXPECT_THAT(std::string(source.status().message()), HasSubstr("language en"));
  const auto target = ResolveTarget(Rules({"$text"}, "<pad>", {}), Named("en", ""), Named("de", ""), kGerman);
  EXPECT_THAT(std::string(target.status().message()), HasSubstr("language de"));
  const auto tagless = ResolveTarget(Rules({"$text"}, "</s>", {"$target"}), Named("en", ""), Named("de", ""), kGerman);
  EXPECT_THAT(std::string(tagless.status().message()), HasSubstr("language de cannot be the target"));
}

TEST(Prompts, TheTextStandsExactlyOnce) {
  EXPECT_FALSE(ResolveSource(Rules({"</s>"}, "</s>", {}), Named("en", ""), kEnglish, nullptr).ok());
  EXPECT_FALSE(ResolveSource(Rules({"$text", "$text"}, "</s>", {}), Named("en", ""), kEnglish, nullptr).ok());
}

TEST(Prompts, TheDemoModelHasItsEndMarkBehindTheText) {
  const auto model = testing::LoadModel("deploy/demo_model", kernels::Precision::kF32);
  ASSERT_NE(model, nullptr);
  for (const auto& language : model->languages()) {
    const absl::Status prompt = CheckPrompt(model->config(), *language);
    EXPECT_TRUE(prompt.ok()) << prompt;
  }
  const auto english = *model->FindLanguage("en");
  const auto german = *model->FindLanguage("de");
  const Prompt& rules = model->config().prompt;
  const auto source = ResolveSource(rules, english->config(), english->tokenizer(), &german->config());
  ASSERT_TRUE(source.ok());
  EXPECT_THAT(source->before, IsEmpty());
  EXPECT_THAT(source->after, ElementsAre(2));
  const auto target = ResolveTarget(rules, english->config(), german->config(), german->tokenizer());
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->start, 1);
  EXPECT_THAT(target->forced, IsEmpty());
}

TEST(Prompts, WithoutATagALanguageIsASourceOnlyWhereThePromptTellsTheTarget) {
  const auto model = testing::LoadModel("deploy/demo_model", kernels::Precision::kF32);
  ASSERT_NE(model, nullptr);
  const Language& untagged = *model->languages().front();
  ASSERT_EQ(untagged.config().tag, "");
  ModelConfig config = model->config();
  config.prompt.source = {"$target", "$text", "</s>"};  // MarianMT
  EXPECT_TRUE(CheckPrompt(config, untagged).ok());
  config.prompt.source = {"$source", "$text", "</s>"};
  EXPECT_THAT(std::string(CheckPrompt(config, untagged).message()), HasSubstr("cannot be the source"));
  config.prompt.source = {"$target", "$text", "<no such piece>"};
  EXPECT_THAT(std::string(CheckPrompt(config, untagged).message()), HasSubstr("<no such piece>"));
}

TEST(Prompts, ALanguageWithoutAPieceThatThePromptNeedsIsFound) {
  const auto model = testing::LoadModel("deploy/demo_model", kernels::Precision::kF32);
  ASSERT_NE(model, nullptr);
  ModelConfig config = model->config();
  config.prompt.decoder_forced = {"<no such piece>"};
  const absl::Status prompt = CheckPrompt(config, *model->languages().front());
  EXPECT_EQ(prompt.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(prompt.message()), HasSubstr("<no such piece>"));
  config.translates = false;  // a model that only encodes has no decoder to start
  EXPECT_TRUE(CheckPrompt(config, *model->languages().front()).ok());
}

}  // namespace
}  // namespace koine::model_loader
