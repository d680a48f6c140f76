"""The device that a library computes on, as TVM's runtime opens it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mlc_compile.artifact import DeviceNeeds, Manifest
from mlc_compile.errors import TargetError
from mlc_compile.target import Backend

if TYPE_CHECKING:
    from tvm.runtime import Device

# Backend -> why TVM's runtime cannot open it on this machine, where it cannot.
ABSENT: Final[dict[Backend, str]] = {
    "cuda": "no NVIDIA GPU, or no driver for it, was found",
    "metal": "Metal is there on macOS only",
    "vulkan": "no Vulkan device was found",
    "webgpu": "it runs in a browser",
}
FOR_CPU: Final = "build it for this machine's CPU with --target cpu"


def missing_device(backend: Backend, needs: DeviceNeeds | None = None) -> str | None:
    """Why this machine has no device for `backend`, or none with what a library needs of it.

    None if it has one. TVM must have been started: see `vm.start_tvm`.
    """
    lack = _lack(backend, needs)
    return None if lack is None else str(lack)


def open_device(backend: Backend, needs: DeviceNeeds | None = None) -> "Device":
    """The first device of `backend`; TargetError as `missing_device` has a reason."""
    import tvm

    lack = _lack(backend, needs)
    if lack is not None:
        raise TargetError(f"this artifact needs a {backend} device: {lack}", hint=lack.hint)
    return tvm.device(backend, 0)


def device_name(manifest: Manifest) -> str:
    """What the device of a loaded artifact calls itself; "" of the CPU."""
    import tvm

    if manifest.on_host:
        return ""
    if manifest.backend in PROVIDED:
        from mlc_compile.runtime.vulkan.loader import describe

        return describe()
    return str(tvm.device(manifest.backend, 0).device_name)


def raise_failure(backend: Backend) -> None:
    """Raise what went wrong on the device, where its calls could not say so themselves."""
    if backend in PROVIDED:
        from mlc_compile.runtime.vulkan.failure import raise_kept

        raise_kept()


def _lack(backend: Backend, needs: DeviceNeeds | None) -> TargetError | None:
    """Why there is no device, with what helps."""
    if backend == "cpu":
        return None
    try:
        PROVIDED.get(backend, _nothing)(needs)
    except TargetError as e:
        return TargetError(str(e), hint=f"{e.hint}; or {FOR_CPU}")
    return None if _exists(backend) else TargetError(ABSENT[backend], hint=FOR_CPU)


def _provide_vulkan(needs: DeviceNeeds | None) -> None:
    from mlc_compile.runtime.vulkan.install import install
    from mlc_compile.runtime.vulkan.needs import require

    install()
    if needs is not None:
        require(needs)


def _nothing(_needs: DeviceNeeds | None) -> None:
    """TVM's runtime has the backend's devices, or nobody has; their drivers know what they can."""


# Backends whose devices TVM's runtime lacks, and what gives them to it: TargetError if it cannot.
PROVIDED: Final[dict[Backend, Callable[[DeviceNeeds | None], None]]] = {"vulkan": _provide_vulkan}


def _exists(backend: Backend) -> bool:
    import tvm

    try:
        return bool(tvm.device(backend, 0).exist)
    except (RuntimeError, ValueError, AttributeError):  # a name that this TVM does not know
        return False
