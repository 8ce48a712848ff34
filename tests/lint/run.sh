#!/usr/bin/env bash
# Style checks: shellcheck, clang-format and the short clang-tidy list, each proven to fire on a planted fault first.
#
#   tests/lint/run.sh [BUILD_DIR]      default: build/release (its compile_commands.json says how files are compiled)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build_dir=${1:-build/release}
passed=0
failed=0
pass() { passed=$((passed + 1)) && echo "lint: ok: $1"; }
fail() { failed=$((failed + 1)) && echo "lint: FAILED: $1"; }

# Only files that git knows or would add, so that build folders and environments stay out.
ours() { git ls-files --cached --others --exclude-standard -- "$@" | sort -u | while read -r f; do [[ ! -f $f ]] || echo "$f"; done; }

# 1. Shell scripts.
if printf '#!/bin/bash\ncd "$1"\n' | shellcheck --severity=warning - >/dev/null; then fail "shellcheck missed a planted fault"; else
  mapfile -t scripts < <(ours '*.sh' .ci/run)
  if shellcheck --severity=warning "${scripts[@]}"; then pass "shellcheck (${#scripts[@]} files)"; else fail "shellcheck"; fi
fi

# 2. Layout of the sources.
if printf 'int  main( ){return 0 ;}\n' | clang-format-14 --dry-run -Werror --assume-filename=planted.cc >/dev/null 2>&1; then
  fail "clang-format missed a planted fault"
else
  mapfile -t formatted < <(ours '*.cc' '*.h')
  mapfile -t wrong < <(clang-format-14 --dry-run "${formatted[@]}" 2>&1 | sed -n 's/^\([^ :]*\):[0-9]*:.*/\1/p' | sort -u)
  if [[ ${#wrong[@]} -eq 0 ]]; then pass "clang-format (${#formatted[@]} files)"; else
    fail "clang-format; mend it with: clang-format-14 -i ${wrong[*]}"
  fi
fi

# 3. clang-tidy: every check of the list must fire on its planted line, in sources and in our headers.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
clang-tidy-14 --quiet tests/lint/planted.cc -- -std=c++20 -I. >"$log" 2>/dev/null || true
silent=()
while read -r check; do
  grep -q "\[$check,-warnings-as-errors\]" "$log" || silent+=("$check")
done < <(clang-tidy-14 --list-checks | sed -n 's/^ \{4\}//p')
grep -q 'planted\.h:.*\[google-explicit-constructor,' "$log" || silent+=("header filter")
if [[ ${#silent[@]} -gt 0 ]]; then fail "clang-tidy checks that did not fire on planted.cc: ${silent[*]}"; else
  pass "clang-tidy fires ($(grep -c 'warnings-as-errors\]' "$log") planted findings)"
  # Files that this build compiles (a file without a compile command cannot be read the way the compiler reads it).
  mapfile -t tidied < <(python3 - "$build_dir/compile_commands.json" <<'PY'
import json, os, sys
root = os.getcwd()
files = {os.path.relpath(c["file"], root) for c in json.load(open(sys.argv[1]))}
print("\n".join(sorted(f for f in files if f.split("/")[0] in ("kernels", "model_loader", "server", "clients"))))
PY
  )
  # The build is g++'s: -Wno-unknown-warning-option lets clang read its flags. `|| exit 1`: xargs gives up on the other
  # files where a command dies of a signal.
  # shellcheck disable=SC2016  # expanded by the inner shell
  if printf '%s\0' "${tidied[@]}" | xargs -0 -P "$(nproc)" -n 1 sh -c \
    'clang-tidy-14 --quiet -p "$1" --extra-arg=-Wno-unknown-warning-option "$2" || exit 1' sh "$build_dir" \
    >"$log" 2>&1; then
    pass "clang-tidy (${#tidied[@]} files)"
  else
    grep -E -A 5 '(error|warning): ' "$log" || cat "$log"
    fail "clang-tidy"
  fi
fi

echo "lint: $passed passed, $failed failed"
[[ $failed -eq 0 ]]
