#!/usr/bin/env bash
# Runs every fuzzer for a while, and proves that the set-up finds faults.
#
#   tests/fuzz.sh [SECONDS]     seconds for each fuzzer, 600 if not given
#
# Builds with the preset `fuzz` (clang, address and undefined-behaviour sanitizers) into build/fuzz. Each fuzzer starts
# from a copy of its corpus, so that the tree stays as it is; inputs that make it fail stay in build/fuzz/findings.
# Prints coverage and speed. Exits non-zero if any fuzzer finds something, or if the planted fault is not found.
set -euo pipefail

seconds="${1:-600}"
if ! [[ "$seconds" =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: tests/fuzz.sh [SECONDS]" >&2
  exit 2
fi
fuzzers=(fuzz_safetensors fuzz_model_config fuzz_sentencepiece fuzz_wordpiece fuzz_vocab_json fuzz_byte_bpe
  fuzz_torch_pickle fuzz_checkpoint_index fuzz_hf_config fuzz_peft_config)
planted=fuzz_planted_fault
planted_seconds=60 # it takes well under one; the rest is for slow machines

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
if ! command -v clang++-14 >/dev/null && [[ -x deploy/install_packages.sh ]]; then
  deploy/install_packages.sh tests
fi
command -v clang++-14 >/dev/null || {
  echo "fuzz.sh: clang++-14 is not installed" >&2
  exit 2
}

build=build/fuzz
cmake --preset fuzz >/dev/null
cmake --build "$build" --target "${fuzzers[@]}" "$planted"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
findings="$root/$build/findings"
mkdir -p "$findings"

# fuzz FUZZER: its report goes to $work/FUZZER.report; the exit status is the fuzzer's.
fuzz() {
  local fuzzer=$1 log="$work/$1.log" status=0 dictionary=()
  mkdir "$work/$fuzzer"
  cp "tests/fuzz/corpus/$fuzzer/"* "$work/$fuzzer/"
  [[ -f "tests/fuzz/$fuzzer.dict" ]] && dictionary=(-dict="tests/fuzz/$fuzzer.dict")
  {
    echo "== $fuzzer: $seconds s from $(find "$work/$fuzzer" -type f | wc -l) seeds"
    # -malloc_limit_mb: an input of a few KB that asks for 256 MB at once is a finding too. The limit on everything is
    # wide, because the sanitizer's quarantine and the growing corpus fill several hundred MB by themselves.
    "$build/fuzz/$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -malloc_limit_mb=256 \
      -print_final_stats=1 "${dictionary[@]}" -artifact_prefix="$findings/$fuzzer-" "$work/$fuzzer" >"$log" 2>&1 || status=$?
    # libFuzzer's last line holds "cov: EDGES ft: FEATURES corp: INPUTS/BYTES".
    grep -E '^#[0-9]+.* cov: ' "$log" | tail -n 1 || true
    grep -E '^stat::(number_of_executed_units|average_exec_per_sec|peak_rss_mb)' "$log" || true
    if [[ $status -ne 0 ]]; then
      echo "** $fuzzer failed (exit $status):"
      tail -n 60 "$log"
    fi
  } >"$work/$fuzzer.report"
  return "$status"
}

# One for each core at a time.
failed=0
running=0
for fuzzer in "${fuzzers[@]}"; do
  if ((running == $(nproc))); then
    wait -n || failed=1
    running=$((running - 1))
  fi
  fuzz "$fuzzer" &
  running=$((running + 1))
done
for ((; running > 0; running--)); do wait -n || failed=1; done
for fuzzer in "${fuzzers[@]}"; do cat "$work/$fuzzer.report"; done

echo "== $planted: must be found within $planted_seconds s"
mkdir "$work/$planted"
cp tests/fuzz/corpus/fuzz_safetensors/* "$work/$planted/"
status=0
"$build/fuzz/$planted" -max_total_time="$planted_seconds" -artifact_prefix="$work/" "$work/$planted" \
  >"$work/planted.log" 2>&1 || status=$?
if [[ $status -ne 0 ]] && grep -q 'AddressSanitizer: heap-buffer-overflow' "$work/planted.log"; then
  echo "found: $(grep -m 1 -o 'AddressSanitizer: heap-buffer-overflow.*' "$work/planted.log")"
else
  failed=1
  echo "** the planted fault was not found (exit $status):"
  tail -n 20 "$work/planted.log"
fi

exit "$failed"
