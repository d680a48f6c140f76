"""`compile`: a model's config becomes a library for one target. Needs no weights.

Three stages, each timed: importing (config to Relax), optimizing (the phases of
`pipeline`), generating code (LLVM and the linker).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from mlc_compile import __version__
from mlc_compile.artifact import (
    BUILD_LOG,
    REPORT,
    Activations,
    Check,
    FlatKV,
    Library,
    LibraryCheck,
    Limits,
    Manifest,
    Versions,
    WeightPlan,
    list_files,
    pretty_json,
    staged,
    write_manifest,
)
from mlc_compile.driver.budget import Asked, fit
from mlc_compile.driver.clock import Clock
from mlc_compile.driver.limits import limits_for
from mlc_compile.driver.optimize import optimize
from mlc_compile.driver.subject import Subject, read_subject
from mlc_compile.driver.texts import write_texts
from mlc_compile.emit.backend import device_compiler, emitter_of, require_emitter
from mlc_compile.emit.binary import can_read
from mlc_compile.emit.check_library import check_library
from mlc_compile.emit.link import Linker, find_linker
from mlc_compile.errors import ConfigError, TargetError
from mlc_compile.model.config import Qwen3Config
from mlc_compile.progress import SILENT, Progress
from mlc_compile.quant import find_scheme, has_codes
from mlc_compile.target import INT8_DOT_FEATURES, KVKind, Target
from mlc_compile.tvm_version import PINS, require_tvm

if TYPE_CHECKING:
    from tvm import IRModule

    from mlc_compile.emit.cuda_resources import Resources
    from mlc_compile.passes.events import Event
    from mlc_compile.passes.plan_memory import FunctionMemory
    from mlc_compile.pipeline import Plan
    from mlc_compile.report.compilation import Compilation, Recorder

# Tokens of a KV page. Flat: a row of the transposed keys is one cache line of float16, and
# little is read past the last token. TVM's: what MLC's and web-llm's runtimes pass.
PAGES: Final[dict[KVKind, int]] = {"flat": 32, "tvm_paged": 16}
KVDtype = Literal["float16", "float32"]
ACTIVATIONS: Final[dict[str, Activations]] = {"int8": "int8", "float32": "float32"}
KV_DTYPES: Final[dict[str, KVDtype]] = {"float16": "float16", "float32": "float32"}


@dataclass(frozen=True, slots=True)
class Options:
    """What a person may decide about a library beyond model, scheme and target."""

    context: int | None = None  # tokens; by default 4096, or the model's limit if lower
    prefill_chunk: int | None = None  # tokens a prefill call takes at most
    kv_dtype: KVDtype | None = None  # by default what the scheme stores norms in
    activations: Activations | None = None  # by default int8 where the target can
    memory_budget: int | None = None  # bytes that generating may take; it then decides the limits
    disabled: tuple[str, ...] = ()  # passes to leave out, as passes.catalog.check_disabled gives


DEFAULTS: Final = Options()


@dataclass(frozen=True, slots=True)
class Job:
    """An artifact to make, and all that was decided about it."""

    subject: Subject
    target: Target
    quant: str
    limits: Limits
    kv: FlatKV
    activations: Activations
    linker: Linker
    device_compiler: str
    disabled: tuple[str, ...] = ()  # passes to leave out


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
    resources: "tuple[Resources, ...]"
    compilation: "Compilation"


def compile_model(
    model: Path,
    target: Target,
    quant: str,
    out: Path,
    options: Options = DEFAULTS,
    progress: Progress = SILENT,
) -> Compiled:
    """Compile the model in `model` for `target` into the artifact directory `out`, without weights.

    Raises ConfigError (scheme, limits), CheckpointError, TargetError (no linker, wrong TVM,
    over the memory budget).
    """
    find_scheme(quant)
    job = prepare(read_subject(model), target, quant, options)
    clock = Clock(progress)
    with staged(out) as scratch:
        manifest = compile_into(scratch, job, clock)
        write_manifest(scratch, manifest)
        write_log(scratch, manifest, {"seconds": clock.seconds, "pass_seconds": clock.passes})
    return Compiled(manifest, clock.seconds)


def prepare(subject: Subject, target: Target, quant: str, options: Options) -> Job:
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
    )
    if options.memory_budget is None:
        return job
    return dataclasses.replace(job, limits=_limits_within(job, options))


def _limits_within(job: Job, options: Options) -> Limits:
    """The largest limits that the memory budget has room for."""
    assert options.memory_budget is not None
    asked = Asked(
        budget=options.memory_budget,
        context=options.context,
        prefill_chunk=options.prefill_chunk,
        max_context=job.subject.config.max_context,
    )

    def lowered(row: Target, limits: Limits) -> "tuple[IRModule, Plan]":
        return import_model(dataclasses.replace(job, limits=limits), row)

    return fit(asked, job.kv, job.target.libraries, lowered)


def compile_into(directory: Path, job: Job, clock: Clock) -> Manifest:
    """Write libraries, texts and report into an existing directory; weights are not looked at."""
    made = [_compile_one(directory, job, row, clock) for row in job.target.libraries]
    subject = job.subject
    write_texts(
        subject.directory, subject.config, subject.tokenizer, job.quant, directory, job.limits
    )
    manifest = _manifest(job, made)
    _write_report(directory, manifest, made)
    return msgspec.structs.replace(manifest, files=list_files(directory))


def write_log(directory: Path, manifest: Manifest, times: Mapping[str, object]) -> None:
    """`build-log.json`: the one file that differs between two builds of the same thing."""
    log = {**times, "linker": manifest.linker, "versions": manifest.versions}
    (directory / BUILD_LOG).write_bytes(pretty_json(log))


def require_code(target: Target) -> None:
    """TargetError if the installed TVM writes no code for the target's CPU: LLVM only warns."""
    for row in target.libraries:
        emitter_of(row).tvm_target(row)


