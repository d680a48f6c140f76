"""What each CUDA kernel takes of each architecture's multiprocessor, read from the compiler."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

WARP: Final = 32


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel on one architecture; sizes are bytes, per thread unless said otherwise.

    `shared_bytes` is what a block declares; memory asked for at launch is not in it.
    `occupancy` is the share of a multiprocessor's warps that can be resident, None where the
    block's size is not a constant or we have no row for the architecture.
    """

    kernel: str
    arch: str
    threads: int | None  # of a block
    registers: int
    shared_bytes: int  # per block
    local_bytes: int  # stack: arrays that did not become registers, and spilled registers
    spill_store_bytes: int
    spill_load_bytes: int
    occupancy: float | None

    @property
    def spills(self) -> bool:
        """Whether registers ran out, so that values take a way through memory."""
        return self.spill_store_bytes + self.spill_load_bytes > 0


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """How much can be resident on one, and how it is handed out; sizes in bytes."""

    warps: int
    blocks: int
    shared_bytes: int
    reserved_bytes: int = 1024  # shared memory that the system keeps of each block
    shared_unit: int = 128
    registers: int = 65536
    register_unit: int = 256  # per warp
    schedulers: int = 4  # each owns its share of registers and warps


# CUDA C++ Programming Guide 13.0, "Compute Capabilities", the tables of technical
# specifications; units of allocation from its occupancy calculator. sm_120 also stands in
# CCCL 3, cuda/__device/arch_traits.h.
MULTIPROCESSORS: Final[Mapping[str, Multiprocessor]] = {
    "sm_80": Multiprocessor(warps=64, blocks=32, shared_bytes=164 << 10),
    "sm_86": Multiprocessor(warps=48, blocks=16, shared_bytes=100 << 10),
    "sm_89": Multiprocessor(warps=48, blocks=24, shared_bytes=100 << 10),
    "sm_90": Multiprocessor(warps=64, blocks=32, shared_bytes=228 << 10),
    "sm_100": Multiprocessor(warps=64, blocks=32, shared_bytes=228 << 10),
    "sm_120": Multiprocessor(warps=48, blocks=24, shared_bytes=100 << 10),
}


def occupancy(arch: str, threads: int | None, registers: int, shared_bytes: int) -> float | None:
    """Resident warps as a share of all: the scarcest of warps, blocks, registers, shared memory."""
    row = MULTIPROCESSORS.get(arch)
    if row is None or threads is None:
        return None
    warps = -(-threads // WARP)
    per_warp = _rounded(registers * WARP, row.register_unit)
    fitting = row.registers // row.schedulers // max(per_warp, 1) * row.schedulers
    per_block = _rounded(shared_bytes + row.reserved_bytes, row.shared_unit)
    blocks = min(row.blocks, row.warps // warps, fitting // warps, row.shared_bytes // per_block)
    return blocks * warps / row.warps


# What `ptxas -v` writes of a kernel. NVRTC begins the second line otherwise.
_KERNEL: Final = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_STACK: Final = re.compile(
    r"Function properties for (\w+)\s[^\d]*(\d+) bytes stack frame, "
    r"(\d+) bytes spill stores, (\d+) bytes spill loads"
)
_REGISTERS: Final = re.compile(r"Used (\d+) registers")
_SHARED: Final = re.compile(r"(\d+) bytes smem")
# How TVM begins a kernel whose block has a constant size.
_BLOCK: Final = re.compile(r"__launch_bounds__\((\d+)\w*(?:,[^)]*)?\) (\w+)\(")


def read_resources(source: str, said: str) -> tuple[Resources, ...]:
    """All kernels of CUDA `source`, by name and architecture, from what the compiler said."""
    threads = {name: int(size) for size, name in _BLOCK.findall(source)}
    found = {(one.kernel, one.arch): one for one in _kernels(said, threads)}
    return tuple(found[key] for key in sorted(found, key=lambda k: (k[0], arch_number(k[1]))))


def arch_number(arch: str) -> int:
    """`sm_90a` -> 90, which orders architectures."""
    return int("".join(c for c in arch if c.isdigit()))


def _kernels(said: str, threads: Mapping[str, int]) -> Iterator[Resources]:
    _, *pieces = _KERNEL.split(said)
    for name, arch, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        stacks = {m[0]: tuple(map(int, m[1:])) for m in _STACK.findall(text)}
        local, stores, loads = stacks.get(name, (0, 0, 0))
        registers = _first(_REGISTERS, text)
        shared = _first(_SHARED, text)
        yield Resources(
            kernel=name,
            arch=arch,
            threads=threads.get(name),
            registers=registers,
            shared_bytes=shared,
            local_bytes=local,
            spill_store_bytes=stores,
            spill_load_bytes=loads,
            occupancy=occupancy(arch, threads.get(name), registers, shared),
        )


def _first(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    return int(found[1]) if found else 0


def _rounded(value: int, unit: int) -> int:
    return -(-value // unit) * unit
