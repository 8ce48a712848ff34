// The rules of the source tree: who may include whom, and which foreign headers belong where.
//
// The rules are functions of plain values, so that the tests can show that each of them fires; layering_test.cc then
// applies them to the real tree. Constants in rules.cc are the one list of arrows that the code knows; CONTRIBUTING.md
// tells them to people. No thread rule: everything here is a pure function.
#ifndef TESTS_UNIT_LAYERING_RULES_H_
#define TESTS_UNIT_LAYERING_RULES_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace koine::layering {

// Contents by path, relative to the root of the repository, with '/'.
using Tree = std::map<std::string, std::string>;

struct Include {
  int line = 0;  // from 1
  std::string path;
  bool quoted = false;  // "x" rather than <x>
};

// All #include lines of a source text. Lines inside comments do not count.
std::vector<Include> FindIncludes(std::string_view text);

// Where an included path belongs: the second-level folder ("kernels/ops"), "proto" for generated headers, or "" for
// foreign headers and headers named relative to the including file.
std::string FolderOf(std::string_view path);

// Each violation is one readable line "path:line: what is wrong". Empty: the rule holds.
// Arrows between the top-level folders, by includes and by koine:: targets in CMakeLists.txt.
std::vector<std::string> CheckArrows(const Tree& tree);
// Second-level folders do not include each other in a circle.
std::vector<std::string> CheckCircles(const Tree& tree);
// Other folders see headers only: never a .cc, never a private header (x_internal.h is its folder's own, x-inl.h its
// top-level folder's); ours are "quoted" and named from the root.
std::vector<std::string> CheckSeams(const Tree& tree);
// Foreign headers that one place keeps to itself: dnnl, SentencePiece, gRPC, Protobuf.
std::vector<std::string> CheckForeignHeaders(const Tree& tree);
// A file that includes SentencePiece (whose header opens namespace absl) reaches no Abseil header, however indirectly.
std::vector<std::string> CheckSentencePieceAlone(const Tree& tree);
// The root has no folder beyond the fixed ones. `folders`: names in the root; hidden ones and build/ are not looked at.
std::vector<std::string> CheckRoot(const std::vector<std::string>& folders);

}  // namespace koine::layering

#endif  // TESTS_UNIT_LAYERING_RULES_H_
