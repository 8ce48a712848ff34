// What a Markdown document claims about the repository: the paths, links and commands in it.
//
// Pure functions of the text, no thread rule. They know as much Markdown as our documents use: fenced blocks, code
// spans, inline links and tables.
#ifndef TESTS_UNIT_DOCS_MARKDOWN_H_
#define TESTS_UNIT_DOCS_MARKDOWN_H_

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace koine::docs {

// Targets of [text](target), without those that leave the repository (with a scheme) and without #fragments.
std::vector<std::string> Links(std::string_view markdown);

// All code: the contents of `spans` and each line of fenced blocks.
std::vector<std::string> Code(std::string_view markdown);

// Words of a piece of code that name a path of the repository or of its build folder: they begin with one of the fixed
// folders, or with build/. Words with placeholders (<x>, *, {a,b}, NAME=...) are left out.
std::vector<std::string> Paths(std::string_view code);

struct Command {
  std::string program;             // as written: "build/release/bin/koine", "deploy/quickstart.sh"
  std::string subcommand;          // the word after it, if that is a plain lower-case word
  std::vector<std::string> flags;  // "--from", "--json", in order
};

// Commands that run a program of ours: the piece of code begins with its path.
std::vector<Command> Commands(const std::vector<std::string>& code);

// The --flags in a text that --help prints: those that begin an entry, for example "  -m,--model DIR  ...".
std::set<std::string> HelpFlags(std::string_view help);

// The first column's --flags of the table between "<!-- flags" and "<!-- flags end".
std::set<std::string> TableFlags(std::string_view markdown);

}  // namespace koine::docs

#endif  // TESTS_UNIT_DOCS_MARKDOWN_H_
