#include "clients/cli/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "google/protobuf/any.pb.h"
#include "google/rpc/status.pb.h"

namespace koine::cli {
namespace {

TEST(ReportTest, DigitsComeInGroupsOfThree) {
  EXPECT_EQ(GroupDigits(0), "0");
  EXPECT_EQ(GroupDigits(999), "999");
  EXPECT_EQ(GroupDigits(1000), "1,000");
  EXPECT_EQ(GroupDigits(123456), "123,456");
  EXPECT_EQ(GroupDigits(3774873600), "3,774,873,600");
  EXPECT_EQ(GroupDigits(-123), "-123");
  EXPECT_EQ(GroupDigits(-1234), "-1,234");
  EXPECT_EQ(GroupDigits(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(ReportTest, BytesNeverPrintAsAThousandOfTheirUnit) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(HumanBytes(int64_t{5} << 30), "5.0 GiB");
  EXPECT_EQ(HumanBytes(std::numeric_limits<int64_t>::max()), "8.0 EiB");
}

TEST(ReportTest, TableAlignsColumnsByCharactersAndLeavesNoBlanksAtTheEnd) {
  Table table({"name", "n", "note"}, {Table::Align::kLeft, Table::Align::kRight, Table::Align::kLeft});
  table.Row({"\xC3\xB6\xC3\xA4", "1", ""});  // two characters in four bytes
  table.Rule();
  table.Row({"longer", "1,000", "x"});
  EXPECT_EQ(table.Text(),
            "name        n  note\n"
            "\xC3\xB6\xC3\xA4          1\n"
            "-------------------\n"
            "longer  1,000  x\n");
}

TEST(ReportTest, CosineIsScaleFreeAndSymmetric) {
  EXPECT_NEAR(Cosine({1, 2, 3}, {2, 4, 6}), 1, 1e-12);
  EXPECT_NEAR(Cosine({1, 0}, {0, 5}), 0, 1e-12);
  EXPECT_NEAR(Cosine({1, 0}, {-3, 0}), -1, 1e-12);
  EXPECT_EQ(Cosine({0, 0}, {1, 1}), 0);
}

TEST(ReportTest, CosineTableKeepsTextsOnTheirLine) {
  const std::string table = CosineReport({"a\nb", std::string(100, 'x')}, {{1, 0}, {0, 1}});
  EXPECT_THAT(table, ::testing::HasSubstr("a b\n"));
  EXPECT_THAT(table, ::testing::HasSubstr(std::string(60, 'x') + "...\n"));
}

TEST(ReportTest, JsonUsesProtoNamesAndPrintsDefaults) {
  const std::string json = ToJson(v1::TranslateResult());
  EXPECT_THAT(json, ::testing::HasSubstr("\"input_tokens\":0"));
  EXPECT_THAT(json, ::testing::HasSubstr("\"zero_shot\":false"));
  EXPECT_EQ(json.find('\n'), std::string::npos);
}

TEST(ReportTest, JsonOfAnUnknownDetailIsStillAnObject) {
  google::rpc::Status status;
  google::protobuf::Any* any = status.add_details();
  any->set_type_url("type.googleapis.com/koine.future.Detail");
  any->set_value("x");
  EXPECT_THAT(ToJson(status), ::testing::StartsWith("{\"error\":"));
}

}  // namespace
}  // namespace koine::cli
