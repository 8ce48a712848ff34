#include "tests/unit/planted_faults/rpc_faults.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "koine/v1/koine.grpc.pb.h"

namespace koine::planted {
namespace {

// Waits until `wanted` threads have come, or for a while. Orders nothing: relaxed on purpose.
void Meet(std::atomic<int>* come, int wanted) {
  come->fetch_add(1, std::memory_order_relaxed);
  for (int i = 0; i < 10'000 && come->load(std::memory_order_relaxed) < wanted; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

class Reactor final : public grpc::ServerUnaryReactor {
 public:
  void OnCancel() override {
    if (on_cancel) on_cancel();
  }
  void OnDone() override {
    if (on_done) on_done();
    delete this;
  }
  std::function<void()> on_cancel, on_done;
  int value = 0;
};

// The product's kind of service: raw callbacks.
class Service final : public v1::Koine::WithRawCallbackMethod_Translate<v1::Koine::Service> {
 public:
  explicit Service(std::function<void(Reactor*)> handle) : handle_(std::move(handle)) {}
  grpc::ServerUnaryReactor* Translate(grpc::CallbackServerContext* /*context*/, const grpc::ByteBuffer* /*request*/,
                                      grpc::ByteBuffer* reply) override {
    const grpc::Slice empty;
    *reply = grpc::ByteBuffer(&empty, 1);
    auto* reactor = new Reactor;
    handle_(reactor);
    return reactor;
  }

 private:
  const std::function<void(Reactor*)> handle_;
};

class Served {
 public:
  explicit Served(std::function<void(Reactor*)> handle) : service_(std::move(handle)) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      std::fprintf(stderr, "cannot listen\n");
      std::abort();
    }
    stub_ = v1::Koine::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  }
  ~Served() { Stop(); }
  void Stop() {
    server_->Shutdown();
    server_->Wait();
  }
  void Call(std::chrono::milliseconds timeout) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    v1::TranslateResponse response;
    stub_->Translate(&context, {}, &response);
  }

 private:
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Koine::Stub> stub_;
};

constexpr std::chrono::seconds kLong{60};

}  // namespace

void RacingHandlers() {
  int counter = 0;
  std::atomic<int> come{0};
  Served served([&](Reactor* reactor) {
    Meet(&come, 2);
    for (int i = 0; i < 1000; ++i) ++counter;
    reactor->Finish(grpc::Status::OK);
  });
  std::thread other([&] { served.Call(kLong); });
  served.Call(kLong);
  other.join();
  std::printf("%d\n", counter);
}

void UseAfterFinish() {
  int counter = 0;
  std::atomic<int> come{0};
  std::thread worker;
  Served served([&](Reactor* reactor) {
    reactor->on_done = [&] {
      ++counter;
      Meet(&come, 2);
    };
    worker = std::thread([&, reactor] {
      reactor->Finish(grpc::Status::OK);
      ++counter;
      Meet(&come, 2);
    });
  });
  served.Call(kLong);
  served.Stop();
  worker.join();
  std::printf("%d\n", counter);
}

void GuardedCalls() {
  constexpr int kThreads = 4, kCalls = 25;
  std::atomic<int> next{0};
  std::vector<int> answered(kThreads * kCalls), cancelled(kThreads * kCalls);
  std::vector<std::thread> workers(kThreads * kCalls);
  Served served([&](Reactor* reactor) {
    const int call = next.fetch_add(1, std::memory_order_relaxed);
    reactor->value = call;
    reactor->on_cancel = [&, call, reactor] { cancelled[static_cast<size_t>(call)] = ++reactor->value; };
    workers[static_cast<size_t>(call)] = std::thread([&, call, reactor] {
      std::this_thread::sleep_for(std::chrono::milliseconds(call % 5));
      reactor->on_done = [&, call, reactor] { answered[static_cast<size_t>(call)] = reactor->value; };
      reactor->Finish(grpc::Status::OK);
    });
  });
  std::vector<std::thread> callers;
  for (int t = 0; t < kThreads; ++t) {
    callers.emplace_back([&] {
      // Some pass their deadline.
      for (int i = 0; i < kCalls; ++i) served.Call(std::chrono::milliseconds(i % 2 == 0 ? 2 + i % 7 : 10'000));
    });
  }
  for (std::thread& caller : callers) caller.join();
  served.Stop();
  int64_t sum = 0;
  for (int i = 0; i < next.load(); ++i) sum += answered[static_cast<size_t>(i)] + cancelled[static_cast<size_t>(i)];
  for (std::thread& worker : workers) {
    if (worker.joinable()) worker.join();
  }
  std::printf("%lld\n", static_cast<long long>(sum));
}

}  // namespace koine::planted
