#!/usr/bin/env bash
# Check CUDA libraries on a machine with an NVIDIA GPU: the same logits and tokens as on the
# CPU, and how fast. Builds the shipped example, or MODEL, for this GPU and this CPU.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'USAGE'
usage: check_cuda.sh [options] [MODEL]

  -o DIR        where to build                       (default dist/check-cuda)
  -Q SCHEME     quantization scheme                  (default q4f16_1)
  -t TARGET     CUDA target                          (default the preset of this GPU)
  -p LENGTHS    prompt lengths, comma-separated      (default 128,512)
  -n TOKENS     tokens to decode                     (default 128)
  -h, --help    show this

MODEL is a Hugging Face directory                    (default demo, the shipped example)
environment: PYTHON is an interpreter that has mlc_compile  (default python3)
exit code:   0 the GPU agrees with the CPU, 1 it does not, 2 usage, 4 no GPU, else that of
             the command that failed
USAGE
}

out=dist/check-cuda quant=q4f16_1 target='' prompts=128,512 generate=128
for argument; do
  [[ $argument != --help ]] || { usage && exit 0; }
done
while getopts :o:Q:t:p:n:h option; do
  case $option in
    o) out=$OPTARG ;;
    Q) quant=$OPTARG ;;
    t) target=$OPTARG ;;
    p) prompts=$OPTARG ;;
    n) generate=$OPTARG ;;
    h) usage && exit 0 ;;
    :) refuse 2 "-$OPTARG needs a value" "see $0 --help" ;;
    *) refuse 2 "unknown option -$OPTARG" "see $0 --help" ;;
  esac
done
shift $((OPTIND - 1))
operands MODEL "$@"
(($# < 2)) || refuse 2 "one model at a time" "see $0 --help"
whole_numbers -p "$prompts" 1
whole_number -n "$generate" 0

python=${PYTHON:-python3}
on_path "$python" "say where it is: PYTHON=.venv/bin/python"
command -v nvidia-smi >/dev/null ||
  refuse 4 "there is no NVIDIA driver: nvidia-smi is not on the PATH" "use a machine with a GPU"
found=$(nvidia-smi --query-gpu=compute_cap,name --format=csv,noheader) && [[ $found == *,* ]] ||
  refuse 4 "nvidia-smi finds no GPU" "see what nvidia-smi says"
IFS=, read -r capability gpu <<<"${found%%$'\n'*}"
gpu=${gpu# }
compile=("$python" -m mlc_compile)

# This GPU's own preset; where there is none, the library with PTX for whatever came later.
preset=cuda-sm${capability/./}
grep -q "\"$preset\"" <<<"$("${compile[@]}" targets --json)" || preset=cuda-multi
target=${target:-$preset}

printf '%s, compute capability %s: building for %s and cpu\n' "$gpu" "$capability" "$target" >&2
# Activations stay float32 on both sides, so that what differs are the kernels.
artifacts=$("${compile[@]}" build "${1:-demo}" --target "$target,cpu" --quant "$quant" \
  --activations float32 -o "$out")
{ read -r device && read -r cpu; } <<<"$artifacts"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m mlc_compile.bench.agreement "$device" "$cpu" >"$work/agreement.json"
"${compile[@]}" bench "$device" "$cpu" --json --quiet --prompt-tokens "$prompts" \
  --gen-tokens "$generate" >"$work/bench.json"
"$python" - "$work" "$device" "$cpu" "$gpu" <<'PYTHON'
import json, pathlib, sys

work, device, cpu, gpu = sys.argv[1:]
found, bench = (json.loads(pathlib.Path(work, f"{n}.json").read_text()) for n in ("agreement", "bench"))
ways = found["prompt"], found["decode"]
error = " | ".join(f"{way['max_abs_error']:.3g}" for way in ways)
same = " | ".join(f"{way['same']} of {way['decided']}" for way in ways)
print(f"| {gpu} and this CPU, {found['tokens']} tokens | as a prompt | one by one |\n|---|---|---|")
print(f"| largest error of a logit, bound {found['bound']:.3g} | {error} |")
print(f"| equal tokens, of those decided | {same} |\n")
print("| tokens a second | GPU | CPU |\n|---|---|---|")
speeds = {}
for row in bench["results"]:
    speeds.setdefault((row["phase"], row["tokens"]), {})[row["artifact"]] = row["tok_s"]
for (phase, tokens), row in speeds.items():
    print(f"| {phase}, {tokens} tokens | {row[device]:,.1f} | {row[cpu]:,.1f} |")
print(f"\ncopying the GPU's memory: {found['copy_bytes_s'] / 1e9:,.0f} GB/s, read and written")
print("the GPU agrees with the CPU" if found["agree"] else "THE GPU DOES NOT AGREE WITH THE CPU")
sys.exit(not found["agree"])
PYTHON
