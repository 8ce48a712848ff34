#include "tests/unit/docs/markdown.h"

#include <cctype>
#include <regex>
#include <sstream>

namespace koine::docs {
namespace {

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Words between blanks, with quotes of the shell taken off; a quoted argument is one word.
std::vector<std::string> Words(std::string_view code) {
  std::vector<std::string> words;
  std::string word;
  bool open = false;
  char quote = '\0';
  for (char c : code) {
    if (quote != '\0') {
      if (c == quote) {
        quote = '\0';
      } else {
        word += c;
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
      open = true;
    } else if (std::isspace(static_cast<unsigned char>(c))) {
      if (open) words.push_back(word);
      word.clear();
      open = false;
    } else {
      word += c;
      open = true;
    }
  }
  if (open) words.push_back(word);
  return words;
}

bool IsFlag(const std::string& word) { return word.size() > 2 && word[0] == '-' && word[1] == '-'; }

}  // namespace

std::vector<std::string> Links(std::string_view markdown) {
  static const auto* pattern = new std::regex(R"(\]\(([^)\s]+)\))");
  std::vector<std::string> links;
  bool fenced = false;
  for (const std::string& line : Lines(markdown)) {
    if (line.rfind("```", 0) == 0) fenced = !fenced;
    if (fenced) continue;
    for (std::sregex_iterator it(line.begin(), line.end(), *pattern), end; it != end; ++it) {
      std::string target = (*it)[1];
      if (target.find("://") != std::string::npos) continue;
      target = target.substr(0, target.find('#'));
      if (!target.empty()) links.push_back(target);
    }
  }
  return links;
}

std::vector<std::string> Code(std::string_view markdown) {
  static const auto* span = new std::regex("`([^`]+)`");
  std::vector<std::string> code;
  bool fenced = false;
  std::string continued;
  for (const std::string& line : Lines(markdown)) {
    if (line.rfind("```", 0) == 0) {
      fenced = !fenced;
    } else if (fenced) {
      // A line that ends in a backslash goes on in the next one.
      if (!line.empty() && line.back() == '\\') {
        continued += line.substr(0, line.size() - 1) + " ";
      } else {
        code.push_back(continued + line);
        continued.clear();
      }
    } else {
      for (std::sregex_iterator it(line.begin(), line.end(), *span), end; it != end; ++it) code.push_back((*it)[1]);
    }
  }
  return code;
}

std::vector<std::string> Paths(std::string_view code) {
  static const auto* path = new std::regex(
      R"(^(\./)?((proto|kernels|model_loader|server|clients|tests|deploy|build|\.ci)/[A-Za-z0-9_./-]*)$)");
  std::vector<std::string> paths;
  for (const std::string& word : Words(code)) {
    std::smatch match;
    if (!std::regex_match(word, match, *path)) continue;
    std::string found = match[2];
    // Ends of sentences and lists; "kernels/..." stands for the folder.
    while (!found.empty() && found.back() == '.') found.pop_back();
    paths.push_back(found);
  }
  return paths;
}

std::vector<Command> Commands(const std::vector<std::string>& code) {
  static const auto* program = new std::regex(R"(^(build/release/bin/[a-z-]+|(deploy|tests)/[A-Za-z_/-]+\.sh)$)");
  static const auto* subcommand = new std::regex("^[a-z]+$");
  std::vector<Command> commands;
  for (const std::string& piece : code) {
    const std::vector<std::string> words = Words(piece);
    if (words.empty() || !std::regex_match(words[0], *program)) continue;
    Command command{words[0], "", {}};
    if (words.size() > 1 && std::regex_match(words[1], *subcommand)) command.subcommand = words[1];
    for (size_t i = 1; i < words.size(); ++i) {
      if (words[i][0] == '#') break;
      if (IsFlag(words[i])) command.flags.push_back(words[i].substr(0, words[i].find('=')));
    }
    commands.push_back(command);
  }
  return commands;
}

std::set<std::string> HelpFlags(std::string_view help) {
  static const auto* entry = new std::regex(R"(^\s*(-[A-Za-z],\s*)?(--[a-z][a-z0-9-]*))");
  std::set<std::string> flags;
  for (const std::string& line : Lines(help)) {
    std::smatch match;
    if (std::regex_search(line, match, *entry)) flags.insert(match[2]);
  }
  return flags;
}

std::set<std::string> TableFlags(std::string_view markdown) {
  static const auto* flag = new std::regex(R"(^\| `(--[a-z][a-z0-9-]*))");
  std::set<std::string> flags;
  bool inside = false;
  for (const std::string& line : Lines(markdown)) {
    if (line.rfind("<!-- flags end", 0) == 0) break;
    if (line.rfind("<!-- flags", 0) == 0) inside = true;
    std::smatch match;
    if (inside && std::regex_search(line, match, *flag)) flags.insert(match[1]);
  }
  return flags;
}

}  // namespace koine::docs
