"""Metal libraries: MSL source in a host library, one text a kernel, compiled by the device.

macOS: a Mach-O dylib. iOS loads no code at run time: a static library of objects that register
themselves with TVM under a prefix, for an app to link. Neither needs Apple's SDK. The source
becomes machine code when the library is loaded, by the Metal of the device itself: TVM's
runtime asks it for fast math, so kernels must not count on the order of sums, on infinities or
on NaN.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import tvm
from tvm import IRModule, relax

from mlc_compile.emit import gpu
from mlc_compile.emit.backend import Emitted
from mlc_compile.emit.exact_constants import with_exact_constants
from mlc_compile.emit.link.linker import Linker, as_tvm_callback
from mlc_compile.target import Target

KIND: Final = "metal"  # of TVM's target and of its module
PREFIX: Final = "system_lib_prefix"  # module attribute: TVM makes a system library of it
STATIC: Final = ".a"  # libraries that are linked into a program, and register themselves
HEADING: Final = re.compile(r"^// Function: (\w+)\n", re.MULTILINE)  # TVM's, over each kernel


def tvm_target(target: Target) -> tvm.target.Target:
    """TVM's description of device and host; TargetError if this LLVM does not know the CPU."""
    return gpu.tvm_target(KIND, target)


def build(mod: IRModule, target: Target) -> relax.VMExecutable:
    """Generate code for a module that went through all phases."""
    mod = with_exact_constants(mod)
    if target.library.endswith(STATIC):
        mod = as_system_library(mod)
    row = tvm_target(target)
    with row:
        return relax.build(mod, row, relax_pipeline=None)


def emit(mod: IRModule, target: Target, linker: Linker, out: Path) -> Emitted:
    """Build a module that went through all phases, and link or archive it to `out`."""
    build(mod, target).export_library(str(out), fcompile=as_tvm_callback(linker, out))
    return Emitted()


def system_prefix(mod: IRModule) -> str:
    """Before the names in a static library: an app may link several, of different modules.

    It is what TVM's `system_lib` is asked for, and depends on the module's functions alone.
    """
    text = tvm.ir.save_json(mod)
    return f"mlc_{hashlib.sha256(text.encode()).hexdigest()[:8]}_"


def as_system_library(mod: IRModule) -> IRModule:
    """It registers itself with TVM; its symbols are renamed, or two in one app would collide."""
    mod = mod.with_attr(PREFIX, system_prefix(mod))
    renamed: IRModule = relax.transform.AttachGlobalSymbol()(mod)
    return renamed


def kernel_sources(module: tvm.runtime.Module) -> Mapping[str, str]:
    """MSL of each kernel in a module that was built for Metal, by the kernel's name."""
    found: dict[str, str] = {}
    if module.kind == KIND:
        _, *pieces = HEADING.split(module.inspect_source())
        found |= zip(pieces[::2], pieces[1::2], strict=True)
    for one in module.imports:
        found |= kernel_sources(one)
    return found
