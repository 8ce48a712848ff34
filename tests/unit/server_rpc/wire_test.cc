#include "server/rpc/wire.h"

#include <gmock/gmock.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "koine/v1/koine.pb.h"
#include "server/text/fault.h"

namespace koine::server {
namespace {

using ::testing::HasSubstr;

grpc::ByteBuffer Bytes(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// A message as others would send it: C++ refuses nothing when writing.
std::string WireOf(const v1::TranslateRequest& request) { return request.SerializePartialAsString(); }

TEST(ParseRequest, ReadsWhatWasWritten) {
  v1::TranslateRequest request;
  request.set_source("en");
  request.add_items()->set_text(std::string("a\0b é", 6));
  v1::TranslateRequest parsed;
  ASSERT_TRUE(ParseRequest(Bytes(WireOf(request)), 10, &parsed).ok());
  EXPECT_EQ(parsed.SerializeAsString(), request.SerializeAsString());
  v1::TranslateRequest empty;
  EXPECT_TRUE(ParseRequest(Bytes(""), 10, &empty).ok());
}

TEST(ParseRequest, ReadsMessagesThatCameInPieces) {
  v1::TranslateRequest request;
  for (int i = 0; i < 50; ++i) request.add_items()->set_text("text number " + std::to_string(i));
  const std::string wire = WireOf(request);
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < wire.size(); i += 7) slices.emplace_back(wire.substr(i, 7));
  const grpc::ByteBuffer bytes(slices.data(), slices.size());
  v1::TranslateRequest parsed;
  ASSERT_TRUE(ParseRequest(bytes, 50, &parsed).ok());
  EXPECT_EQ(parsed.items(49).text(), "text number 49");
  v1::TranslateRequest refused;
  EXPECT_TRUE(absl::IsInvalidArgument(ParseRequest(bytes, 49, &refused)));
}

TEST(ParseRequest, TextThatIsNotUtf8IsNamedByItem) {
  v1::TranslateRequest request;
  request.add_items()->set_text("fine");
  request.add_items()->set_text("\xC3\x28");
  request.add_items()->set_text("fine");
  v1::TranslateRequest parsed;
  const absl::Status status = ParseRequest(Bytes(WireOf(request)), 10, &parsed);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(), "items[1].text: is not valid UTF-8");
  EXPECT_EQ(ToProto(status).details_size(), 1);

  v1::EncodeRequest encode;
  encode.set_language("\xFF");
  v1::EncodeRequest parsed_encode;
  EXPECT_EQ(ParseRequest(Bytes(encode.SerializePartialAsString()), 10, &parsed_encode).message(),
            "language: is not valid UTF-8");
}

TEST(ParseRequest, BytesThatAreNoMessageAreInvalid) {
  v1::TranslateRequest parsed;
  const absl::Status status = ParseRequest(Bytes("\xFF\xFF\xFF\xFF"), 10, &parsed);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("koine.v1.TranslateRequest"));
}

TEST(ParseRequest, ItemsAreCountedBeforeTheyTakeMemory) {
  // Two bytes an item: 4 MiB would become two million messages.
  std::string wire;
  for (int i = 0; i < 2'000'000; ++i) wire += std::string("\x32\x00", 2);  // field 6, empty
  v1::TranslateRequest parsed;
  const absl::Status status = ParseRequest(Bytes(wire), 1024, &parsed);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("2000000"));
  EXPECT_EQ(parsed.items_size(), 0);
}

TEST(ParseRequest, DamagedMessagesNeverPassAsWhatTheyAreNot) {
  v1::TranslateRequest request;
  request.set_source("en");
  request.mutable_options()->set_beam_size(4);
  for (int i = 0; i < 5; ++i) request.add_items()->set_text("ein längerer Satz");
  const std::string wire = WireOf(request);
  std::mt19937 random(11);
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string damaged = wire.substr(0, random() % wire.size());
    for (int changes = static_cast<int>(random() % 3); changes > 0 && !damaged.empty(); --changes) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    v1::TranslateRequest parsed;
    const absl::Status status = ParseRequest(Bytes(damaged), 10, &parsed);
    if (status.ok()) continue;
    ++refused;
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
  EXPECT_GT(refused, 1000);
}

TEST(SerializeReply, ARoundTripAndALimit) {
  v1::TranslateResponse reply;
  reply.add_results()->set_text("eins");
  grpc::ByteBuffer bytes;
  ASSERT_TRUE(SerializeReply(reply, 1000, &bytes).ok());
  v1::TranslateResponse parsed;
  ASSERT_TRUE(ParseRequest(bytes, 10, &parsed).ok());
  EXPECT_EQ(parsed.results(0).text(), "eins");
  reply.mutable_results(0)->set_text(std::string(1000, 'x'));
  const absl::Status status = SerializeReply(reply, 1000, &bytes);
  EXPECT_EQ(ReasonOf(status), Reason::kSize);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1000"));
}

TEST(ToGrpc, KeepsCodeTextAndDetails) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  const grpc::Status plain = ToGrpc(absl::NotFoundError("no model"));
  EXPECT_EQ(plain.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(plain.error_message(), "no model");
  EXPECT_EQ(plain.error_details(), "");
  const grpc::Status detailed = ToGrpc(InvalidField("source", "is missing"));
  EXPECT_EQ(detailed.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  google::rpc::Status proto;
  ASSERT_TRUE(proto.ParseFromString(detailed.error_details()));
  google::rpc::BadRequest bad_request;
  ASSERT_TRUE(proto.details(0).UnpackTo(&bad_request));
  EXPECT_EQ(bad_request.field_violations(0).field(), "source");
}

TEST(ToGrpc, EveryCodeHasTheSameNumberOnBothSides) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "x");
    EXPECT_EQ(static_cast<int>(ToGrpc(status).error_code()), static_cast<int>(status.code()));
  }
}

}  // namespace
}  // namespace koine::server
