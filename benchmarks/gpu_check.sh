#!/usr/bin/env bash
# One run for whoever has a GPU: are the bytes the reference's, is attention right, and how fast is decoding?
# Under five minutes; prints Markdown. From a checkout:  bash benchmarks/gpu_check.sh [-o rows.csv]
# PYTHON picks an interpreter with torch (built for the GPU), triton and numpy; nothing else is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-}
if [[ -z $python ]]; then
    python=python3
    if [[ -x .venv/bin/python ]]; then python=.venv/bin/python; fi
fi
unset TRITON_INTERPRET
PYTHONPATH=. timeout 290 "$python" benchmarks/gpu_check.py "$@"
