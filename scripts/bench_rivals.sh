#!/usr/bin/env bash
# Measure our artifacts beside the rivals that are installed here; see bench_rivals.py --help.
#
#   scripts/bench_rivals.sh dist/qwen3-0.6b-q4f16_1/cpu \
#     --llama-bench ~/llama.cpp/build/bin/llama-bench --gguf qwen3-0.6b-q4_0.gguf \
#     --openvino-python ~/openvino/bin/python --openvino qwen3-0.6b-int4 -o dist/rivals
#
# PYTHON is an interpreter that has mlc_compile (default python3).
set -euo pipefail
here="$(dirname "${BASH_SOURCE[0]}")"
source "$here/common.sh"

python=${PYTHON:-python3}
on_path "$python" "say where it is: PYTHON=.venv/bin/python"
exec "$python" "$here/bench_rivals.py" "$@"
