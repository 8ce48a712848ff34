// Planted faults, at least one for each check of .clang-tidy. Never built: tests/lint/run.sh runs clang-tidy on this
// file and fails if any check of the list stays silent. A line that must be reported ends in `plant: <check>`.
#include "tests/lint/planted.h"

#include <algorithm>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

using namespace std;    // plant: google-build-using-namespace
using std::unique_ptr;  // plant: misc-unused-using-decls

namespace koine::lint {

#define TWICE(x) 2 * x  // plant: bugprone-macro-parentheses

struct Base {
  virtual ~Base() = default;
  virtual int Level() const { return 0; }
};
struct Middle : Base {
  int Level() const override { return 1; }
};
struct Leaf : Middle {
  virtual int Level() const { return Base::Level(); }  // plant: modernize-use-override bugprone-parent-virtual-call
};

struct Copyable {
  Copyable() = default;
  Copyable(const Copyable& other) = default;
  int value = 0;
};
struct Derived : Copyable {
  Derived() = default;
  Derived(const Derived& other) {}  // plant: bugprone-copy-constructor-init
};

struct Movable {
  Movable(Movable&& other) : text(std::move(other.text)) {}  // plant: performance-noexcept-move-constructor
  string text;
};

struct Delegating {
  Delegating() { Delegating(1); }  // plant: bugprone-undelegated-constructor
  explicit Delegating(int v) : value(v) {}
  int value = 0;
};

void Take(int count, bool verbose);
void Keep(const string& text);
mutex planted_mutex;

template <typename T>
void Forward(T&& value) {
  Keep(std::move(value));  // plant: bugprone-move-forwarding-reference
}

void Faults(bool* flag, vector<string> names, int width, int height, bool ready) {
  Take(/*verbose=*/1, false);                            // plant: bugprone-argument-comment
  if (flag) Take(1, true);                               // plant: bugprone-bool-pointer-implicit-conversion
  names.erase(remove(names.begin(), names.end(), "x"));  // plant: bugprone-inaccurate-erase
  double half = width;
  int rounded = static_cast<int>(half + 0.5);  // plant: bugprone-incorrect-roundings
  int i = 0;
  while (i < height) {  // plant: bugprone-infinite-loop
    ++rounded;
  }
  double ratio = width / height;                     // plant: bugprone-integer-division
  auto area = static_cast<int64_t>(width * height);  // plant: bugprone-misplaced-widening-cast
  if (ready) {
    if (ready) Take(2, ready);  // plant: bugprone-redundant-branch-condition
  }
  size_t bytes = sizeof(names);    // plant: bugprone-sizeof-container
  bytes += sizeof(sizeof(width));  // plant: bugprone-sizeof-expression
  string repeated('x', 50);        // plant: bugprone-string-constructor
  if (ready)
    ;                                // plant: bugprone-suspicious-semicolon
  lock_guard<mutex>{planted_mutex};  // plant: bugprone-unused-raii
  async([] { Take(1, true); });      // plant: bugprone-unused-return-value
  string moved = "text";
  string target = std::move(moved);
  Keep(moved);  // plant: bugprone-use-after-move
  target = 65;  // plant: bugprone-string-integer-assignment
  do {
    if (width > height) continue;  // plant: bugprone-terminating-continue
  } while (false);
  if (width > height && width > height) Take(3, ready);  // plant: misc-redundant-expression
  int* nothing = 0;                                      // plant: modernize-use-nullptr
  for (const string name : names) Keep(name);            // plant: performance-for-range-copy
  Keep(std::move(static_cast<const string&>(target)));   // plant: performance-move-const-arg
  Take(TWICE(rounded), nothing == nullptr && ratio + static_cast<double>(area + bytes) > 0);
}

}  // namespace koine::lint
