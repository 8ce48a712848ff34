#include "server/schedule/queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "absl/time/clock.h"

namespace koine::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class QueueTest : public ::testing::Test {
 protected:
  // A sentence of `tokens` tokens that remembers how it ended.
  JobPtr NewJob(int64_t tokens = 10, int beams = 1) {
    auto job = std::make_shared<Job>();
    job->source_ids.assign(static_cast<size_t>(tokens), 7);
    job->search.beam_size = beams;
    job->search.max_tokens = 4;
    job->done = [this, raw = job.get()](const JobResult& result) { ended_[raw].push_back(result.status); };
    return job;
  }
  std::vector<JobPtr> NewCall(int items, int64_t tokens = 10) {
    std::vector<JobPtr> jobs;
    for (int i = 0; i < items; ++i) jobs.push_back(NewJob(tokens));
    return jobs;
  }
  std::vector<JobPtr> Submit(std::vector<JobPtr> jobs) {
    EXPECT_TRUE(queue_.Submit(jobs).ok());
    return jobs;
  }
  static Room RoomFor(int64_t rows) { return {.rows = rows, .tokens = 1 << 20, .blocks = 1 << 20}; }
  std::vector<JobPtr> Take(int64_t rows, std::vector<const model_loader::Language*> live = {}) {
    return queue_.Take(RoomFor(rows), live, absl::ZeroDuration());
  }
  // After how many single picks the job comes out; -1: not within `most`.
  int PicksUntil(const JobPtr& job, int most) {
    for (int i = 1; i <= most; ++i) {
      const std::vector<JobPtr> taken = Take(1);
      if (!taken.empty() && taken.front() == job) return i;
    }
    return -1;
  }
  // An address to compare, never to look at.
  std::shared_ptr<const model_loader::Language> FakeLanguage() {
    static int where;
    return {std::shared_ptr<int>(), reinterpret_cast<const model_loader::Language*>(&where)};
  }

