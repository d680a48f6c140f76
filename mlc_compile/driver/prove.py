"""The last step of a build: the proof is replayed, unless the cache knows how that ended here.

Where this machine cannot run the artifact, nothing is replayed: the proof was "not run", which
every build finds anew by looking at the machine. So it is proven as soon as one can run it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from mlc_compile.artifact import Activations, Check, Manifest, pretty_json, read_manifest
from mlc_compile.bench.child import ask
from mlc_compile.driver.reuse import Outcome, Reuse
from mlc_compile.emit.cuda import toolchain
from mlc_compile.emit.vulkan import devices as vulkan
from mlc_compile.errors import TargetError
from mlc_compile.runtime.load import loadable_libraries
from mlc_compile.target import Backend, Target

CHECK: Final = "check.json"  # the one file of a proof in the cache

# Backend -> why its device is not here, "" where it is: asked without TVM. The others have
# theirs on every machine that their triple runs on.
NO_DEVICE: Final[dict[Backend, Callable[[], str]]] = {
    "cuda": lambda: toolchain.probe().run_missing,
    "vulkan": lambda: "" if (lack := vulkan.missing()) is None else lack.what,
}

REPORT: Final = "report it with the output of `mlc-compile doctor`"
HINTS: Final[dict[Activations, str]] = {  # by what INT4 weights are multiplied by
    "float32": REPORT,
    "int8": "try --activations float32: if that passes, int8 is too coarse for this model's "
    f"activations; if not, {REPORT}",
    "bfloat16": REPORT,
}


def prove(directory: Path, target: Target) -> Check:
    """Replay the proof in a process of its own: this one has the compiler's TVM loaded.

    Raises TargetError where a library computes other logits, and what replaying raises.
    """
    doing = f"replaying the proof of {target.name}"
    check = ask("mlc_compile.bench.verify", Check, doing, arguments=[str(directory)])
    if check.status == "fail":
        raise TargetError(
            f"the artifact for {target.name} computes wrong logits: {check.told()}",
            hint=HINTS[read_manifest(directory, Manifest).activations],
        )
    return check


def not_run(manifest: Manifest) -> Check | None:
    """The outcome where this machine cannot run the artifact; None: it may be able to.

    The reasons are those that replaying would give, or the lack of a device.
    """
    try:
        loadable_libraries(manifest)
    except TargetError as e:
        return Check(status="not run", reason=str(e))
    look = NO_DEVICE.get(manifest.backend)
    lack = "" if look is None else look()
    return Check(status="not run", reason=f"no device: {lack}") if lack else None


def proven(
    directory: Path, manifest: Manifest, target: Target, reuse: Reuse
) -> tuple[Check, Outcome]:
    """The proof's outcome, from the cache if it passed here before.

    Only a pass on the CPU, which the key names, is worth keeping: a device may be another
    tomorrow, or be there.
    """
    check = not_run(manifest)
    if check is not None:
        return check, "not run"
    if not manifest.on_host:
        return _replayed(directory, target)
    with reuse.step(lambda keys: keys.proof(manifest), required=False) as step:
        known = reuse.decoded(step.entry, CHECK, Check)
        if known is not None:
            return known, "cached"
        check, outcome = _replayed(directory, target)
        if check.status == "pass":
            step.keep_bytes(CHECK, pretty_json(check))
        return check, outcome


def _replayed(directory: Path, target: Target) -> tuple[Check, Outcome]:
    check = prove(directory, target)
    return check, "not run" if check.status == "not run" else "built"


def known_check(manifest: Manifest, reuse: Reuse) -> tuple[Check, Outcome] | None:
    """The outcome without replaying: this machine cannot, or the cache knows it."""
    check = not_run(manifest)
    if check is not None:
        return check, "not run"
    entry = reuse.look_up(lambda keys: keys.proof(manifest))
    known = reuse.decoded(entry, CHECK, Check)
    return None if known is None else (known, "cached")
