"""`compile`: a model's config becomes a library for one target. Needs no weights.

Three stages, each timed: importing (config to Relax), optimizing (the phases of
`pipeline`), generating code (LLVM and the linker).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mlc_compile.artifact import (
    BUILD_LOG,
    REPORT,
    Check,
    Library,
    LibraryCheck,
    Limits,
    Manifest,
    WeightPlan,
    list_files,
    pretty_json,
    write_manifest,
)
from mlc_compile.driver.bindings import require_whole_cache, require_whole_weights
from mlc_compile.driver.budget import Asked, fit
from mlc_compile.driver.clock import Clock
from mlc_compile.driver.facts import facts_of, versions_for
from mlc_compile.driver.job import (
    DEFAULTS,
    Job,
    Options,
    Questions,
    choose_activations,
    choose_kv,
    choose_records,
    library_activations,
    require_float16,
    single_row,
)
from mlc_compile.driver.limits import limits_for
from mlc_compile.driver.optimize import optimize
from mlc_compile.driver.subject import Subject, read_subject
from mlc_compile.driver.texts import write_texts
from mlc_compile.emit.backend import Emitted, device_compiler, emitter_of, require_emitter
from mlc_compile.emit.link.binary import can_read
from mlc_compile.emit.link.check_library import check_library
from mlc_compile.emit.link.linker import Linker, find_linker
from mlc_compile.progress import SILENT, Progress
from mlc_compile.quant import find_scheme
from mlc_compile.records import RecordStore
from mlc_compile.staging import staged
from mlc_compile.target import Target
from mlc_compile.tvm_version import import_compiler, require_tvm

if TYPE_CHECKING:
    from tvm import IRModule

    from mlc_compile.passes.events import Event
    from mlc_compile.passes.plan_memory import FunctionMemory
    from mlc_compile.pipeline import Plan
    from mlc_compile.records import Workload
    from mlc_compile.report.compilation import Compilation, Recorder


@dataclass(frozen=True, slots=True)
class Compiled:
    """A finished artifact without weights: its manifest and the seconds of each stage."""

    manifest: Manifest
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Generated:
    """What is to be told of one library: a target with variants has several."""

    plan: WeightPlan
    memory: "tuple[FunctionMemory, ...]"
    events: "tuple[Event, ...]"
    linked: LibraryCheck | None
    emitted: Emitted
    compilation: "Compilation"
    asked: "tuple[Workload, ...]"  # of the tuning records


def compile_model(
    model: Path,
    target: Target,
    quant: str,
    out: Path,
    options: Options = DEFAULTS,
    progress: Progress = SILENT,
    records: RecordStore | None = None,
) -> Compiled:
    """Compile the model in `model` for `target` into the artifact directory `out`, without weights.

    Raises ConfigError (scheme, limits), CheckpointError, TargetError (no linker, wrong TVM,
    over the memory budget).
    """
    find_scheme(quant)
    job = prepare(read_subject(model), target, quant, options, records)
    clock = Clock(progress)
    with staged(out) as scratch:
        manifest, _questions = compile_into(scratch, job, clock)
        write_manifest(scratch, manifest)
        write_log(scratch, manifest, {"seconds": clock.seconds, "pass_seconds": clock.passes})
    return Compiled(manifest, clock.seconds)


def prepare(
    subject: Subject,
    target: Target,
    quant: str,
    options: Options,
    records: RecordStore | None = None,
) -> Job:
    """Decide everything; what can be refused before the long work is refused here."""
    require_tvm()
    require_emitter(target)
    require_float16(target, quant)
    job = Job(
        subject=subject,
        target=target,
        quant=quant,
        limits=limits_for(subject.config, options.context, options.prefill_chunk),
        kv=choose_kv(subject.config, target, quant, options),
        activations=choose_activations(target, quant, options),
        linker=find_linker(target),
        device_compiler=device_compiler(target),
        disabled=options.disabled,
        records=choose_records(target, records),
    )
    if options.memory_budget is not None:
        return within_budget(job, options)
    require_whole_cache(job.kv, job.limits, target)
    return job


def within_budget(job: Job, options: Options) -> Job:
    """`job` with the largest limits that the memory budget has room for, and with what finding
    them asked of the tuning records.
    """
    assert options.memory_budget is not None
    asked = Asked(
        budget=options.memory_budget,
        context=options.context,
        prefill_chunk=options.prefill_chunk,
        max_context=job.subject.config.max_context,
    )

    def lowered(row: Target, limits: Limits) -> "tuple[IRModule, Plan]":
        return import_model(dataclasses.replace(job, limits=limits), row)

    limits, questions = fit(asked, job.kv, job.target.libraries, lowered)
    require_whole_cache(job.kv, limits, job.target)
    return dataclasses.replace(job, limits=limits, questions=questions)


def compile_into(directory: Path, job: Job, clock: Clock) -> tuple[Manifest, Questions]:
    """Write libraries, texts and report into an existing directory; weights are not looked at.

    Beside the manifest comes back what was asked of the tuning records.
    """
    made = [_compile_one(directory, job, row, clock) for row in job.target.libraries]
    subject = job.subject
    write_texts(
        subject.directory, subject.config, subject.tokenizer, job.quant, directory, job.limits
    )
    manifest = _manifest(job, made)
    _write_report(directory, manifest, made)
    asked = {row.name: one.asked for row, one in zip(job.target.libraries, made, strict=True)}
    return msgspec.structs.replace(manifest, files=list_files(directory)), asked


def write_log(directory: Path, manifest: Manifest, times: Mapping[str, object]) -> None:
    """`build-log.json`: the one file that differs between two builds of the same thing."""
    log = {**times, "linker": manifest.linker, "versions": manifest.versions}
    (directory / BUILD_LOG).write_bytes(pretty_json(log))


def require_code(target: Target) -> None:
    """TargetError if the installed TVM writes no code for the target's CPU: LLVM only warns."""
    for row in target.libraries:
        emitter_of(row).tvm_target(row)


