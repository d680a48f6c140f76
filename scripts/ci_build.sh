#!/usr/bin/env bash
# Build every model for every target over one shared cache, and tell for each where its parts came
# from. A build that fails is told and the rest goes on.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'USAGE'
usage: ci_build.sh [options] -t TARGET[,TARGET...] MODEL...

  -t TARGETS   targets, comma-separated; may be repeated: each list is built with one command
  -Q SCHEME    quantization scheme                     (default that of the targets)
  -o DIR       directory that holds all builds         (default dist)
  -c DIR       the build cache                         (default MLC_COMPILE_CACHE, or ~/.cache)
  -i FILE      a bundle of `cache export` to import first; it may be absent
  -e FILE      write a bundle of the cache afterwards, if nothing failed
  -f FILE      the lock file, such as mlc-compile.lock: fail where a build is not as it says;
               a build that it does not know yet is added, with -l it fails too
  -u           update the lock file to match instead of failing
  -l           locked: fail where anything would have to be made
  -h, --help   show this

stdout:      a line for each artifact: directory, weights, library, packed, proof
environment: MLC_COMPILE is the command to build with   (default mlc-compile)
             PYTHON the interpreter that reads its JSON (default python3)
exit code:   0 all built, 2 usage, else that of the last build that failed
USAGE
}

targets=() options=() cache=() out=dist import= export=
for argument; do
  [[ $argument != --help ]] || { usage && exit 0; }
done
while getopts :t:Q:o:c:i:e:f:ulh option; do
  case $option in
    t) targets+=("$OPTARG") ;;
    Q) options+=(--quant "$OPTARG") ;;
    o) out=$OPTARG ;;
    c)
      [[ -n $OPTARG ]] || misused "-c must be a directory, got ''"
      cache=(--cache-dir "$OPTARG")
      ;;
    i) import=$OPTARG ;;
    e) export=$OPTARG ;;
    f) options+=(--lockfile "$OPTARG") ;;
    u) options+=(--update-lock) ;;
    l) options+=(--locked) ;;
    h) usage && exit 0 ;;
    :) misused "-$OPTARG needs a value" ;;
    *) misused "unknown option -$OPTARG" ;;
  esac
done
shift $((OPTIND - 1))
operands MODEL "$@"
((${#targets[@]})) || misused "no target given"
(($#)) || misused "no model given"
[[ -z $export || -d $(dirname -- "$export") ]] ||
  refuse 2 "$(dirname -- "$export"), where the bundle goes, is no directory" "make it first"

find_tool "say where it is: MLC_COMPILE, PYTHON"
python=${PYTHON:-python3}
on_path "$python" "say where it is: MLC_COMPILE, PYTHON"
# A build goes to OUT/MODEL-SCHEME/TARGET, by the name that mlc-compile gives the model.
"$python" - "$@" <<'NAMES'
import pathlib
import sys

taken = {}
for model in sys.argv[1:]:
    place = pathlib.Path("tiny-qwen3" if model == "demo" else model).resolve()
    cached = place.parent.name == "snapshots" and place.parent.parent.name.startswith("models--")
    name = place.parent.parent.name.rpartition("--")[2] if cached else place.name
    first, where = taken.setdefault(name, (model, place))
    if where != place:
        print(f"error: {first} and {model} are both called {name}: they would be built into one "
              "place\n hint: rename one, or build it apart with another -o", file=sys.stderr)
        sys.exit(2)
NAMES

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ -n $import && -e $import ]]; then
  "${tool[@]}" cache import "$import" ${cache[@]+"${cache[@]}"} --quiet >/dev/null
fi

failed=0
for model; do
  for list in "${targets[@]}"; do
    printf '%s for %s\n' "$model" "$list" >&2
    if "${tool[@]}" build "$model" --target "$list" -o "$out" ${options[@]+"${options[@]}"} \
      ${cache[@]+"${cache[@]}"} --json --quiet >"$work/built.json"; then
      "$python" - "$work/built.json" <<'TELL'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    built = json.load(file)
for one in built["artifacts"]:
    parts = {**built["cache"], **one["cache"]}
    told = (f"{step} {outcome}" for step, outcome in parts.items())
    print(one["directory"], *told, one["check"]["status"], sep="\t")
TELL
    else
      failed=$?
      ((failed != 130)) || exit 130
      printf '%s for %s: failed with exit code %s\n' "$model" "$list" "$failed" >&2
    fi
  done
done
if ((failed == 0)) && [[ -n $export ]]; then
  "${tool[@]}" cache export "$export" ${cache[@]+"${cache[@]}"} --quiet >/dev/null
fi
exit "$failed"
