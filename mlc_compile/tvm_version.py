"""The one TVM that this version works with, and the gate that says so in a sentence.

TVM renames parts of itself in every release, and a wrong tvm-ffi dies with a segmentation
fault where an exception was due, so anything but the pins is refused before `import tvm`.
"""

import os
from importlib import metadata
from typing import Final

from mlc_compile.errors import TargetError

# Distribution name -> version. pyproject.toml asks pip for the same two.
PINS: Final = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post0"}
RUNTIME_ONLY: Final = "TVM_USE_RUNTIME_LIB"  # read by TVM when it is imported


def installed(distribution: str) -> str | None:
    """The installed version of a distribution, None where it is absent."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def require_tvm() -> None:
    """Raise TargetError unless both pinned distributions are installed in their versions.

    Reads package metadata only: no TVM import, about a millisecond. Also clears the
    variable that would leave the compiler out of TVM, in case somebody exports it.
    """
    os.environ.pop(RUNTIME_ONLY, None)
    for name, pin in PINS.items():
        found = installed(name)
        if found != pin:
            raise TargetError(
                f"{name} must be {pin}, but {found or 'none'} is installed", hint=install_hint()
            )


def install_hint() -> str:
    """The command that installs both pins."""
    return "pip install " + " ".join(f"{name}=={pin}" for name, pin in PINS.items())
