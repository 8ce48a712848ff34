#include "model_loader/safetensors/strict_json.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace koine::model_loader {
namespace {

using testing::HasSubstr;

std::string Fault(const std::string& text) {
  const auto value = ParseStrictJson(text);
  EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(value.status().message());
}

TEST(StrictJson, GivesWhatNlohmannGivesForGoodText) {
  for (const char* text : {"{}", "[]", "3", "\"x\"", "null", "[1,-2,3.5,true,false,null,\"\\u00e9\",[[]],{\"a\":{}}]",
                           " {\"a\":[1,{\"b\":[{}]}],\"c\":18446744073709551615} "}) {
    const auto value = ParseStrictJson(text);
    ASSERT_TRUE(value.ok()) << value.status();
    EXPECT_EQ(*value, nlohmann::json::parse(text));
  }
}

TEST(StrictJson, RefusesKeysThatOccurTwice) {
  EXPECT_THAT(Fault(R"({"a":1,"a":2})"), HasSubstr("\"a\" occurs twice"));
  EXPECT_THAT(Fault(R"([{"x":{"b":1,"c":2,"b":3}}])"), HasSubstr("\"b\" occurs twice"));
  EXPECT_TRUE(ParseStrictJson(R"([{"a":1},{"a":2}])").ok());
}

TEST(StrictJson, RefusesDeepNestingBeforeItCosts) {
  EXPECT_TRUE(ParseStrictJson(std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']')).ok());
  EXPECT_THAT(Fault(std::string(1'000'000, '[')), HasSubstr("nested deeper"));
}

TEST(StrictJson, SaysWhereTextIsNotJson) {
  EXPECT_THAT(Fault(""), HasSubstr("not valid JSON at byte"));
  EXPECT_THAT(Fault("{\"a\":1,}"), HasSubstr("byte 8"));
  EXPECT_THAT(Fault("[1] 2"), HasSubstr("not valid JSON"));
  EXPECT_THAT(Fault("[1e999]"), HasSubstr("not valid JSON"));
  EXPECT_THAT(Fault("[NaN]"), HasSubstr("not valid JSON"));
  const std::string fault = Fault("[\"\xff\xfe" + std::string(10'000, 'x') + "\x01\"]");
  EXPECT_LT(fault.size(), 300U);
  for (const char c : fault) EXPECT_TRUE(c >= 32 && c < 127) << fault;
}

}  // namespace
}  // namespace koine::model_loader
