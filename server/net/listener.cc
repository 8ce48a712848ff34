#include "server/net/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace koine::server {
namespace {

// What waits for Accept; the kernel takes the smaller of this and net.core.somaxconn.
constexpr int kBacklog = 1024;
// Before the stop is looked at again.
constexpr int kAcceptsAtOnce = 64;
// Between attempts when not even the spare descriptor helps.
constexpr int kPauseMs = 20;
constexpr int64_t kSecondsBetweenLogs = 10;

int64_t FileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
}

int OpenSpare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

void Enable(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); }

// A listening socket, or -1 with errno.
int Open(const sockaddr* address, socklen_t size, bool both_families) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  // Accepted sockets inherit TCP_NODELAY.
  Enable(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  Enable(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (address->sa_family == AF_INET6) Enable(fd, IPPROTO_IPV6, IPV6_V6ONLY, both_families ? 0 : 1);
  if (bind(fd, address, size) == 0 && listen(fd, kBacklog) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

int64_t RaiseFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  return FileLimit();
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Bind(const Address& address, int reserve) {
  std::unique_ptr<Listener> listener(new Listener);
  const auto failed = [&address](const std::string& why) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address.ToString(), ": ", why));
  };
  int error = 0;
  const auto add = [&](const sockaddr* where, socklen_t size, bool both) {
    const int fd = Open(where, size, both);
    if (fd < 0) {
      error = errno;
      return;
    }
    listener->sockets_.push_back(fd);
    if (listener->port_ == 0) listener->port_ = PortOf(fd);
  };
  const bool any = address.host.empty() || address.host == "0.0.0.0" || address.host == "::";
  if (any) {
    sockaddr_in6 everything = {};
    everything.sin6_family = AF_INET6;
    everything.sin6_port = htons(static_cast<uint16_t>(address.port));
    add(reinterpret_cast<const sockaddr*>(&everything), sizeof(everything), true);
  }
  // A machine without IPv6 comes here for "every address" too.
  if (listener->sockets_.empty() && error != EADDRINUSE && error != EACCES) {
    addrinfo hints = {};
    hints.ai_family = any ? AF_INET : AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    addrinfo* found = nullptr;
    const std::string host = any ? "0.0.0.0" : address.host;
    const int code = getaddrinfo(host.c_str(), nullptr, &hints, &found);
    if (code != 0) return failed(gai_strerror(code));
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      // A free port is chosen once, for all addresses of the name.
      const auto port = htons(static_cast<uint16_t>(address.port == 0 ? listener->port_ : address.port));
      if (one->ai_family == AF_INET) reinterpret_cast<sockaddr_in*>(one->ai_addr)->sin_port = port;
      if (one->ai_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(one->ai_addr)->sin6_port = port;
      add(one->ai_addr, one->ai_addrlen, false);
    }
    freeaddrinfo(found);
  }
  // Half of a name's addresses in another server's hands is no success.
  if (listener->sockets_.empty() || error == EADDRINUSE) return failed(std::strerror(error));
  listener->stop_ = eventfd(0, EFD_CLOEXEC);
  listener->spare_ = OpenSpare();
  if (listener->stop_ < 0 || listener->spare_ < 0) return failed(std::strerror(errno));
  const int64_t limit = FileLimit();
  listener->limit_ = limit - std::min<int64_t>(reserve, limit / 4);
  return listener;
}

Listener::~Listener() { Stop(); }

void Listener::Accept(std::function<void(int)> handle) {
  handle_ = std::move(handle);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    while (write(stop_, &one, sizeof(one)) < 0 && errno == EINTR) continue;
    thread_.join();
  }
  for (const int fd : sockets_) close(fd);
  sockets_.clear();
  for (int* fd : {&spare_, &stop_}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
}

void Listener::Run() {
  std::vector<pollfd> waiting = {{stop_, POLLIN, 0}};
  for (const int fd : sockets_) waiting.push_back({fd, POLLIN, 0});
  while (true) {
    if (poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) poll(nullptr, 0, kPauseMs);
    if (waiting[0].revents != 0) return;
    for (size_t i = 1; i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) AcceptSome(waiting[i].fd);
    }
  }
}

void Listener::Refuse(int fd) {
  close(fd);
  ++refused_;
  const int64_t now = absl::ToUnixSeconds(absl::Now());
  if (now - logged_at_ < kSecondsBetweenLogs) return;
  spdlog::warn("port {}: {} connections refused for want of file descriptors (all but {} are taken)", port_, refused_,
               FileLimit() - limit_);
  logged_at_ = now;
  refused_ = 0;
}

void Listener::AcceptSome(int socket) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    const int fd = accept4(socket, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      // The kernel gives the lowest free number, so a number tells how many are taken.
      if (fd >= limit_) {
        Refuse(fd);
      } else {
        handle_(fd);
      }
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EMFILE || errno == ENFILE) {
      if (spare_ >= 0) close(std::exchange(spare_, -1));
      const int taken = accept4(socket, nullptr, nullptr, SOCK_CLOEXEC);
      if (taken >= 0) Refuse(taken);
      spare_ = OpenSpare();
      if (taken >= 0) continue;
    }
    // EAGAIN: nobody waits any more. All else passes (memory, a network that is down): poll comes back at once.
    if (errno != EAGAIN && errno != EWOULDBLOCK) poll(nullptr, 0, kPauseMs);
    return;
  }
}

}  // namespace koine::server
