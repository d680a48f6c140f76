#!/usr/bin/env bash
# What each optional pass is worth: build a model with all passes, without each of them, and
# without all of ours, which leaves TVM's FuseOps and FuseTIR and our kernels with dequantization
# inside. Then measure all builds in turn, round by round, and print a Markdown table of paired
# ratios with their confidence intervals, launches and bytes. (What TVM would leave of the model
# with kernels of its own is in tests/report/test_against_tvm.py.)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'USAGE'
usage: ablate.sh [options] MODEL

  -o PREFIX    write PREFIX.md and PREFIX.json       (default dist/ablate)
  -t TARGET    what to build for                     (default cpu)
  -Q SCHEME    quantization scheme                   (default q4f16_1)
  -p TOKENS    length of the prompt                  (default 128)
  -n TOKENS    tokens to decode                      (default 64)
  -j THREADS   number of threads                     (default 1)
  -r ROUNDS    rounds, in each of which every build is measured once; 0: bytes only (default 6,
               the fewest that give a confidence interval)
  -w DIR       keep the builds in DIR                (default a temporary directory)
  -h, --help   show this

environment: MLC_COMPILE is the command to run           (default mlc-compile)
             PYTHON the interpreter that makes the table (default python3)
USAGE
}

prefix=dist/ablate target=cpu quant=q4f16_1 prompt=128 generate=64 threads=1 rounds=6 work=
for argument; do
  [[ $argument != --help ]] || { usage && exit 0; }
done
while getopts :o:t:Q:p:n:j:r:w:h option; do
  case $option in
    o) prefix=$OPTARG ;;
    t) target=$OPTARG ;;
    Q) quant=$OPTARG ;;
    p) prompt=$OPTARG ;;
    n) generate=$OPTARG ;;
    j) threads=$OPTARG ;;
    r) rounds=$OPTARG ;;
    w) work=$OPTARG ;;
    h) usage && exit 0 ;;
    :) misused "-$OPTARG needs a value" ;;
    *) misused "unknown option -$OPTARG" ;;
  esac
done
shift $((OPTIND - 1))
operands MODEL "$@"
(($# == 1)) || misused "one model is needed"
model=$1
[[ $target != *,* ]] || misused "-t must be one target, got '$target'"
whole_number -p "$prompt" 1
whole_number -n "$generate" 0
whole_number -j "$threads" 1 "$(cores)"
whole_number -r "$rounds" 0
find_tool "say where it is: MLC_COMPILE, PYTHON"
python=${PYTHON:-python3}
on_path "$python" "say where it is: MLC_COMPILE, PYTHON"
results "$prefix.md" "$prefix.json"

if [[ -z $work ]]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work"

# The passes of ours that this target runs and a build may leave out.
"${tool[@]}" passes --json --quiet >"$work/passes.json"
"$python" - "$work/passes.json" "$target" >"$work/passes" <<'PYTHON'
import json, sys

passes, target = json.load(open(sys.argv[1])), sys.argv[2]
here = {"all", "CPU" if target.startswith("cpu") else "GPU"}
tvm = {"FuseOps", "DeadCodeElimination"}
ours = [p for p in passes if p["can_be_disabled"] and p["name"] not in tvm]
for one in ours:
    if one["targets"] in here:
        print(one["name"])
PYTHON
passes=()
while read -r pass; do passes+=("$pass"); done <"$work/passes"

artifacts=()
build() { # NAME OPTION...
  local name=$1
  shift
  printf 'building: %s\n' "$name" >&2
  artifacts+=("$("${tool[@]}" build "$model" --quiet --target "$target" --quant "$quant" \
    -o "$work/$name" "$@")")
}
build "all passes"
without=()
for pass in ${passes[@]+"${passes[@]}"}; do
  build "without $pass" --disable-pass "$pass"
  without+=(--disable-pass "$pass")
done
build "without all of these" ${without[@]+"${without[@]}"}

if ((rounds)); then
  "${tool[@]}" bench "${artifacts[@]}" --json --threads "$threads" --prompt-tokens "$prompt" \
    --gen-tokens "$generate" --repeats 1 --rounds "$rounds" >"$work/speeds.json"
fi

"$python" - "$prefix" "$work" "${artifacts[@]}" <<'PYTHON'
import json, pathlib, statistics, sys

prefix, work, *artifacts = sys.argv[1:]
artifacts = [pathlib.Path(a) for a in artifacts]
speeds = pathlib.Path(work, "speeds.json")
results = json.loads(speeds.read_text())["results"] if speeds.exists() else []
measured = {(row["artifact"], row["phase"]): row for row in results}


def library(artifact):
    manifest = json.loads((artifact / "manifest.json").read_text())
    paths = {one["path"] for one in manifest["libraries"]}
    return [file["sha256"] for file in manifest["files"] if file["path"] in paths]


def traffic_of(artifact):
    report = json.loads((artifact / "report.json").read_text())
    return {t["function"]: t for t in report["traffic"]}


def speed(artifact, phase):
    row = measured.get((str(artifact), phase))
    if row is None:
        return "", ""
    interval = row["vs_first"]["interval"]
    told = " ({:.3f} to {:.3f})".format(*interval) if interval else ""
    return f"{row['tok_s']:.1f}", f"{row['vs_first']['median']:.3f}{told}"


bare = traffic_of(artifacts[-1])
rows, records = [], []
for index, artifact in enumerate(artifacts):
    name = artifact.parent.parent.name
    traffic = traffic_of(artifact)
    same = index > 0 and library(artifact) == library(artifacts[0])
    cells = [name + (" (the same library)" if same else "")]
    cells += [str(traffic[f]["launches"]) for f in ("decode", "prefill")]
    for function, unit in (("decode", 1e3), ("prefill", 1e6)):
        written = traffic[function]["written_bytes"]
        change = written / bare[function]["written_bytes"] - 1
        cells.append(f"{written / unit:.1f} ({change:+.0%})")
    for phase in ("decode", "prefill"):
        cells += speed(artifact, phase)
    rows.append(cells)
    records.append({
        "build": name, "same_library": same, "traffic": list(traffic.values()),
        "speeds": [row for row in results if row["artifact"] == str(artifact)],
    })
heads = [
    "build", "launches a token", "a prompt", "kB written a token (of the last)",
    "MB written a prompt (of the last)", "decode tok/s", "of all passes", "prefill tok/s", "of all passes",
]
table = "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])
pathlib.Path(prefix + ".json").write_text(json.dumps(records, indent=2) + "\n")
pathlib.Path(prefix + ".md").write_text(table + "\n")
print(table)
PYTHON
