"""The distributions that write the bytes of a step, and the digest by which a key knows one."""

import hashlib
from functools import cache
from importlib import metadata
from typing import Final

from mlc_compile.target import Backend

# Distributions by step: another version may write other bytes.
WRITERS: Final = ("numpy", "msgspec", "safetensors", "ml_dtypes")
PACKERS: Final = ("numpy", "msgspec")
# What compiles for a device beside TVM, where wheels bring it; `Job.device_compiler` names it.
DEVICE_WHEELS: Final[dict[Backend, tuple[str, ...]]] = {
    "cuda": (
        "nvidia-cuda-nvrtc",
        "nvidia-cuda-crt",
        "nvidia-nvfatbin",
        "nvidia-cuda-runtime",
        "nvidia-cuda-cccl",
    ),
}
ZIG: Final = ("ziglang", "lief")  # lief reads what zig is given and makes
TVM: Final = ("apache-tvm", "apache-tvm-ffi")


@cache
def wheels(names: tuple[str, ...]) -> dict[str, str]:
    """A component for each distribution."""
    return {f"wheel.{name}": wheel_digest(name) for name in names}


@cache
def wheel_digest(name: str) -> str:
    """A digest of the wheel's RECORD: path, digest and size of each file.

    Without what pip writes itself, which tells of the environment: scripts, metadata, and
    compiled bytecode, which has no digest there. The version alone where there is no RECORD.
    """
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return "absent"
    record = found.read_text("RECORD")
    if record is None:
        return found.version
    lines = [line for line in record.splitlines() if _is_content(line)]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _is_content(line: str) -> bool:
    return ",sha256=" in line and not line.startswith("../") and ".dist-info/" not in line
