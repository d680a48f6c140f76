#!/usr/bin/env bash
# Measure artifacts on this device, for every number of threads and every prompt length, and
# write one CSV and one JSON. A failed measurement is told and left out; the rest goes on.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'USAGE'
usage: bench_device.sh [options] ARTIFACT...

  -o PREFIX    write PREFIX.csv and PREFIX.json        (default dist/bench)
  -p LENGTHS   prompt lengths, comma-separated         (default 128,512)
  -n TOKENS    tokens to decode                        (default 64)
  -j THREADS   numbers of threads, comma-separated     (default 1 and all cores)
  -r REPEATS   measurements of each                    (default 3)
  -h, --help   show this

environment: MLC_COMPILE is the command to measure with (default mlc-compile),
             PYTHON the interpreter that writes the CSV  (default python3)
exit code:   0 all measured, 2 usage, else that of the last measurement that failed
USAGE
}

prefix=dist/bench prompts=128,512 generate=64 repeats=3 threads=1 all=$(cores)
((all == 1)) || threads=1,$all
for argument; do
  [[ $argument != --help ]] || { usage && exit 0; }
done
while getopts :o:p:n:j:r:h option; do
  case $option in
    o) prefix=$OPTARG ;;
    p) prompts=$OPTARG ;;
    n) generate=$OPTARG ;;
    j) threads=$OPTARG ;;
    r) repeats=$OPTARG ;;
    h) usage && exit 0 ;;
    :) misused "-$OPTARG needs a value" ;;
    *) misused "unknown option -$OPTARG" ;;
  esac
done
shift $((OPTIND - 1))
operands ARTIFACT "$@"
(($#)) || misused "no artifact given"
whole_numbers -p "$prompts" 1
whole_number -n "$generate" 0
whole_numbers -j "$threads" 1
whole_number -r "$repeats" 1
for artifact; do
  [[ -f $artifact/manifest.json ]] ||
    refuse 2 "$artifact is not an artifact: it has no manifest.json" \
      "give a directory that mlc-compile build wrote, such as dist/MODEL-q4f16_1/cpu"
done

find_tool "say where it is: MLC_COMPILE=.venv/bin/mlc-compile"
python=${PYTHON:-python3}
on_path "$python" "say where it is: PYTHON=.venv/bin/python"
results "$prefix.csv" "$prefix.json"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 runs=0 measured=0
for artifact; do
  for count in ${threads//,/ }; do
    for length in ${prompts//,/ }; do
      plural=s
      ((count != 1)) || plural=
      printf '%s: %s thread%s, %s tokens\n' "$artifact" "$count" "$plural" "$length" >&2
      # The decode speed belongs to the artifact, not to the prompt: measured with the first.
      decode=0
      [[ $length != "${prompts%%,*}" ]] || decode=$generate
      "${tool[@]}" bench "$artifact" --json --quiet --threads "$count" \
        --prompt-tokens "$length" --gen-tokens "$decode" --repeats "$repeats" \
        >"$work/$(printf '%05d' "$runs").json" && code=0 || code=$?
      ((code != 130)) || exit 130
      if ((code)); then
        failed=$code
        rm "$work/$(printf '%05d' "$runs").json"
      else
        measured=$((measured + 1))
      fi
      runs=$((runs + 1))
    done
  done
done

if ((measured == 0)); then
  printf 'nothing was measured: no results are written\n' >&2
  exit "$failed"
fi
"$python" - "$prefix" "$work" <<'PYTHON'
import csv, json, pathlib, sys

prefix, work = sys.argv[1:]
runs = [json.loads(path.read_text()) for path in sorted(pathlib.Path(work).glob("*.json"))]
pathlib.Path(prefix + ".json").write_text(json.dumps({"runs": runs}, indent=2) + "\n")
subject = ("model", "quant", "target")
measure = ("phase", "tokens", "depth", "threads", "tok_s", "spread", "peak_rss_bytes", "roofline_share")
with open(prefix + ".csv", "w", newline="") as file:
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["artifact", *subject, *measure, "cpu"])
    for run in runs:
        known = {a["artifact"]: a for a in run["artifacts"]}
        for row in run["results"]:
            who = [known[row["artifact"]][key] for key in subject]
            table.writerow([row["artifact"], *who, *(row[key] for key in measure), run["device"]["cpu"]])
PYTHON
printf '%s\n' "$prefix.csv" "$prefix.json"
exit "$failed"
