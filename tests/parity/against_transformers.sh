#!/usr/bin/env bash
# Holds imports of random checkpoints of every family against the transformers library: against_transformers.py, which
# says what is compared. Not part of tests/run.sh: the library and what it needs are some gigabytes, and it takes a
# quarter of an hour.
#
#   tests/parity/against_transformers.sh [--only WORDS...] [--keep FOLDER] [--seed N]
#
# Needs build/release (deploy/quickstart.sh or tests/run.sh makes it). Installs into .venv, unless KOINE_PYTHON names a
# Python that has everything.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

for program in koine-server koine-model; do
  [[ -x "build/release/bin/$program" ]] && continue
  echo "against_transformers: $program is not built; run deploy/quickstart.sh --check first" >&2
  exit 1
done
python=${KOINE_PYTHON:-.venv/bin/python}
if ! "$python" -c 'import grpc_tools, peft, sentence_transformers' 2>/dev/null; then
  if [[ -n "${KOINE_PYTHON:-}" ]]; then
    echo "against_transformers: $KOINE_PYTHON lacks something of tests/parity/requirements.txt" >&2
    exit 1
  fi
  python3 -m venv .venv
  .venv/bin/pip install --quiet -r tests/parity/requirements.txt
fi
exec "$python" tests/parity/against_transformers.py "$@"
