"""Refusals: which kernel, which node of it, and why it cannot become SPIR-V."""

from typing import Final

from mlc_compile.errors import TargetError

from .enumerants import Capability

LONGEST: Final = 60  # characters of a node in a message

# What a capability is for, and the field of a Device row that says whether devices have it.
ROW_FIELDS: Final = {
    Capability.Float16: ("float16 arithmetic", "f16"),
    Capability.StorageBuffer16BitAccess: ("16-bit values in buffers", "f16"),
    Capability.StorageBuffer8BitAccess: ("8-bit values in buffers", "int8"),
}


def refusal(kernel: str, node: object, why: str, hint: str = "") -> TargetError:
    """The error to raise; `why` follows "cannot be SPIR-V: "."""
    return TargetError(
        f"kernel {kernel}: {described(node)} cannot be SPIR-V: {why}",
        hint=hint or "write the kernel with other operations, or choose another target",
    )


def described(node: object) -> str:
    """A node in a few words: its class and the beginning of its text."""
    if isinstance(node, str):
        return node
    line = " ".join(str(node).split())
    short = line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
    return f"{type(node).__name__} `{short}`"


def beyond_row(kernel: str, node: object, need: str, field: str, has: object) -> TargetError:
    """The error for what the target's devices need not have."""
    return refusal(
        kernel,
        node,
        f"it needs {need}, and the target's devices have {field} = {has}",
        f"choose a target whose device row says more for `{field}`, or a scheme that needs less",
    )
