"""Where a measurement holds: the fingerprint of a target, and of the machine if that is it.

The target `cpu` is this machine, cores and caches included. A preset is any device of its kind:
its records are those that somebody measured for it, and a build for it takes the same ones on
every machine.
"""

import hashlib
from pathlib import Path
from typing import Final

import archspec.cpu
import msgspec

from mlc_compile.artifact import Struct
from mlc_compile.records.record import canonical
from mlc_compile.target import HOST, Target
from mlc_compile.tvm_version import PINS

FORMAT: Final = "1"  # of records and their lines; another version has its own directory
SYSFS: Final = Path("/sys")


class Partition(Struct, frozen=True):
    """All that two measurements must have in common to be compared."""

    backend: str
    triple: str
    mcpu: str
    features: tuple[str, ...]  # CPU features of the code, sorted; empty where a GPU computes
    device: dict[str, str]  # a GPU's architectures and limits; empty for a CPU
    chip: str  # the CPU measured on, as archspec calls it; empty for a preset
    cores: int  # that compute; 0 for a preset
    caches: tuple[str, ...]  # of one core, as the kernel lists them; empty for a preset
    tvm: str
    tvm_ffi: str

    @property
    def digest(self) -> str:
        """sha256, in hexadecimal: the name of its file."""
        return hashlib.sha256(canonical((FORMAT, self))).hexdigest()

    @property
    def title(self) -> str:
        """For people: `cpu sapphirerapids, 2 cores, x86_64-pc-linux-gnu`."""
        archs = self.device.get("archs", "").strip("[]").replace('"', "")
        cores = f"{self.cores} cores" if self.cores else ""
        head = f"{self.backend} {self.chip or archs or self.mcpu}"
        return ", ".join(filter(None, (head.strip(), cores, self.triple)))


def partition_of(row: Target, cores: int, sysfs: Path = SYSFS) -> Partition:
    """The partition of a target without variants; `cores` are those that this machine lends.

    Only `cpu` looks at this machine: for any other row equal everywhere.
    """
    assert not row.variants
    is_here, device = row.name == HOST, row.device
    limits = {} if device is None else msgspec.to_builtins(device)
    return Partition(
        backend=row.backend,
        triple=row.triple,
        mcpu=row.mcpu if device is None else "",
        features=tuple(sorted({*row.requires, *row.mattr})) if device is None else (),
        device={name: canonical(value).decode() for name, value in sorted(limits.items())},
        chip=archspec.cpu.host().name if is_here else "",
        cores=cores if is_here else 0,
        caches=_caches(sysfs) if is_here else (),
        tvm=PINS["apache-tvm"],
        tvm_ffi=PINS["apache-tvm-ffi"],
    )


def _caches(sysfs: Path) -> tuple[str, ...]:
    """`("L1 Data 48K", "L2 Unified 2048K")` of the first CPU; empty where there is no saying."""
    found = (sysfs / "devices/system/cpu/cpu0/cache").glob("index*")
    return tuple(filter(None, map(_cache, sorted(found))))


def _cache(index: Path) -> str:
    try:
        level, kind, size = ((index / n).read_text().strip() for n in ("level", "type", "size"))
    except OSError:
        return ""
    return f"L{level} {kind} {size}"
