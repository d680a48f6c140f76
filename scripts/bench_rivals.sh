#!/usr/bin/env bash
# Measure our artifacts beside the rivals that are installed here; see bench_rivals.py --help.
#
#   scripts/bench_rivals.sh dist/qwen3-0.6b-q4f16_1/cpu \
#     --llama-bench ~/llama.cpp/build/bin/llama-bench --gguf qwen3-0.6b-q4_0.gguf \
#     --openvino-python ~/openvino/bin/python --openvino qwen3-0.6b-int4
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
exec "${PYTHON:-python3}" "$here/bench_rivals.py" "$@"
