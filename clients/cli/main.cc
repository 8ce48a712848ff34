#include <unistd.h>

#include <iostream>

#include "clients/cli/cli.h"

int main(int argc, char** argv) {
  // SIGPIPE keeps its default: `koine ... | head` ends when its reader does, as other filters do.
  std::ios::sync_with_stdio(false);
  return koine::cli::RunCli(argc, argv, KOINE_VERSION,
                            {STDIN_FILENO, &std::cout, &std::cerr, isatty(STDERR_FILENO) == 1});
}
