"""`mlc-compile bench`: prefill and decode speed, and how close to the memory's limit."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlc_compile.cli.console import Output, output_options, plain_table
from mlc_compile.cli.values import numbers
from mlc_compile.errors import ConfigError, count

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from mlc_compile.bench.kernels import KernelBenchmark, KernelTime, Profile
    from mlc_compile.bench.paired import Ratio
    from mlc_compile.bench.speed import Benchmark, Plan


@output_options
def bench(
    output: Output,
    artifacts: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Artifact directories, as `build` wrote them."),
    ],
    *,
    prompt_tokens: Annotated[
        str, typer.Option(help="Prompt lengths, comma-separated.", show_default="128,512")
    ] = "",
    gen_tokens: Annotated[int, typer.Option(min=0, help="Tokens to decode; 0: none.")] = 64,
    depth: Annotated[
        str, typer.Option(help="Tokens already in the KV cache, comma-separated.")
    ] = "0",
    threads: Annotated[
        str,
        typer.Option(
            help="Numbers of threads, comma-separated.", show_default="the fast physical cores"
        ),
    ] = "",
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 3,
    warm_up: Annotated[
        int, typer.Option(min=0, help="Measurements before those, thrown away.")
    ] = 1,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Times to measure all artifacts in turn; a row is their median.",
            show_default="6 with --compare, else 1",
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Show each artifact's speed relative to the first's: the median of the rounds' "
            "ratios, and from 6 rounds on its 95 % confidence interval.",
        ),
    ] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Show where the time goes, kernel by kernel.")
    ] = False,
) -> None:
    """Measure the speed of artifacts on this machine."""
    from mlc_compile.bench.kernels import measure_kernels
    from mlc_compile.bench.paired import ROUNDS
    from mlc_compile.bench.speed import Plan, measure

    if kernels and (compare or rounds):
        other = "--compare" if compare else "--rounds"
        raise ConfigError(f"--kernels and {other} exclude each other", hint="leave one out")
    if compare and len(artifacts) == 1:
        raise ConfigError(
            "--compare needs two artifacts, got one",
            hint="name another; the same one again shows the noise",
        )

    plan = Plan(
        prompts=numbers(prompt_tokens, "--prompt-tokens"),
        generate=gen_tokens,
        depths=numbers(depth, "--depth", "0,4096") or (0,),
        threads=numbers(threads, "--threads", "1,2"),
        repeats=repeats,
        warm_up=warm_up,
        rounds=rounds or (ROUNDS if compare else 1),
    )
    if kernels:
        with output.progress() as progress:
            profiled = measure_kernels(tuple(artifacts), plan, progress)
        output.result(profiled, as_tables(profiled))
        return
    with output.progress() as progress:
        benchmark = measure(tuple(artifacts), plan, progress)
    output.result(benchmark, as_table(benchmark, compare=compare))


def as_table(benchmark: "Benchmark", *, compare: bool) -> "Table":
    """One row per measurement; the device and the method above them."""
    measured = ["tok/s", "spread", "peak RSS", "of bandwidth"]
    heads = ["artifact", "phase", "tokens", "depth", "threads", *measured]
    heads += ["vs first"] if compare else []
    several = len(benchmark.artifacts) > 1
    table = plain_table(
        *heads[not several :], folding=("artifact",), dropped=("peak RSS", "spread", "depth")
    )
    table.title = "\n".join(_title(benchmark, several=several))
    for row in _rows(benchmark):
        table.add_row(*row[not several : len(heads)])
    return table


def _title(benchmark: "Benchmark", *, several: bool) -> Iterator[str]:
    device, plan = benchmark.device, benchmark.plan
    if not several:
        yield benchmark.artifacts[0].artifact
    yield f"{device.cpu}, {count(device.cores, 'core')}"
    for name in sorted({load.device for load in benchmark.loads if load.device}):
        yield f"computes on {name}"
    rates = (
        f"{rate / 1e9:.1f} GB/s with {count(threads, 'thread')}"
        for threads, rate in device.bandwidth_bytes_s.items()
    )
    yield f"reads {', '.join(rates)}; median of {plan.repeats} after {plan.warm_up}{_turns(plan)}"


def _rows(benchmark: "Benchmark") -> Iterator[tuple[str, ...]]:
    for r in benchmark.results:
        yield (
            r.artifact,
            r.phase,
            *(str(n) for n in (r.tokens, r.depth, r.threads)),
            _speed(r.tok_s),
            f"{r.spread:.1%}",
            f"{r.peak_rss_bytes / 2**20:.0f} MiB",
            _share(r.roofline_share, in_cache=r.in_cache),
            _ratio(r.vs_first),
        )


def _turns(plan: "Plan") -> str:
    return f", then of {plan.rounds} rounds" if plan.rounds > 1 else ""


def _ratio(vs_first: "Ratio | None") -> str:
    """`1.071x (1.052-1.090)`: the median, and its confidence interval where there is one."""
    if vs_first is None:
        return ""
    interval = "" if vs_first.interval is None else " ({:.3f}-{:.3f})".format(*vs_first.interval)
    return f"{vs_first.median:.3f}x{interval}"


def as_tables(benchmark: "KernelBenchmark") -> "Group":
    """A table for each profile: its kernels, then what is left of the time."""
    from rich.console import Group

    return Group(*(item for p in benchmark.profiles for item in (_profile_table(p), "")))


def _profile_table(profile: "Profile") -> "Table":
    heads = ["kernel", "calls", "time", "share", "moved", "GB/s", "of bandwidth", "Gop/s"]
    table = plain_table(
        *heads, "weights", folding=("weights",), dropped=("moved", "GB/s", "weights", "Gop/s")
    )
    unit = (
        f"a prompt of {profile.tokens} tokens" if profile.phase == "prefill" else "a decoded token"
    )
    noisy = "; noisy: these times contradict each other" if profile.noisy else ""
    table.title = (
        f"{profile.artifact}\n"
        f"{unit} at depth {profile.depth}, {count(profile.threads, 'thread')}\n"
        f"{_milliseconds(profile.seconds)} "
        f"({_milliseconds(profile.watched_seconds)} while each kernel is timed){noisy}"
    )
    for kernel in profile.kernels:
        table.add_row(*_kernel_row(kernel))
    rest = _milliseconds(profile.whole - profile.kernel_seconds)
    table.add_row("outside kernels", "", rest, f"{profile.outside_share:.1%}")
    table.add_row(
        "all",
        f"{sum(k.calls for k in profile.kernels):g}",
        _milliseconds(profile.whole),
        "100.0%",
        *_moved(profile.nbytes, profile.nbytes / profile.seconds),
        _share(profile.bandwidth_share, in_cache=False),
    )
    return table


def _kernel_row(kernel: "KernelTime") -> tuple[str, ...]:
    rate = "" if kernel.ops_s is None else f"{kernel.ops_s / 1e9:.1f} {kernel.arithmetic}"
    return (
        kernel.name,
        f"{kernel.calls:g}",
        _milliseconds(kernel.seconds),
        f"{kernel.share:.1%}",
        *_moved(kernel.nbytes, kernel.bytes_s),
        _share(kernel.bandwidth_share, in_cache=not kernel.weights),
        rate,
        ", ".join(kernel.weights),
    )


def _moved(nbytes: int, rate: float | None) -> tuple[str, str]:
    return f"{nbytes / 1e6:.2f} MB", "" if rate is None else f"{rate / 1e9:.2f}"


def _share(share: float | None, *, in_cache: bool) -> str:
    """A share of the memory's speed; more than all of it comes from a cache, where that may be.

    What a kernel reads was often just written. Weights are too many for that, but can be read in
    more places at once than the speed was measured in.
    """
    if share is None:
        return ""
    return "in cache" if in_cache and share > 1 else f"{share:.0%}"


def _speed(tok_s: float) -> str:
    return f"{tok_s:.0f}" if tok_s >= 1000 else f"{tok_s:.1f}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
