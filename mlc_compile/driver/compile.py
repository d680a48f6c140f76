"""`compile`: a model's config becomes a library for one target. Needs no weights.

Three stages, each timed: importing (config to Relax), optimizing (the phases of
`pipeline`), generating code (LLVM and the linker).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from mlc_compile import __version__
from mlc_compile.artifact import (
    BUILD_LOG,
    REPORT,
    Activations,
    Check,
    FlatKV,
    Library,
    Limits,
    Manifest,
    Versions,
    list_files,
    pretty_json,
    staged,
    write_manifest,
)
from mlc_compile.checkpoint import open_checkpoint, read_config, tokenizer_files
from mlc_compile.checkpoint.directory import CONFIG
from mlc_compile.driver.chat_config import default_limits
from mlc_compile.driver.tensors import check_tensors, decide_tie
from mlc_compile.driver.texts import write_texts
from mlc_compile.errors import CheckpointError, ConfigError, TargetError
from mlc_compile.model import load_config
from mlc_compile.model.config import Qwen3Config
from mlc_compile.model.weights import weight_specs
from mlc_compile.progress import SILENT, Progress
from mlc_compile.quant import find_scheme, has_codes
from mlc_compile.target import Target
from mlc_compile.tvm_version import PINS, require_tvm

if TYPE_CHECKING:
    from tvm import IRModule

    from mlc_compile.emit.link import Linker
    from mlc_compile.pipeline import Plan

# Tokens of a KV page: a row of the transposed keys is one cache line of float16, and little
# is read past the last token.
PAGE: Final = 32
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


DEFAULTS: Final = Options()


@dataclass(frozen=True, slots=True)
class Subject:
    """The model to compile, as far as `compile` must know it."""

    directory: Path
    config: Qwen3Config  # with the tie as the tensors, if any, decide it
    tokenizer: tuple[str, ...]  # files; empty where there is only a config

    @property
    def name(self) -> str:
        """The directory's name: how the model is called everywhere."""
        return self.directory.resolve().name


@dataclass(frozen=True, slots=True)
class Compiled:
    """A finished library: its manifest and the seconds of each stage."""

    manifest: Manifest
    seconds: dict[str, float]


