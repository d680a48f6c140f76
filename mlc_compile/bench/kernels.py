"""Where the time of a decoded token and of a prompt goes, kernel by kernel.

The virtual machine tells `bench.kernel_worker` of each call. That costs time of its own, so
every repeat runs twice, watched and unwatched, and both are reported. Kernels are timed in the
watched run, the watching taken off; shares are of the unwatched one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from mlc_compile.artifact import Activations
from mlc_compile.bench.speed import (
    Device,
    Job,
    Phase,
    Plan,
    Subject,
    ask_worker,
    prepare,
)
from mlc_compile.bench.traffic import rule_of
from mlc_compile.errors import ConfigError
from mlc_compile.progress import Progress
from mlc_compile.runtime.load import choose_library

WORKER: Final = "mlc_compile.bench.kernel_worker"
# By rule: what it multiplies integer weights by, where it is not what the manifest says.
ARITHMETIC: Final[dict[str, Activations]] = dict.fromkeys(
    ("bf16_gemm", "bf16_swiglu", "tile_project"), "bfloat16"
)
NOISY: Final = 1.1  # a part that takes so many times the whole: the machine was not calm


class KernelSample(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel in one unit of work: a decoded token, or a whole prompt."""

    name: str
    weights: tuple[str, ...]  # whose it reads, the layers' numbers left out
    integers: bool  # the weights are integer codes
    calls: float
    seconds: float  # median of the repeats, the watching taken off
    nbytes: int  # read and written: weights, cache, activations
    multiply_adds: int


class ProfileSample(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's measurement of one workload, by unit of work."""

    phase: Phase
    tokens: int
    depth: int
    seconds: float  # unwatched, median
    watched_seconds: float
    kernels: tuple[KernelSample, ...]


class Samples(msgspec.Struct, frozen=True):
    """A worker's answer."""

    profiles: tuple[ProfileSample, ...]


class KernelTime(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel's part of a unit of work: a decoded token, or a whole prompt."""

    name: str
    weights: tuple[str, ...]
    calls: float
    seconds: float
    share: float  # of the unit's time
    nbytes: int
    bytes_s: float | None  # rates are None where the time is too short to be told from none
    bandwidth_share: float | None  # of what the machine reads
    arithmetic: Activations | None  # what a matmul multiplies in
    ops_s: float | None  # of a matmul: a multiply-add is two operations


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Where one unit's time goes; kernels that take longest first.

    `outside_share` is everything but kernels: the virtual machine, this program and, when
    decoding, the choice of the token.
    """

    artifact: str
    phase: Phase
    tokens: int  # of the workload: decoded one by one, or the prompt
    depth: int
    threads: int
    seconds: float
    watched_seconds: float
    outside_share: float
    nbytes: int  # that all kernels move
    bandwidth_share: float  # nbytes in `seconds`, of what the machine reads
    kernels: tuple[KernelTime, ...]

    @property
    def whole(self) -> float:
        """Seconds that shares are of: medians of the kernels may add up to more than `seconds`."""
        return max(self.seconds, self.kernel_seconds)

    @property
    def kernel_seconds(self) -> float:
        """Of all kernels."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def noisy(self) -> bool:
        """Whether times contradict each other."""
        kernels_exceed_all = self.kernel_seconds > NOISY * self.seconds
        watching_saves_time = self.seconds > NOISY * self.watched_seconds
        return kernels_exceed_all or watching_saves_time


class KernelBenchmark(msgspec.Struct, frozen=True, kw_only=True):
    """All profiles, in the order measured."""

    device: Device
    plan: Plan
    artifacts: tuple[Subject, ...]
    profiles: tuple[Profile, ...]


def measure_kernels(
    directories: tuple[Path, ...], plan: Plan, progress: Progress
) -> KernelBenchmark:
    """Profile each artifact with each number of threads.

    Errors as for `speed.measure`, and ConfigError for a GPU's: its kernels have only been
    queued when the call returns.
    """
    campaign = prepare(directories, plan, progress)
    for manifest, job in campaign.jobs:
        if not manifest.on_host:
            raise ConfigError(
                f"{job.directory} is for {manifest.target}: kernels are timed on the CPU only",
                hint="leave --kernels out, or use the profiler of the GPU's maker",
            )
    bandwidth = campaign.device.bandwidth_bytes_s
    profiles: list[Profile] = []
    for manifest, job in campaign.jobs:
        samples = ask_worker(WORKER, job, Samples, progress)
        arithmetic = manifest.activations_of(choose_library(manifest))
        profiles += _profiles(samples, job, arithmetic, bandwidth[job.threads])
    return KernelBenchmark(
        device=campaign.device,
        plan=campaign.plan,
        artifacts=campaign.artifacts,
        profiles=tuple(profiles),
    )


def _profiles(
    samples: Samples, job: Job, arithmetic: Activations, bandwidth: float
) -> Iterator[Profile]:
    for sample in samples.profiles:
        in_kernels = sum(k.seconds for k in sample.kernels)
        whole = max(sample.seconds, in_kernels)
        times = [_timed(k, whole, arithmetic, bandwidth) for k in sample.kernels]
        nbytes = sum(t.nbytes for t in times)
        yield Profile(
            artifact=job.directory,
            phase=sample.phase,
            tokens=sample.tokens,
            depth=sample.depth,
            threads=job.threads,
            seconds=sample.seconds,
            watched_seconds=sample.watched_seconds,
            outside_share=(whole - in_kernels) / whole,
            nbytes=nbytes,
            bandwidth_share=nbytes / sample.seconds / bandwidth,
            kernels=tuple(sorted(times, key=lambda t: -t.seconds)),
        )


def _timed(
    kernel: KernelSample, whole: float, arithmetic: Activations, bandwidth: float
) -> KernelTime:
    rate = _per_second(kernel.nbytes, kernel.seconds)
    multiplies = kernel.multiply_adds > 0
    own = ARITHMETIC.get(rule_of(kernel.name), arithmetic)
    return KernelTime(
        name=kernel.name,
        weights=kernel.weights,
        calls=kernel.calls,
        seconds=kernel.seconds,
        share=kernel.seconds / whole,
        nbytes=kernel.nbytes,
        bytes_s=rate,
        bandwidth_share=None if rate is None else rate / bandwidth,
        arithmetic=(own if kernel.integers else "float32") if multiplies else None,
        ops_s=_per_second(2 * kernel.multiply_adds, kernel.seconds) if multiplies else None,
    )


def _per_second(amount: int, seconds: float) -> float | None:
    """None for the shortest call of all, whose time counts as the watching's."""
    return amount / seconds if seconds > 0 else None
