"""`mlc-compile cache`: look into the build cache, check it, keep it small, carry it elsewhere."""

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
    MaxSize,
    MemoryBudget,
    Model,
    PrefillChunk,
    TargetQuant,
    Targets,
    library_options,
    open_store,
    scheme_for,
    size,
    targets_named,
)
from mlc_compile.errors import DamageError

if TYPE_CHECKING:
    from mlc_compile.cache import Store
    from mlc_compile.driver.explain import Explained

LONGEST: Final = 40  # characters of a component's value that people are shown whole
BEGINNING: Final = 12  # of a longer one: enough to tell digests apart
Bundle = Annotated[Path, typer.Argument(metavar="FILE", help="A file that holds entries.")]


@output_options
def stats(output: Output, *, cache_size: CacheSize = CACHE_SIZE) -> None:
    """Show where the cache is, what it holds and how much it may."""
    from mlc_compile.cache.check import count

    store = _opened(output, cache_size)
    counts = count(store)
    total = sum(one.nbytes for one in counts)
    table = plain_table("level", "entries", "MB")
    for one in counts:
        table.add_row(one.level, str(one.entries), f"{one.nbytes / 1e6:,.1f}")
    output.story(f"{store.cache_dir}: {total / 1e6:,.1f} MB of {store.limit / 1e6:,.1f}")
    value = {
        "directory": str(store.cache_dir),
        "nbytes": total,
        "limit": store.limit,
        "levels": counts,
    }
    output.result(value, table)


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
    """Say for each step of a build whether it is a hit, or what differs from the nearest entry."""
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
    """Compare every file of the cache with its digest; exit code 6 if one is damaged."""
    from mlc_compile.cache.check import check
    from mlc_compile.cache.check import repair as remove

    store = _opened(output)
    total = len(store.directories())
    with output.progress() as progress:
        progress.step("reading the cache", total)
        damaged = []
        for _directory, found in check(store):
            progress.advance()
            if found is not None:
                damaged.append(found)
    for one in damaged:
        output.story(f"{one.directory}: {one.reason}")
        if repair:
            remove(store, one.directory)
    value = {
        "entries": total,
        "damaged": [{"entry": str(one.directory), "reason": one.reason} for one in damaged],
        "repaired": repair,
    }
    removed = ", which were removed" if repair and damaged else ""
    output.result(value, f"{total} entries, {len(damaged)} damaged{removed}")
    if damaged and not repair:
        raise DamageError(
            f"{len(damaged)} of {total} entries of the cache are damaged",
            hint="run `mlc-compile cache verify --repair`; builds make them again",
        )


@output_options
def gc(
    output: Output,
    *,
    max_size: MaxSize = CACHE_SIZE,
) -> None:
    """Remove what served least recently until the rest is small enough."""
    removed = _opened(output).collect(size(max_size, "--max-size"))
    nbytes = sum(entry.nbytes for entry in removed)
    value = {"removed": [entry.key.digest for entry in removed], "nbytes": nbytes}
    output.result(value, f"{len(removed)} entries removed, {nbytes / 1e6:,.1f} MB")


@output_options
def export(output: Output, out: Bundle) -> None:
    """Write every sound entry into FILE, for another machine."""
    from mlc_compile.cache.bundle import export_entries

    store = _opened(output)
    total = len(store.directories())
    written = export_entries(store, out)
    output.story(f"{len(written)} entries, {out.stat().st_size / 1e6:,.1f} MB")
    if len(written) < total:
        left_out = total - len(written)
        output.story(f"{left_out} damaged were left out: see `mlc-compile cache verify`")
    output.result({"file": str(out), "entries": [e.key.digest for e in written]}, str(out))


@output_options
def import_(output: Output, bundle: Bundle, *, cache_size: CacheSize = CACHE_SIZE) -> None:
    """Take the entries of FILE in: all, or none where one byte is wrong."""
    from mlc_compile.cache.bundle import import_entries

    store = _opened(output, cache_size)
    new = import_entries(store, bundle)
    for note in store.notes:
        output.story(note)
    output.result({"entries": [e.key.digest for e in new]}, f"{len(new)} new entries")


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
