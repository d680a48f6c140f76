"""Choose the next token from logits: greedy, or at random within top-k and top-p.

On the host. A library for a device has functions that choose there, from the same candidates
with the same shares; they take a `Sampling` as `device_settings` and draw by `uniform`.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from mlc_compile.errors import ConfigError

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Indices = npt.NDArray[np.intp]

FIRST_LOOK: Final = 256  # candidates sorted before asking whether they carry top_p's mass
WIDEN: Final = 16

RANGES: Final = {  # what each must be, and what its edge means
    "temperature": ("0 or more", "0 chooses greedily"),
    "top-k": ("0 or more", "0 leaves every token in"),
    "top-p": ("above 0 and at most 1", "1 leaves every token in"),
    "seed": ("0 or more", "left out: another text each time"),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose: temperature 0 is greedy; top_k 0 and top_p 1 leave everything in."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None  # None: another run, another text

    def __post_init__(self) -> None:
        """Raise ConfigError for a value outside its range."""
        holds = {
            "temperature": self.temperature >= 0,
            "top-k": self.top_k >= 0,
            "top-p": 0 < self.top_p <= 1,
            "seed": self.seed is None or self.seed >= 0,
        }
        broken = [name for name, good in holds.items() if not good]
        if broken:
            rules = (f"{name} must be {RANGES[name][0]}" for name in broken)
            hints = (f"{name} {RANGES[name][1]}" for name in broken)
            raise ConfigError("; ".join(rules), hint="; ".join(hints))


GREEDY: Final = Sampling()

FLOAT32: Final = np.finfo(np.float32)
BELOW_ONE: Final = 1 - float(FLOAT32.epsneg)  # the largest float32 that is less than 1


def device_settings(sampling: Sampling, vocab_size: int) -> tuple[Floats, Ints, Floats]:
    """temperature f32[1], top_k i32[1] and top_p f32[1], as a library's `sample` takes them.

    What float32 or int32 cannot hold becomes the nearest value that means the same: a top_p
    rounded to 0 would leave no token in.
    """
    temperature = min(sampling.temperature, float(FLOAT32.max))
    top_p = max(sampling.top_p, float(FLOAT32.tiny))
    return (
        np.array([temperature], np.float32),
        np.array([min(sampling.top_k, vocab_size)], np.int32),
        np.array([top_p], np.float32),
    )


class Sampler:
    """A `Sampling` and its random state: equal seeds and logits give equal tokens."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    @property
    def greedy(self) -> bool:
        """Whether it draws nothing: the largest logit is chosen."""
        return self.sampling.temperature == 0

    def uniform(self) -> Floats:
        """The number that the next token is drawn by: f32[1], at least 0 and less than 1."""
        return np.array([min(self._random.random(), BELOW_ONE)], np.float32)

    def sample(self, logits: Floats) -> int:
        """One token id for logits f32[vocab]."""
        if self.greedy:
            return int(logits.argmax())
        candidates, weights = candidates_of(logits, self.sampling)
        mass = weights.cumsum()
        drawn = mass.searchsorted(self._random.random() * mass[-1], side="right")
        return int(candidates[min(drawn, mass.size - 1)])


def candidates_of(logits: Floats, sampling: Sampling) -> tuple[Indices, Doubles]:
    """Ids that may be drawn and their weights (not normalized).

    As in transformers: temperature first, then the k largest, then among those the fewest
    whose share of the mass reaches p. Never sorts the vocabulary unless p needs it.
    """
    limit = min(sampling.top_k or logits.size, logits.size)
    everything = limit == logits.size
    if everything and sampling.top_p == 1:
        return np.arange(logits.size), _weights(logits, logits.max(), sampling.temperature)
    top = largest(logits, limit if not everything else min(FIRST_LOOK, limit))
    if sampling.top_p == 1:
        return top, _weights(logits[top], logits[top[0]], sampling.temperature)
    peak = logits[top[0]]
    scored = logits if everything else logits[top]
    needed = sampling.top_p * _weights(scored, peak, sampling.temperature).sum()
    while True:
        weights = _weights(logits[top], peak, sampling.temperature)
        mass = weights.cumsum()
        if mass[-1] >= needed or top.size >= limit:
            break
        top = largest(logits, min(limit, top.size * WIDEN))
    count = int(mass.searchsorted(needed)) + 1
    return top[:count], weights[:count]


def largest(logits: Floats, k: int) -> Indices:
    """Ids of the k largest logits, largest first; equal ones by id."""
    if k < logits.size:
        chosen = np.sort(np.argpartition(logits, logits.size - k)[logits.size - k :])
    else:
        chosen = np.arange(logits.size)
    return chosen[np.argsort(-logits[chosen], kind="stable")]


def _weights(logits: Floats, peak: np.float32, temperature: float) -> Doubles:
    return np.exp((logits.astype(np.float64) - peak) / temperature)
