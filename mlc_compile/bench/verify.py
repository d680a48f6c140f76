"""Prove that an artifact is whole and computes what `convert` computed.

`python -m mlc_compile.bench.verify DIR` replays the proof alone and prints its `Check` as
JSON: `build` does so in a process that has not loaded the compiler.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from mlc_compile.artifact import (
    PROOF,
    Check,
    File,
    Library,
    Manifest,
    describe,
    read_manifest,
)
from mlc_compile.bench.child import serve
from mlc_compile.errors import DamageError, TargetError, listing
from mlc_compile.runtime.device import missing_device
from mlc_compile.runtime.engine import start_engine
from mlc_compile.runtime.load import (
    Loadable,
    check_versions,
    check_weights,
    loadable_libraries,
)
from mlc_compile.runtime.vm import start_tvm
from mlc_compile.target import missing_features

Floats = npt.NDArray[np.float32]
Outcome = Literal["pass", "fail", "not run"]


@dataclass(frozen=True, slots=True)
class Rounding:
    """The error of a product as a share of its size, and how many of those a layer has.

    One product reads the one before, so over all layers errors add up as a random walk, of
    which twice as much is allowed: Qwen3-0.6B and 1.7B with random weights measure 0.4 and 0.7
    of the walk, the trained examples 0.2. Few layers average little out, and a norm that raises
    some channels makes factors far from normal: hence `LEAST_SHARE`.
    """

    error: float
    products: int

    def share(self, layers: int) -> float:
        """The bound for a model of so many layers."""
        return max(LEAST_SHARE, 2 * self.error * math.sqrt(self.products * layers))


LEAST_SHARE: Final = 0.1  # one layer of random weights, 4 channels raised by 20, measures 0.066

# Of normally distributed factors. A group of 128 rounds activations by 6e-3 of their deviation
# and requantized weights by as much; with groups of 32, whose weights are exact, and with
# bfloat16 a product loses half. A head of an int8 cache is rounded as a group is; attention on
# tiles loses less, and only where products are on tiles too, whose bound has room for it.
PROJECTIONS: Final = Rounding(9e-3, products=4)  # q, k and v; o; gate and up; down
ATTENTION: Final = Rounding(6e-3, products=2)  # scores and weighted values

# Allowed |logit - reference| as a share of the largest |reference logit|, by dtype of the KV
# cache. Both sides compute in float32 from equal weights and differ in the order of their
# sums, which tens of layers spread to some 1e-5; a float16 cache rounds keys and values to
# 11 bits, 5e-4 each. A wrong kernel is off by a share near 1.
BOUNDS: Final = {"float32": 2e-4, "float16": 5e-3}


def allowed_share(manifest: Manifest, library: Library | None = None) -> float:
    """The bound for a library, or for whichever is loaded: that of its coarsest rounding."""
    kv = manifest.kv
    activations = manifest.activations if library is None else manifest.activations_of(library)
    projections = PROJECTIONS.share(kv.layers) if activations == "int8" else 0.0
    attention = ATTENTION.share(kv.layers) if kv.scaled else BOUNDS[kv.dtype]
    return max(projections, attention)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing looked at."""

    name: str
    status: Outcome
    detail: str = ""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """All findings, and the proof's numbers."""

    findings: tuple[Finding, ...]
    check: Check

    @property
    def failures(self) -> tuple[Finding, ...]:
        """Findings that failed."""
        return tuple(f for f in self.findings if f.status == "fail")


def verify(directory: Path) -> Verification:
    """Check files, versions, machine and proof, each even if one before failed.

    An artifact for another machine is not at fault: its proof is "not run". Raises only if
    there is no readable manifest.
    """
    manifest = read_manifest(directory, Manifest)
    findings = [*_files(directory, manifest), _versions(manifest)]
    if any(f.status == "fail" for f in findings):
        check = Check(status="not run", reason="the artifact failed before it could be loaded")
    else:
        check = _replayed(directory)
    proof = Finding(name="proof", status=check.status, detail=check.detail)
    return Verification(findings=(*findings, proof), check=check)


