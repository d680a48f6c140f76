"""What the emitters of all GPUs share: how TVM is told of a device and its host, and how a
host calls a kernel.
"""

from typing import Final

import tvm
import tvm_ffi
from tvm import ir, tirx

from mlc_compile.emit import cpu
from mlc_compile.emit.device_blob import KernelEntry
from mlc_compile.target import Target

LAUNCH: Final = "tirx.kernel_launch_params"  # attribute: what the trailing arguments of a call are
HANDLE: Final = (3, 64, 1)  # DLPack's type of a pointer


def tvm_target(kind: str, target: Target, **more: str | bool) -> tvm.target.Target:
    """TVM's description of device and host; TargetError if this LLVM does not know the CPU.

    `more` is what `kind` alone has. The limit of threads has two names, and TVM's passes read
    one or the other.
    """
    device = target.device
    assert device is not None, f"{target.name} has no device"
    limits = {
        "max_num_threads": device.threads,
        "max_threads_per_block": device.threads,
        "max_shared_memory_per_block": device.shared_bytes,
        "thread_warp_size": device.subgroup,
    }
    return tvm.target.Target({"kind": kind, **more, **limits}, host=cpu.tvm_target(target))


def kernel_entry(name: str, func: tirx.PrimFunc) -> KernelEntry:
    """How the host calls a kernel that TVM lowered, in words of `device_blob`."""
    types = tuple(_dlpack_type(param) for param in func.params)
    launch = tuple(str(tag) for tag in func.attrs[LAUNCH])
    return KernelEntry(name, name, types, launch, extra=(0,) * len(types))


def is_handle(param: tirx.Var) -> bool:
    """Whether an argument of a lowered kernel is a buffer; it is a scalar otherwise."""
    return isinstance(param.ty, ir.PointerType)


def _dlpack_type(param: tirx.Var) -> tuple[int, int, int]:
    if is_handle(param):
        return HANDLE
    dtype = tvm_ffi.dtype(str(param.ty.dtype))
    return dtype.type_code, dtype.bits, dtype.lanes
