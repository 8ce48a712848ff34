// A violation in a header of ours: proves that HeaderFilterRegex of .clang-tidy lets header findings through.
#ifndef TESTS_LINT_PLANTED_H_
#define TESTS_LINT_PLANTED_H_

namespace koine::lint {

struct FromHeader {
  FromHeader(int value) : value(value) {}  // plant: google-explicit-constructor
  int value;
};

}  // namespace koine::lint

#endif  // TESTS_LINT_PLANTED_H_
