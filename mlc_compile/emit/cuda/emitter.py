"""CUDA libraries: host code by LLVM, and one fat binary with code for every architecture.

TVM writes one CUDA source for all kernels; it asks for no architecture, so one source serves
all. Compiled in TVM's own way it would become machine code only where a driver is, and only
for one architecture. So TVM is left with the source, on every machine alike, and we put our
fat binary in its place in the blob of modules.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import tvm
import tvm_ffi
from tvm import IRModule, relax

from mlc_compile.emit import gpu
from mlc_compile.emit.backend import Emitted
from mlc_compile.emit.cuda import fatbin
from mlc_compile.emit.cuda.compiler import CudaCompiler
from mlc_compile.emit.cuda.resources import Resources, arch_number
from mlc_compile.emit.cuda.toolchain import find_compiler
from mlc_compile.emit.device_blob import CudaCode, packer, read_cuda, write_cuda
from mlc_compile.emit.link.linker import Linker, as_tvm_callback
from mlc_compile.passes.events import Event
from mlc_compile.target import Device, Target

KIND: Final = "cuda"  # of TVM's target and of its module
COMPILED: Final = "cubin"  # TVM's name for any machine code, fat binaries included
CALLBACK: Final = "tvm_callback_cuda_compile"


def tvm_target(target: Target) -> tvm.target.Target:
    """TVM's description of device and host; TargetError if this LLVM does not know the CPU."""
    oldest = min(_device(target).archs, key=arch_number)  # what is legal there is legal later
    return gpu.tvm_target(KIND, target, arch=oldest)


def compiler_for(target: Target) -> CudaCompiler:
    """The compiler that `emit` will take; TargetError if none can do all architectures."""
    return find_compiler(_device(target).archs)


def build(mod: IRModule, target: Target) -> relax.VMExecutable:
    """Generate code for a module that went through all phases: the device's is source."""
    row = tvm_target(target)
    with row, left_as_source():
        return relax.build(mod, row, relax_pipeline=None)


def emit(mod: IRModule, target: Target, linker: Linker, out: Path) -> Emitted:
    """Build a module that went through all phases, and link it to `out`.

    Tells what each kernel takes of each architecture, and which spills. Raises TargetError (no
    compiler, it fails, or what it makes is not whole), OSError (disk full).
    """
    compiler = compiler_for(target)
    taken: list[Resources] = []

    def compiled(payload: bytes) -> bytes:
        source = read_cuda(payload)
        archs = _device(target).archs
        made = compiler.compile(source.code.decode(), archs)
        fatbin.check(compiler.name, made, archs, [kernel.name for kernel in source.kernels])
        taken.extend(made.resources)
        return write_cuda(CudaCode(COMPILED, source.kernels, made.code))

    build(mod, target).export_library(
        str(out),
        fcompile=as_tvm_callback(linker, out),
        fpack_imports=packer(
            lambda blob: blob.map_payloads(KIND, compiled), tvm_target(target).host
        ),
    )
    return Emitted(tuple(taken), spill_events(taken))


def source(mod: IRModule, target: Target) -> str:
    """The CUDA source of a module's kernels; empty if it has none."""
    return "".join(_sources(build(mod, target).mod))


def spill_events(resources: Iterable[Resources]) -> tuple[Event, ...]:
    """A warning for each kernel that ran out of registers."""
    return tuple(
        Event(
            source="cuda",
            subject=f"{one.kernel} on {one.arch}",
            outcome="kept",
            reason=f"warning: out of registers, a thread spills {one.spill_store_bytes} bytes "
            f"and reloads {one.spill_load_bytes}",
        )
        for one in resources
        if one.spills
    )


def _device(target: Target) -> Device:
    assert target.device is not None, f"{target.name} has no device"
    assert target.device.archs, f"{target.name} names no architecture"
    return target.device


def _sources(module: "tvm.runtime.Module") -> Iterator[str]:
    for one in module.imports:
        if one.kind == KIND:
            yield str(one.inspect_source(KIND))
        yield from _sources(one)


@contextmanager
def left_as_source() -> Iterator[None]:
    """Where TVM's CUDA runtime is loaded it asks for machine code: it gets the source back."""
    theirs: Callable[[str], bytes] | None = tvm.get_global_func(CALLBACK, allow_missing=True)

    def compile_nothing(source: str) -> bytes:
        return source.encode()

    tvm_ffi.register_global_func(CALLBACK, compile_nothing, override=True)
    try:
        yield
    finally:
        if theirs is None:
            tvm_ffi.registry.remove_global_func(CALLBACK)
        else:
            tvm_ffi.register_global_func(CALLBACK, theirs, override=True)
