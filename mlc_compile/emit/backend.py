"""Which module emits for a backend; looked up by name, so that asking imports no TVM."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from mlc_compile.emit.link import Linker
from mlc_compile.errors import TargetError, listing
from mlc_compile.target import Backend, Target

if TYPE_CHECKING:
    from tvm import IRModule

EMITTERS: Final[dict[Backend, str]] = {
    "cpu": "mlc_compile.emit.cpu",
    "cuda": "mlc_compile.emit.cuda",
    "metal": "mlc_compile.emit.metal",
}


class Emitter(Protocol):
    """What a module of `EMITTERS` has."""

    def tvm_target(self, target: Target) -> Any:
        """TVM's description of `target`; TargetError if the installed LLVM does not know it."""

    def emit(self, mod: "IRModule", target: Target, linker: Linker, out: Path) -> None:
        """Write the library of a module that went through all phases."""


def require_emitter(target: Target) -> None:
    """TargetError if this version emits nothing for the target's backend."""
    if target.backend not in EMITTERS:
        raise TargetError(
            f"target {target.name}: this version emits no {target.backend} libraries",
            hint=f"it emits {listing(list(EMITTERS))}; see `mlc-compile targets`",
        )


def emitter_of(target: Target) -> Emitter:
    """The module that emits for `target`, which has one."""
    return cast(Emitter, importlib.import_module(EMITTERS[target.backend]))
