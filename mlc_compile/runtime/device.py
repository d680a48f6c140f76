"""The device that a library computes on, as TVM's runtime opens it."""

from typing import TYPE_CHECKING, Final

from mlc_compile.errors import TargetError
from mlc_compile.target import Backend

if TYPE_CHECKING:
    from tvm.runtime import Device

# Backend -> why TVM's runtime cannot open it on this machine, where it cannot.
ABSENT: Final[dict[Backend, str]] = {
    "cuda": "no NVIDIA GPU, or no driver for it, was found",
    "metal": "Metal is there on macOS only",
    "vulkan": "the installed TVM has no Vulkan runtime",
    "webgpu": "it runs in a browser",
}


def missing_device(backend: Backend) -> str | None:
    """Why this machine has no device for `backend`; None if it has one.

    TVM must have been started: see `vm.start_tvm`.
    """
    return None if backend == "cpu" or _exists(backend) else ABSENT[backend]


def open_device(backend: Backend) -> "Device":
    """The first device of `backend`; TargetError if this machine has none."""
    import tvm

    why = missing_device(backend)
    if why is not None:
        raise TargetError(
            f"this artifact needs a {backend} device: {why}",
            hint="build it for this machine's CPU with --target cpu",
        )
    return tvm.device(backend, 0)


def _exists(backend: Backend) -> bool:
    import tvm

    try:
        return bool(tvm.device(backend, 0).exist)
    except (RuntimeError, ValueError, AttributeError):  # a name that this TVM does not know
        return False
