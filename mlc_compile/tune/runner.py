"""Time candidates beside a baseline, and compare what they compute. TVM's runtime alone is loaded.

Run by `tune.measure` as `python -m mlc_compile.tune.runner`, one question a line. A model reads
all its other weights between two calls of a kernel: so the weights here take turns among
copies that together are larger than the caches, and a state's layers take turns.

Times come in pairs, baseline and candidate one after the other, so that a slow minute of the
machine slows both.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import msgspec
import numpy as np

from mlc_compile.runtime.bandwidth import read_bandwidth
from mlc_compile.runtime.host import last_level_cache
from mlc_compile.runtime.vm import start_tvm
from mlc_compile.schedule.operand import Values
from mlc_compile.tune.builder import SYMBOL
from mlc_compile.tune.inputs import Array, Situation, fill, unwritten
from mlc_compile.tune.worker import serve

SAMPLE_SECONDS: Final = 0.002  # one sample is as many calls as take so long
MOST_CALLS: Final = 200  # of one sample
MOST_COPIES: Final = 64
COLD: Final = 64 << 20  # bytes that weights take at least, where the caches are small or unknown
HOPELESS: Final = 1.3  # times as slow as the baseline after FIRST pairs: no more are timed
FIRST: Final = 4
HALVED: Final = 8  # so many pairs are also looked at by halves
# Of the largest result. A float32 sum in another order: some roundings of what is summed. Made in
# bfloat16: a rounding of those (attention's weights are rounded beside the maximum so far); pairs
# are rounded themselves. A wrong kernel is off by as much as the results themselves.
TOLERANCES: Final[dict[Values, float]] = {
    "normal": 2.0**-14,
    "coarse": 2.0**-8,
    "pairs": 2.0**-7,
}


Kernel = Callable[..., Any]


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Take `baseline` as the default of a task that is called as `situations` say."""

    baseline: str
    situations: tuple[Situation, ...]


class Prepared(msgspec.Struct, frozen=True):
    """Microseconds of one call of the baseline in each situation."""

    microseconds: tuple[float, ...]


class Compare(msgspec.Struct, frozen=True, tag=True):
    """Check `candidate` and time it in `pairs` pairs or more in each situation.

    More, for a share of `seconds` by the situation's weight, while the noise is above `noise`.
    """

    candidate: str
    pairs: int
    noise: float
    seconds: float


class Gauge(msgspec.Struct, frozen=True, tag=True):
    """Measure how fast this machine reads memory, with as many threads as kernels have."""


class Gauged(msgspec.Struct, frozen=True):
    """Bytes a second, all threads together."""

    bytes_s: float


class Timing(msgspec.Struct, frozen=True):
    """Of one situation. `ratio` is candidate to baseline; `noise` what it may be off by.

    That is twice the standard error of both medians, by the median deviation, or what the
    first and the last pairs differ by.
    """

    microseconds: float
    baseline_microseconds: float
    ratio: float
    noise: float


class Compared(msgspec.Struct, frozen=True):
    """A timing for each situation; `wrong` says where a result is not the baseline's."""

    timings: tuple[Timing, ...] = ()
    wrong: str = ""


@dataclass(slots=True)
class Bench:
    """A situation set up: argument lists that take turns, and what the baseline computes."""

    situation: Situation
    turns: list[list[Any]]  # tensors and numbers of layers
    expected: list[Array] = field(default_factory=list)
    calls: int = 1  # of one sample
    _turn: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    def of(cls, situation: Situation, random: np.random.Generator) -> "Bench":
        """Fill the arguments, weights as often as makes them cold."""
        import tvm

        arguments = situation.arguments
        filled = [fill(a, situation.length, random) for a in arguments]
        copies = _copies(situation)
        tensors = [
            [tvm.runtime.tensor(x) for _ in range(copies if a.role == "weights" else 1)]
            if a.shape
            else list(range(situation.layers))
            for a, x in zip(arguments, filled, strict=True)
        ]
        count = max(copies, situation.layers)
        return cls(situation, [[some[i % len(some)] for some in tensors] for i in range(count)])

    def results(self, kernel: Kernel) -> list[Array]:
        """What one call gives; what it does not write is NaN."""
        turn = self.turns[0]
        places = [(i, a) for i, a in enumerate(self.situation.arguments) if a.role == "result"]
        for i, a in places:
            turn[i].copyfrom(unwritten(a))
        kernel(*turn)
        return [_numbers(turn[i].numpy().copy(), a.values) for i, a in places]

    def differs(self, kernel: Kernel) -> str:
        """How a kernel's results are not the baseline's; empty where they are."""
        results = (a for a in self.situation.arguments if a.role == "result")
        for a, want, got in zip(results, self.expected, self.results(kernel), strict=True):
            padding = np.isnan(want) & np.isnan(got) if a.values == "pairs" else False
            bound = TOLERANCES[a.values] * float(np.nanmax(np.abs(want)))
            error = float(np.where(padding, 0, np.abs(got - want)).max())
            if not error <= bound:  # also where it is NaN
                return f"a result is off by {error:.3g}, {bound:.3g} is allowed"
        return ""

    def settle(self, kernel: Kernel) -> float:
        """Choose how many calls a sample takes; seconds of one."""
        self.sample(kernel)  # touches all that is read first
        once = self.sample(kernel)
        self.calls = max(1, min(MOST_CALLS, round(SAMPLE_SECONDS / max(once, 1e-7))))
        return self.sample(kernel)

    def sample(self, kernel: Kernel) -> float:
        """Seconds of one call, over as many as a sample takes."""
        turns = self.turns
        chosen = [turns[next(self._turn) % len(turns)] for _ in range(self.calls)]
        start = perf_counter()
        for arguments in chosen:
            kernel(*arguments)
        return (perf_counter() - start) / self.calls

    def timing(self, baseline: Kernel, candidate: Kernel, asked: Compare, share: float) -> Timing:
        """Time both in turns, each first as often; fewer pairs where there is no hope."""
        self.sample(candidate)
        times: list[tuple[float, float]] = []
        end = perf_counter() + asked.seconds * share
        while True:
            if len(times) % 2:
                after, before = self.sample(candidate), self.sample(baseline)
            else:
                before, after = self.sample(baseline), self.sample(candidate)
            times.append((before, after))
            found = timing_of(times)
            if len(times) == FIRST and found.ratio > HOPELESS:
                return found
            enough = found.noise <= asked.noise or perf_counter() > end
            if len(times) >= asked.pairs and enough:
                return found


