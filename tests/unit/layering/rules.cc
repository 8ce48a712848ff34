#include "tests/unit/layering/rules.h"

#include <algorithm>
#include <functional>
#include <regex>
#include <set>
#include <sstream>

namespace koine::layering {
namespace {

// server -> {proto, model_loader, kernels}, model_loader -> kernels, clients -> proto, tests -> everything.
const std::map<std::string, std::set<std::string>>& AllowedArrows() {
  static const auto* arrows = new std::map<std::string, std::set<std::string>>{
      {"proto", {"proto"}},
      {"kernels", {"kernels"}},
      {"model_loader", {"model_loader", "kernels"}},
      {"server", {"server", "proto", "model_loader", "kernels"}},
      {"clients", {"clients", "proto"}},
      {"tests", {"tests", "proto", "kernels", "model_loader", "server", "clients"}},
  };
  return *arrows;
}

bool StartsWith(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }
bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

std::string TopOf(std::string_view path) { return std::string(path.substr(0, path.find('/'))); }
bool IsSource(std::string_view path) { return EndsWith(path, ".cc") || EndsWith(path, ".h"); }

std::string At(const std::string& path, int line) { return path + ":" + std::to_string(line) + ": "; }

// "tests/lint/planted.cc" -> "tests/lint"; "proto/koine/v1/x" -> "proto": one library.
std::string SecondLevel(std::string_view path) {
  const size_t first = path.find('/');
  if (first == std::string_view::npos) return std::string(path);
  if (TopOf(path) == "proto") return "proto";
  return std::string(path.substr(0, path.find('/', first + 1)));
}

// Blanks out comments, keeping line ends; string literals are left alone, so that "//" in one is no comment.
std::string WithoutComments(std::string_view text) {
  std::string out(text);
  enum { kCode, kLine, kBlock, kString } state = kCode;
  for (size_t i = 0; i < out.size(); ++i) {
    const char c = out[i];
    const char next = i + 1 < out.size() ? out[i + 1] : '\0';
    switch (state) {
      case kCode:
        if (c == '/' && (next == '/' || next == '*')) {
          state = next == '/' ? kLine : kBlock;
          out[i] = out[i + 1] = ' ';
          ++i;
        } else if (c == '"') {
          state = kString;
        }
        break;
      case kLine:
        if (c == '\n') {
          state = kCode;
        } else {
          out[i] = ' ';
        }
        break;
      case kBlock:
        if (c == '*' && next == '/') {
          state = kCode;
          out[i] = out[i + 1] = ' ';
          ++i;
        } else if (c != '\n') {
          out[i] = ' ';
        }
        break;
      case kString:
        if (c == '\\') {
          ++i;
        } else if (c == '"' || c == '\n') {
          state = kCode;
        }
        break;
    }
  }
  return out;
}

// Calls visit(path, include) for every include of every source in the tree.
void ForEachInclude(const Tree& tree, const std::function<void(const std::string&, const Include&)>& visit) {
  for (const auto& [path, text] : tree) {
    if (!IsSource(path)) continue;
    for (const Include& include : FindIncludes(text)) visit(path, include);
  }
}

}  // namespace

std::vector<Include> FindIncludes(std::string_view text) {
  static const auto* pattern = new std::regex(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::vector<Include> includes;
  std::istringstream lines(WithoutComments(text));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (std::regex_search(line, match, *pattern)) includes.push_back({number, match[2], match[1] == "\""});
  }
  return includes;
}

std::string FolderOf(std::string_view path) {
  // Generated headers are named from proto/ or its mirror in the build folder.
  for (const char* prefix : {"koine/v1/", "google/rpc/", "grpc/health/v1/"}) {
    if (StartsWith(path, prefix)) return "proto";
  }
  if (path.find('/') == std::string_view::npos) return "";
  return AllowedArrows().count(TopOf(path)) ? SecondLevel(path) : "";
}

std::vector<std::string> CheckArrows(const Tree& tree) {
  std::vector<std::string> wrong;
  auto check = [&wrong](const std::string& path, int line, const std::string& to) {
    const auto from = AllowedArrows().find(TopOf(path));
    if (from == AllowedArrows().end() || to.empty() || from->second.count(TopOf(to))) return;
    wrong.push_back(At(path, line) + "no arrow may go from " + from->first + " to " + to);
  };
  ForEachInclude(tree, [&](const std::string& path, const Include& include) {
    check(path, include.line, FolderOf(include.path));
  });
  // Targets: koine::kernels_ops is the library of kernels/ops.
  static const auto* target = new std::regex(R"(koine::([a-z_]+))");
  for (const auto& [path, text] : tree) {
    if (!EndsWith(path, "/CMakeLists.txt")) continue;
    std::istringstream lines(text);
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
      line = line.substr(0, line.find('#'));
      for (std::sregex_iterator it(line.begin(), line.end(), *target), end; it != end; ++it) {
        const std::string name = (*it)[1];
        for (const auto& [top, allowed] : AllowedArrows()) {
          if (name == top || StartsWith(name, top + "_")) check(path, number, top);
        }
      }
    }
  }
  return wrong;
}

