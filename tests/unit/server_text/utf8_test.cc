#include "server/text/utf8.h"

#include <google/protobuf/stubs/common.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "koine/v1/koine.pb.h"

namespace koine::server {
namespace {

bool Oracle(const std::string& text) {
  return google::protobuf::internal::IsStructurallyValidUTF8(text.data(), static_cast<int>(text.size()));
}

TEST(Utf8, EveryOneAndTwoByteTextIsJudgedAsProtobufDoes) {
  for (int a = 0; a < 256; ++a) {
    const std::string one(1, static_cast<char>(a));
    ASSERT_EQ(IsUtf8(one), Oracle(one)) << a;
    for (int b = 0; b < 256; ++b) {
      const std::string two = one + static_cast<char>(b);
      ASSERT_EQ(IsUtf8(two), Oracle(two)) << a << " " << b;
    }
  }
}

TEST(Utf8, EveryThreeByteTextThatBeginsLikeOneIsJudgedAsProtobufDoes) {
  for (int a = 0xE0; a < 0xF8; ++a) {
    for (int b = 0x70; b < 0xD0; ++b) {
      for (int c = 0x70; c < 0xD0; ++c) {
        const std::string three = {static_cast<char>(a), static_cast<char>(b), static_cast<char>(c)};
        ASSERT_EQ(IsUtf8(three), Oracle(three)) << a << " " << b << " " << c;
      }
    }
  }
}

TEST(Utf8, FourByteTextsAtEveryBorderAreJudgedAsProtobufDoes) {
  const int borders[] = {0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF};
  for (int a = 0xEF; a < 0x100; ++a) {
    for (int b : borders) {
      for (int c : borders) {
        for (int d : borders) {
          const std::string four = {static_cast<char>(a), static_cast<char>(b), static_cast<char>(c),
                                    static_cast<char>(d)};
          ASSERT_EQ(IsUtf8(four), Oracle(four)) << a << " " << b << " " << c << " " << d;
        }
      }
    }
  }
}

TEST(Utf8, OneWrongByteIsFoundWhereverItStands) {
  std::mt19937 random(7);
  const std::string valid = "plain text, then Ω, 你好, 😀 and plain text again, long enough for whole words";
  ASSERT_TRUE(IsUtf8(valid));
  for (int i = 0; i < 20'000; ++i) {
    std::string text = valid.substr(0, random() % valid.size() + 1);
    text[random() % text.size()] = static_cast<char>(random());
    ASSERT_EQ(IsUtf8(text), Oracle(text)) << i;
  }
}

TEST(Utf8, CodePointsAreCounted) {
  EXPECT_EQ(CountCodePoints(""), 0);
  EXPECT_EQ(CountCodePoints("plain ascii text"), 16);
  EXPECT_EQ(CountCodePoints("é你😀x"), 4);
  EXPECT_EQ(CountCodePoints(std::string("a\0b", 3)), 3);
  EXPECT_EQ(CountCodePoints("\xC3\x28"), std::nullopt);
}

TEST(Utf8, BlankIsWhatCannotBeSeenAndNothingElse) {
  EXPECT_TRUE(IsBlank(""));
  EXPECT_TRUE(IsBlank(" \t\r\n\v\f"));
  EXPECT_TRUE(IsBlank("\u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000"));
  EXPECT_FALSE(IsBlank(" . "));
  EXPECT_TRUE(IsBlank("\u200b\ufeff \u200d\u200c\u00ad\u2060\ufe0f")) << "what cannot be seen cannot be read";
  EXPECT_FALSE(IsBlank("\u200da"));
  EXPECT_FALSE(IsBlank("\u0301")) << "a mark is drawn";
  EXPECT_FALSE(IsBlank("\u2010"));
  EXPECT_FALSE(IsBlank(std::string("\0", 1)));
}

TEST(Utf8, MessagesQuoteAtMostWhatFitsAndNeverHalfACharacter) {
  EXPECT_EQ(ForMessage("short", 10), "short");
  EXPECT_EQ(ForMessage("ab\ncd\xFF", 10), "ab?cd?");
  EXPECT_EQ(ForMessage("0123456789", 4), "0123...");
  EXPECT_EQ(ForMessage("abc😀", 5), "abc...");
  EXPECT_TRUE(IsUtf8(ForMessage(std::string(1000, '\xE4'), 100)));
}

TEST(Utf8, TheFieldThatIsNotUtf8IsNamed) {
  v1::TranslateRequest request;
  request.set_source("en");
  request.add_items()->set_text("fine");
  request.add_items()->set_text("fine too");
  EXPECT_EQ(FindInvalidUtf8(request), std::nullopt);
  request.mutable_items(1)->set_text("\xC3\x28");
  EXPECT_EQ(FindInvalidUtf8(request), "items[1].text");
  request.set_source("\xF0\x9F");
  EXPECT_EQ(FindInvalidUtf8(request), "source");
}

}  // namespace
}  // namespace koine::server
