// Documents that nobody runs go stale: every path, link, command and flag that ours mention must exist.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/unit/docs/markdown.h"

namespace koine::docs {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::UnorderedElementsAre;

std::string Read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

fs::path Root() { return KOINE_SOURCE_DIR; }

// Every document of ours, by path relative to the root. SOURCES.md is a generated list of packages.
std::map<std::string, std::string> Documents() {
  std::map<std::string, std::string> documents;
  auto add = [&documents](const fs::path& path) {
    if (path.extension() != ".md" || path.filename() == "SOURCES.md") return;
    documents[fs::relative(path, Root()).generic_string()] = Read(path);
  };
  for (const auto& entry : fs::directory_iterator(Root())) {
    if (entry.is_regular_file()) add(entry.path());
  }
  for (const char* top : {"proto", "kernels", "model_loader", "server", "clients", "tests", "deploy"}) {
    for (const auto& entry : fs::recursive_directory_iterator(Root() / top)) {
      if (entry.is_regular_file()) add(entry.path());
    }
  }
  return documents;
}

// Names of the programs and tests that the build makes.
std::string BuildFiles() {
  std::string all;
  for (const char* top : {"server", "clients", "model_loader", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(Root() / top)) {
      if (entry.path().filename() == "CMakeLists.txt") all += Read(entry.path());
    }
  }
  return all;
}

bool Exists(const std::string& document, const std::string& path) {
  static const auto* build_files = new std::string(BuildFiles());
  const std::string name = fs::path(path).filename().string();
  if (path.rfind("build/release/bin/", 0) == 0) {
    return build_files->find("koine_binary(" + name + " ") != std::string::npos || name.empty();
  }
  if (path.rfind("build/release/tests/", 0) == 0) {
    return build_files->find("koine_test(" + name + " ") != std::string::npos;
  }
  if (path.rfind("build/", 0) == 0) return true;  // made at run time
  return fs::exists(Root() / path) || fs::exists(Root() / fs::path(document).parent_path() / path);
}

// Output of `program arguments`, both streams; fails the test if it cannot be run or does not exit with 0.
std::string Output(const std::string& command) {
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "cannot run " << command;
    return "";
  }
  std::string output;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  EXPECT_EQ(pclose(pipe), 0) << command << "\n" << output;
  return output;
}

// What the program of a command says that it takes.
std::set<std::string> KnownFlags(const Command& command) {
  const fs::path path = command.program;
  if (path.extension() == ".sh") {
    // A script's own flags stand in its text.
    const std::string text = Read(Root() / path);
    std::set<std::string> flags;
    for (const std::string& flag : command.flags) {
      if (text.find(flag) != std::string::npos) flags.insert(flag);
    }
    return flags;
  }
  const std::string program = (fs::path(KOINE_BUILD_DIR) / "bin" / path.filename()).string();
  std::set<std::string> flags = HelpFlags(Output(program + " " + command.subcommand + " --help"));
  if (!command.subcommand.empty()) flags.merge(HelpFlags(Output(program + " --help")));
  return flags;
}

TEST(Documents, AreThere) {
  const auto documents = Documents();
  EXPECT_TRUE(documents.count("README.md"));
  EXPECT_TRUE(documents.count("CONTRIBUTING.md"));
  EXPECT_TRUE(documents.count("deploy/demo_model/README.md"));
  EXPECT_GT(Commands(Code(documents.at("README.md"))).size(), 8u);
}

TEST(Documents, LinksLeadSomewhere) {
  for (const auto& [document, text] : Documents()) {
    for (const std::string& link : Links(text)) {
      EXPECT_TRUE(fs::exists(Root() / fs::path(document).parent_path() / link)) << document << " links to " << link;
    }
  }
}

TEST(Documents, PathsExist) {
  for (const auto& [document, text] : Documents()) {
    for (const std::string& code : Code(text)) {
      for (const std::string& path : Paths(code)) {
        EXPECT_TRUE(Exists(document, path)) << document << " names " << path << " in: " << code;
      }
    }
  }
}