def require_float16(target: Target, quant: str) -> None:
    """TargetError if `quant` stores float16 and the target's device has none."""
    device = target.device
    if device is not None and not device.f16 and find_scheme(quant).norm_dtype == "float16":
        raise TargetError(
            f"target {target.name} has no float16, in which scheme {quant} stores its scales",
            hint=f"use --quant {target.quant}",
        )


def choose_kv(config: Qwen3Config, target: Target, quant: str, options: Options) -> FlatKV:
    """The cache's shape; its type follows the scheme's precision unless it is asked for."""
    return FlatKV(
        layers=config.num_hidden_layers,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        page=PAGES[target.kv],
        dtype=options.kv_dtype or find_scheme(quant).norm_dtype,
    )


def choose_activations(target: Target, quant: str, options: Options) -> Activations:
    """int8 where weights are integers and the target multiplies such, or what is asked for.

    Raises ConfigError or TargetError if int8 is asked for and one of them is not so.
    """
    if not has_codes(find_scheme(quant)):
        if options.activations == "int8":
            raise ConfigError(
                f"scheme {quant} has no integers to multiply int8 activations by",
                hint="use --activations float32, or a q4 scheme",
            )
        return "float32"
    able = all(row.int8_dot for row in target.libraries)
    if options.activations == "int8" and not able:
        raise TargetError(
            f"target {target.name} has no int8 dot product: "
            f"it needs {' or '.join(INT8_DOT_FEATURES)}",
            hint="use --activations float32, or a target with one (see `mlc-compile targets`)",
        )
    return options.activations or ("int8" if able else "float32")


def _compile_one(directory: Path, job: Job, row: Target, clock: Clock) -> Generated:
    """Write the library of one row: the target itself, or a variant of it."""
    mod, plan = _import(job, row, clock)
    recorder = _recorder(job)
    mod = _optimize(mod, plan, clock, recorder)
    resources = _generate(mod, row, job.linker, directory / row.library, clock)
    from mlc_compile.emit.cuda import spill_events
    from mlc_compile.passes import events, plan_memory
    from mlc_compile.passes.bind_weights import read_plan

    return Generated(
        plan=read_plan(mod),
        memory=plan_memory.read(mod),
        events=(*events.read(mod), *spill_events(resources)),
        linked=check_library(directory / row.library, row) if can_read() else None,
        resources=resources,
        compilation=recorder.compilation(),
    )


