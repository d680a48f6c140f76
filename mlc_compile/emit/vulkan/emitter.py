"""Vulkan libraries: host code by LLVM, and a SPIR-V module for each kernel.

TVM's wheels have no code generator for Vulkan, but ask for one by name. While a module is built
we answer to that name, keep the kernels and give TVM nothing; then we write them as SPIR-V, and
put them into the blob of modules as TVM's own Vulkan module would be saved. A TVM that has such
a generator keeps it, and what it makes is left alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx

from mlc_compile.emit import gpu
from mlc_compile.emit.backend import Emitted
from mlc_compile.emit.device_blob import Entry, packer
from mlc_compile.emit.link.linker import Linker, as_tvm_callback
from mlc_compile.emit.spirv import Shader, emit_kernel
from mlc_compile.emit.vulkan.payload import KIND, LAYOUT, write_vulkan
from mlc_compile.emit.vulkan.shaders import ShaderFacts, needs
from mlc_compile.passes.events import Event
from mlc_compile.target import Device, Target

HOOK: Final = "target.build.vulkan"  # what TVM calls with the kernels of a module
THEIRS: Final = Event(
    source="vulkan",
    subject="kernels",
    outcome="kept",
    reason="the installed TVM has a generator of SPIR-V: they are as it writes them",
)


@dataclass(frozen=True, slots=True)
class Built:
    """A module's host code, and its kernels by name: None where TVM itself took them."""

    executable: relax.VMExecutable
    kernels: dict[str, tirx.PrimFunc] | None


def tvm_target(target: Target) -> tvm.target.Target:
    """TVM's description of device and host; TargetError if this LLVM does not know the CPU.

    What a device supports is told for a TVM that writes SPIR-V itself.
    """
    device = _device(target)
    return gpu.tvm_target(
        KIND,
        target,
        supports_storage_buffer_storage_class=True,
        supports_float16=device.f16,
        supports_16bit_buffer=device.f16,
        supports_int8=device.int8,
        supports_8bit_buffer=device.int8,
    )


def build(mod: IRModule, target: Target) -> Built:
    """Generate the host's code for a module that went through all phases, and lower its kernels."""
    row = tvm_target(target)
    with row, kernels_kept() as kept:
        executable = relax.build(mod, row, relax_pipeline=None)
    if kept is None:
        return Built(executable, None)
    functions = [func for part in kept for func in part.functions.values()]
    named = {str(func.attrs["global_symbol"]): func for func in functions}
    return Built(executable, dict(sorted(named.items())))


def emit(mod: IRModule, target: Target, linker: Linker, out: Path) -> Emitted:
    """Build a module that went through all phases, and link it to `out`.

    Tells what each kernel takes. Raises TargetError (a kernel has what SPIR-V cannot say), OSError
    (disk full).
    """
    built = build(mod, target)
    callback = as_tvm_callback(linker, out)
    if not built.kernels:
        built.executable.export_library(str(out), fcompile=callback)
        return Emitted(events=(THEIRS,) if built.kernels is None else ())
    written = shaders(built.kernels, _device(target))
    entries = [gpu.kernel_entry(name, func) for name, func in built.kernels.items()]
    entry = Entry(KIND, write_vulkan(entries, written))
    built.executable.export_library(
        str(out),
        fcompile=callback,
        fpack_imports=packer(lambda blob: blob.with_import(entry), tvm_target(target).host),
    )
    facts = tuple(map(facts_of, built.kernels.values(), written))
    return Emitted(shaders=facts, needs=needs(facts, LAYOUT))


def shaders(kernels: dict[str, tirx.PrimFunc], device: Device) -> list[Shader]:
    """Each kernel as SPIR-V; TargetError names the first that has what cannot be said in it."""
    return [emit_kernel(func, device) for func in kernels.values()]


def facts_of(func: tirx.PrimFunc, shader: Shader) -> ShaderFacts:
    """What a kernel takes of a device."""
    buffers = sum(map(gpu.is_handle, func.params))
    return ShaderFacts(
        kernel=shader.name,
        local_size=shader.local_size,
        shared_bytes=shader.shared_bytes,
        buffers=buffers,
        scalars=len(func.params) - buffers,
        uniform_block=shader.uniform_block,
        capabilities=shader.capabilities,
        code_bytes=len(shader.code),
    )


@contextmanager
def kernels_kept() -> Iterator[list[IRModule] | None]:
    """What TVM has to generate code for while the block runs; None: it does that itself."""
    if tvm.get_global_func(HOOK, allow_missing=True) is not None:
        yield None
        return
    kept: list[IRModule] = []

    def keep(mod: IRModule, _target: tvm.target.Target) -> None:
        kept.append(mod)

    tvm_ffi.register_global_func(HOOK, keep)
    try:
        yield kept
    finally:
        tvm_ffi.registry.remove_global_func(HOOK)


def _device(target: Target) -> Device:
    assert target.device is not None, f"{target.name} has no device"
    return target.device
