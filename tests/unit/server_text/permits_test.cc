#include "server/text/permits.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "server/text/worker_pool.h"

namespace koine::server {
namespace {

TEST(Permits, BoundItemsAndBytesApart) {
  PermitPool pool(10, 100);
  absl::StatusOr<Permit> first = pool.Take(8, 10);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(pool.Take(3, 1).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(pool.Take(1, 91).status()));
  absl::StatusOr<Permit> second = pool.Take(2, 90);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(pool.items_in_use(), 10);
  EXPECT_EQ(pool.bytes_in_use(), 100);
  first->Release();
  first->Release();  // twice is once
  EXPECT_EQ(pool.items_in_use(), 2);
}

TEST(Permits, ComeBackWhereverThePermitEnds) {
  PermitPool pool(10, 100);
  {
    Permit kept = *pool.Take(4, 4);
    Permit moved = std::move(kept);
    EXPECT_EQ(pool.items_in_use(), 4);
    moved = *pool.Take(1, 1);  // gives the four back
    EXPECT_EQ(pool.items_in_use(), 1);
  }
  EXPECT_EQ(pool.items_in_use(), 0);
  EXPECT_EQ(pool.bytes_in_use(), 0);
}

TEST(Permits, AreNeitherLostNorInventedByThreads) {
  PermitPool pool(5, 1000);
  std::atomic<int64_t> most{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const absl::StatusOr<Permit> permit = pool.Take(1 + i % 3, 10);
        const int64_t now = pool.items_in_use();
        int64_t seen = most.load();
        while (seen < now && !most.compare_exchange_weak(seen, now)) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.items_in_use(), 0);
  EXPECT_LE(most.load(), 5);
  EXPECT_GE(most.load(), 1);
}

TEST(WorkerPool, RunsEverythingBeforeItStops) {
  std::atomic<int> ran{0};
  WorkerPool pool(3);
  for (int i = 0; i < 500; ++i) pool.Post([&ran] { ++ran; });
  pool.Stop();
  EXPECT_EQ(ran, 500);
  pool.Post([&ran] { ++ran; });  // after Stop: on this thread
  EXPECT_EQ(ran, 501);
}

TEST(WorkerPool, FinishedTextsGoFirst) {
  WorkerPool pool(1);
  absl::Notification begun, go;
  pool.Post([&] {
    begun.Notify();
    go.WaitForNotification();
  });
  begun.WaitForNotification();  // the one thread is busy: what follows is queued
  std::vector<int> order;
  absl::BlockingCounter left(3);
  const auto note = [&](int i) {
    return [&, i] {
      order.push_back(i);
      left.DecrementCount();
    };
  };
  pool.Post(note(1));
  pool.Post(note(2));
  pool.PostFirst(note(3));
  go.Notify();
  left.Wait();
  EXPECT_EQ(order, (std::vector<int>{3, 1, 2}));
}

}  // namespace
}  // namespace koine::server
