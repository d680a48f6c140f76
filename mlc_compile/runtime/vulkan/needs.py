"""Whether the GPU can run a library's kernels: its manifest says what they take of a device."""

from mlc_compile.artifact import DeviceNeeds
from mlc_compile.errors import TargetError, listing
from mlc_compile.runtime.vulkan.loader import Gpu, open_gpu


def require(needs: DeviceNeeds) -> None:
    """TargetError if this process's GPU lacks something; else as `loader.open_gpu`."""
    gpu = open_gpu()
    short = shortages(needs, gpu)
    if short:
        raise TargetError(
            f"{gpu.name} has less than the kernels take: {listing(short)}",
            hint="build it for a target whose device has no more than this one",
        )


def shortages(needs: DeviceNeeds, gpu: Gpu) -> list[str]:
    """What the library takes that the device does not have: `8 buffers of a kernel (it has 4)`."""
    has = gpu.limits
    asked = [
        ("threads of a block", needs.threads, has.threads),
        ("shared bytes of a block", needs.shared_bytes, has.shared_bytes),
        ("buffers of a kernel", needs.buffers, has.buffers),
    ]
    for axis, n, m in zip("xyz", needs.local_size, has.local_size, strict=True):
        asked.append((f"threads along {axis}", n, m))
    missing = sorted(set(needs.capabilities) - gpu.capabilities)
    return [f"{one} (it has none)" for one in missing] + [
        f"{n:,} {what} (it has {m:,})" for what, n, m in asked if n > m
    ]