def _compile_one(directory: Path, job: Job, row: Target, clock: Clock) -> Generated:
    """Write the library of one row: the target itself, or a variant of it."""
    mod, plan = _import(job, row, clock)
    recorder = _recorder(job)
    mod = _optimize(mod, plan, clock, recorder)
    emitted = _generate(mod, row, job.linker, directory / row.library, clock)
    from mlc_compile.passes import events, plan_memory
    from mlc_compile.passes.bind_weights import read_plan
    from mlc_compile.schedule import tuned

    return Generated(
        plan=read_plan(mod),
        memory=plan_memory.read(mod),
        events=(*events.read(mod), *emitted.events),
        linked=check_library(directory / row.library, row) if can_read() else None,
        emitted=emitted,
        compilation=recorder.compilation(),
        asked=tuned.asked(mod),
    )


def _recorder(job: Job) -> "Recorder":
    from mlc_compile.report.compilation import Recorder

    return Recorder(job.kv, job.limits)


def _import(job: Job, row: Target, clock: Clock) -> "tuple[IRModule, Plan]":
    with clock.stage("importing"):
        return import_model(job, row)


def import_model(job: Job, row: Target) -> "tuple[IRModule, Plan]":
    """The model as a module, and the plan of its passes."""
    import_compiler()
    from mlc_compile.model.qwen3 import export
    from mlc_compile.pipeline import Plan

    config = job.subject.config
    mod, names = export(config, tied=config.tie_word_embeddings)
    facts = facts_of(job.quant, job.limits, row)
    activations = library_activations(row, job.activations)
    plan = Plan(row, job.quant, job.kv, job.limits, names, config.rope, activations, facts)
    return mod, dataclasses.replace(plan, disabled=job.disabled, records=job.chosen(row))


def _optimize(mod: "IRModule", plan: "Plan", clock: Clock, recorder: "Recorder") -> "IRModule":
    with clock.stage("optimizing"), emitter_of(plan.target).tvm_target(plan.target):
        from mlc_compile.passes.bind_weights import read_plan
        from mlc_compile.schedule.limits import require_limits

        optimized = optimize(mod, plan, clock, (recorder,))
        require_whole_weights(read_plan(optimized), plan.target)
        require_limits(optimized, plan.target)
        return optimized


def _generate(mod: "IRModule", row: Target, linker: Linker, out: Path, clock: Clock) -> Emitted:
    with clock.stage("generating code"):
        if note := linker.slow_start():
            clock.progress.step(note)
        return emitter_of(row).emit(mod, row, linker, out)


def _manifest(job: Job, made: Sequence[Generated]) -> Manifest:
    # Libraries of one artifact read the same weights.
    assert all(one.plan == made[0].plan for one in made)
    plan = msgspec.structs.replace(made[0].plan, sharded=job.target.page_runs)
    digest = plan.digest()
    return Manifest(
        model=job.subject.name,
        quant=job.quant,
        target=job.target.name,
        backend=job.target.backend,
        triple=job.target.triple,
        linker=job.linker.name,
        device_compiler=job.device_compiler,
        versions=versions_for(job.target),
        libraries=tuple(
            _library(job, i, row, one)
            for i, (row, one) in enumerate(zip(job.target.libraries, made, strict=True))
        ),
        limits=job.limits,
        activations=single_row(job.activations),
        kv=job.kv,
        kv_kind=job.target.kv,
        vocab_size=job.subject.config.vocab_size,
        plan=plan,
        plan_digest=digest,
        activation_bytes=max(one.planned_bytes for one in _functions(made)),
        files=(),
        check=Check(status="not run", reason="a library without weights"),
    )


def _library(job: Job, priority: int, row: Target, made: Generated) -> Library:
    many = library_activations(row, job.activations)
    one, default = single_row(many), single_row(job.activations)
    return Library(
        path=row.library,
        requires=row.requires,
        priority=priority,
        linked=made.linked,
        device=made.emitted.needs,
        activations=None if one == default else one,
        prompts=None if many == one else many,
    )


def _write_report(directory: Path, manifest: Manifest, made: Sequence[Generated]) -> None:
    from mlc_compile.report.summary import summarize

    events = dict.fromkeys(event for one in made for event in one.events)
    best = made[-1]
    report = summarize(manifest, _functions(made), events, best.compilation, best.emitted)
    (directory / REPORT).write_bytes(pretty_json(report))


def _functions(made: Sequence[Generated]) -> "list[FunctionMemory]":
    """The memory of each function, in the library where it holds most."""
    most: dict[str, FunctionMemory] = {}
    for found in (memory for one in made for memory in one.memory):
        known = most.get(found.name)
        if known is None or known.planned_bytes < found.planned_bytes:
            most[found.name] = found
    return list(most.values())