@dataclass(slots=True)
class _Clock:
    """Seconds per stage, told to the listener as they begin."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.progress.step(name)
        start = time.perf_counter()
        yield
        took = time.perf_counter() - start
        self.seconds[name] = self.seconds.get(name, 0.0) + took


def read_subject(model: Path) -> Subject:
    """Config, tie and tokenizer of a model directory; weights are looked at only if present."""
    config = load_config(read_config(model), str(model / CONFIG))
    if any(model.glob("*.safetensors*")):
        checkpoint = open_checkpoint(model)
        config = replace(config, tie_word_embeddings=decide_tie(checkpoint))
        tied = config.tie_word_embeddings
        check_tensors(checkpoint, weight_specs(config, tied), tied=tied)
    try:
        tokenizer = tokenizer_files(model)
    except CheckpointError:
        tokenizer = ()  # a config alone can be compiled
    return Subject(model, config, tokenizer)


def compile_model(
    model: Path,
    target: Target,
    quant: str,
    out: Path,
    options: Options = DEFAULTS,
    progress: Progress = SILENT,
) -> Compiled:
    """Compile the model in `model` for `target` into the artifact directory `out`, without weights.

    Raises ConfigError (scheme, limits), CheckpointError, TargetError (no linker, wrong TVM).
    """
    with staged(out) as scratch:
        compiled = compile_into(scratch, read_subject(model), target, quant, options, progress)
        write_manifest(scratch, compiled.manifest)
    return compiled


def compile_into(
    directory: Path,
    subject: Subject,
    target: Target,
    quant: str,
    options: Options,
    progress: Progress,
) -> Compiled:
    """Write everything of an artifact but weights and manifest into an existing directory."""
    require_tvm()
    find_scheme(quant)
    limits = choose_limits(subject.config, options)
    kv = choose_kv(subject.config, quant, options)
    from mlc_compile.emit.link import find_linker

    linker = find_linker(target)
    clock = _Clock(progress)
    shape = (kv, limits, choose_activations(target, quant, options))
    for variant in target.libraries:
        mod, plan = _import(subject, variant, quant, shape, clock)
        mod, functions = _optimize(mod, plan, clock)
        _generate(mod, variant, linker, directory / variant.library, clock)
    write_texts(subject.directory, subject.config, subject.tokenizer, quant, directory, limits)
    manifest = _manifest(subject, target, plan, mod, functions, linker)
    _write_report(directory, manifest, mod, functions)
    log = {"seconds": clock.seconds, "linker": linker.name, "versions": manifest.versions}
    (directory / BUILD_LOG).write_bytes(pretty_json(log))
    from msgspec.structs import replace as with_fields

    return Compiled(with_fields(manifest, files=list_files(directory)), clock.seconds)


def choose_limits(config: Qwen3Config, options: Options) -> Limits:
    """The limits asked for, or the defaults cut to what the model can do."""
    context = options.context or default_limits(config).context
    chunk = options.prefill_chunk or min(default_limits(config).prefill_chunk, context)
    if context > config.max_context:
        raise ConfigError(
            f"context {context} is beyond the model's {config.max_context} tokens",
            hint="lower --context, or enable YaRN in config.json (rope_scaling)",
        )
    if chunk > context:
        raise ConfigError(
            f"prefill chunk {chunk} is larger than the context of {context} tokens",
            hint="lower --prefill-chunk",
        )
    return Limits(context=context, prefill_chunk=chunk)


def choose_kv(config: Qwen3Config, quant: str, options: Options) -> FlatKV:
    """The cache's shape; its type follows the scheme's precision unless it is asked for."""
    return FlatKV(
        layers=config.num_hidden_layers,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        page=PAGE,
        dtype=options.kv_dtype or find_scheme(quant).norm_dtype,
    )


def choose_activations(target: Target, quant: str, options: Options) -> Activations:
    """int8 where weights are integers and the target multiplies such, or what is asked for.

    Raises ConfigError or TargetError if int8 is asked for and one of them is not so.
    """
    from mlc_compile.schedule.kernels.dot import DOTS, dot_for

    if not has_codes(find_scheme(quant)):
        if options.activations == "int8":
            raise ConfigError(
                f"scheme {quant} has no integers to multiply int8 activations by",
                hint="use --activations float32, or a q4 scheme",
            )
        return "float32"
    dots = [dot_for(variant) for variant in target.libraries]
    possible: Activations = "float32" if None in dots else "int8"
    if options.activations == "int8" and possible == "float32":
        needs = " or ".join(d.feature for d in DOTS)
        raise TargetError(
            f"target {target.name} has no int8 dot product: it needs {needs}",
            hint="use --activations float32, or a target with one (see `mlc-compile targets`)",
        )
    return options.activations or possible


def _import(
    subject: Subject,
    target: Target,
    quant: str,
    shape: tuple[FlatKV, Limits, Activations],
    clock: _Clock,
) -> tuple["IRModule", "Plan"]:
    with clock.stage("importing"):
        from mlc_compile.model.qwen3 import export
        from mlc_compile.pipeline import Plan

        kv, limits, activations = shape
        mod, names = export(subject.config, tied=subject.config.tie_word_embeddings)
        facts = (
            ("model_type", "qwen3"),
            ("quantization", quant),
            ("context_window_size", limits.context),
            ("prefill_chunk_size", limits.prefill_chunk),
            ("kv_state_kind", target.kv),
        )
        return mod, Plan(target, quant, kv, limits, names, subject.config.rope, activations, facts)


def _optimize(mod: "IRModule", plan: "Plan", clock: _Clock) -> tuple["IRModule", dict[str, int]]:
    with clock.stage("optimizing"):
        from mlc_compile.emit.cpu import tvm_target
        from mlc_compile.pipeline import phases, planned_bytes

        functions: dict[str, int] = {}
        with tvm_target(plan.target):
            for phase in phases(plan):
                for step in phase.passes:
                    mod = step(mod)
                if phase.name == "memory":
                    functions = planned_bytes(mod)
        return mod, functions


def _generate(mod: "IRModule", target: Target, linker: "Linker", out: Path, clock: _Clock) -> None:
    with clock.stage("generating code"):
        from mlc_compile.emit.cpu import emit

        emit(mod, target, linker, out)


def _manifest(
    subject: Subject,
    target: Target,
    plan: "Plan",
    mod: "IRModule",
    functions: dict[str, int],
    linker: "Linker",
) -> Manifest:
    from mlc_compile.passes.bind_weights import read_plan

    weights = read_plan(mod)  # the same for all variants: they share layout and scheme
    return Manifest(
        model=subject.name,
        quant=plan.scheme,
        target=target.name,
        triple=target.triple,
        linker=linker.name,
        versions=Versions(
            mlc_compile=__version__, tvm=PINS["apache-tvm"], tvm_ffi=PINS["apache-tvm-ffi"]
        ),
        libraries=tuple(
            Library(path=row.library, requires=row.requires, priority=i)
            for i, row in enumerate(target.libraries)
        ),
        limits=plan.limits,
        activations=plan.activations,
        kv=plan.kv,
        vocab_size=subject.config.vocab_size,
        hidden_size=subject.config.hidden_size,
        plan=weights,
        plan_digest=weights.digest(),
        activation_bytes=max(functions.values()),
        files=(),
        check=Check(status="not run", reason="a library without weights"),
    )


def _write_report(
    directory: Path, manifest: Manifest, mod: "IRModule", functions: dict[str, int]
) -> None:
    from mlc_compile.passes import events
    from mlc_compile.report.summary import summarize

    report = summarize(manifest, functions, events.read(mod))
    (directory / REPORT).write_bytes(pretty_json(report))
