#include "server/text/fault.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "server/text/utf8.h"

namespace koine::server {
namespace {

TEST(Fault, ViolationsBecomeOneInvalidArgumentThatNamesThemAll) {
  Violations violations;
  EXPECT_TRUE(violations.ToStatus().ok());
  violations.Add("options.beam_size", "is 99, allowed are 0 to 32");
  violations.Add("source", "is missing");
  const absl::Status status = violations.ToStatus();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(), "options.beam_size: is 99, allowed are 0 to 32; source: is missing");

  const google::rpc::Status proto = ToProto(status);
  ASSERT_EQ(proto.details_size(), 1);
  google::rpc::BadRequest bad_request;
  ASSERT_TRUE(proto.details(0).UnpackTo(&bad_request));
  ASSERT_EQ(bad_request.field_violations_size(), 2);
  EXPECT_EQ(bad_request.field_violations(0).field(), "options.beam_size");
  EXPECT_EQ(bad_request.field_violations(1).description(), "is missing");
}

TEST(Fault, OverloadCarriesTheDelayAndOnlyOverloadDoes) {
  const absl::Status status = Overloaded("the queue is full", absl::Milliseconds(1500));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(RetryDelay(status), absl::Milliseconds(1500));
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(ToProto(status).details(0).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 500'000'000);
  EXPECT_FALSE(RetryDelay(absl::ResourceExhaustedError("too large")));
  // Never "at once".
  EXPECT_EQ(RetryDelay(Overloaded("full", absl::ZeroDuration())), absl::Milliseconds(1));
}

TEST(Fault, WhateverIsQuotedAnErrorFitsIntoMetadata) {
  Violations violations;
  for (int i = 0; i < 1000; ++i) violations.Add(std::string(5000, 'f'), std::string(100'000, '\x80'));
  const google::rpc::Status proto = ToProto(violations.ToStatus());
  EXPECT_TRUE(IsUtf8(proto.message()));
  // Percent-encoded text plus base64 of the whole: below the 8 KB that clients accept.
  EXPECT_LT(3 * proto.message().size() + proto.ByteSizeLong() * 4 / 3, 8000U);
  const google::rpc::Status foreign = ToProto(absl::InternalError(std::string(100'000, 'x')));
  EXPECT_LE(foreign.message().size(), kMaxMessageBytes + 3);
}

TEST(Fault, EveryCodeHasTheReasonOfTheStatusMap) {
  EXPECT_EQ(ReasonOf(absl::InvalidArgumentError("")), Reason::kValidation);
  EXPECT_EQ(ReasonOf(absl::NotFoundError("")), Reason::kNotFound);
  EXPECT_EQ(ReasonOf(absl::UnimplementedError("")), Reason::kUnimplemented);
  EXPECT_EQ(ReasonOf(Overloaded("", absl::Seconds(1))), Reason::kOverload);
  EXPECT_EQ(ReasonOf(absl::ResourceExhaustedError("")), Reason::kSize);
  EXPECT_EQ(ReasonOf(absl::DeadlineExceededError("")), Reason::kDeadline);
  EXPECT_EQ(ReasonOf(absl::CancelledError("")), Reason::kCancelled);
  EXPECT_EQ(ReasonOf(absl::UnavailableError("")), Reason::kDraining);
  EXPECT_EQ(ReasonOf(absl::FailedPreconditionError("")), Reason::kLanguage);
  EXPECT_EQ(ReasonOf(absl::InternalError("")), Reason::kInternal);
  EXPECT_EQ(ReasonOf(absl::UnknownError("")), Reason::kInternal);
  std::set<std::string> names;
  for (int i = 0; i < kReasons; ++i) names.insert(std::string(Name(static_cast<Reason>(i))));
  EXPECT_EQ(names.size(), static_cast<size_t>(kReasons));
}

TEST(Fault, RejectionsAreCountedByReason) {
  Rejections rejections;
  rejections.Count(absl::CancelledError(""));
  rejections.Count(absl::CancelledError(""));
  rejections.Count(Overloaded("", absl::Seconds(1)));
  EXPECT_EQ(rejections.count(Reason::kCancelled), 2);
  EXPECT_EQ(rejections.count(Reason::kOverload), 1);
  EXPECT_EQ(rejections.count(Reason::kValidation), 0);
}

TEST(Fault, AForeignInvalidArgumentGetsItsFieldAndOtherCodesStayAsTheyAre) {
  const absl::Status status = WithField(absl::InvalidArgumentError("no language \"xx\""), "items[2].source");
  EXPECT_EQ(status.message(), "items[2].source: no language \"xx\"");
  EXPECT_EQ(ToProto(status).details_size(), 1);
  EXPECT_EQ(WithField(absl::NotFoundError("gone"), "x"), absl::NotFoundError("gone"));
}

}  // namespace
}  // namespace koine::server
