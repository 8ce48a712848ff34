#include "model_loader/tool/long_work.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

namespace koine::model_loader::tool {
namespace {

std::atomic<bool> interrupted{false};
extern "C" void OnSignal(int number) {
  interrupted = true;
  signal(number, SIG_DFL);
}

}  // namespace

LongWork::LongWork() : terminal_(isatty(STDERR_FILENO) != 0) {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

LongWork::~LongWork() {
  if (terminal_ && percent_ >= 0) std::fprintf(stderr, "\r%40s\r", "");
}

bool LongWork::Interrupted() { return interrupted.load(); }

void LongWork::Show(int64_t done, int64_t total) {
  if (!terminal_ || total <= 0) return;
  const auto percent = static_cast<int>(100 * static_cast<double>(done) / static_cast<double>(total));
  if (percent == percent_) return;
  percent_ = percent;
  constexpr double kMega = 1e6;
  std::fprintf(stderr, "\r%3d %%  %.0f of %.0f MB", percent, static_cast<double>(done) / kMega,
               static_cast<double>(total) / kMega);
}

}  // namespace koine::model_loader::tool
