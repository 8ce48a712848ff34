// What commands share that write for long: a line of progress, and an end between two chunks when a signal asks for it.
#ifndef KOINE_MODEL_LOADER_TOOL_LONG_WORK_H_
#define KOINE_MODEL_LOADER_TOOL_LONG_WORK_H_

#include <cstdint>

namespace koine::model_loader::tool {

// One at a time, in the main thread. From its making on SIGINT, SIGTERM and SIGHUP only set Interrupted(), so that what
// is half written can be removed; a second one ends the process. A reader of our output that goes away and a limit on
// file sizes are errors of the write, not the end of the process.
class LongWork {
 public:
  LongWork();
  ~LongWork();  // clears the line
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

  static bool Interrupted();
  // Bytes. One line that is written over, on terminals only.
  void Show(int64_t done, int64_t total);

 private:
  const bool terminal_;
  int percent_ = -1;
};

}  // namespace koine::model_loader::tool

#endif  // KOINE_MODEL_LOADER_TOOL_LONG_WORK_H_
