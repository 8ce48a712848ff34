#include "server/rpc/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace koine::server {
namespace {

// Each case runs in a process of its own, which re-executes the binary: no thread is there before StopSignals.
class SignalsDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

void SleepForEver() {
  while (true) pause();
}

TEST_F(SignalsDeathTest, WhileLoadingASignalEndsTheProcessAtOnceWithZero) {
  EXPECT_EXIT(
      {
        const StopSignals signals;
        kill(getpid(), SIGTERM);
        SleepForEver();
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(SignalsDeathTest, TheFirstSignalOnlyWakesWait) {
  EXPECT_EXIT(
      {
        int code = 1;
        {
          StopSignals signals;
          signals.Arm();
          kill(getpid(), SIGINT);
          signals.Wait();
          code = 42;
        }
        exit(code);
      },
      ::testing::ExitedWithCode(42), "");
}

TEST_F(SignalsDeathTest, TheSecondSignalEndsTheProcessAtOnce) {
  EXPECT_EXIT(
      {
        StopSignals signals;
        signals.Arm();
        kill(getpid(), SIGTERM);
        signals.Wait();
        kill(getpid(), SIGTERM);
        SleepForEver();
      },
      ::testing::ExitedWithCode(128 + SIGTERM), "");
}

TEST_F(SignalsDeathTest, HangupsAskForARescanAndNeverEndTheProcess) {
  EXPECT_EXIT(
      {
        StopSignals signals;
        kill(getpid(), SIGHUP);  // nothing to look at again yet
        absl::SleepFor(absl::Milliseconds(100));
        signals.Arm();
        int code = 40;
        if (signals.Wait(absl::Milliseconds(50)) == StopSignals::Event::kNone) ++code;
        kill(getpid(), SIGHUP);
        if (signals.Wait() == StopSignals::Event::kRescan) ++code;
        if (signals.Wait(absl::Milliseconds(50)) == StopSignals::Event::kNone) ++code;
        kill(getpid(), SIGTERM);
        if (signals.Wait() == StopSignals::Event::kStop) ++code;
        kill(getpid(), SIGHUP);
        absl::SleepFor(absl::Milliseconds(50));
        if (signals.Wait() == StopSignals::Event::kStop) ++code;
        exit(code);
      },
      ::testing::ExitedWithCode(45), "");
}

}  // namespace
}  // namespace koine::server
