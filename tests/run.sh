#!/usr/bin/env bash
# Everything that must pass before a change lands: build, all tests, style, fuzzers for 30 s each, the quick start.
# Ends with one line 'N passed, N failed' and a non-zero exit if anything failed. CI calls exactly this.
#
# Set KOINE_SKIP_PACKAGES=1 to leave the system's packages alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly build_dir=build/release
readonly results=build/test-results
jobs=$(nproc)
passed=0
failed=0
skipped=0

title() { printf '\n=== %s (%d s)\n' "$*" "$SECONDS"; }
finish() {
  title "done"
  if [[ $skipped -gt 0 ]]; then echo "$passed passed, $failed failed, $skipped skipped"; else
    echo "$passed passed, $failed failed"
  fi
  exit $((failed > 0))
}
# step NAME COMMAND...: one more passed or failed check.
step() {
  local name=$1
  shift
  title "$name"
  if "$@"; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    echo "FAILED: $name"
  fi
}
# must NAME COMMAND...: what everything after it stands on.
must() {
  local name=$1
  shift
  title "$name"
  if ! "$@"; then
    failed=$((failed + 1))
    echo "FAILED: $name"
    finish
  fi
}

rm -rf "$results"
mkdir -p "$results/gtest"
[[ "${KOINE_SKIP_PACKAGES:-}" == 1 ]] || must "packages" deploy/install_packages.sh tests
must "configure" cmake --preset release -DKOINE_BUILD_TESTS=ON -DKOINE_BUILD_BENCHMARKS=ON
must "build" cmake --build --preset release -j "$jobs"

title "tests"
ctest_code=0
GTEST_OUTPUT="json:$PWD/$results/gtest/" ctest --test-dir "$build_dir" -j "$jobs" --output-on-failure \
  --output-junit "$PWD/$results/ctest.xml" </dev/null || ctest_code=$?
read -r case_passed case_failed case_skipped < <(tests/count.py "$results/gtest" "$results/ctest.xml")
passed=$((passed + case_passed))
failed=$((failed + case_failed))
skipped=$((skipped + case_skipped))
if [[ $ctest_code -ne 0 && $case_failed -eq 0 ]]; then
  failed=$((failed + 1))
  echo "FAILED: ctest ended with code $ctest_code"
fi

step "style" tests/lint/run.sh "$build_dir"
step "fuzzers, 30 s each" tests/fuzz.sh 30
step "quick start" deploy/quickstart.sh --check
finish
