"""`build`: everything for each target: convert once, then compile, pack and prove.

OUT/<model>-<quant>/weights/     neutral weights
OUT/<model>-<quant>/<target>/    library, packed weights, proof, report

Each of the four steps comes from the cache where nothing changed. If all do and the output
holds the result already, nothing is written, and no step imports TVM.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from mlc_compile.artifact import (
    MANIFEST,
    PROOF,
    File,
    Manifest,
    WeightsManifest,
    describe,
    read_manifest,
    write_manifest,
)
from mlc_compile.checkpoint import TensorCache
from mlc_compile.driver.clock import Clock
from mlc_compile.driver.compile import compile_into, require_code, write_log
from mlc_compile.driver.convert import convert_into
from mlc_compile.driver.decide import decide
from mlc_compile.driver.files import link_file, make_plain
from mlc_compile.driver.job import DEFAULTS, Job, Options
from mlc_compile.driver.keys import Keys
from mlc_compile.driver.lockfile import Lock
from mlc_compile.driver.pack import pack_weights, packed_files
from mlc_compile.driver.prove import known_check, proven
from mlc_compile.driver.questions import asking
from mlc_compile.driver.reuse import Kernels, Outcome, Reuse
from mlc_compile.driver.subject import Subject, read_subject, require_weights
from mlc_compile.emit.keeper import kept_by
from mlc_compile.errors import ConfigError, MlcError
from mlc_compile.progress import SILENT, Progress
from mlc_compile.quant import find_scheme
from mlc_compile.staging import refuse_foreign, staged
from mlc_compile.target import Target

WEIGHTS: Final = "weights"


@dataclass(frozen=True, slots=True)
class Weights:
    """The neutral weights. `trusted`: this process wrote them or compared every byte."""

    directory: Path
    manifest: WeightsManifest
    outcome: Outcome
    trusted: bool


@dataclass(frozen=True, slots=True)
class Built:
    """One finished artifact, the seconds of its own stages, and where each step came from.

    `job` is what was decided, and says which tuning records count. `kernels` counts those of the
    library, if that was built, by where they came from.
    `unchanged`: it was there already, and nothing was written.
    """

    directory: Path
    job: Job
    manifest: Manifest
    seconds: Mapping[str, float]
    steps: Mapping[str, Outcome]
    kernels: Mapping[Outcome, int] = field(default_factory=dict)
    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class Build:
    """All artifacts of one call; `seconds` and `weights` are of what they share.

    `notes` are what went wrong with the cache, in sentences.
    """

    artifacts: tuple[Built, ...]
    seconds: Mapping[str, float]
    weights: Outcome
    notes: tuple[str, ...] = ()


def build(
    model: Path,
    targets: tuple[Target, ...],
    quant: str,
    out: Path,
    options: Options = DEFAULTS,
    progress: Progress = SILENT,
    reuse: Reuse | None = None,
    lock: Lock | None = None,
) -> Build:
    """Build the model in `model` for each target under `out`; all that can fail early does.

    Without `reuse` everything is made anew. Raises what `convert` and `compile` raise,
    TargetError where a library for this machine does not reproduce the reference logits (such
    an artifact is not left behind), DamageError where the cache lacks what it must have, or
    something is not as `lock` says.
    """
    find_scheme(quant)
    clock, reuse = Clock(progress), reuse or Reuse()
    reuse.watch(model)
    with clock.timed("converting"):
        progress.step("reading the checkpoint")
        subject = read_subject(model)
        require_weights(subject)
    home = out / f"{subject.name}-{quant}"
    for place in (out, home):
        _refuse_file(place)
    jobs = [decide(subject, target, quant, options, reuse) for target in targets]
    for name in (WEIGHTS, *(target.name for target in targets)):
        refuse_foreign(home / name)
    try:
        if lock is not None:
            lock.check(jobs, reuse)
        _require_code(jobs, reuse)
        with clock.timed("converting"):
            weights = _weights(subject, quant, home / WEIGHTS, reuse, progress)
        built: list[Built] = []
        for job in jobs:
            built.append(_build_one(job, home / job.target.name, weights, clock, reuse, built))
        if lock is not None:
            lock.settle([(one.job, one.manifest) for one in built], reuse)
    finally:
        reuse.close()
    return Build(tuple(built), clock.seconds, weights.outcome, reuse.notes)


def _refuse_file(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise ConfigError(
            f"{directory} is a file, builds go into a directory",
            hint="choose another directory with -o",
        )


def _require_code(jobs: Sequence[Job], reuse: Reuse) -> None:
    """Ask for the code generators of libraries that must be compiled; TargetError if one lacks.

    It loads TVM, so nothing is asked where all libraries are in the cache.
    """

    def is_made(job: Job) -> bool:
        return reuse.look_up(lambda keys: keys.library(job)) is not None

    for job in jobs:
        if not is_made(job):
            require_code(job.target)


def _weights(subject: Subject, quant: str, out: Path, reuse: Reuse, progress: Progress) -> Weights:
    with reuse.output(out), reuse.step(lambda keys: keys.weights(subject, quant)) as step:
        manifest = step.manifest(WeightsManifest)
        if manifest is not None and step.entry and reuse.is_intact(out, step.entry.files):
            return Weights(out, manifest, "cached", trusted=False)
        with staged(out) as scratch:
            if step.restore(scratch):
                manifest = read_manifest(scratch, WeightsManifest)
            else:
                manifest = convert_into(scratch, subject, quant, progress)
                step.keep(scratch, _with_manifest(scratch, manifest.files))
        reuse.trust(out, _with_manifest(out, manifest.files))
        return Weights(out, manifest, step.outcome, trusted=True)


def _build_one(
    job: Job, out: Path, weights: Weights, shared: Clock, reuse: Reuse, before: Sequence[Built]
) -> Built:
    clock, steps, kernels = Clock(shared.progress), dict[str, Outcome](), Kernels(reuse)
    with reuse.output(out):
        expected, sources = _expected(job, weights, reuse)
        if expected is not None and _holds(out, expected, reuse):
            return Built(out, job, expected, {}, sources, unchanged=True)
        with staged(out) as scratch:
            job, compiled, steps["library"] = _compile(scratch, job, clock, reuse, kernels)
            with clock.timed("packing"):
                packed, steps["packed"] = _pack(compiled, weights, scratch, clock, reuse, before)
                shutil.copyfile(weights.directory / PROOF, scratch / PROOF)
                _require_same(weights)
                manifest = finished(compiled, weights.manifest, packed)
                write_manifest(scratch, manifest)
            with clock.stage("proving"):
                check, steps["proof"] = proven(scratch, manifest, job.target, reuse)
                manifest = replace(manifest, check=check)
                write_manifest(scratch, manifest)
            times = {
                "seconds": clock.seconds,
                "pass_seconds": clock.passes,
                "shared_seconds": shared.seconds,
            }
            cached = {WEIGHTS: weights.outcome, **steps}
            counts = kernels.counts
            write_log(scratch, manifest, {**times, "cache": cached, "kernels": counts})
        reuse.trust(out, manifest.files)
    return Built(out, job, manifest, clock.seconds, steps, counts)


def _expected(
    job: Job, weights: Weights, reuse: Reuse
) -> tuple[Manifest | None, dict[str, Outcome]]:
    """The manifest of the finished artifact, and where its steps are from, if none is to be made.

    A proof that this machine cannot replay is not to be made either.
    """
    library = reuse.look_up(lambda keys: keys.library(job))
    compiled = reuse.manifest(library, Manifest)
    if compiled is None:
        return None, {}
    plan = compiled.plan_digest
    packed = reuse.look_up(lambda keys: keys.packed(weights.manifest.digest, plan))
    if packed is None:
        return None, {}
    manifest = finished(compiled, weights.manifest, packed.files)
    known = known_check(manifest, reuse)
    if known is None:
        return None, {}
    check, outcome = known
    return replace(manifest, check=check), {
        "library": "cached",
        "packed": "cached",
        "proof": outcome,
    }


def _holds(out: Path, expected: Manifest, reuse: Reuse) -> bool:
    """Whether `out` is that artifact, every file intact."""
    try:
        there = read_manifest(out, Manifest)
    except (MlcError, OSError):
        return False
    return there == expected and reuse.is_intact(out, expected.files)


def _compile(
    scratch: Path, job: Job, clock: Clock, reuse: Reuse, kernels: Kernels
) -> tuple[Job, Manifest, Outcome]:
    with asking(reuse, job, Keys.library) as step:
        if step.entry is not None:
            with clock.stage("restoring"):
                if step.restore(scratch):
                    return step.job, read_manifest(scratch, Manifest), step.outcome
        with kept_by(kernels):
            manifest, questions = compile_into(scratch, job, clock)
        write_manifest(scratch, manifest)
        make_plain(scratch, like=scratch / MANIFEST)
        step.learn(questions)
        step.keep(scratch, _with_manifest(scratch, manifest.files))
        return step.job, manifest, step.outcome


def _pack(
    manifest: Manifest,
    weights: Weights,
    scratch: Path,
    clock: Clock,
    reuse: Reuse,
    before: Sequence[Built],
) -> tuple[tuple[File, ...], Outcome]:
    """Pack, or link to what an earlier target of this build has by the same plan."""
    names = packed_files(manifest.plan)
    twin = next((b for b in before if b.manifest.plan_digest == manifest.plan_digest), None)
    if twin is not None:
        packed = tuple(file for file in twin.manifest.files if file.path in names)
        if all(link_file(file, twin.directory, scratch, reuse) for file in packed):
            return packed, twin.steps["packed"]
        for name in names:
            (scratch / name).unlink(missing_ok=True)
    plan = manifest.plan_digest
    with reuse.step(lambda keys: keys.packed(weights.manifest.digest, plan)) as step:
        if step.entry is not None:
            packed = step.entry.files
            clock.progress.step("restoring the packed weights")
            if step.restore(scratch):
                return packed, step.outcome
        tensors = TensorCache(weights.directory, verify=not weights.trusted)
        pack_weights(manifest.plan, tensors, scratch, clock.progress)
        _require_same(weights)
        packed = tuple(describe(scratch / name, name) for name in names)
        step.keep(scratch, packed)
        return packed, step.outcome


def _require_same(weights: Weights) -> None:
    """ConfigError if a parallel build put weights of another model there while we read ours."""
    if read_manifest(weights.directory, WeightsManifest) != weights.manifest:
        raise ConfigError(
            f"{weights.directory} was replaced by another build while this one read it",
            hint="build models of one name into different directories with -o",
        )


def finished(compiled: Manifest, weights: WeightsManifest, packed: tuple[File, ...]) -> Manifest:
    """The manifest with weights and proof, in the order of `list_files`."""
    proof = next(file for file in weights.files if file.path == PROOF)
    files = sorted((*compiled.files, *packed, proof), key=lambda file: Path(file.path))
    return replace(compiled, weights_digest=weights.digest, files=tuple(files))


def _with_manifest(directory: Path, files: tuple[File, ...]) -> tuple[File, ...]:
    return (*files, describe(directory / MANIFEST, MANIFEST))
