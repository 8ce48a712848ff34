#!/usr/bin/env bash
# From a clean clone to a running translation server, in one command.
#
#   deploy/quickstart.sh                              install, build, serve the demo model, show what it does; Ctrl-C stops it
#   deploy/quickstart.sh --check                      the same, then stop the server and exit 0
#   deploy/quickstart.sh --from en --to de TEXT...    translate these texts instead of the samples
#
# Options:
#   --from LANG, --to LANG   language of the texts given, and the language to translate them into
#   --model DIR              another model folder (default: deploy/demo_model)
#   --port N                 preferred port (default 50051; the next free one is taken if it is in use)
#   --check                  stop after the calls
#
# Set KOINE_SKIP_PACKAGES=1 to leave the system's packages alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly build_dir=build/release
readonly log_dir=build/quickstart
readonly server=$build_dir/bin/koine-server
readonly koine=$build_dir/bin/koine
readonly ready_seconds=120

check=false
from=""
to=""
model=deploy/demo_model
port=50051
texts=()

say() { printf '%s\n' "$*"; }
title() { printf '\n== %s\n' "$*"; }
die() {
  printf 'quickstart: %s\n' "$*" >&2
  exit 1
}
usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }
needs_value() { [[ $# -ge 2 ]] || die "$1 needs a value; --help shows how"; }

while [[ $# -gt 0 ]]; do
  case "$1" in
    --check) check=true ;;
    --from) needs_value "$@" && from=$2 && shift ;;
    --to) needs_value "$@" && to=$2 && shift ;;
    --model) needs_value "$@" && model=$2 && shift ;;
    --port) needs_value "$@" && port=$2 && shift ;;
    -h | --help) usage && exit 0 ;;
    --) shift && texts+=("$@") && break ;;
    -*) die "unknown option '$1'; --help lists them" ;;
    *) texts+=("$1") ;;
  esac
  shift
