#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/net/address.h"
#include "server/net/listener.h"

namespace koine::server {
namespace {

using ::testing::HasSubstr;

TEST(Address, HostsAndPortsComeApartAndTogetherAgain) {
  for (const char* text :
       {"0.0.0.0:50051", "localhost:0", "[::1]:8080", "[::]:65535", ":1", "koine-1.example.org:80"}) {
    const absl::StatusOr<Address> address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->ToString(), text);
  }
  EXPECT_EQ(ParseAddress("[::1]:8080")->host, "::1");
  EXPECT_EQ(ParseAddress("[::1]:8080")->port, 8080);
}

TEST(Address, WhatIsNoneSaysWhatIsWrong) {
  const auto why = [](const char* text) {
    const absl::Status status = ParseAddress(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
    return std::string(status.message());
  };
  EXPECT_THAT(why(""), HasSubstr("HOST:PORT"));
  EXPECT_THAT(why("nonsense"), HasSubstr("\"nonsense\": must be HOST:PORT"));
  for (const char* text :
       {"h:", "h:x", "h:65536", "h:99999", "h:-1", "h:+1", "h: 1", "h:1 ", "h:99999999999999999999"}) {
    EXPECT_THAT(why(text), HasSubstr("0 to 65535"));
  }
  for (const char* text : {"::1:80", "[::1:80", "[]:80"}) EXPECT_THAT(why(text), HasSubstr("brackets"));
  for (const char* text : {"a b:80", "http://h:80", "unix:/run/x:1"}) why(text);
}

// Connections that a listener has handed over.
class Taken {
 public:
  ~Taken() { CloseAll(); }
  void Take(int fd) {
    const absl::MutexLock lock(&mutex_);
    fds_.push_back(fd);
  }
  size_t count() {
    const absl::MutexLock lock(&mutex_);
    return fds_.size();
  }
  void CloseAll() {
    const absl::MutexLock lock(&mutex_);
    for (const int fd : fds_) close(fd);
    fds_.clear();
  }
  bool WaitFor(size_t count) {
    for (int i = 0; i < 10'000 && this->count() != count; ++i) absl::SleepFor(absl::Milliseconds(1));
    return this->count() == count;
  }

 private:
  absl::Mutex mutex_;
  std::vector<int> fds_;
};

bool Connect(int fd, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

// True once the other side has closed; false if it is still open after `wait`.
bool ClosedWithin(int fd, absl::Duration wait) {
  const timeval timeout = absl::ToTimeval(wait);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  char byte = 0;
  return recv(fd, &byte, 1, 0) == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

// Runs with so many descriptors left, and `clients` sockets opened before.
class ListenerTest : public ::testing::Test {
 protected:
  void LeaveFiles(int left, int clients) {
    getrlimit(RLIMIT_NOFILE, &before_);
    for (int i = 0; i < clients; ++i) clients_.push_back(socket(AF_INET, SOCK_STREAM, 0));
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(*std::max_element(clients_.begin(), clients_.end()) + 1 + left);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    limited_ = true;
  }
  void TearDown() override {
    for (const int fd : clients_) close(fd);
    if (limited_) setrlimit(RLIMIT_NOFILE, &before_);
  }

  // All clients connect: some are taken, the others closed at once. Then those taken end, and a new one is taken.
  void AllConnectAndItRecovers(int reserve, size_t most) {
    Taken taken;
    auto listener = Listener::Bind({"127.0.0.1", 0}, reserve);
    ASSERT_TRUE(listener.ok()) << listener.status();
    (*listener)->Accept([&](int fd) { taken.Take(fd); });
    const int late = clients_.back();
    clients_.pop_back();
    for (const int fd : clients_) ASSERT_TRUE(Connect(fd, (*listener)->port()));
    size_t closed = 0;
    for (const int fd : clients_) {
      if (ClosedWithin(fd, closed == 0 ? absl::Milliseconds(100) : absl::Seconds(5))) ++closed;
    }
    EXPECT_GT(taken.count(), 0U);
    EXPECT_LE(taken.count(), most);
    EXPECT_EQ(closed, clients_.size() - taken.count()) << "nobody is left waiting";
    taken.CloseAll();
    ASSERT_TRUE(Connect(late, (*listener)->port()));
    EXPECT_TRUE(taken.WaitFor(1)) << "it accepts again";
    clients_.push_back(late);
    (*listener)->Stop();
  }

  std::vector<int> clients_;

 private:
  rlimit before_ = {};
  bool limited_ = false;
};

TEST_F(ListenerTest, HandsConnectionsOverUntilItStops) {
  Taken taken;
  auto listener = Listener::Bind({"", 0}, 16);
  ASSERT_TRUE(listener.ok()) << listener.status();
  clients_ = {socket(AF_INET, SOCK_STREAM, 0), socket(AF_INET, SOCK_STREAM, 0)};
  ASSERT_TRUE(Connect(clients_[0], (*listener)->port())) << "who comes before Accept waits";
  (*listener)->Accept([&](int fd) { taken.Take(fd); });
  EXPECT_TRUE(taken.WaitFor(1));
  const int port = (*listener)->port();
  (*listener)->Stop();
  EXPECT_FALSE(Connect(clients_[1], port));
  EXPECT_TRUE(Listener::Bind({"", port}, 16).ok()) << "the port is free again";
}

TEST_F(ListenerTest, APortInUseAndAHostThatIsNoneAreErrors) {
  auto first = Listener::Bind({"127.0.0.1", 0}, 16);
  ASSERT_TRUE(first.ok()) << first.status();
  for (const char* host : {"127.0.0.1", "", "0.0.0.0"}) {
    const absl::Status second = Listener::Bind({host, (*first)->port()}, 16).status();
    EXPECT_TRUE(absl::IsUnavailable(second)) << host << ": " << second;
    EXPECT_THAT(std::string(second.message()), HasSubstr("in use"));
  }
  const absl::Status elsewhere = Listener::Bind({"192.0.2.1", 0}, 16).status();
  EXPECT_TRUE(absl::IsUnavailable(elsewhere)) << elsewhere;
  EXPECT_THAT(std::string(elsewhere.message()), HasSubstr("192.0.2.1:0"));
}

TEST_F(ListenerTest, ReservedDescriptorsStayFreeAndCallersBeyondAreClosed) {
  LeaveFiles(48, 100);
  AllConnectAndItRecovers(16, 48 - 16);
}

TEST_F(ListenerTest, WithoutAnyDescriptorLeftItClosesCallersAndRecovers) {
  LeaveFiles(20, 100);
  AllConnectAndItRecovers(0, 20);
}

TEST(FileLimit, IsRaisedToTheHardOne) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(256, before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(RaiseFileLimit(), static_cast<int64_t>(std::min<rlim_t>(before.rlim_max, 1 << 30)));
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace koine::server
