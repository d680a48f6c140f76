"""The machine we run on: its cores, its name, and this process's memory."""

import os
import platform
import resource
import sys
from pathlib import Path
from typing import Final

from mlc_compile.errors import ConfigError

SYSFS: Final = Path("/sys")


def available_cores(sysfs: Path = SYSFS) -> int:
    """Physical cores this process may use, at least 1.

    Counts each pair of hyper-threads once (two on one core share its caches and its
    multipliers, so the second slows the kernels down), and respects the affinity mask and
    the CPU quota of a container.
    """
    cpus = _allowed_cpus()
    cores = {_siblings(sysfs, cpu) for cpu in cpus}
    return max(1, min(len(cores), _quota(sysfs, len(cpus))))


def require_threads(threads: int | None) -> None:
    """ConfigError if `threads` are more than the CPUs that this process may use."""
    allowed = len(_allowed_cpus())
    if threads is not None and threads > allowed:
        raise too_many_threads(threads, allowed)


def too_many_threads(threads: int, allowed: int) -> ConfigError:
    """The error for more threads than TVM would start; it takes fewer without a word."""
    cores = "1 core" if allowed == 1 else f"{allowed} cores"
    return ConfigError(
        f"--threads {threads}, but this machine lets us use {cores}", hint=f"at most {allowed}"
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
    if sys.platform == "linux":
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _size(path: Path) -> int:
    """`32768K`, as the kernel writes a size, in bytes; 0 for what is not one."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    number, unit = text.rstrip("KMG"), text[-1:]
    shift = {"K": 10, "M": 20, "G": 30}.get(unit, 0)
    return int(number) << shift if number.isdecimal() else 0


def _siblings(sysfs: Path, cpu: int) -> str:
    """Names the core that `cpu` is a thread of; alone on it where the kernel does not say."""
    path = sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def _quota(sysfs: Path, otherwise: int) -> int:
    """CPUs' worth of time that the control group grants, rounded up."""
    try:
        granted, period = (sysfs / "fs/cgroup/cpu.max").read_text().split()
        return otherwise if granted == "max" else -(-int(granted) // int(period))
    except (OSError, ValueError):
        return otherwise
