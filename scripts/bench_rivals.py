"""Measure our artifacts beside llama.cpp, OpenVINO GenAI and plain TVM, interleaved, as ratios.

A turn is one number of threads and one depth: every contender runs once, one after the other,
so that all of them meet the same machine; every second round has the opposite order. Speeds are
medians over rounds, ratios medians of the rounds' own. What the memory can do is read in each
turn as well. Rivals that are not here are named and left out.
"""

import argparse
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from bench_contenders import Contender, Failed, Ours, Setting, llama, openvino, tvm_default
from bench_reader import build_reader, read_speed
from bench_rounds import Head, Match, Readers, Session, leave_out
from bench_table import Run, markdown
from mlc_compile.artifact import KVDtype, Manifest, read_manifest
from mlc_compile.bench.paired import ROUNDS
from mlc_compile.errors import ConfigError, MlcError
from mlc_compile.runtime.bandwidth import read_bandwidth
from mlc_compile.runtime.host import available_cores, cpu_name

Offer = tuple[str, Callable[[], Contender]]  # a rival's name, and how to make it

# A short prompt and few tokens for plain TVM, which needs seconds for each token.
TVM_PROMPT: Final = 32
TVM_GENERATE: Final = 4


def main() -> int:
    """Print the tables; `-o PREFIX` keeps them, and every round as JSON. The exit code."""
    options = _options()
    try:
        run = _measure(options)
    except MlcError as e:
        print(f"error: {e}\n hint: {e.hint}", file=sys.stderr)
        return e.exit_code
    except Failed as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print("\n".join(markdown([run])))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench_rivals.sh", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    several = partial(add, type=Path, action="append", default=[])
    add("artifact", type=Path, nargs="+", help="artifacts of ours; the first is 1.00")
    add(
        "--mlc-compile",
        type=shlex.split,
        default=os.environ.get("MLC_COMPILE", "mlc-compile"),
        help="our program (MLC_COMPILE, or mlc-compile)",
    )
    add("--llama-bench", help="llama.cpp's llama-bench")
    several("--gguf", help="a model of llama.cpp's; repeat it for more")
    add("--openvino-python", help="a python that has openvino-genai")
    several("--openvino", help="a model of OpenVINO's, a directory; repeat it for more")
    add("--tvm-default", type=Path, help="a checkpoint for plain TVM, which takes minutes: once")
    add("--prompts", type=_numbers, default="512", help="prompt lengths, a list; 0: none (512)")
    add("--generate", type=_number, default="64", help="tokens to decode; 0: none (64)")
    add("--depth", type=_numbers, default="0", help="tokens already in the cache, a list (0)")
    add("--threads", type=_numbers, default="1,2", help="numbers of threads, a list (1,2)")
    add("--rounds", type=_number, default=ROUNDS, help=f"times that each runs ({ROUNDS})")
    add("--minutes", type=float, help="begin no round that would probably end later than this")
    add("--pairs", type=_number, default="7", help="least readings of the memory; 0: none (7)")
    add("--cc", default="cc", help="the C compiler for the second reader of the memory (cc)")
    add("-o", "--out", type=Path, metavar="PREFIX", help="write PREFIX.json and PREFIX.md")
    return parser.parse_intermixed_args()


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}")
    return int(text)


def _numbers(text: str) -> tuple[int, ...]:
    if not all(word.isdecimal() for word in text.split(",")):
        raise argparse.ArgumentTypeError(f"must be a list such as 1,2, got {text!r}")
    return tuple(dict.fromkeys(int(word) for word in text.split(",")))


def _measure(o: argparse.Namespace) -> Run:
    """Raises MlcError for a request that cannot be carried out, Failed for one that failed."""
    ours = _ours(o)
    _check(o, ours)
    first, missing = next(iter(ours)), dict[str, str]()
    with tempfile.TemporaryDirectory() as scratch:
        session = Session(
            head=Head(ours[first].manifest.model, _machine(), first),
            matches=_matches(o, ours, missing),
            readers=_readers(o, Path(scratch), missing),
            left_out=missing,
        )
        session.play(o.rounds, o.minutes, partial(_write, o.out))
        session.read_more(o.pairs)
    run = session.run()
    _write(o.out, run)
    return run