def timing_of(times: Sequence[tuple[float, float]]) -> Timing:
    """Of pairs of seconds, the baseline's first.

    Each side is the median of its faster half: other work on the machine only ever slows. Where
    the ratio was another at first than at last, that is noise too.
    """
    (base, base_noise), (own, own_noise) = _sides(times)
    ratio, drift = own / base, 0.0
    if len(times) >= HALVED:
        early, late = times[: len(times) // 2], times[len(times) // 2 :]
        (b, _), (c, _) = _sides(early)
        (d, _), (e, _) = _sides(late)
        drift = abs(c / b - e / d) / ratio
    return Timing(
        microseconds=1e6 * own,
        baseline_microseconds=1e6 * base,
        ratio=ratio,
        noise=max(math.hypot(base_noise, own_noise), drift / 2),
    )


def _sides(times: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [_undisturbed(side) for side in zip(*times, strict=True)]


def _undisturbed(seconds: Sequence[float]) -> tuple[float, float]:
    """The median of the faster half, and twice its standard error, relative."""
    faster = sorted(seconds)[: (len(seconds) + 1) // 2]
    middle = statistics.median(faster)
    spread = 1.4826 * statistics.median(abs(s - middle) for s in faster)
    return middle, 2 * 1.2533 * spread / len(faster) ** 0.5 / middle


def _numbers(result: Array, values: Values) -> Array:
    """float32, of pairs of bfloat16 too."""
    if values != "pairs":
        return result
    return np.left_shift(result.view(np.uint16).astype(np.uint32), 16).view(np.float32)


def _copies(situation: Situation) -> int:
    """How often the weights are there."""
    nbytes = situation.nbytes("weights")
    cold = max(COLD, 2 * last_level_cache())
    return min(MOST_COPIES, -(-cold // nbytes)) if nbytes else 1


@dataclass(slots=True)
class Runner:
    """The task in hand; `threads` are those that TVM runs kernels with."""

    threads: int = 1
    benches: list[Bench] = field(default_factory=list)
    baseline: Kernel | None = None

    def answer(self, question: Prepare | Compare | Gauge) -> Prepared | Compared | Gauged:
        """Do what is asked."""
        match question:
            case Prepare():
                return self.prepare(question)
            case Compare():
                return self.compare(question)
            case Gauge():
                return Gauged(read_bandwidth(self.threads))

    def prepare(self, question: Prepare) -> Prepared:
        """Set up the task's situations."""
        self.benches.clear()  # before the next are made: both would not fit
        self.baseline = _load(question.baseline)
        random = np.random.default_rng(0)
        seconds = []
        for situation in question.situations:
            bench = Bench.of(situation, random)
            bench.expected = bench.results(self.baseline)
            seconds.append(bench.settle(self.baseline))
            self.benches.append(bench)
        return Prepared(tuple(1e6 * s for s in seconds))

    def compare(self, question: Compare) -> Compared:
        """Check first: a wrong kernel's time means nothing."""
        assert self.baseline is not None, "no task was prepared"
        candidate = _load(question.candidate)
        for bench in self.benches:
            if wrong := bench.differs(candidate):
                return Compared(wrong=wrong)
        total = sum(bench.situation.weight for bench in self.benches)
        timings = [
            bench.timing(self.baseline, candidate, question, bench.situation.weight / total)
            for bench in self.benches
        ]
        return Compared(tuple(timings))


def _load(path: str) -> Kernel:
    import tvm

    kernel: Kernel = tvm.runtime.load_module(path)[SYMBOL]
    return kernel


def main() -> None:
    """Start TVM's threads before the first question, then answer."""
    runner = Runner(start_tvm())
    serve(Prepare | Compare | Gauge, runner.answer)  # type: ignore[arg-type]  # msgspec takes a union


if __name__ == "__main__":
    main()
