"""The one TVM that this version works with, and the gate that says so in a sentence.

TVM renames parts of itself in every release, and a wrong tvm-ffi dies with a segmentation
fault where an exception was due, so anything but the pins is refused before `import tvm`.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from mlc_compile.errors import TargetError


@dataclass(frozen=True, slots=True)
class Pin:
    """The version that a distribution must have, and the package that it brings to import."""

    version: str
    package: str


# pyproject.toml asks pip for the same two.
DISTRIBUTIONS: Final = {
    "apache-tvm": Pin("0.27.0.post1", "tvm"),
    "apache-tvm-ffi": Pin("0.1.14.post0", "tvm_ffi"),
}
PINS: Final = {name: pin.version for name, pin in DISTRIBUTIONS.items()}

# Read by TVM when it is imported: one leaves the compiler out, one loads other libraries than
# the distribution's.
OVERRIDES: Final = ("TVM_USE_RUNTIME_LIB", "TVM_LIBRARY_PATH")


def distribution_of(package: str) -> str:
    """The pinned distribution that brings a package."""
    return next(name for name, pin in DISTRIBUTIONS.items() if pin.package == package)


def installed(distribution: str) -> str | None:
    """The installed version of a distribution, None where it is absent."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def require_tvm() -> None:
    """Raise TargetError unless `import tvm` would load the two pinned distributions.

    A cache key knows TVM by them, so neither another version passes nor a package that hides
    theirs. Looks at metadata only: no TVM import, about a millisecond. Also clears OVERRIDES,
    in case somebody exports them.
    """
    for name in OVERRIDES:
        os.environ.pop(name, None)
    for name, pin in DISTRIBUTIONS.items():
        found = installed(name)
        if found != pin.version:
            raise TargetError(
                f"{name} must be {pin.version}, but {found or 'none'} is installed",
                hint=install_hint(),
            )
        _require_own(name, pin.package)


def _require_own(distribution: str, package: str) -> None:
    """TargetError where Python finds `package` elsewhere than `distribution` has put it."""
    own = metadata.distribution(distribution).locate_file(f"{package}/__init__.py")
    spec = find_spec(package)
    origin = (spec and spec.origin) or "nowhere"
    if Path(origin).resolve() != Path(str(own)).resolve():
        raise TargetError(
            f"{package} must be that of {distribution}, but is found at {origin}",
            hint=f"unset PYTHONPATH, or install it anew: {install_hint()}",
        )


def import_compiler() -> None:
    """Import TVM with its compiler: to be called before what imports it by name."""
    with without_torch():
        import_module("tvm")


@contextmanager
def without_torch() -> Iterator[None]:
    """Hide torch from what is imported in this block: TVM loads it where it finds it.

    That costs one to four seconds and 200 MB, for conversions that we do not use. Afterwards
    another library may want it.
    """
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]  # Python's way to say "absent"
    try:
        yield
    finally:
        if hidden:
            del sys.modules["torch"]


def install_hint() -> str:
    """The command that installs both pins."""
    return "pip install " + " ".join(f"{name}=={pin}" for name, pin in PINS.items())
