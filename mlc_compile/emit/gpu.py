"""What the emitters of all GPUs share: how TVM is told of a device and its host."""

import tvm

from mlc_compile.emit import cpu
from mlc_compile.target import Target


def tvm_target(kind: str, target: Target, **more: str) -> tvm.target.Target:
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
