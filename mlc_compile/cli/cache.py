"""`mlc-compile cache`: look into the build cache and the tuning records, check them, keep them
small, carry them elsewhere.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mlc_compile.cli.console import Output, output_options, plain_table
from mlc_compile.cli.options import (
    CACHE_SIZE,
    ActivationType,
    CacheSize,
    Context,
    DisabledPasses,
    KVType,
    MemoryBudget,
    Model,
    OldSizeToKeep,
    PrefillChunk,
    SizeToKeep,
    TargetQuant,
    Targets,
    library_options,
    open_records,
    open_store,
    scheme_for,
    targets_named,
)
from mlc_compile.cli.values import require_directory_of, size
from mlc_compile.errors import DamageError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from mlc_compile.cache import Store
    from mlc_compile.cache.check import Damaged
    from mlc_compile.driver.explain import Explained
    from mlc_compile.records import RecordStore
    from mlc_compile.records.summary import Summary

LONGEST: Final = 40  # characters of a component's value that people are shown whole
BEGINNING: Final = 12  # of a longer one: enough to tell digests apart


@output_options
def stats(output: Output, *, cache_size: CacheSize = CACHE_SIZE) -> None:
    """Show where the cache is, what it holds and its size limit."""
    from mlc_compile.cache.check import count
    from mlc_compile.records.summary import summarize

    store = _opened(output, cache_size)
    counts = count(store)
    total = sum(one.nbytes for one in counts)
    table = plain_table("level", "entries", "MiB")
    table.title = (
        f"directory  {store.cache_dir}\nsize       {_gib(total)} of {_gib(store.limit)} GiB"
    )
    for one in counts:
        table.add_row(one.level, str(one.entries), _mib(one.nbytes))
    tuned = summarize(open_records(output.cache_dir))
    value = {
        "directory": str(store.cache_dir),
        "nbytes": total,
        "limit": store.limit,
        "levels": counts,
        "records": tuned,
    }
    output.result(value, _with_records(table, tuned))


@output_options
def explain(
    output: Output,
    model: Model,
    *,
    target: Targets = None,
    quant: TargetQuant = None,
    context: Context = None,
    prefill_chunk: PrefillChunk = None,
    kv_dtype: KVType = None,
    activations: ActivationType = None,
    memory_budget: MemoryBudget = None,
    disable_pass: DisabledPasses = None,
) -> None:
    """Show for each step of a build whether it is a hit, or what differs from the nearest entry."""
    from mlc_compile.checkpoint import find_model
    from mlc_compile.driver.explain import explain as explain_build

    options = library_options(
        context, prefill_chunk, kv_dtype, activations, memory_budget, disable_pass
    )
    store, targets = _opened(output), targets_named(target)
    scheme = scheme_for(quant, targets)
    steps = explain_build(find_model(model), targets, scheme, options, store)
    for note in store.notes:
        output.story(note)
    lines = [line for step in steps for line in _lines(step)]
    output.result({"steps": steps}, "\n".join(lines))


@output_options
def verify(
    output: Output,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Remove what is damaged.")] = False,
) -> None:
    """Compare every file and record with its digest; exit code 6 if one is damaged."""
    from mlc_compile.cache.check import repair as remove

    store, records = _opened(output), open_records(output.cache_dir)
    total = len(store.directories())
    damaged = _damaged_entries(output, store)
    for one in damaged:
        output.story(f"{one.directory}: {one.reason}")
        if repair:
            remove(store, one.directory)
    lines = _damaged_lines(records)
    tuned = len(lines) + sum(len(one.records) for one in records.all())
    for line in lines:
        output.story(f"{line['file']}, line {line['line']}: {line['reason']}")
    if repair:
        records.compact()
    value = {
        "entries": total,
        "damaged": [{"entry": str(one.directory), "reason": one.reason} for one in damaged],
        "records": tuned,
        "damaged_records": lines,
        "repaired": repair,
    }
    removed = ", which were removed" if repair and damaged else ""
    told = f"{total} entries, {len(damaged)} damaged{removed}"
    if tuned:
        gone = ", which were removed" if repair and lines else ""
        told += f"; {tuned} tuning records, {len(lines)} damaged{gone}"
    output.result(value, told)
    if not repair:
        _require_sound(len(damaged), total, len(lines), tuned)


@output_options
def gc(
    output: Output,
    *,
    cache_size: SizeToKeep = CACHE_SIZE,
    max_size: OldSizeToKeep = None,
) -> None:
    """Remove least recently used entries until the cache fits --cache-size.

    Tuning records are kept, whatever their size, without those that are damaged or repeated.
    """
    limit = size(cache_size, "--cache-size") if max_size is None else size(max_size, "--max-size")
    removed = _opened(output).collect(limit)
    lines = open_records(output.cache_dir).compact()
    nbytes = sum(entry.nbytes for entry in removed)
    value = {
        "removed": [entry.key.digest for entry in removed],
        "nbytes": nbytes,
        "record_lines": lines,
    }
    told = f"; {lines} lines of tuning records" if lines else ""
    output.result(value, f"{len(removed)} entries removed, {_mib(nbytes)} MiB{told}")


@output_options
def export(
    output: Output,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="Bundle to write.")],
) -> None:
    """Write every sound entry and all tuning records into FILE, for another machine."""
    from mlc_compile.cache.bundle import export_entries

    require_directory_of(out, "FILE")
    store = _opened(output)
    total = len(store.directories())
    records = open_records(output.cache_dir)
    written = export_entries(store, out, records.files())
    tuned = sum(len(one.records) for one in records.all())
    held = f"{len(written)} entries" + (f" and {tuned} tuning records" if tuned else "")
    output.story(f"{held}, {_mib(out.stat().st_size)} MiB")
    if len(written) < total:
        left_out = total - len(written)
        output.story(f"{left_out} damaged were left out: see `mlc-compile cache verify`")
    digests = [entry.key.digest for entry in written]
    output.result({"file": str(out), "entries": digests, "records": tuned}, str(out))


@output_options
def import_(
    output: Output,
    bundle: Annotated[Path, typer.Argument(metavar="FILE", help="Bundle to read.")],
    *,
    cache_size: CacheSize = CACHE_SIZE,
) -> None:
    """Import entries and tuning records from FILE; nothing is imported if any of it is damaged.

    What the entries hold is run: import only what comes from somebody you trust.
    """
    from mlc_compile.cache.bundle import import_entries
    from mlc_compile.records import RecordStore

    store, records, merged = (
        _opened(output, cache_size),
        open_records(output.cache_dir),
        list[int](),
    )
    new = import_entries(store, bundle, lambda d: merged.append(records.merge(RecordStore(d))))
    for note in store.notes:
        output.story(note)
    value = {"entries": [e.key.digest for e in new], "records": sum(merged)}
    tuned = f", {sum(merged)} new tuning records" if sum(merged) else ""
    output.result(value, f"{len(new)} new entries{tuned}")


CACHE_COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "stats": stats,
    "explain": explain,
    "verify": verify,
    "gc": gc,
    "export": export,
    "import": import_,
}


def _opened(output: Output, cache_size: str = CACHE_SIZE) -> "Store":
    """The cache; EnvironmentError_ where something else lies in its place: none is no trouble."""
    store = open_store(output.cache_dir, cache_size)
    store.require()
    return store


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f}"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:,.1f}"


def _with_records(table: "Table", tuned: "Sequence[Summary]") -> "RenderableType":
    """Below the levels of the cache what was tuned, if anything was."""
    if not tuned:
        return table
    from rich.console import Group

    below = plain_table(
        "tuned target", "workloads", "records", "better", "best", folding=["tuned target"]
    )
    for one in tuned:
        best = f"{one.best_speedup:.2f}x" if one.best_speedup else "-"
        below.add_row(one.title, str(one.workloads), str(one.records), str(one.chosen), best)
    return Group(table, "", below)


def _damaged_entries(output: Output, store: "Store") -> "list[Damaged]":
    from mlc_compile.cache.check import check

    damaged = []
    with output.progress() as progress:
        progress.step("reading the cache", len(store.directories()))
        for _directory, found in check(store):
            progress.advance()
            if found is not None:
                damaged.append(found)
    return damaged


def _damaged_lines(records: "RecordStore") -> list[dict[str, str | int]]:
    return [
        {"file": str(records.path(held.digest)), "line": one.line, "reason": one.reason}
        for held in records.all()
        for one in held.dropped
    ]


def _require_sound(damaged: int, entries: int, lines: int, records: int) -> None:
    """DamageError that counts what is damaged."""
    if damaged:
        raise DamageError(
            f"{damaged} of {entries} entries of the cache are damaged",
            hint="run `mlc-compile cache verify --repair`; builds make them again",
        )
    if lines:
        raise DamageError(
            f"{lines} of {records} tuning records are damaged; the others count",
            hint="run `mlc-compile cache verify --repair`, and tune again what is missing",
        )


def _lines(step: "Explained") -> Sequence[str]:
    name = f"{step.target}: {step.step}" if step.target else step.step
    head = f"{name}: {step.outcome}" + (f", {step.reason}" if step.reason else "")
    differing = (
        f"  {d.component}: {_short(d.wanted)}, nearest entry {_short(d.nearest)}"
        for d in step.differences
    )
    return (head, *differing)


def _short(value: str | None) -> str:
    """A value for people: digests and lists of CPU features are cut."""
    if value is None:
        return "absent"
    return value if len(value) <= LONGEST else f"{value[:BEGINNING]}..."