def replay_proof(directory: Path) -> Check:
    """Run the proof's prompt through each library that loads here; compare all logits.

    "not run", with the reason, if this machine cannot run any or no weights are packed. The
    reason of a pass names the libraries that it does not speak for.
    Raises TargetError (other TVM) and DamageError (files are not what they must be).
    """
    manifest = read_manifest(directory, Manifest)
    try:
        runnable = loadable_libraries(manifest)
    except TargetError as e:
        return Check(status="not run", reason=str(e))
    if manifest.weights_digest is None:
        return Check(status="not run", reason="a library without weights")
    check_versions(manifest)
    check_weights(directory, manifest)
    start_tvm()
    absent = missing_device(manifest.backend, runnable[0].device)
    if absent is not None:
        return Check(status="not run", reason=f"no device: {absent}")
    prompt, expected = read_proof(directory / PROOF)
    room = (
        manifest.limits.context
    )  # a shorter context proves the start: later tokens change nothing
    prompt, expected = prompt[:room], expected[:room]
    checks = {}
    for library in runnable:
        engine = start_engine(Loadable(directory, manifest, library))
        got = np.concatenate(list(engine.score(prompt)))
        checks[library.path] = compare(got, expected, allowed_share(manifest, library))
    return summed_up(checks, [one for one in manifest.libraries if one not in runnable])


def summed_up(checks: Mapping[str, Check], others: Sequence[Library]) -> Check:
    """One outcome for all libraries: the first that fails, else the pass nearest to its bound."""
    failed = next(((path, c) for path, c in checks.items() if c.status == "fail"), None)
    if failed is not None:
        path, check = failed
        reason = f"{path}: {check.reason}" if len(checks) + len(others) > 1 else check.reason
        return msgspec.structs.replace(check, reason=reason)
    worst = max(checks.values(), key=_share_of_bound)
    lacking = [
        f"{one.path} was not run: this CPU lacks {listing(missing_features(one.requires))}"
        for one in others
    ]
    return msgspec.structs.replace(worst, reason="; ".join(lacking))


def _share_of_bound(check: Check) -> float:
    return (check.max_abs_error or 0.0) / (check.bound or 1.0)


def compare(got: Floats, expected: Floats, share: float) -> Check:
    """Whether f32[n, vocab] logits are within `share` of the largest expected one."""
    bound = share * float(np.abs(expected).max())
    if got.shape != expected.shape:
        reason = f"logits must have the shape {expected.shape}, got {got.shape}"
        return Check(status="fail", reason=reason, bound=bound)
    error = float(np.abs(got - expected).max())
    if error <= bound:
        return Check(status="pass", max_abs_error=error, bound=bound)
    return Check(status="fail", reason="a logit is off", max_abs_error=error, bound=bound)


def read_proof(path: Path) -> tuple[list[int], Floats]:
    """The prompt and its reference logits f32[n, vocab]."""
    try:
        tensors = safetensors.numpy.load_file(path)
        return [int(i) for i in tensors["prompt"]], tensors["logits"]
    except (safetensors.SafetensorError, OSError, KeyError) as e:
        raise DamageError(f"{path} cannot be read: {e}", hint="rebuild the artifact") from e


def _files(directory: Path, manifest: Manifest) -> list[Finding]:
    """Size and digest of every file in the manifest."""
    wrong = [
        Finding(name=file.path, status="fail", detail=reason)
        for file in manifest.files
        if (reason := _difference(directory, file))
    ]
    total = sum(file.nbytes for file in manifest.files)
    whole = f"{len(manifest.files)} files, {total:,} bytes"
    return wrong or [Finding(name="files", status="pass", detail=whole)]


def _difference(directory: Path, file: File) -> str:
    path = directory / file.path
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != file.nbytes:
        return f"must have {file.nbytes:,} bytes, has {path.stat().st_size:,}"
    return "" if describe(path, file.path) == file else "does not have the digest in the manifest"


def _versions(manifest: Manifest) -> Finding:
    try:
        check_versions(manifest)
    except TargetError as e:
        return Finding(name="versions", status="fail", detail=str(e))
    versions = manifest.versions
    return Finding(
        name="versions", status="pass", detail=f"tvm {versions.tvm}, tvm-ffi {versions.tvm_ffi}"
    )


def _replayed(directory: Path) -> Check:
    """As `replay_proof`, with damage as the outcome that it is here."""
    try:
        return replay_proof(directory)
    except DamageError as e:
        return Check(status="fail", reason=str(e))


if __name__ == "__main__":
    serve(lambda: replay_proof(Path(sys.argv[1])))