def _ours(o: argparse.Namespace) -> dict[str, Ours]:
    """By name: the model's and the scheme's, or the path where these are the same."""
    names = [artifact.absolute().parent.name for artifact in o.artifact]
    if len(set(names)) < len(names):
        names = [str(artifact) for artifact in o.artifact]
    pairs = zip(names, o.artifact, strict=True)
    tool = tuple(o.mlc_compile)
    return {f"ours {name}": Ours(tool, a, read_manifest(a, Manifest)) for name, a in pairs}


def _check(o: argparse.Namespace, ours: Mapping[str, Ours]) -> None:
    """Refuse what could only fail after minutes."""
    if shutil.which(o.mlc_compile[0]) is None:
        raise ConfigError(
            f"{o.mlc_compile[0]} is not on the PATH",
            hint="say where it is: MLC_COMPILE=.venv/bin/mlc-compile",
        )
    if not (min(o.threads) and o.rounds and (any(o.prompts) or o.generate)):
        raise ConfigError(
            "there is nothing to measure", hint="threads, rounds and tokens must be above 0"
        )
    need = max(o.depth) + max(*o.prompts, o.generate)
    for one in ours.values():
        context = one.manifest.limits.context
        if need > context:
            raise ConfigError(
                f"the tests need {need} tokens, but the context of {one.artifact} holds {context}",
                hint=f"build it with --context {need}, or lower --depth",
            )
    for names in (
        [g.stem for g in o.gguf],
        [m.name for m in o.openvino],
        list(map(str, o.artifact)),
    ):
        if len(set(names)) < len(names):
            raise ConfigError(f"two have one name among {', '.join(names)}", hint="rename one")
    if o.out and not o.out.absolute().parent.is_dir():
        raise ConfigError(f"there is no directory {o.out.parent}", hint="make it, or change -o")


def _machine() -> str:
    cores = available_cores()
    return f"{cpu_name()}, {cores} core{'s' * (cores > 1)}"


def _matches(
    o: argparse.Namespace, ours: Mapping[str, Ours], missing: dict[str, str]
) -> list[Match]:
    """Every depth and number of threads; then plain TVM against the first of ours, once."""
    mine = [Contender(name, one.measure, is_ours=True) for name, one in ours.items()]
    kv = next(iter(ours.values())).manifest.kv.dtype
    rivals = list(_available(_offers(o, kv, missing), missing))
    prompts = tuple(n for n in o.prompts if n)
    matches = [
        Match(Setting(prompts, o.generate, depth, threads), (*mine, *rivals), o.rounds)
        for depth in o.depth
        for threads in o.threads
    ]
    slow: list[Offer] = []
    if o.tvm_default is not None:
        slow.append(("plain TVM", partial(tvm_default, sys.executable, o.tvm_default)))
    setting = Setting((TVM_PROMPT,), TVM_GENERATE, 0, max(o.threads))
    matches += [Match(setting, (mine[0], rival), 1) for rival in _available(slow, missing)]
    return matches


def _offers(o: argparse.Namespace, kv: KVDtype, missing: dict[str, str]) -> Iterator[Offer]:
    """The rivals that the options name; `kv` is the element type of our cache."""
    if o.llama_bench and o.gguf:
        for gguf in o.gguf:
            yield f"llama.cpp {gguf.stem}", partial(llama, o.llama_bench, gguf, kv)
    else:
        leave_out(missing, "llama.cpp", "--llama-bench and --gguf would name it")
    if o.openvino_python and o.openvino:
        for model in o.openvino:
            yield f"OpenVINO {model.name}", partial(openvino, o.openvino_python, model, kv)
    else:
        leave_out(missing, "OpenVINO", "--openvino-python and --openvino would name it")


def _available(
    offers: Iterator[Offer] | list[Offer], missing: dict[str, str]
) -> Iterator[Contender]:
    for name, make in offers:
        try:
            yield make()
        except Failed as e:
            leave_out(missing, name, e)


def _readers(o: argparse.Namespace, scratch: Path, missing: dict[str, str]) -> Readers:
    """Of the memory: what `bench` has, and a plain loop in C where that can be compiled."""
    if not o.pairs:
        return {}
    try:
        program = build_reader(o.cc, scratch)
    except Failed as e:
        leave_out(missing, "the reader in C", e)
        return {"bench": read_bandwidth}
    return {"bench": read_bandwidth, "C": partial(read_speed, program)}


def _write(prefix: Path | None, run: Run) -> None:
    if prefix is None:
        return
    prefix.with_name(prefix.name + ".json").write_text(run.to_json())
    prefix.with_name(prefix.name + ".md").write_text("\n".join(markdown([run])) + "\n")


if __name__ == "__main__":
    sys.exit(main())
