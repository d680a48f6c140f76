"""Kernels as objects of their own, so that one that was compiled before is not compiled again.

A module becomes the virtual machine's code, and an object file for each PrimFunc, which
depends on that function, the target and the settings alone. `keeper` says who keeps them.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import tvm
from tvm import IRModule, relax, tirx
from tvm.ir.transform import PassContext
from tvm.relax import vm_build

from mlc_compile.emit.keeper import KernelSource, take

ANCHOR: Final = "_no_kernel"  # what the module of the virtual machine holds in their place


def write_objects(
    mod: IRModule, target: tvm.target.Target, directory: Path
) -> tuple[relax.VMExecutable, list[str]]:
    """The executable of a module that went through all phases, without its kernels, and the
    object files of those, sorted by name, in `directory`. Both are to be linked together.
    """
    builder = relax.ExecBuilder()
    kernels = _kernels(vm_build._vmcodegen(builder, mod, "bytecode"))
    anchor = tirx.PrimFunc([], tirx.Evaluate(0)).with_attr("global_symbol", ANCHOR)
    # What names the kernels finds them in the library that it is linked into; there has to be
    # one, hence the anchor.
    executable = vm_build._vmlink(
        builder=builder,
        target=target,
        tir_mod=IRModule({tvm.ir.GlobalVar(ANCHOR): anchor}),
        params=dict((mod.attrs or {}).get("const_name_to_constant", {})),
    )
    files = []
    for name, function in sorted(kernels.items()):
        path = directory / f"{name}.o"
        path.write_bytes(_object(name, function, target, path))
        files.append(str(path))
    return executable, files


def _kernels(mod: IRModule) -> Mapping[str, tirx.PrimFunc]:
    return {
        str(variable.name_hint): function
        for variable, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }


def _object(name: str, function: tirx.PrimFunc, target: tvm.target.Target, path: Path) -> bytes:
    settings = {str(key): str(value) for key, value in PassContext.current().config.items()}
    kernel = KernelSource(
        name=name,
        function=hashlib.sha256(tvm.ir.save_json(function).encode()).hexdigest(),
        target=str(target),
        settings=f"{PassContext.current().opt_level} {sorted(settings.items())}",
    )
    return take(kernel, lambda: _compiled(name, function, target, path))


def _compiled(name: str, function: tirx.PrimFunc, target: tvm.target.Target, path: Path) -> bytes:
    """The object, which TVM writes into a file only."""
    alone = IRModule({tvm.ir.GlobalVar(name): function})
    library = tvm.tirx.build(alone, target=target)
    library.write_to_file(str(path))
    return path.read_bytes()
