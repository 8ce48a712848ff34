#!/usr/bin/env bash
# The whole test suite under AddressSanitizer + UndefinedBehaviorSanitizer and under ThreadSanitizer.
#
#   tests/sanitize.sh [asan|tsan]...     default: both
#
# First each sanitizer must find its planted faults (tests/unit/planted_faults), with the same options and suppressions
# as the suite: a run that could not find a fault says nothing. Ends with one line 'N passed, N failed'.
# Set KOINE_SKIP_PACKAGES=1 to leave the system's packages alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ $# -gt 0 ]] || set -- asan tsan
for preset in "$@"; do
  case "$preset" in asan | tsan) ;; *)
    echo "sanitize.sh: '$preset' is neither asan nor tsan" >&2
    exit 2
    ;;
  esac
done
[[ "${KOINE_SKIP_PACKAGES:-}" == 1 ]] || deploy/install_packages.sh tests

export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1
export UBSAN_OPTIONS=print_stacktrace=1

export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp:second_deadlock_stack=1"
# libtsan_libraries.so tells ThreadSanitizer how Abseil, gRPC and libgomp synchronise (tests/unit/tsan_libraries).
# oneDNN's code is not instrumented: where a test does not ask for threads, each worker is a team of one.
thread_environment=(OMP_NUM_THREADS=1 "LD_PRELOAD=$PWD/build/tsan/tests/libtsan_libraries.so")

passed=0
failed=0
environment=()
# plant PRESET FAULT TEXT: planted_faults FAULT must die, and the report must say TEXT.
plant() {
  local program=build/$1/tests/planted_faults output code=0
  output=$(env "${environment[@]}" "$program" "$2" 2>&1) || code=$?
  if [[ $code -ne 0 && "$output" == *"$3"* ]]; then
    passed=$((passed + 1))
    echo "$1: found the planted $2"
  else
    failed=$((failed + 1))
    echo "FAILED: $1 did not find the planted $2 (exit code $code)"
    printf '%s\n' "$output" | head -n 20
  fi
}

# silent PRESET: planted_faults must pass where there is no fault.
silent() {
  local output
  if output=$(env "${environment[@]}" "build/$1/tests/planted_faults" none 2>&1); then
    passed=$((passed + 1))
    echo "$1: is silent where there is no fault"
  else
    failed=$((failed + 1))
    echo "FAILED: $1 reports a fault where there is none"
    printf '%s\n' "$output" | head -n 40
  fi
}

for preset in "$@"; do
  results=build/test-results-$preset
  rm -rf "$results"
  mkdir -p "$results/gtest"
  echo "=== $preset: build (${SECONDS} s)"
  cmake --preset "$preset" -DKOINE_BUILD_TESTS=ON -DKOINE_BUILD_BENCHMARKS=OFF >"$results/configure.log" ||
    { cat "$results/configure.log" && exit 1; }
  cmake --build --preset "$preset" -j "$(nproc)" >"$results/build.log" || { tail -n 60 "$results/build.log" && exit 1; }

  echo "=== $preset: planted faults (${SECONDS} s)"
  if [[ $preset == asan ]]; then
    environment=()
    plant asan overflow "heap-buffer-overflow"
    plant asan use-after-free "heap-use-after-free"
    plant asan leak "LeakSanitizer: detected memory leaks"
    plant asan undefined "signed integer overflow"
  else
    environment=("${thread_environment[@]}")
    plant tsan race "ThreadSanitizer: data race"
    plant tsan half-guarded-race "ThreadSanitizer: data race"
    plant tsan deadlock "lock-order-inversion"
    plant tsan racing-team "ThreadSanitizer: data race"
    plant tsan racing-handlers "ThreadSanitizer: data race"
    plant tsan use-after-finish "ThreadSanitizer: data race"
  fi
  silent "$preset"

  echo "=== $preset: tests (${SECONDS} s)"
  # Reports go to files, so that those of processes that tests start count too, also where these are killed.
  reports=$PWD/$results/report
  code=0
  env "${environment[@]}" "ASAN_OPTIONS=$ASAN_OPTIONS:log_path=$reports" "UBSAN_OPTIONS=$UBSAN_OPTIONS:log_path=$reports" \
    "TSAN_OPTIONS=$TSAN_OPTIONS:log_path=$reports" GTEST_OUTPUT="json:$PWD/$results/gtest/" \
    KOINE_SANITIZER="$preset" ctest --test-dir "build/$preset" -j "$(nproc)" --output-on-failure \
    --output-junit "$PWD/$results/ctest.xml" </dev/null || code=$?
  for report in "$reports".*; do
    [[ -e "$report" ]] || continue
    failed=$((failed + 1))
    echo "FAILED: $preset found a fault ($report)"
    head -n 60 "$report"
  done
  read -r case_passed case_failed case_skipped < <(tests/count.py "$results/gtest" "$results/ctest.xml")
  echo "$preset: cases passed $case_passed, failed $case_failed, skipped $case_skipped (${SECONDS} s)"
  passed=$((passed + case_passed))
  failed=$((failed + case_failed))
  if [[ $code -ne 0 && $case_failed -eq 0 ]]; then failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
exit $((failed > 0))