TEST(Documents, CommandsTakeTheFlagsShown) {
  std::map<std::string, std::set<std::string>> known;  // each program is asked once
  for (const auto& [document, text] : Documents()) {
    for (const Command& command : Commands(Code(text))) {
      const bool script = command.program.find(".sh") != std::string::npos;
      std::set<std::string> flags;
      if (script) {
        flags = KnownFlags(command);
      } else {
        auto [it, inserted] = known.try_emplace(command.program + " " + command.subcommand);
        if (inserted) it->second = KnownFlags(command);
        flags = it->second;
      }
      EXPECT_THAT(flags, IsSupersetOf(command.flags))
          << document << " shows " << command.program << " " << command.subcommand;
    }
  }
}

TEST(Documents, TheReadmesTableHasEveryFlagOfTheServer) {
  const std::set<std::string> table = TableFlags(Read(Root() / "README.md"));
  std::set<std::string> help =
      HelpFlags(Output((fs::path(KOINE_BUILD_DIR) / "bin" / "koine-server").string() + " --help"));
  help.erase("--help");
  help.erase("--version");
  EXPECT_GT(help.size(), 5u);
  EXPECT_EQ(table, help);
}

// The reader of documents reads.

TEST(Markdown, FindsLinks) {
  EXPECT_THAT(Links("See [a](x/y.md) and [b](https://example.org), [c](z.md#part), [d](#here).\n```\n[e](f)\n```\n"),
              ElementsAre("x/y.md", "z.md"));
}

TEST(Markdown, FindsCodeAndJoinsContinuedLines) {
  EXPECT_THAT(Code("Use `a b` and `c`.\n```sh\nd \\\n  e\nf\n```\nno\n"), ElementsAre("a b", "c", "d    e", "f"));
}

TEST(Markdown, FindsPathsAndLeavesOutPlaceholders) {
  EXPECT_THAT(Paths("deploy/quickstart.sh --model deploy/demo_model kernels/... ./tests/run.sh languages/de"),
              ElementsAre("deploy/quickstart.sh", "deploy/demo_model", "kernels/", "tests/run.sh"));
  EXPECT_THAT(Paths("tests/unit/<name> server/*.h http://server/x client/server/x"), IsEmpty());
}

TEST(Markdown, FindsCommandsOfOurs) {
  const auto commands =
      Commands({"build/release/bin/koine translate --from en --beam=4 \"not --a flag\"",
                "deploy/quickstart.sh --check   # not --this", "grpcurl --plaintext", "tests/run.sh"});
  ASSERT_EQ(commands.size(), 3u);
  EXPECT_EQ(commands[0].subcommand, "translate");
  EXPECT_THAT(commands[0].flags, Contains("--beam"));
  EXPECT_THAT(commands[1].flags, ElementsAre("--check"));
  EXPECT_THAT(commands[2].flags, IsEmpty());
}

TEST(Markdown, FindsFlagsOfHelpAndTable) {
  EXPECT_THAT(HelpFlags("Usage: x [--all]\n  -h,--help   Print\n  --model TEXT   see --other\n"),
              UnorderedElementsAre("--help", "--model"));
  EXPECT_THAT(TableFlags("| `--before` | x |\n<!-- flags -->\n| `--model DIR` | x |\n| `--port` |\n<!-- flags end -->\n"
                         "| `--after` |\n"),
              UnorderedElementsAre("--model", "--port"));
}

TEST(Markdown, MissingThingsAreNoticed) {
  EXPECT_FALSE(Exists("README.md", "kernels/no_such_folder/x.h"));
  EXPECT_FALSE(Exists("README.md", "build/release/bin/no-such-program"));
  EXPECT_TRUE(Exists("README.md", "kernels/tensor/dtype.h"));
}

}  // namespace
}  // namespace koine::docs
