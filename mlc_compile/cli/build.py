"""`mlc-compile build`: a checkpoint to finished artifacts, one per target."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlc_compile.cli.console import Output, output_options, timings
from mlc_compile.cli.options import (
    CACHE_SIZE,
    ActivationType,
    CacheSize,
    Context,
    DisabledPasses,
    DumpIR,
    KVType,
    Locked,
    Lockfile,
    MemoryBudget,
    Model,
    NoCache,
    PrefillChunk,
    TargetQuant,
    Targets,
    Tune,
    UpdateLock,
    library_options,
    lock_of,
    open_records,
    open_store,
    scheme_for,
    targets_named,
)
from mlc_compile.cli.tune import tune_first
from mlc_compile.errors import ConfigError

if TYPE_CHECKING:
    from mlc_compile.artifact import Check, Manifest
    from mlc_compile.driver.build import Build


@output_options
def build(
    output: Output,
    model: Model,
    *,
    target: Targets = None,
    quant: TargetQuant = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Directory that holds all builds.")
    ] = Path("dist"),
    context: Context = None,
    prefill_chunk: PrefillChunk = None,
    kv_dtype: KVType = None,
    activations: ActivationType = None,
    memory_budget: MemoryBudget = None,
    disable_pass: DisabledPasses = None,
    dump_ir: DumpIR = None,
    no_cache: NoCache = False,
    locked: Locked = False,
    lockfile: Lockfile = None,
    update_lock: UpdateLock = False,
    cache_size: CacheSize = CACHE_SIZE,
    tune: Tune = None,
) -> None:
    """Convert MODEL, compile it for each target and pack its weights, then prove the result."""
    from mlc_compile.checkpoint import find_model
    from mlc_compile.driver.build import build as build_model
    from mlc_compile.driver.reuse import Reuse

    if no_cache and locked:
        raise ConfigError("--locked asks for the cache, --no-cache forbids it", hint="give one")
    if tune is not None and locked:
        raise ConfigError("--locked forbids changes, --tune makes some", hint="give one")
    lock = lock_of(lockfile, locked, update_lock)
    targets = targets_named(target)
    scheme = scheme_for(quant, targets)
    options = library_options(
        context, prefill_chunk, kv_dtype, activations, memory_budget, disable_pass
    )
    place, records = find_model(model), open_records(output.cache_dir)
    store = None if no_cache else open_store(output.cache_dir, cache_size)
    reuse = Reuse(store, locked, records=records)
    reuse.watch(place)  # before tuning, which may take hours, loads and reads anything
    if tune is not None:
        tune_first(output, place, targets, scheme, options, tune)
    try:
        with output.progress() as progress:
            reuse.progress = progress
            if dump_ir is not None:
                from mlc_compile.driver.dump import dump_ir as dump  # loads TVM

                dump(place, targets, scheme, dump_ir, options, progress, records)
            built = build_model(place, targets, scheme, out, options, progress, reuse, lock)
    finally:
        for note in reuse.notes:
            output.story(note)
    tuned = [tuned_kernels(one.directory) for one in built.artifacts]
    for line in story(built, tuned):
        output.story(line)
    if memory_budget is not None:
        for one in built.artifacts:
            output.story(f"{one.manifest.target}: {told_limits(one.manifest)} fit in the budget")
    result = [
        {
            "directory": str(one.directory),
            "target": one.manifest.target,
            "limits": one.manifest.limits,
            "seconds": one.seconds,
            "check": one.manifest.check,
            "cache": one.steps,
            "kernels": one.kernels,
            "tuned_kernels": by_records,
            "unchanged": one.unchanged,
        }
        for one, by_records in zip(built.artifacts, tuned, strict=True)
    ]
    value = {
        "seconds": built.seconds,
        "cache": {"weights": built.weights},
        "notes": built.notes,
        "artifacts": result,
    }
    output.result(value, "\n".join(str(one.directory) for one in built.artifacts))


def story(built: "Build", tuned: Sequence[int]) -> Iterator[str]:
    """The times of what is shared, then for each artifact its times, sources and proof.

    `tuned` is `tuned_kernels` of each artifact.
    """
    yield timings(built.seconds)
    yield f"weights: {built.weights}"
    for one, by_records in zip(built.artifacts, tuned, strict=True):
        target = one.manifest.target
        if one.seconds:
            yield f"{target}: {timings(one.seconds)}"
        sources = ", ".join(f"{step}: {outcome}" for step, outcome in one.steps.items())
        yield f"{target}: {sources}" + ("; nothing to write" if one.unchanged else "")
        if one.kernels:
            counts = ", ".join(f"{n} {outcome}" for outcome, n in one.kernels.items())
            yield f"{target}: kernels: {counts}"
        if by_records:
            yield f"{target}: kernels written as tuning records say: {by_records}"
        yield f"{target}: {told(one.manifest.check)}"


def tuned_kernels(artifact: Path) -> int:
    """How many kernels of an artifact a tuning record decided, by its report."""
    from mlc_compile.artifact import REPORT
    from mlc_compile.cli.inspect import Decisions
    from mlc_compile.runtime.defaults import read_fields

    made = read_fields(artifact, REPORT, Decisions).kernels
    return len({one.name for one in made if one.origin == "record"})


def told_limits(manifest: "Manifest") -> str:
    """The context and the prefill chunk, for people."""
    limits = manifest.limits
    return f"a context of {limits.context} tokens and a prefill chunk of {limits.prefill_chunk}"


def told(check: "Check") -> str:
    """How the proof ended: its error is one of logits, and so is the bound."""
    if check.max_abs_error is None:
        return f"proof {check.status} ({check.reason})" if check.reason else f"proof {check.status}"
    error = f"largest error of a logit {check.max_abs_error:.3g}, allowed {check.bound:.3g}"
    return f"proof {check.status}, {error}" + (f" ({check.reason})" if check.reason else "")
