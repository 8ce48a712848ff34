// The command `koine`: translate, encode and look into a server from a shell.
//
// Standard input is read line by line and answered line by line in order, blank lines included, while further lines
// are read: up to kLinesPerRequest lines per request, kRequestsInFlight requests at once. Nothing is done to the texts
// but splitting at line feeds. Errors are one line each on standard error.
#ifndef KOINE_CLIENTS_CLI_CLI_H_
#define KOINE_CLIENTS_CLI_CLI_H_

#include <ostream>
#include <string>

#include "absl/status/status.h"

namespace koine::cli {

// Exit codes, printed by --help; scripts depend on them.
enum ExitCode : int {
  kOk = 0,
  kItemFailed = 1,   // the call was answered, but not every item; or output could not be written
  kUsage = 2,        // arguments, or a command that this version does not offer
  kUnreachable = 3,  // no connection, or no answer in time
  kRefused = 4,      // the server refused the request
};

ExitCode ExitCodeFor(const absl::Status& status);

// Lines of standard input that make one request: enough to fill the server's batch, few enough for a quick first line.
inline constexpr int kLinesPerRequest = 64;
// 4 * 64 lines are far under the server's default queue of 4,096 items.
inline constexpr int kRequestsInFlight = 4;

// Where a run reads and writes. Descriptors and streams stay the caller's.
struct Io {
  int in = 0;  // file descriptor
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  bool err_is_terminal = false;  // show progress
};

// Runs one command and returns its exit code. Not to be run twice at once with the same Io.
int RunCli(int argc, const char* const* argv, const std::string& version, const Io& io);

}  // namespace koine::cli

#endif  // KOINE_CLIENTS_CLI_CLI_H_