done
if [[ ${#texts[@]} -gt 0 ]]; then
  [[ -n "$from" && -n "$to" ]] || die "texts need both --from and --to, for example: --from en --to de \"Save the file.\""
elif [[ -n "$from$to" ]]; then
  die "--from and --to need a text after them"
fi
[[ "$port" =~ ^[0-9]+$ && "$port" -ge 1 && "$port" -le 65535 ]] || die "--port must be a number from 1 to 65535"
[[ -f "$model/model.json" ]] || die "there is no model in '$model' (no model.json)"

server_pid=""
stop_server() {
  [[ -n "$server_pid" ]] || return 0
  local pid=$server_pid
  server_pid=""
  kill -TERM "$pid" 2>/dev/null || true
  # The server drains by itself; one that is stuck is not left behind.
  for _ in $(seq 150); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null
}
on_exit() {
  local code=$?
  trap - EXIT INT TERM
  stop_server || true
  exit "$code"
}
trap on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# run_logged NAME COMMAND...: keeps the output in a log, and shows its end if the command fails.
run_logged() {
  local log="$log_dir/$1.log"
  shift
  if ! "$@" >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    die "'$*' failed; the whole output is in $log"
  fi
}

mkdir -p "$log_dir"
started=$SECONDS
say "Koine quick start"
if [[ "${KOINE_SKIP_PACKAGES:-}" != 1 ]]; then
  say "  packages   (log: $log_dir/packages.log)"
  run_logged packages deploy/install_packages.sh build
fi
say "  build      (log: $log_dir/build.log; some minutes the first time)"
configure=(cmake --preset release)
# A folder that tests/run.sh has configured keeps its tests; a new one builds the programs only.
grep -qs '^KOINE_BUILD_TESTS:BOOL=ON' "$build_dir/CMakeCache.txt" ||
  configure+=(-DKOINE_BUILD_TESTS=OFF -DKOINE_BUILD_BENCHMARKS=OFF)
run_logged configure "${configure[@]}"
run_logged build cmake --build --preset release --target koine-server koine koine-model koine-load

# in_use PORT: does anything answer on this port of this machine?
in_use() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
wanted=$port
while in_use "$port"; do
  port=$((port + 1))
  [[ $port -le $((wanted + 100)) && $port -le 65535 ]] || die "ports $wanted to $((port - 1)) are all in use; choose one with --port"
done
[[ "$port" == "$wanted" ]] || say "  note       port $wanted is in use, so this server takes $port"
address=127.0.0.1:$port
# Health and metrics are worth having, not worth failing for: where 8080 is taken, any free port will do.
http=127.0.0.1:8080
if in_use 8080; then http=127.0.0.1:0; fi
say "  server     $server --model $model --listen $address --http $http (log: $log_dir/server.log)"
# No drain delay: there is no balancer that must notice the end.
"$server" --model "$model" --listen "$address" --http "$http" --drain-delay 0 >"$log_dir/server.log" 2>&1 &
server_pid=$!

deadline=$((SECONDS + ready_seconds))
until "$server" --healthcheck --listen "$address" >/dev/null 2>&1; do
  if ! kill -0 "$server_pid" 2>/dev/null; then
    tail -n 20 "$log_dir/server.log" >&2
    die "the server stopped while starting; its log is above and in $log_dir/server.log"
  fi
  if [[ $SECONDS -ge $deadline ]]; then
    tail -n 20 "$log_dir/server.log" >&2
    die "the server was not ready after $ready_seconds seconds; its log is above"
  fi
  sleep 0.2
done
say "  ready after $((SECONDS - started)) s"

call() { "$koine" "$1" --server "$address" "${@:2}"; }
# show_translation FROM TO TEXT
show_translation() {
  local answer
  answer=$(call translate --from "$1" --to "$2" -- "$3") || die "koine translate --from $1 --to $2 failed"
  [[ -n "$answer" ]] || die "koine translate --from $1 --to $2 gave an empty answer"
  printf '  %s -> %s  %s\n            %s\n' "$1" "$2" "$3" "$answer"
}

title "translate"
if [[ ${#texts[@]} -gt 0 ]]; then
  for text in "${texts[@]}"; do show_translation "$from" "$to" "$text"; done
else
  show_translation en de "There are invalid values in the input boxes. Please check your inputs."
  show_translation fr en "Ce paquet contient les bibliothèques partagées."
  show_translation ru it "Файл не найден."
fi

title "encode (cosine of sentence vectors)"
encode() { call encode --language "$1" -- "$2"; }
# cosine LANG TEXT LANG TEXT
cosine() {
  local first second
  first=$(encode "$1" "$2") || return 1
  second=$(encode "$3" "$4") || return 1
  # One text is one line of numbers; anything else in a line would be a fault, so it is not skipped.
  printf '%s\n%s\n' "$first" "$second" | awk '
    { n = split($0, x, /[ ,\t]+/); for (i = 1; i <= n; i++) { if (x[i] !~ /^-?[0-9.]+([eE][-+]?[0-9]+)?$/) exit bad = 1
        v[NR, i] = x[i] } width[NR] = n }
    END { if (bad || NR != 2 || width[1] != width[2] || width[1] < 2) exit 1
      for (i = 1; i <= width[1]; i++) { ab += v[1, i] * v[2, i]; aa += v[1, i] ^ 2; bb += v[2, i] ^ 2 }
      if (aa == 0 || bb == 0) exit 1
      printf "%.3f\n", ab / sqrt(aa * bb) }'
}
show_cosine() {
  local value
  value=$(cosine "$@") || die "koine encode failed, or did not print one line of numbers for each text"
  printf '  %s  %s "%s"  |  %s "%s"\n' "$value" "$@"
}
if [[ ${#texts[@]} -gt 0 ]]; then
  translated=$(call translate --from "$from" --to "$to" -- "${texts[0]}")
  show_cosine "$from" "${texts[0]}" "$to" "$translated"
else
  show_cosine en "The file could not be opened." de "Die Datei konnte nicht geöffnet werden."
  show_cosine en "The file could not be opened." de "Wählen Sie eine Farbe aus."
fi

title "parameters"
call stats --parameters || die "koine stats failed"

if $check; then
  title "check passed"
  exit 0
fi
title "serving on $address; Ctrl-C stops it. In another terminal:"
say "  $koine translate --server $address --from en --to de \"Save the file before closing.\""
wait "$server_pid" && code=0 || code=$?
server_pid=""
[[ $code -eq 0 ]] || die "the server ended with code $code; its log is $log_dir/server.log"