  JobQueue queue_{{.max_items = 10'000, .max_tokens = 1 << 20}};
  std::map<const Job*, std::vector<absl::Status>> ended_;
};

TEST_F(QueueTest, OneCallsItemsComeInOrder) {
  const std::vector<JobPtr> call = Submit({NewJob(3), NewJob(90), NewJob(1), NewJob(20)});
  EXPECT_EQ(Take(2), std::vector<JobPtr>(call.begin(), call.begin() + 2));
  EXPECT_EQ(Take(9), std::vector<JobPtr>(call.begin() + 2, call.end()));
}

TEST_F(QueueTest, AShortCallOvertakesThousandsOfOthersItems) {
  for (int i = 0; i < 6; ++i) Submit(NewCall(1000));
  std::vector<JobPtr> single = Submit(NewCall(1));
  EXPECT_EQ(PicksUntil(single.front(), 20), 7) << "one item of each of the others, and itself";
  for (int i = 0; i < 7; ++i) {
    ASSERT_EQ(Take(61).size(), 61U);
    single = Submit(NewCall(1));
    const int picks = PicksUntil(single.front(), 20);
    EXPECT_GE(picks, 1);
    EXPECT_LE(picks, 6 + 6) << "wherever the others stand: what is left of this round of theirs, and the next";
  }
}

TEST_F(QueueTest, CallsShareEvenlyByTokensWhateverTheirNumberOfItems) {
  const std::vector<JobPtr> many = Submit(NewCall(400, 5)), few = Submit(NewCall(50, 40));
  std::map<const Job*, bool> of_many;
  for (const JobPtr& job : many) of_many[job.get()] = true;
  int64_t tokens_many = 0, tokens_few = 0;
  for (int i = 0; i < 200; ++i) {
    const std::vector<JobPtr> taken = Take(1);
    ASSERT_EQ(taken.size(), 1U);
    (of_many[taken.front().get()] ? tokens_many : tokens_few) += taken.front()->tokens();
    EXPECT_LE(std::abs(tokens_many - tokens_few), 40 + 5) << "never further apart than one item of each";
  }
  EXPECT_GT(tokens_few, 0);
}

TEST_F(QueueTest, BeamsCountForWhatTheyTake) {
  const std::vector<JobPtr> wide = {NewJob(10, 8), NewJob(10, 8)};
  Submit(wide);
  const std::vector<JobPtr> narrow = Submit(NewCall(9));
  std::vector<JobPtr> order = Take(100);
  EXPECT_EQ(std::find(order.begin(), order.end(), wide[0]) - order.begin(), 7)
      << "eight times 10 tokens, but first come";
}

TEST_F(QueueTest, AStreamOfShortCallsStarvesNobody) {
  const std::vector<JobPtr> large = Submit(NewCall(20, 100));
  int taken_of_large = 0, rounds = 0;
  for (; taken_of_large < 20 && rounds < 5000; ++rounds) {
    Submit(NewCall(1));
    const std::vector<JobPtr> taken = Take(1);
    ASSERT_EQ(taken.size(), 1U);
    if (taken.front()->tokens() == 100) ++taken_of_large;
  }
  EXPECT_EQ(taken_of_large, 20) << "while somebody new came before every pick";
  // Whenever one of the large is taken one more of the others waits, and each who waits gets an equal part: the k-th
  // takes k times 100 / 10 picks.
  EXPECT_LE(rounds, 10 * (20 * 21 / 2) + 20);
}

TEST_F(QueueTest, TheSameCallsComeOutInTheSameOrder) {
  const auto run = [this] {
    std::vector<int64_t> order;
    for (int i = 0; i < 5; ++i) Submit(NewCall(10 + i, 3 + i));
    while (queue_.gauges().items > 0) {
      for (const JobPtr& job : Take(3)) order.push_back(job->tokens());
      if (order.size() == 30) Submit(NewCall(4, 50));
    }
    return order;
  };
  const std::vector<int64_t> first = run();
  EXPECT_EQ(first.size(), 64U);
  EXPECT_EQ(run(), first);
}

TEST_F(QueueTest, ALiveTableIsPreferredButNoLongerThanTheAgeCap) {
  const auto live = FakeLanguage();
  const std::vector<JobPtr> cold = Submit(NewCall(2));
  std::vector<JobPtr> hot = NewCall(3);
  for (const JobPtr& job : hot) job->target = live;
  Submit(hot);
  EXPECT_THAT(Take(1, {live.get()}), ElementsAre(hot[0]));
  EXPECT_THAT(Take(1, {live.get()}), ElementsAre(hot[1]));
  absl::SleepFor(absl::Milliseconds(60));
  EXPECT_THAT(Take(1, {live.get()}), ElementsAre(cold[0])) << "passed over for long enough";
  const std::vector<JobPtr> late = Submit(NewCall(1));
  EXPECT_THAT(Take(2), ElementsAre(cold[1], late[0])) << "a new call is not behind what affinity took early";
}

TEST_F(QueueTest, WhatDoesNotFitIsPassedOverOnlySoLong) {
  const std::vector<JobPtr> wide = {NewJob(1, 8)};
  Submit(wide);
  const std::vector<JobPtr> narrow = Submit(NewCall(20));
  EXPECT_EQ(Take(4).size(), 4U) << "others fit";
  absl::SleepFor(absl::Milliseconds(60));
  EXPECT_THAT(Take(4), IsEmpty()) << "now the room is kept for it";
  EXPECT_THAT(Take(8), ElementsAre(wide[0]));
}

TEST_F(QueueTest, ExpiredAndCancelledJobsEndOnceAndLeaveNothing) {
  std::vector<JobPtr> call = NewCall(4);
  call[1]->deadline = absl::Now() - absl::Seconds(1);
  call[3]->cancelled.store(true);
  Submit(call);
  queue_.Cancel({call[2]}, absl::CancelledError("gone"));
  queue_.Cancel({call[2]}, absl::CancelledError("again"));
  EXPECT_THAT(Take(10), ElementsAre(call[0]));
  queue_.Cancel({call[0]}, absl::CancelledError("it runs"));
  EXPECT_TRUE(call[0]->cancelled.load());
  EXPECT_THAT(ended_[call[0].get()], IsEmpty());
  EXPECT_THAT(ended_[call[1].get()], ElementsAre(absl::DeadlineExceededError("the deadline passed while waiting")));
  EXPECT_THAT(ended_[call[2].get()], ElementsAre(absl::CancelledError("gone")));
  EXPECT_THAT(ended_[call[3].get()], ElementsAre(absl::CancelledError("cancelled while waiting")));
  EXPECT_EQ(queue_.gauges().items, 0);
  EXPECT_EQ(queue_.gauges().tokens, 0);
  EXPECT_EQ(queue_.gauges().oldest, absl::ZeroDuration());
}

TEST_F(QueueTest, BoundsHoldAndTheGaugesTell) {
  JobQueue small({.max_items = 3, .max_tokens = 50});
  EXPECT_TRUE(small.Submit(NewCall(2)).ok());
  EXPECT_THAT(std::string(small.Submit(NewCall(2)).message()), HasSubstr("limit of 3"));
  EXPECT_THAT(std::string(small.Submit(NewCall(1, 31)).message()), HasSubstr("limit of 50"));
  absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(small.Submit(NewCall(1, 1)).ok());
  EXPECT_EQ(small.gauges().items, 3);
  EXPECT_EQ(small.gauges().tokens, 21);
  EXPECT_GE(small.gauges().oldest, absl::Milliseconds(5)) << "also when a younger one goes first";
  small.Abort(absl::UnavailableError("end"));
  EXPECT_EQ(small.gauges().items, 0);
  small.Drain();
  EXPECT_TRUE(small.finished());
  EXPECT_EQ(small.Submit(NewCall(1)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(QueueTest, NoWorkerTakesMoreThanItsPart) {
  Submit(NewCall(10));
  Room room = RoomFor(64);
  room.workers = 4;
  EXPECT_EQ(queue_.Take(room, {}, absl::ZeroDuration()).size(), 3U);
}

}  // namespace
}  // namespace koine::server
