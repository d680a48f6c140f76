"""What Vulkan refuses, as an error of ours with what to do about it."""

from typing import Any, Final

from mlc_compile.errors import EnvironmentError_

NO_ROOM: Final = ("VkErrorOutOfDeviceMemory", "VkErrorOutOfHostMemory")
LOST: Final = "VkErrorDeviceLost"
SMALLER: Final = "compile with a smaller --context, or free the GPU's memory"
HINTS: Final = {
    **dict.fromkeys(NO_ROOM, SMALLER),
    LOST: "the driver may have stopped a kernel that ran too long: see the system's log",
}
ELSE: Final = "update the GPU's driver, or build for this machine's CPU with --target cpu"


class VulkanFailure(EnvironmentError_):
    """The device refused, or was lost. TVM may raise it with its message alone."""

    def __init__(self, message: str, *, hint: str = SMALLER) -> None:
        super().__init__(message, hint=hint)


def refused(what: str, error: Any) -> VulkanFailure:
    """`error`, a VkError of the package or a VkResult, as it stopped us doing `what`."""
    name = error if isinstance(error, str) else type(error).__name__
    return VulkanFailure(f"the GPU could not {what}: {name}", hint=HINTS.get(name, ELSE))


def no_room(nbytes: int, name: str, error: Any) -> VulkanFailure:
    """An allocation of `nbytes` failed on the device called `name`."""
    return VulkanFailure(
        f"{name} has no room for a buffer of {nbytes} bytes ({type(error).__name__})"
    )


# What could not be raised where it happened, oldest first: C++ stood between.
_kept: list[BaseException] = []


def keep(error: BaseException) -> None:
    """Have `error` raised by the next `raise_kept`; of several, the first is."""
    _kept.append(error)


def raise_kept() -> None:
    """Raise the first error that was kept, and forget them all."""
    if _kept:
        raise take_kept("")


def take_kept(message: str) -> BaseException:
    """The first error that was kept; forgets them all. A new one, if TVM asks for none of ours."""
    first = _kept[0] if _kept else VulkanFailure(message)
    _kept.clear()
    return first
