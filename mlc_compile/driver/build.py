"""`build`: everything for each target: convert once, then compile, pack and prove.

OUT/<model>-<quant>/weights/     neutral weights
OUT/<model>-<quant>/<target>/    library, packed weights, proof, report
"""

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from mlc_compile.artifact import (
    PACKED_WEIGHTS,
    PROOF,
    Check,
    Manifest,
    WeightsManifest,
    list_files,
    staged,
    write_manifest,
)
from mlc_compile.checkpoint import TensorCache
from mlc_compile.driver.compile import (
    DEFAULTS,
    Options,
    Subject,
    choose_activations,
    choose_limits,
    compile_into,
    read_subject,
)
from mlc_compile.driver.convert import convert
from mlc_compile.driver.pack import pack_weights
from mlc_compile.errors import TargetError
from mlc_compile.progress import SILENT, Progress
from mlc_compile.quant import find_scheme
from mlc_compile.target import Target
from mlc_compile.tvm_version import require_tvm

WEIGHTS: Final = "weights"


@dataclass(frozen=True, slots=True)
class Built:
    """One finished artifact."""

    directory: Path
    manifest: Manifest
    seconds: dict[str, float]


def build(
    model: Path,
    targets: tuple[Target, ...],
    quant: str,
    out: Path,
    options: Options = DEFAULTS,
    progress: Progress = SILENT,
) -> tuple[Built, ...]:
    """Build the model in `model` for each target under `out`; all that can fail early does.

    Raises what `convert` and `compile` raise, and TargetError where a library for this
    machine does not reproduce the reference logits; such an artifact is not left behind.
    """
    subject = read_subject(model)
    _check_requests(subject, targets, quant, options)
    home = out / f"{subject.name}-{quant}"
    start = time.perf_counter()
    weights = convert(model, quant, home / WEIGHTS, progress)
    converting = {"converting": time.perf_counter() - start}
    built: list[Built] = []
    for target in targets:
        artifact = _build_one(subject, target, (home, weights), options, progress, built)
        built.append(replace_seconds(artifact, converting))
    return tuple(built)


def replace_seconds(built: Built, more: dict[str, float]) -> Built:
    """The same artifact, its stages after `more`."""
    return Built(built.directory, built.manifest, {**more, **built.seconds})


def _check_requests(
    subject: Subject, targets: tuple[Target, ...], quant: str, options: Options
) -> None:
    """Fail before the long work: scheme, limits, TVM, activations and linkers."""
    find_scheme(quant)
    choose_limits(subject.config, options)
    require_tvm()
    from mlc_compile.emit.link import find_linker

    for target in targets:
        choose_activations(target, quant, options)
        find_linker(target)


def _build_one(
    subject: Subject,
    target: Target,
    source: tuple[Path, WeightsManifest],
    options: Options,
    progress: Progress,
    before: list[Built],
) -> Built:
    home, weights = source
    out = home / target.name
    with staged(out) as scratch:
        compiled = compile_into(scratch, subject, target, weights.quant, options, progress)
        seconds = dict(compiled.seconds)
        start = time.perf_counter()
        _put_weights(compiled.manifest, home, scratch, progress, before)
        shutil.copyfile(home / WEIGHTS / PROOF, scratch / PROOF)
        manifest = replace(
            compiled.manifest, weights_digest=weights.digest, files=list_files(scratch)
        )
        write_manifest(scratch, manifest)
        seconds["packing"] = time.perf_counter() - start
        start = time.perf_counter()
        progress.step("proving")
        manifest = replace(manifest, check=prove(scratch, target))
        write_manifest(scratch, manifest)
        seconds["proving"] = time.perf_counter() - start
    return Built(out, manifest, seconds)


def _put_weights(
    manifest: Manifest, home: Path, scratch: Path, progress: Progress, before: list[Built]
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
    """Replay the proof in a process of its own: this one has the compiler's TVM loaded."""
    command = [sys.executable, "-m", "mlc_compile.bench.verify", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise TargetError(
            f"the library for {target.name} cannot replay its proof: {words}",
            hint="report it with the output of `mlc-compile doctor`",
        )
    check = msgspec.json.decode(done.stdout, type=Check)
    if check.status == "fail":
        raise TargetError(
            f"the library for {target.name} computes wrong logits: {check.reason}",
            hint="report it with the output of `mlc-compile doctor`",
        )
    return check
