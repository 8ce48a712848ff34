// A listening TCP port that outlives a shortage of file descriptors.
//
// gRPC 1.51 gives its own listening socket up for good at the first accept that fails for want of a descriptor, and
// says so nowhere; so the ports of this server are accepted here, and connections are handed over.
#ifndef KOINE_SERVER_NET_LISTENER_H_
#define KOINE_SERVER_NET_LISTENER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "server/net/address.h"

namespace koine::server {

// Raises this process's soft limit of open files to the hard one. What it is afterwards.
int64_t RaiseFileLimit();

// Bind, Accept and Stop from one thread.
class Listener {
 public:
  // Listens on all addresses of the host ("", "0.0.0.0" and "::" are every one, IPv4 and IPv6); connections wait until
  // Accept. `reserve` file descriptors are kept for others: a connection that would take one of them is closed at
  // once. UNAVAILABLE saying why if it cannot listen, which a second server on the same port cannot.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const Address& address, int reserve);
  ~Listener();  // Stop
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }

  // From now on `handle` gets every connection, non-blocking and without Nagle's delay, on the listener's own thread;
  // it must not block, and owns the descriptor. Where descriptors run out connections are closed at once, so that
  // their callers know, until there are some again. Once.
  void Accept(std::function<void(int)> handle);
  // No more connections: closes the port. `handle` runs no more.
  void Stop();

 private:
  Listener() = default;
  void Run();
  void AcceptSome(int socket);
  void Refuse(int fd);

  std::vector<int> sockets_;
  int port_ = 0;
  int64_t limit_ = 0;  // descriptors from this number on are reserved
  int spare_ = -1;     // given up for a moment to accept and close a connection when there is no other
  int stop_ = -1;      // eventfd
  int64_t refused_ = 0, logged_at_ = 0;
  std::function<void(int)> handle_;
  std::thread thread_;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_NET_LISTENER_H_
