// The C++ client of a Koine server.
//
//   auto client = koine::client::Client::Connect({.address = "localhost:50051"});
//   if (!client.ok()) ...
//   koine::v1::TranslateRequest request;
//   request.set_source("en");
//   request.set_target("de");
//   request.add_items()->set_text("Good morning.");
//   absl::StatusOr<koine::v1::TranslateResponse> reply = client->Translate(request);
//
// Errors are those of the wire (koine/v1/koine.proto) with the server's text; the google.rpc messages that come with
// them are the status' payloads, by type URL ("type.googleapis.com/google.rpc.RetryInfo"). A reply that is OK may hold
// items that failed: see ItemStatus. Goals: thin, typed, one channel. Not a goal: retries, which the caller's patience
// decides; RetryDelay says what the server asked for.
#ifndef KOINE_CLIENTS_CPP_CLIENT_H_
#define KOINE_CLIENTS_CPP_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/rpc/status.pb.h"
#include "koine/v1/koine.pb.h"

namespace koine::client {

struct ClientOptions {
  // host:port, or any name that gRPC resolves ("dns:///koine.example:50051", "unix:/run/koine.sock").
  std::string address = "localhost:50051";
  // Of each call, from its start; InfiniteDuration: no deadline.
  absl::Duration timeout = absl::Seconds(60);
  // How long Connect waits for a server that neither answers nor refuses.
  absl::Duration connect_timeout = absl::Seconds(10);
  // Largest message, in each direction; more is RESOURCE_EXHAUSTED. The server has a limit of its own (4 MiB unless
  // told otherwise).
  int64_t max_message_bytes = int64_t{64} << 20;
  // Speed only: a TCP connection that no other Client of the process shares. Many clients on one connection are
  // cheaper; several connections spread over more of the server's threads.
  bool own_connection = false;
};

template <typename Reply>
using ReplyCallback = std::function<void(absl::StatusOr<Reply>)>;

// Copies share the connection. Thread-safe: any thread may call any method at any time, also on copies. When the last
// copy goes, calls still in flight are cancelled and their callbacks waited for; so it must not go on a thread of
// gRPC's, that is, within a callback or with what a callback captured.
class Client {
 public:
  // Waits until the connection stands. UNAVAILABLE naming the address if it is refused or does not stand in time,
  // INVALID_ARGUMENT for an empty address. Afterwards the channel reconnects on its own when it breaks.
  static absl::StatusOr<Client> Connect(const ClientOptions& options);

  // Each blocks until the answer, an error or the timeout.
  absl::StatusOr<v1::TranslateResponse> Translate(const v1::TranslateRequest& request) const;
  absl::StatusOr<v1::EncodeResponse> Encode(const v1::EncodeRequest& request) const;
  absl::StatusOr<v1::ListLanguagesResponse> ListLanguages(const v1::ListLanguagesRequest& request = {}) const;
  absl::StatusOr<v1::GetModelInfoResponse> GetModelInfo(const v1::GetModelInfoRequest& request = {}) const;
  absl::StatusOr<v1::GetParameterStatsResponse> GetParameterStats(
      const v1::GetParameterStatsRequest& request = {}) const;
  absl::StatusOr<v1::GetServerStatsResponse> GetServerStats(const v1::GetServerStatsRequest& request = {}) const;

  // Of the service koine.v1.Admin; UNIMPLEMENTED where the server was started without --admin.
  absl::StatusOr<v1::LoadLanguageResponse> LoadLanguage(const v1::LoadLanguageRequest& request) const;
  absl::StatusOr<v1::UnloadLanguageResponse> UnloadLanguage(const v1::UnloadLanguageRequest& request) const;
  absl::StatusOr<v1::RescanLanguagesResponse> RescanLanguages(const v1::RescanLanguagesRequest& request = {}) const;

  // Return at once; `done` is called exactly once, on a thread of gRPC's, and must not block. It may start the next
  // call.
  void TranslateAsync(const v1::TranslateRequest& request, ReplyCallback<v1::TranslateResponse> done) const;
  void EncodeAsync(const v1::EncodeRequest& request, ReplyCallback<v1::EncodeResponse> done) const;

  const ClientOptions& options() const;

 private:
  struct State;
  explicit Client(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

// The status of one item of a reply, with its details as payloads.
absl::Status ItemStatus(const google::rpc::Status& status);

// How long the server asks to wait before the call is tried again (RetryInfo); nothing if it does not say.
std::optional<absl::Duration> RetryDelay(const absl::Status& status);

}  // namespace koine::client

#endif  // KOINE_CLIENTS_CPP_CLIENT_H_
