"""Measure our artifacts beside llama.cpp and OpenVINO GenAI, interleaved in one run, as ratios.

Each round runs every contender once, in turn, so that all of them meet the same machine;
the figures are medians over rounds, the ratios medians of the per-round ratios.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

Figures = dict[str, float]  # "pp512 t2" -> tok/s


@dataclass(frozen=True)
class Contender:
    """One engine with one file: how it is called, and how large its weights are."""

    name: str
    nbytes: int
    run: Callable[[], Figures]


def main() -> None:
    """Print a table of medians and ratios; `-o` writes all rounds as JSON."""
    options = _options()
    contenders = list(_contenders(options))
    if len(contenders) < 2:
        sys.exit("error: nothing to compare\n hint: give --llama-bench with --gguf, or --openvino")
    rounds: list[dict[str, Figures]] = []
    for number in range(options.rounds):
        rounds.append({c.name: c.run() for c in contenders})
        print(f"round {number + 1} of {options.rounds} done", file=sys.stderr)
    _print_table(contenders, rounds)
    if options.output:
        sizes = {c.name: c.nbytes for c in contenders}
        options.output.write_text(json.dumps({"weights_bytes": sizes, "rounds": rounds}, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "artifact", type=Path, nargs="+", help="artifacts of ours; the first is 1.00"
    )
    parser.add_argument("--mlc-compile", default="mlc-compile", help="our program")
    parser.add_argument("--llama-bench", help="llama.cpp's llama-bench")
    parser.add_argument("--gguf", type=Path, action="append", default=[], help="its models")
    parser.add_argument("--openvino-python", help="a python that has openvino-genai")
    parser.add_argument("--openvino", type=Path, action="append", default=[], help="its models")
    parser.add_argument("--prompts", default="128,512", help="prompt lengths in tokens")
    parser.add_argument("--generate", type=int, default=64, help="tokens to decode")
    parser.add_argument("--depth", type=int, default=0, help="tokens already in the cache")
    parser.add_argument("--threads", default="1,2", help="numbers of threads")
    parser.add_argument("--rounds", type=int, default=5, help="times each contender runs")
    parser.add_argument("-o", "--output", type=Path, help="JSON file for all rounds")
    return parser.parse_args()


def _contenders(o: argparse.Namespace) -> Iterator[Contender]:
    for artifact in o.artifact:
        size = (artifact / "weights.bin").stat().st_size
        yield Contender(f"ours {artifact.parent.name}", size, partial(_ours, o, artifact))
    if o.llama_bench:
        for gguf in o.gguf:
            size = gguf.stat().st_size
            yield Contender(f"llama.cpp {gguf.stem}", size, partial(_llama, o, gguf))
    if o.openvino_python:
        for model in o.openvino:
            size = sum(f.stat().st_size for f in model.glob("*.bin"))
            yield Contender(f"OpenVINO {model.name}", size, partial(_openvino, o, model))


def _ours(o: argparse.Namespace, artifact: Path) -> Figures:
    sizes = ["--prompt-tokens", o.prompts, "--gen-tokens", str(o.generate)]
    command = [o.mlc_compile, "bench", str(artifact), "--json", *sizes, "--repeats", "1"]
    results = _json([*command, "--threads", o.threads, "--depth", str(o.depth)])["results"]
    names = {"prefill": "pp", "decode": "tg"}
    return {f"{names[r['phase']]}{r['tokens']} t{r['threads']}": r["tok_s"] for r in results}


def _llama(o: argparse.Namespace, gguf: Path) -> Figures:
    command = [o.llama_bench, "-m", str(gguf), "-p", o.prompts, "-n", str(o.generate)]
    flags = ["-t", o.threads, "-d", str(o.depth), "-fa", "1" if o.depth else "0"]
    results = _json([*command, *flags, "-r", "1", "-o", "json"])

    def test(r: dict[str, Any]) -> str:
        return f"pp{r['n_prompt']}" if r["n_prompt"] else f"tg{r['n_gen']}"

    return {f"{test(r)} t{r['n_threads']}": r["avg_ts"] for r in results}


def _openvino(o: argparse.Namespace, model: Path) -> Figures:
    script = Path(__file__).with_name("bench_openvino.py")
    command = [o.openvino_python, str(script), str(model), o.prompts, str(o.generate), o.threads]
    figures: Figures = _json(command)
    return figures


def _json(command: list[str]) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {command[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


def _print_table(contenders: list[Contender], rounds: list[dict[str, Figures]]) -> None:
    ours = contenders[0].name
    columns = list(rounds[0][ours])
    print("\t".join(["contender", "weights MiB", *columns, *(f"ours/it {c}" for c in columns)]))
    for contender in contenders:
        speeds = [
            statistics.median(r[contender.name].get(c, float("nan")) for r in rounds)
            for c in columns
        ]
        ratios = [
            statistics.median(r[ours][c] / r[contender.name].get(c, float("nan")) for r in rounds)
            for c in columns
        ]
        cells = [f"{contender.nbytes / 2**20:.0f}", *(f"{s:.1f}" for s in speeds)]
        print("\t".join([contender.name, *cells, *(f"{r:.2f}" for r in ratios)]))


if __name__ == "__main__":
    main()
