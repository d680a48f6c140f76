"""The last step of a build: the proof is replayed, unless the cache knows how that ended here."""

from pathlib import Path
from typing import Final

import msgspec

from mlc_compile.artifact import Check, Manifest, pretty_json
from mlc_compile.bench.child import ask
from mlc_compile.driver.reuse import Outcome, Reuse
from mlc_compile.errors import TargetError
from mlc_compile.target import Target

CHECK: Final = "check.json"  # the one file of a proof in the cache


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


def proven(
    directory: Path, manifest: Manifest, target: Target, reuse: Reuse
) -> tuple[Check, Outcome]:
    """The proof's outcome, from the cache if it passed here before.

    Only a pass on the CPU, which the key names, is worth keeping: a device may be another
    tomorrow, or be there.
    """
    if manifest.backend != "cpu":
        return prove(directory, target), "built"
    with reuse.step(lambda keys: keys.proof(manifest), required=False) as step:
        known = reuse.read(step.entry, CHECK)
        if known is not None:
            return decoded(known), "cached"
        check = prove(directory, target)
        if check.status == "pass":
            step.keep_bytes(CHECK, pretty_json(check))
        return check, "built"


def known_check(manifest: Manifest, reuse: Reuse) -> Check | None:
    """The outcome that the cache knows."""
    known = reuse.read(reuse.look_up(lambda keys: keys.proof(manifest)), CHECK)
    return None if known is None else decoded(known)


def decoded(check: bytes) -> Check:
    """`check.json`."""
    return msgspec.json.decode(check, type=Check)
