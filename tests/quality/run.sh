#!/usr/bin/env bash
# Translation quality through the server: chrF2 of the demo model's 8 measured directions in each precision, against
# deploy/demo_model/results.json. Fails if one differs by more than 0.2.
#
#   tests/quality/run.sh [f32|bf16]...     default: both
#
# Needs build/release (deploy/quickstart.sh or tests/run.sh makes it). Installs sacreBLEU into .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly model=deploy/demo_model
readonly server=build/release/bin/koine-server
readonly koine=build/release/bin/koine
readonly output=build/quality

[[ $# -gt 0 ]] || set -- f32 bf16
for program in "$server" "$koine"; do
  [[ -x "$program" ]] || { echo "quality: $program is not built; run deploy/quickstart.sh --check first" >&2 && exit 1; }
done
if ! .venv/bin/python -c 'import sacrebleu' 2>/dev/null; then
  python3 -m venv .venv
  .venv/bin/pip install --quiet -r tests/quality/requirements.txt
fi
mkdir -p "$output"

server_pid=""
stop_server() {
  [[ -n "$server_pid" ]] || return 0
  kill -TERM "$server_pid" 2>/dev/null || true
  wait "$server_pid" 2>/dev/null || true
  server_pid=""
}
trap stop_server EXIT
trap 'exit 130' INT TERM

# start_server PRECISION: sets server_pid and address. The server chooses a free port and logs it.
start_server() {
  local log=$output/server-$1.log end=$((SECONDS + 60))
  "$server" --model "$model" --precision "$1" --listen 127.0.0.1:0 --http off --drain-delay 0 >"$log" 2>&1 &
  server_pid=$!
  while kill -0 "$server_pid" 2>/dev/null && [[ $SECONDS -lt $end ]]; do
    address=$(sed -n 's/.*listening on \([^ ]*:[0-9][0-9]*\).*/\1/p' "$log" | tail -n 1)
    if [[ -n "$address" ]] && "$server" --healthcheck --listen "$address" >/dev/null 2>&1; then return 0; fi
    sleep 0.2
  done
  tail -n 20 "$log" >&2
  echo "quality: the server did not start in $1" >&2
  return 1
}

failed=0
for precision in "$@"; do
  start_server "$precision"
  .venv/bin/python tests/quality/chrf.py --server "$address" --koine "$koine" --model "$model" \
    --label "$precision" --output "$output" || failed=1
  stop_server
done
exit "$failed"
