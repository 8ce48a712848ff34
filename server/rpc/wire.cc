#include "server/rpc/wire.h"

#include <chrono>
#include <optional>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include "absl/strings/str_cat.h"
#include "server/text/fault.h"
#include "server/text/utf8.h"

namespace koine::server {
namespace {

using google::protobuf::internal::WireFormatLite;

// Entries of length-delimited field `number` at the top level, as far as the bytes are well-formed.
int64_t CountEntries(const grpc::ByteBuffer& bytes, int number) {
  grpc::ByteBuffer shared = bytes;
  grpc::ProtoBufferReader reader(&shared);
  if (!reader.status().ok()) return 0;
  google::protobuf::io::CodedInputStream input(&reader);
  const uint32_t wanted = WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  int64_t count = 0;
  for (uint32_t tag = input.ReadTag(); tag != 0; tag = input.ReadTag()) {
    if (tag == wanted) ++count;
    if (!WireFormatLite::SkipField(&input, tag)) break;
  }
  return count;
}

}  // namespace

absl::Status ParseRequest(const grpc::ByteBuffer& bytes, int64_t max_items, google::protobuf::Message* request) {
  if (const auto* items = request->GetDescriptor()->FindFieldByName("items")) {
    const int64_t count = CountEntries(bytes, items->number());
    if (count > max_items) {
      return InvalidField("items", absl::StrCat("has ", count, " items, the limit is ", max_items));
    }
  }
  grpc::ByteBuffer shared = bytes;  // the same slices, counted references
  grpc::ProtoBufferReader reader(&shared);
  if (!reader.status().ok()) return absl::InternalError("the request's bytes cannot be read");
  if (request->ParseFromZeroCopyStream(&reader) && reader.status().ok()) return absl::OkStatus();
  if (const std::optional<std::string> field = FindInvalidUtf8(*request)) {
    return InvalidField(*field, "is not valid UTF-8");
  }
  return absl::InvalidArgumentError(absl::StrCat("the request is no ", request->GetTypeName(), " message"));
}

absl::Status SerializeReply(const google::protobuf::Message& reply, int64_t max_bytes, grpc::ByteBuffer* bytes) {
  const size_t size = reply.ByteSizeLong();
  if (size > static_cast<size_t>(max_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the reply has ", size, " bytes, the limit is ", max_bytes, "; ask for less at once"));
  }
  bool own = false;
  const grpc::Status status =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(reply, bytes, &own);
  if (!status.ok()) return absl::InternalError(absl::StrCat("the reply cannot be written: ", status.error_message()));
  return absl::OkStatus();
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status proto = ToProto(status);
  // The numbers of absl's and gRPC's codes are the same.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), proto.message(),
                      proto.details().empty() ? "" : proto.SerializeAsString());
}

void AddRetryPushback(const absl::Status& status, grpc::ServerContextBase* context) {
  const absl::optional<absl::Duration> delay = RetryDelay(status);
  if (!delay) return;
  context->AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(absl::ToInt64Milliseconds(*delay)));
}

absl::Time DeadlineOf(const grpc::ServerContextBase& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

}  // namespace koine::server
