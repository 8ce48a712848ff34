// Between gRPC's bytes and statuses and our messages and errors.
#ifndef KOINE_SERVER_RPC_WIRE_H_
#define KOINE_SERVER_RPC_WIRE_H_

#include <cstdint>
#include <string>

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace koine::server {

// Parses a request. A `string` that is not UTF-8 is INVALID_ARGUMENT naming its field (gRPC's own parsing would answer
// UNIMPLEMENTED without a text), so is anything else that is no such message, and more than `max_items` entries of the
// field "items": these are counted before anything is allocated for them, since two bytes on the wire become hundreds
// in memory.
absl::Status ParseRequest(const grpc::ByteBuffer& bytes, int64_t max_items, google::protobuf::Message* request);

// RESOURCE_EXHAUSTED, not to be retried, if the reply is larger than `max_bytes`.
absl::Status SerializeReply(const google::protobuf::Message& reply, int64_t max_bytes, grpc::ByteBuffer* bytes);

// The same code and (cut) text, details as google.rpc.Status for `grpc-status-details-bin`.
grpc::Status ToGrpc(const absl::Status& status);

// The trailer `grpc-retry-pushback-ms` where `status` says when to try again. Before Finish.
void AddRetryPushback(const absl::Status& status, grpc::ServerContextBase* context);

// InfiniteFuture if the call has none.
absl::Time DeadlineOf(const grpc::ServerContextBase& context);

}  // namespace koine::server

#endif  // KOINE_SERVER_RPC_WIRE_H_
