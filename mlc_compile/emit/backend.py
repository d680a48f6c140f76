"""Which module emits for a backend; looked up by name, so that asking imports no TVM."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from mlc_compile.artifact import DeviceNeeds
from mlc_compile.emit.cuda.compiler import CudaCompiler
from mlc_compile.emit.cuda.resources import Resources
from mlc_compile.emit.cuda.toolchain import find_compiler
from mlc_compile.emit.link.linker import Linker
from mlc_compile.emit.vulkan.shaders import ShaderFacts
from mlc_compile.emit.wasm.runtime import require_sources
from mlc_compile.errors import TargetError, listing
from mlc_compile.target import Backend, Device, Target
from mlc_compile.tvm_version import import_compiler

if TYPE_CHECKING:
    from tvm import IRModule

    from mlc_compile.passes.events import Event

EMITTERS: Final[dict[Backend, str]] = {
    "cpu": "mlc_compile.emit.cpu",
    "cuda": "mlc_compile.emit.cuda.emitter",
    "metal": "mlc_compile.emit.metal",
    "vulkan": "mlc_compile.emit.vulkan.emitter",
    "webgpu": "mlc_compile.emit.webgpu",
}


@dataclass(frozen=True, slots=True)
class Emitted:
    """What there is to tell of a library: of each kernel what it takes, where that is known."""

    resources: tuple[Resources, ...] = ()  # as CUDA's compiler says
    events: "tuple[Event, ...]" = ()
    shaders: tuple[ShaderFacts, ...] = ()  # as we wrote them
    needs: DeviceNeeds | None = None  # of all of them


class Emitter(Protocol):
    """What a module of `EMITTERS` has."""

    def tvm_target(self, target: Target) -> Any:
        """TVM's description of `target`; TargetError if the installed LLVM does not know it."""

    def emit(self, mod: "IRModule", target: Target, linker: Linker, out: Path) -> Emitted:
        """Write the library of a module that went through all phases."""


# Backends whose libraries hold more than what is generated: an error where that is not here.
INGREDIENTS: Final[dict[Backend, Callable[[], None]]] = {"webgpu": require_sources}


def require_emitter(target: Target) -> None:
    """TargetError if this version emits nothing for the target's backend, or lacks what for."""
    if target.backend not in EMITTERS:
        raise TargetError(
            f"target {target.name}: this version emits no {target.backend} libraries",
            hint=f"it emits {listing(list(EMITTERS))}; see `mlc-compile targets`",
        )
    require_ingredients(target)


def require_ingredients(target: Target) -> None:
    """TargetError if the installed wheels lack what a library of the target's backend holds."""
    require = INGREDIENTS.get(target.backend)
    if require is not None:
        require()


# Backends whose kernels we compile ourselves: the compiler, or an error that tells why not.
DEVICE_COMPILERS: Final[dict[Backend, Callable[[Device], CudaCompiler]]] = {
    "cuda": lambda device: find_compiler(device.archs),
}


def device_compiler(target: Target) -> str:
    """What compiles the kernels for the target's device; "" where the device does that itself.

    TargetError if it is needed and not here, EnvironmentError_ if it has no place to write.
    """
    compiler = _device_compiler(target)
    return "" if compiler is None else compiler.name


def device_programs(target: Target) -> Mapping[str, Path]:
    """The files of `device_compiler` that decide what it makes, by name, wheels apart."""
    compiler = _device_compiler(target)
    return {} if compiler is None else compiler.programs()


def _device_compiler(target: Target) -> CudaCompiler | None:
    find = DEVICE_COMPILERS.get(target.backend)
    return None if find is None or target.device is None else find(target.device)


def emitter_of(target: Target) -> Emitter:
    """The module that emits for `target`, which has one."""
    import_compiler()
    return cast(Emitter, importlib.import_module(EMITTERS[target.backend]))
