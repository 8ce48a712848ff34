#include "server/text/fault.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "server/text/utf8.h"

namespace koine::server {
namespace {

// Details name the first few faults; the rest would not fit into 8 KB of metadata.
constexpr size_t kMaxViolations = 8;
constexpr size_t kMaxFieldBytes = 60;
constexpr size_t kMaxDescriptionBytes = 150;

template <typename Detail>
std::string TypeUrl() {
  return absl::StrCat("type.googleapis.com/", Detail::descriptor()->full_name());
}

template <typename Detail>
void Attach(const Detail& detail, absl::Status* status) {
  status->SetPayload(TypeUrl<Detail>(), absl::Cord(detail.SerializeAsString()));
}

}  // namespace

void Violations::Add(std::string field, std::string description) {
  violations_.push_back({std::move(field), std::move(description)});
}

absl::Status Violations::ToStatus() const {
  if (violations_.empty()) return absl::OkStatus();
  std::string message;
  google::rpc::BadRequest bad_request;
  for (const Violation& violation : violations_) {
    if (!message.empty()) message += "; ";
    absl::StrAppend(&message, violation.field, ": ", violation.description);
    if (static_cast<size_t>(bad_request.field_violations_size()) < kMaxViolations) {
      auto* out = bad_request.add_field_violations();
      out->set_field(ForMessage(violation.field, kMaxFieldBytes));
      out->set_description(ForMessage(violation.description, kMaxDescriptionBytes));
    }
  }
  absl::Status status = absl::InvalidArgumentError(ForMessage(message, kMaxMessageBytes));
  Attach(bad_request, &status);
  return status;
}

absl::Status InvalidField(std::string field, std::string description) {
  Violations violations;
  violations.Add(std::move(field), std::move(description));
  return violations.ToStatus();
}

absl::Status WithField(absl::Status status, std::string field) {
  if (!absl::IsInvalidArgument(status)) return status;
  return InvalidField(std::move(field), std::string(status.message()));
}

absl::Status RefusedOption(absl::string_view option, absl::string_view why) {
  return absl::UnimplementedError(absl::StrCat(option, " is not implemented in this version: ", why));
}

absl::Status Overloaded(absl::string_view message, absl::Duration delay) {
  absl::Status status = absl::ResourceExhaustedError(ForMessage(message, kMaxMessageBytes));
  google::rpc::RetryInfo retry;
  const int64_t milliseconds = std::max<int64_t>(1, absl::ToInt64Milliseconds(delay));
  retry.mutable_retry_delay()->set_seconds(milliseconds / 1000);
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(milliseconds % 1000 * 1'000'000));
  Attach(retry, &status);
  return status;
}

absl::optional<absl::Duration> RetryDelay(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(TypeUrl<google::rpc::RetryInfo>());
  google::rpc::RetryInfo retry;
  if (!payload || !retry.ParseFromString(std::string(*payload))) return absl::nullopt;
  return absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
}

google::rpc::Status ToProto(const absl::Status& status) {
  google::rpc::Status proto;
  proto.set_code(static_cast<int32_t>(status.code()));
  proto.set_message(ForMessage(status.message(), kMaxMessageBytes));
  status.ForEachPayload([&proto](absl::string_view type_url, const absl::Cord& payload) {
    auto* detail = proto.add_details();
    detail->set_type_url(std::string(type_url));
    detail->set_value(std::string(payload));
  });
  return proto;
}

absl::string_view Name(Reason reason) {
  switch (reason) {
    case Reason::kValidation:
      return "validation";
    case Reason::kNotFound:
      return "not_found";
    case Reason::kUnimplemented:
      return "unimplemented";
    case Reason::kOverload:
      return "overload";
    case Reason::kSize:
      return "size";
    case Reason::kDeadline:
      return "deadline";
    case Reason::kCancelled:
      return "cancelled";
    case Reason::kDraining:
      return "draining";
    case Reason::kLanguage:
      return "language";
    case Reason::kInternal:
      return "internal";
  }
  return "internal";
}

Reason ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return Reason::kValidation;
    case absl::StatusCode::kNotFound:
      return Reason::kNotFound;
    case absl::StatusCode::kUnimplemented:
      return Reason::kUnimplemented;
    case absl::StatusCode::kResourceExhausted:
      // Only overload may be tried again as it is.
      return RetryDelay(status) ? Reason::kOverload : Reason::kSize;
    case absl::StatusCode::kDeadlineExceeded:
      return Reason::kDeadline;
    case absl::StatusCode::kCancelled:
      return Reason::kCancelled;
    case absl::StatusCode::kUnavailable:
      return Reason::kDraining;
    case absl::StatusCode::kFailedPrecondition:
      return Reason::kLanguage;
    default:
      return Reason::kInternal;
  }
}

}  // namespace koine::server
