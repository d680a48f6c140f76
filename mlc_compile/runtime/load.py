"""Decide from the manifest alone whether an artifact may be loaded here, and which library.

Everything is checked before the library is touched: a library for another CPU or another
TVM would not fail with a message, it would crash.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from mlc_compile.artifact import (
    ALIGNMENT,
    PACKED_WEIGHTS,
    Library,
    Manifest,
    Part,
    WeightPlan,
    read_manifest,
)
from mlc_compile.errors import ConfigError, DamageError, TargetError, listing
from mlc_compile.target import Backend, missing_features, triple_mismatch
from mlc_compile.tvm_version import installed

FOR_HERE: Final = "build it for this machine with --target cpu"
ELSEWHERE: Final[dict[Backend, str]] = {"webgpu": "open it in a browser with mlc-compile web"}


@dataclass(frozen=True, slots=True)
class Loadable:
    """An artifact that passed every check, and the library to load."""

    directory: Path
    manifest: Manifest
    library: Library


def check_artifact(directory: Path) -> Loadable:
    """The artifact in `directory`, if this machine and this installation can run it.

    Raises ConfigError (not an artifact, or one without weights), TargetError (another CPU,
    system or TVM) and DamageError (files that are not what the manifest says).
    """
    manifest = read_manifest(directory, Manifest)
    library = choose_library(manifest)
    check_versions(manifest)
    check_weights(directory, manifest)
    return Loadable(directory, manifest, library)


def choose_library(manifest: Manifest) -> Library:
    """The library of highest priority that this CPU can run; TargetError if none."""
    return loadable_libraries(manifest)[0]


def loadable_libraries(manifest: Manifest) -> tuple[Library, ...]:
    """All that this CPU can run, that of highest priority first; TargetError if none."""
    mismatch = triple_mismatch(manifest.triple)
    if mismatch is not None:
        raise TargetError(
            f"this artifact cannot run here: {mismatch}",
            hint=ELSEWHERE.get(manifest.backend, FOR_HERE),
        )
    by_priority = sorted(manifest.libraries, key=lambda library: library.priority, reverse=True)
    lacking = {library: missing_features(library.requires) for library in by_priority}
    able = tuple(library for library, missing in lacking.items() if not missing)
    if able:
        return able
    fewest = min(lacking.values(), key=len)
    raise TargetError(
        f"this CPU lacks {listing(fewest)}, which target {manifest.target!r} requires",
        hint=FOR_HERE,
    )


def check_versions(manifest: Manifest) -> None:
    """TargetError unless the installed TVM is the one that built the library."""
    built_by = {"apache-tvm": manifest.versions.tvm, "apache-tvm-ffi": manifest.versions.tvm_ffi}
    for package, built in built_by.items():
        found = installed(package)
        if found != built:
            raise TargetError(
                f"the library was built by {package} {built}, but {found or 'none'} is installed",
                hint=f"rebuild the artifact, or pip install {package}=={built}",
            )


def check_weights(directory: Path, manifest: Manifest) -> None:
    """ConfigError if no weights were packed, DamageError if they or the plan disagree."""
    if manifest.weights_digest is None:
        raise ConfigError(
            f"{directory} holds a library without weights",
            hint=f"run `mlc-compile build MODEL --target {manifest.target}` to get both",
        )
    _check_plan(directory, manifest)
    sizes = {file.path: file.nbytes for file in manifest.files}
    if not manifest.plan.sharded:
        sizes[PACKED_WEIGHTS] = manifest.plan.nbytes
    for name, expected in sizes.items():
        _check_size(directory / name, expected)


def plan_parts(plan: WeightPlan) -> tuple[Part, ...]:
    """Every part of the plan in parameter order."""
    return tuple(part for tensor in plan.tensors for part in tensor.parts)


def _check_plan(directory: Path, manifest: Manifest) -> None:
    plan = manifest.plan
    if plan.digest() != manifest.plan_digest:
        raise DamageError(
            f"{directory}: the weight plan does not have the digest in its manifest",
            hint="rebuild the artifact",
        )
    for part in plan_parts(plan):
        fits = part.offset % ALIGNMENT == 0 and part.offset + part.nbytes <= plan.nbytes
        if not fits or part.nbytes != math.prod(part.shape) * np.dtype(part.dtype).itemsize:
            raise DamageError(
                f"{directory}: the plan of {part.name} contradicts itself",
                hint="rebuild the artifact",
            )


def _check_size(path: Path, expected: int) -> None:
    got = path.stat().st_size if path.is_file() else None
    if got != expected:
        what = "is missing" if got is None else f"has {got:,} bytes"
        raise DamageError(
            f"{path} must have {expected:,} bytes, but {what}", hint="rebuild the artifact"
        )