std::vector<std::string> CheckCircles(const Tree& tree) {
  std::map<std::string, std::map<std::string, std::string>> edges;  // from -> to -> one place that makes the arrow
  ForEachInclude(tree, [&](const std::string& path, const Include& include) {
    if (TopOf(path) == "tests") return;  // tests are not a layer
    const std::string from = SecondLevel(path);
    const std::string to = FolderOf(include.path);
    if (!to.empty() && from != to) edges[from].emplace(to, At(path, include.line) + "includes " + include.path);
  });
  std::vector<std::string> wrong;
  std::set<std::string> done;
  std::vector<std::string> stack;
  std::function<void(const std::string&)> visit = [&](const std::string& node) {
    const auto on_stack = std::find(stack.begin(), stack.end(), node);
    if (on_stack != stack.end()) {
      std::string circle;
      for (auto it = on_stack; it != stack.end(); ++it) circle += *it + " -> ";
      wrong.push_back(edges[stack.back()][node] + ", which closes the circle " + circle + node);
      return;
    }
    if (!done.insert(node).second) return;
    stack.push_back(node);
    for (const auto& [to, place] : edges[node]) visit(to);
    stack.pop_back();
  };
  std::vector<std::string> nodes;
  for (const auto& [from, to] : edges) nodes.push_back(from);
  for (const std::string& node : nodes) visit(node);
  return wrong;
}

std::vector<std::string> CheckSeams(const Tree& tree) {
  std::vector<std::string> wrong;
  ForEachInclude(tree, [&](const std::string& path, const Include& include) {
    const std::string& name = include.path;
    const std::string to = FolderOf(name);
    if (to != "proto" && !to.empty() && !include.quoted) {
      wrong.push_back(At(path, include.line) + "our header <" + name + "> must be in quotes");
    }
    if (StartsWith(name, "./") || StartsWith(name, "../") ||
        (include.quoted && name.find('/') == std::string::npos && EndsWith(name, ".h"))) {
      wrong.push_back(At(path, include.line) + "\"" + name + "\" must be named from the root of the repository");
    }
    if (EndsWith(name, ".cc")) wrong.push_back(At(path, include.line) + "includes a source file, " + name);
    if (to.empty() || TopOf(path) == "tests") return;
    // -inl.h: code that Highway compiles once per instruction set; kernels may share it, nobody else may.
    const bool private_header = EndsWith(name, "_internal.h") ? to != SecondLevel(path)
                                : EndsWith(name, "-inl.h")    ? TopOf(to) != TopOf(path)
                                                              : false;
    if (private_header) wrong.push_back(At(path, include.line) + name + " is private to " + to);
  });
  return wrong;
}

std::vector<std::string> CheckForeignHeaders(const Tree& tree) {
  struct Home {
    const char* header;               // prefix of the included path
    std::vector<const char*> places;  // prefixes of the paths that may include it; tests may include everything
  };
  static const auto* homes = new std::vector<Home>{
      {"dnnl", {"kernels/matmul/"}},
      {"oneapi/dnnl", {"kernels/matmul/"}},
      {"sentencepiece", {"model_loader/tokenizer/"}},
      {"grpc/", {"server/", "clients/"}},
      {"grpcpp/", {"server/", "clients/"}},
      {"google/protobuf/", {"server/", "clients/"}},
      {"hwy/", {"kernels/"}},
  };
  std::vector<std::string> wrong;
  std::set<std::string> sentencepiece_files;
  ForEachInclude(tree, [&](const std::string& path, const Include& include) {
    if (TopOf(path) == "tests" || FolderOf(include.path) == "proto") return;
    for (const Home& home : *homes) {
      if (!StartsWith(include.path, home.header)) continue;
      const bool at_home = std::any_of(home.places.begin(), home.places.end(),
                                       [&path](const char* place) { return StartsWith(path, place); });
      if (!at_home) wrong.push_back(At(path, include.line) + include.path + " may not be included here");
      if (std::string_view(home.header) != "sentencepiece") continue;
      if (EndsWith(path, ".h")) wrong.push_back(At(path, include.line) + "SentencePiece may not be seen by a header");
      sentencepiece_files.insert(path);
    }
  });
  if (sentencepiece_files.size() > 1) {
    std::string list;
    for (const std::string& file : sentencepiece_files) list += " " + file;
    wrong.push_back("SentencePiece's header belongs in one file, but these include it:" + list);
  }
  return wrong;
}

std::vector<std::string> CheckSentencePieceAlone(const Tree& tree) {
  std::vector<std::string> wrong;
  for (const auto& [path, text] : tree) {
    if (!IsSource(path)) continue;
    const std::vector<Include> direct = FindIncludes(text);
    const bool has = std::any_of(direct.begin(), direct.end(),
                                 [](const Include& include) { return StartsWith(include.path, "sentencepiece"); });
    if (!has) continue;
    std::set<std::string> seen;
    std::function<void(const std::string&)> follow = [&](const std::string& file) {
      const auto found = tree.find(file);
      if (found == tree.end() || !seen.insert(file).second) return;
      for (const Include& include : FindIncludes(found->second)) {
        if (StartsWith(include.path, "absl/")) {
          wrong.push_back(path + ": includes SentencePiece and reaches " + include.path + " through " + file);
        }
        follow(include.path);
      }
    };
    follow(path);
  }
  return wrong;
}

std::vector<std::string> CheckRoot(const std::vector<std::string>& folders) {
  std::vector<std::string> wrong;
  for (const std::string& folder : folders) {
    if (folder == "build" || folder == "deploy" || StartsWith(folder, ".") || AllowedArrows().count(folder)) continue;
    wrong.push_back(folder + "/: the root has fixed folders only");
  }
  return wrong;
}

}  // namespace koine::layering
