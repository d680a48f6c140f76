"""`mlc-compile tune`: measure the kernels of a model, here or elsewhere, and keep what wins."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mlc_compile.cli.console import Output, output_options, plain_table
from mlc_compile.cli.options import (
    ActivationType,
    Context,
    KVType,
    Model,
    OneTarget,
    PrefillChunk,
    TargetQuant,
    library_options,
    one_target,
    scheme_for,
)
from mlc_compile.cli.tune_view import opened, told
from mlc_compile.cli.values import duration
from mlc_compile.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from mlc_compile.driver.job import Options
    from mlc_compile.driver.tune import Request
    from mlc_compile.target import Target
    from mlc_compile.tune.events import Event
    from mlc_compile.tune.remote import Remote
    from mlc_compile.tune.result import TuneResult

DEFAULT_TIME: Final = "20m"


@output_options
def tune(
    output: Output,
    model: Model,
    *,
    target: OneTarget = None,
    quant: TargetQuant = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Maximum time: 90s, 20m, 1h.",
            show_default=f"{DEFAULT_TIME}; none with --trials",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum candidates to measure.", show_default="no limit"),
    ] = None,
    task: Annotated[
        str,
        typer.Option(
            metavar="PATTERN",
            help="Only kernels with this in their name; * and ? are wildcards.",
        ),
    ] = "*",
    seed: Annotated[int, typer.Option(help="The same seed draws the same candidates.")] = 0,
    rpc: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Measure on the devices of this RPC tracker: see `device-server`.",
            show_default="measure here",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="With --rpc: the key that the devices were given.")
    ] = None,
    context: Context = None,
    prefill_chunk: PrefillChunk = None,
    kv_dtype: KVType = None,
    activations: ActivationType = None,
) -> None:
    """Tune MODEL's kernels, here or over --rpc; later builds use whatever beat the defaults.

    Interrupt it at any time: what was found is kept, and the next run goes on from there.

    With --json, one event per line; the last is {"event": "result", ...}.
    """
    from mlc_compile.checkpoint import find_model
    from mlc_compile.driver.tune import Effort, Request

    row = one_target(target)
    effort = Effort(limit(time, trials), trials, task, seed)
    options = library_options(context, prefill_chunk, kv_dtype, activations)
    scheme, remote = scheme_for(quant, (row,)), devices(rpc, key)
    request = Request(find_model(model), row, scheme, options, effort, remote)
    result = tuned(output, request)
    if output.json:
        _line({"event": "result", "result": result})
    else:
        output.result(result, shown=_table(result))


def tune_first(
    output: Output,
    model: Path,
    targets: "tuple[Target, ...]",
    quant: str,
    options: "Options",
    time: str,
) -> None:
    """`build --tune TIME`: each target in an equal part of the time; told on stderr alone."""
    from mlc_compile.driver.tune import Effort, Request, require_here

    seconds = duration(time, "--tune") / len(targets)
    for row in targets:
        require_here(row)
    for row in targets:
        tuned(output, Request(model, row, quant, options, Effort(seconds)), lines=False)


def tuned(output: Output, request: "Request", *, lines: bool = True) -> "TuneResult":
    """Tune with a live view on stderr and, with `--json`, an event a line on stdout."""
    from mlc_compile.driver.tune import tune_model

    with opened(output) as view:

        def listen(event: "Event") -> None:
            view.take(event)
            if output.json and lines:
                _line(event)

        result = tune_model(request, output.cache_dir, listen)
    for text in _story(result):
        output.story(text)
    return result


def devices(rpc: str | None, key: str | None) -> "Remote | None":
    """Where `--rpc` and `--key` say to measure; None: here."""
    if rpc is None and key is None:
        return None
    if rpc is None or key is None:
        given, missing = ("--key", "--rpc") if rpc is None else ("--rpc", "--key")
        raise ConfigError(
            f"{given} needs {missing} too", hint="for example --rpc 10.0.0.7:9190 --key pi5"
        )
    from mlc_compile.tune.remote import Remote
    from mlc_compile.tune.rpc.tracker import address

    return Remote(address(rpc, "--rpc"), key)


def limit(time: str | None, trials: int | None) -> float | None:
    """Seconds to tune for; None where trials alone are the limit."""
    if time is None and trials is not None:
        return None
    return duration(time or DEFAULT_TIME, "--time")


def _line(value: object) -> None:
    """One JSON object on a line of its own, at once."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def _story(result: "TuneResult") -> "list[str]":
    faster = ", ".join(f"{name} {gain:.3f} times" for name, gain in result.gains.items())
    rank = (
        ""
        if result.correlation is None
        else (f"; predicted and measured costs correlate by rank with {result.correlation:.2f}")
    )
    failed = ", ".join(f"{kind}: {count}" for kind, count in sorted(result.errors.items()))
    roof = result.roof
    each = f", {result.seconds_per_trial:.2f} s each" if result.trials else ""
    lines = [
        f"{result.trials} trials in {result.seconds:.0f} s{each}{rank}",
        f"{result.records} new records; by its kernels' times the model is faster: {faster}",
    ]
    reads = [] if roof.bytes_s is None else [f"reads {roof.bytes_s / 1e9:.1f} GB/s"]
    peaks = [f"computes {rate / 1e9:.0f} GOP/s in {kind}" for kind, rate in roof.ops_s.items()]
    if reads or peaks:
        lines.append(f"at most, the machine {', '.join([*reads, *peaks])}")
    return [*lines, *([f"failed: {failed}"] if failed else [])]


def _table(result: "TuneResult") -> "Table":
    heads = (
        *("kernel", "calls", "share", "default", "best", "GB/s", "GOP/s", "of roof", "faster"),
        *("trials", "errors", "choice"),
    )
    table = plain_table(*heads, folding=["kernel", "choice"])
    for one in result.tasks:
        calls = ", ".join(f"{count} {name}" for name, count in sorted(one.calls.items()))
        choice = "" if one.choice is None else told(one.choice)
        table.add_row(
            one.name,
            calls,
            f"{one.share:.1%}",
            f"{one.default_microseconds:.0f} us",
            f"{one.microseconds:.0f} us",
            "" if one.bytes_s is None else f"{one.bytes_s / 1e9:.1f}",
            "" if one.ops_s is None else f"{one.ops_s / 1e9:.0f}",
            "" if one.roof_share is None else f"{one.roof_share:.0%} {one.bound}",
            f"{one.speedup:.3f} +- {one.noise:.3f}" if one.choice else "",
            f"{one.trials}",
            f"{one.errors}",
            choice or one.finding,
        )
    return table
