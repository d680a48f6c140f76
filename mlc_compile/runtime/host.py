"""The machine we run on: its cores, its name, and this process's memory."""

import ctypes
import os
import platform
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlc_compile.errors import ConfigError, count

SYSFS: Final = Path("/sys")
PINNING: Final = ("linux", "android")  # systems that let a process choose its CPUs
# Of the largest capacity: a core of no more is slow. Shares are equal, so cores of half the speed
# pay only where they double the number, and hardly in decoding, which waits for memory. Efficiency
# cores have about half or less.
SLOW: Final = 0.6


def _sysctl(name: str) -> int:
    """A number that macOS knows by name; 0 where there is none."""
    if sys.platform != "darwin":
        return 0
    value = ctypes.c_int()
    size = ctypes.c_size_t(ctypes.sizeof(value))
    at = name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
    return 0 if ctypes.CDLL(None).sysctlbyname(*at) else value.value


@dataclass(frozen=True, slots=True)
class Told:
    """Where a system tells of its CPUs."""

    sysfs: Path = SYSFS
    sysctl: Callable[[str], int] = _sysctl  # 0 for a name that it does not know


HERE: Final = Told()


def available_cores(told: Told = HERE) -> int:
    """Cores that a kernel is shared among: physical, fast, and ours to use; at least 1.

    The shares are equal, so the slowest core sets the pace: efficiency cores count only where we
    may use no others. Counts each pair of hyper-threads once (two on one core share its caches and
    its multipliers, so the second slows the kernels down), and respects the affinity mask and
    the CPU quota of a container.
    """
    cores = _physical(told, _fast_cpus(told))
    return max(1, min(cores, _quota(told.sysfs, len(_allowed_cpus()))))


def keep_to_fast_cores(threads: int, told: Told = HERE) -> None:
    """Bind the calling thread, and all that it starts, to the fast cores if those are enough.

    Where a system can bind threads: macOS cannot, and by itself gives busy ones fast cores. One
    thread is left alone: it waits for no other, and what it starts may want every core.
    """
    fast = _fast_cpus(told)
    wanted = 1 < threads <= _physical(told, fast) and fast != _allowed_cpus()
    if wanted and sys.platform in PINNING:
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setaffinity(0, fast)


def require_threads(threads: int | None) -> None:
    """ConfigError if `threads` are more than the CPUs that this process may use."""
    allowed = len(_allowed_cpus())
    if threads is not None and threads > allowed:
        raise ConfigError(
            f"--threads {threads}, but this machine lets us use {count(allowed, 'core')}",
            hint=f"at most {allowed}",
        )


def last_level_cache(sysfs: Path = SYSFS) -> int:
    """Bytes of the largest cache that the first CPU has; 0 where the kernel does not say."""
    sizes = sysfs.glob("devices/system/cpu/cpu0/cache/index*/size")
    return max((_size(path) for path in sizes), default=0)


def cpu_name() -> str:
    """The CPU's name as its maker writes it, for the head of a benchmark."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def peak_rss() -> int:
    """The most memory this process has held so far, in bytes."""
    if sys.platform == "linux":
        # Not getrusage: its peak outlives exec, so a child would report its parent's.
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def _allowed_cpus() -> frozenset[int]:
    if sys.platform in PINNING:
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _fast_cpus(told: Told) -> frozenset[int]:
    """Those of the allowed CPUs that are not slow; all if all are, or the system doesn't tell."""
    allowed = _allowed_cpus()
    known = (source(told) for source in FAST)
    fast = next((cpus for cpus in known if cpus), allowed)
    return fast & allowed or allowed


def _by_counters(told: Told) -> frozenset[int]:
    """Linux on Intel: performance cores have performance counters of their own."""
    return _cpus(_text(told.sysfs / "devices/cpu_core/cpus"))


def _by_capacity(told: Told) -> frozenset[int]:
    """Linux on Arm: by what its scheduler takes a CPU's speed to be."""
    paths = told.sysfs.glob("devices/system/cpu/cpu*/cpu_capacity")
    texts = {int(path.parent.name.removeprefix("cpu")): _text(path) for path in paths}
    capacity = {cpu: int(text) for cpu, text in texts.items() if text.isdecimal()}
    largest = max(capacity.values(), default=0)
    return frozenset(cpu for cpu, its in capacity.items() if its > SLOW * largest)


def _by_level(told: Told) -> frozenset[int]:
    """macOS tells how many, and nobody can ask for one of them: any numbers will do."""
    return frozenset(range(told.sysctl("hw.perflevel0.physicalcpu")))


# Who knows the fast CPUs, whether or not they are ours; empty: not this source. The first counts.
FAST: Final[tuple[Callable[[Told], frozenset[int]], ...]] = (
    _by_counters,
    _by_capacity,
    _by_level,
)


def _physical(told: Told, cpus: frozenset[int]) -> int:
    """Cores that these CPUs are threads of."""
    return len({_siblings(told.sysfs, cpu) for cpu in cpus})


def _cpus(text: str) -> frozenset[int]:
    """`0-3,8`, as the kernel writes a set of CPUs."""
    spans = [part.partition("-") for part in text.split(",") if part]
    return frozenset(
        cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)
    )


def _text(path: Path) -> str:
    """A file's one line; nothing where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _size(path: Path) -> int:
    """`32768K`, as the kernel writes a size, in bytes; 0 for what is not one."""
    text = _text(path)
    number, unit = text.rstrip("KMG"), text[-1:]
    shift = {"K": 10, "M": 20, "G": 30}.get(unit, 0)
    return int(number) << shift if number.isdecimal() else 0


def _siblings(sysfs: Path, cpu: int) -> str:
    """Names the core that `cpu` is a thread of; alone on it where the kernel does not say."""
    path = sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return _text(path) or str(cpu)


def _quota(sysfs: Path, otherwise: int) -> int:
    """CPUs' worth of time that the control group grants, rounded up."""
    try:
        granted, period = (sysfs / "fs/cgroup/cpu.max").read_text().split()
        return otherwise if granted == "max" else -(-int(granted) // int(period))
    except (OSError, ValueError):
        return otherwise