def _recorder(job: Job) -> "Recorder":
    from mlc_compile.report.compilation import Recorder

    return Recorder(job.kv, job.limits)


def _import(job: Job, row: Target, clock: Clock) -> "tuple[IRModule, Plan]":
    with clock.stage("importing"):
        return import_model(job, row)


def import_model(job: Job, row: Target) -> "tuple[IRModule, Plan]":
    """The model as a module, and the plan of its passes."""
    from mlc_compile.model.qwen3 import export
    from mlc_compile.pipeline import Plan

    config = job.subject.config
    mod, names = export(config, tied=config.tie_word_embeddings)
    facts = (
        ("model_type", "qwen3"),
        ("quantization", job.quant),
        ("context_window_size", job.limits.context),
        ("prefill_chunk_size", job.limits.prefill_chunk),
        ("kv_state_kind", row.kv),
    )
    plan = Plan(row, job.quant, job.kv, job.limits, names, config.rope, job.activations, facts)
    return mod, dataclasses.replace(plan, disabled=job.disabled)


def _optimize(mod: "IRModule", plan: "Plan", clock: Clock, recorder: "Recorder") -> "IRModule":
    with clock.stage("optimizing"), emitter_of(plan.target).tvm_target(plan.target):
        from mlc_compile.schedule.limits import require_limits

        optimized = optimize(mod, plan, clock, (recorder,))
        require_limits(optimized, plan.target)
        return optimized


def _generate(
    mod: "IRModule", row: Target, linker: Linker, out: Path, clock: Clock
) -> "tuple[Resources, ...]":
    with clock.stage("generating code"):
        if note := linker.slow_start():
            clock.progress.step(note)
        return emitter_of(row).emit(mod, row, linker, out)


def _manifest(job: Job, made: Sequence[Generated]) -> Manifest:
    plan = made[0].plan
    digest = plan.digest()
    # Libraries of one artifact read one file of weights.
    assert all(one.plan.digest() == digest for one in made)
    return Manifest(
        model=job.subject.name,
        quant=job.quant,
        target=job.target.name,
        backend=job.target.backend,
        triple=job.target.triple,
        linker=job.linker.name,
        device_compiler=job.device_compiler,
        versions=Versions(
            mlc_compile=__version__, tvm=PINS["apache-tvm"], tvm_ffi=PINS["apache-tvm-ffi"]
        ),
        libraries=tuple(
            Library(path=row.library, requires=row.requires, priority=i, linked=one.linked)
            for i, (row, one) in enumerate(zip(job.target.libraries, made, strict=True))
        ),
        limits=job.limits,
        activations=job.activations,
        kv=job.kv,
        kv_kind=job.target.kv,
        vocab_size=job.subject.config.vocab_size,
        plan=plan,
        plan_digest=digest,
        activation_bytes=max(one.planned_bytes for one in _functions(made)),
        files=(),
        check=Check(status="not run", reason="a library without weights"),
    )


def _write_report(directory: Path, manifest: Manifest, made: Sequence[Generated]) -> None:
    from mlc_compile.report.summary import summarize

    events = dict.fromkeys(event for one in made for event in one.events)
    best = made[-1]
    report = summarize(manifest, _functions(made), events, best.compilation, best.resources)
    (directory / REPORT).write_bytes(pretty_json(report))


def _functions(made: Sequence[Generated]) -> "list[FunctionMemory]":
    """The memory of each function, in the library where it holds most."""
    most: dict[str, FunctionMemory] = {}
    for found in (memory for one in made for memory in one.memory):
        known = most.get(found.name)
        if known is None or known.planned_bytes < found.planned_bytes:
            most[found.name] = found
    return list(most.values())
