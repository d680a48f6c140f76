"""Run a whole compiled module on the interpreter: TVM's virtual machine on the CPU calls back.

Each PrimFunc becomes a host function of the same name and parameters that has the original
interpreted, so whatever calls it, a Relax function or TVM's KV cache, needs no change.
"""

import ctypes
import functools
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx

from .lowering import lower
from .run import execute

HOST = {"kind": "llvm"}


def interpreted(
    mod: IRModule, target: tvm.target.Target, *, races: bool = True
) -> relax.VirtualMachine:
    """The virtual machine of a module that went through all phases, its kernels interpreted."""
    host = IRModule(attrs=mod.attrs)
    for gv, func in mod.functions.items():
        is_kernel = isinstance(func, tirx.PrimFunc) and "tirx.is_host_func" not in func.attrs
        host[gv] = _stub(str(gv.name_hint), func, target, races) if is_kernel else func
    executable = relax.build(host, tvm.target.Target(HOST), relax_pipeline=None)
    return relax.VirtualMachine(executable, tvm.cpu())


def _stub(name: str, func: tirx.PrimFunc, target: tvm.target.Target, races: bool) -> tirx.PrimFunc:
    packed = f"simt.{name}"

    @functools.cache
    def lowered() -> tirx.PrimFunc:
        return lower(func, target)

    def call(*args: Any) -> None:
        execute(lowered(), *map(_view, args), races=races)

    tvm_ffi.register_global_func(packed, call, override=True)
    body = tirx.Evaluate(tirx.call_packed(packed, *func.params))
    attrs = {"tirx.is_scheduled": True, "tirx.noalias": True, "global_symbol": name}
    return tirx.PrimFunc(func.params, body, None).with_attr(attrs)


def _view(arg: Any) -> Any:
    """An argument as numpy: TVM passes a borrowed tensor, which DLPack cannot export."""
    if not hasattr(arg, "data_ptr"):
        return arg
    dtype = np.dtype(str(arg.dtype))
    nbytes = int(np.prod(arg.shape)) * dtype.itemsize
    raw = (ctypes.c_uint8 * nbytes).from_address(arg.data_ptr())
    return np.ctypeslib.as_array(raw).view(dtype).reshape(arg.shape)
