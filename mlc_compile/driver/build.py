"""`build`: everything for each target: convert once, then compile, pack and prove.

OUT/<model>-<quant>/weights/     neutral weights
OUT/<model>-<quant>/<target>/    library, packed weights, proof, report
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from mlc_compile.artifact import (
    PACKED_WEIGHTS,
    PROOF,
    Check,
    Manifest,
    WeightsManifest,
    list_files,
    refuse_foreign,
    staged,
    write_manifest,
)
from mlc_compile.bench.child import ask
from mlc_compile.checkpoint import TensorCache
from mlc_compile.driver.clock import Clock
from mlc_compile.driver.compile import DEFAULTS, Job, Options, compile_into, prepare, write_log
from mlc_compile.driver.convert import convert_subject
from mlc_compile.driver.pack import pack_weights
from mlc_compile.driver.subject import read_subject, require_weights
from mlc_compile.errors import ConfigError, TargetError
from mlc_compile.progress import SILENT, Progress
from mlc_compile.quant import find_scheme
from mlc_compile.target import Target

WEIGHTS: Final = "weights"


@dataclass(frozen=True, slots=True)
class Built:
    """One finished artifact, and the seconds of its own stages."""

    directory: Path
    manifest: Manifest
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Build:
    """All artifacts of one call; `seconds` are of what they share: the converting."""

    artifacts: tuple[Built, ...]
    seconds: Mapping[str, float]


def build(
    model: Path,
    targets: tuple[Target, ...],
    quant: str,
    out: Path,
    options: Options = DEFAULTS,
    progress: Progress = SILENT,
) -> Build:
    """Build the model in `model` for each target under `out`; all that can fail early does.

    Raises what `convert` and `compile` raise, and TargetError where a library for this
    machine does not reproduce the reference logits; such an artifact is not left behind.
    """
    find_scheme(quant)
    clock = Clock(progress)
    with clock.timed("converting"):
        progress.step("reading the checkpoint")
        subject = read_subject(model)
        require_weights(subject)
    home = out / f"{subject.name}-{quant}"
    for place in (out, home):
        _refuse_file(place)
    jobs = [prepare(subject, target, quant, options) for target in targets]
    for name in (WEIGHTS, *(target.name for target in targets)):
        refuse_foreign(home / name)
    with clock.timed("converting"):
        weights = convert_subject(subject, quant, home / WEIGHTS, progress)
    built: list[Built] = []
    for job in jobs:
        built.append(_build_one(job, home, weights, clock, built))
    return Build(tuple(built), clock.seconds)


def _refuse_file(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise ConfigError(
            f"{directory} is a file, builds go into a directory",
            hint="choose another directory with -o",
        )


def _build_one(
    job: Job, home: Path, weights: WeightsManifest, shared: Clock, before: Sequence[Built]
) -> Built:
    out, clock = home / job.target.name, Clock(shared.progress)
    with staged(out) as scratch:
        compiled = compile_into(scratch, job, clock)
        with clock.timed("packing"):
            _put_weights(compiled, home, scratch, clock.progress, before)
            shutil.copyfile(home / WEIGHTS / PROOF, scratch / PROOF)
            manifest = replace(compiled, weights_digest=weights.digest, files=list_files(scratch))
            write_manifest(scratch, manifest)
        with clock.stage("proving"):
            manifest = replace(manifest, check=prove(scratch, job.target))
            write_manifest(scratch, manifest)
        times = {"seconds": clock.seconds, "shared_seconds": shared.seconds}
        write_log(scratch, manifest, times)
    return Built(out, manifest, clock.seconds)


def _put_weights(
    manifest: Manifest, home: Path, scratch: Path, progress: Progress, before: Sequence[Built]
) -> None:
    """Pack, or link to what an earlier target of this build packed by the same plan."""
    twin = next((b for b in before if b.manifest.plan_digest == manifest.plan_digest), None)
    if twin is None:
        pack_weights(manifest.plan, TensorCache(home / WEIGHTS), scratch, progress)
        return
    packed = twin.directory / PACKED_WEIGHTS
    try:
        (scratch / PACKED_WEIGHTS).hardlink_to(packed)
    except OSError:  # a file system without hard links
        shutil.copyfile(packed, scratch / PACKED_WEIGHTS)


def prove(directory: Path, target: Target) -> Check:
    """Replay the proof in a process of its own: this one has the compiler's TVM loaded.

    Raises TargetError where a library computes other logits, and what replaying raises.
    """
    doing = f"replaying the proof of {target.name}"
    check = ask("mlc_compile.bench.verify", Check, doing, arguments=[str(directory)])
    if check.status == "fail":
        raise TargetError(
            f"the artifact for {target.name} computes wrong logits: {check.told()}",
            hint="report it with the output of `mlc-compile doctor`",
        )
    return check
