"""WebGPU libraries: WGSL source and wasm host code, with TVM's runtime, in one wasm module.

Unmodified web-llm loads it. The host code registers itself with the runtime it is linked with (a
system library), and the page compiles the shaders, one module a kernel.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import tvm
from tvm import IRModule, relax

from mlc_compile.emit import cpu
from mlc_compile.emit.backend import Emitted
from mlc_compile.emit.exact_constants import with_exact_constants
from mlc_compile.emit.link.linker import Linker
from mlc_compile.emit.wasm.runtime import runtime_objects
from mlc_compile.target import Target

KIND: Final = "webgpu"  # of TVM's target and of its module
RULE: Final = "//" + "-" * 40
# TVM's, over each kernel, whose name stands there twice.
HEADING: Final = re.compile(rf"^// Function: \w+\n{RULE}\n// Function: (\w+)\n{RULE}\n", re.M)


def tvm_target(target: Target) -> tvm.target.Target:
    """TVM's description of device and host; TargetError if this LLVM does not know the CPU."""
    device = target.device
    assert device is not None, f"{target.name} has no device"
    limits = {
        "max_num_threads": device.threads,
        "max_shared_memory_per_block": device.shared_bytes,
        "thread_warp_size": device.subgroup,
    }
    # Told, or LLVM's width for wasm is taken with a warning.
    host = {**cpu.tvm_target(target).export(), "vector-width": target.vector_bits}
    return tvm.target.Target({"kind": KIND, **limits}, host=tvm.target.Target(host))


def build(mod: IRModule, target: Target) -> relax.VMExecutable:
    """Generate code for a module that went through all phases."""
    row = tvm_target(target)
    with row:
        return relax.build(with_exact_constants(mod), row, relax_pipeline=None)


def emit(mod: IRModule, target: Target, linker: Linker, out: Path) -> Emitted:
    """Build a module that went through all phases, and link it with the runtime to `out`."""

    def link(_output: str, objects: Sequence[str], **_options: object) -> None:
        linker.link([*runtime_objects(), *objects], out)

    build(mod, target).export_library(str(out), fcompile=link)
    return Emitted()


def shaders(module: tvm.runtime.Module) -> Mapping[str, str]:
    """WGSL of each kernel in a module that was built for WebGPU, by the kernel's name."""
    found: dict[str, str] = {}
    if module.kind == KIND:
        _, *pieces = HEADING.split(module.inspect_source())
        found |= zip(pieces[::2], pieces[1::2], strict=True)
    for one in module.imports:
        found |= shaders(one)
    return found
