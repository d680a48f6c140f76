"""Choose the next token from logits: penalties first, then greedily, or at random within cuts.

On the host. A library for a device has functions that choose there, from the same candidates
with the same shares; they take a `Sampling` as `device_settings` and draw by `uniform`. They
know neither penalties nor min-p: a `host_only` sampling needs the logits here.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from mlc_compile.errors import ConfigError
from mlc_compile.runtime.penalties import Penalties
from mlc_compile.runtime.ranges import RANGES

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Indices = npt.NDArray[np.intp]

FIRST_LOOK: Final = 256  # candidates sorted before asking whether they carry top_p's mass
WIDEN: Final = 16
GROUP: Final = 64  # logits of which the largest alone is looked at first
ROUGH: Final = 4e-6  # most that a mass in float32 is off, as a share of it


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose: temperature 0 is greedy; the other defaults leave everything as it is.

    min_p leaves out what is less likely than this share of the likeliest token.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None  # None: another run, another text
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        """Raise ConfigError for a value outside its range."""
        given = asdict(self)
        broken = {
            name.replace("_", "-"): allowed
            for name, allowed in RANGES.items()
            if given[name] is not None and given[name] not in allowed
        }
        if broken:
            rules = (f"{name} must be {allowed.rule}" for name, allowed in broken.items())
            hints = (f"{name} {allowed.remark}" for name, allowed in broken.items())
            raise ConfigError("; ".join(rules), hint="; ".join(hints))

    @property
    def penalties(self) -> Penalties:
        """What becomes of tokens that were said before."""
        return Penalties(self.presence_penalty, self.frequency_penalty, self.repetition_penalty)

    @property
    def host_only(self) -> bool:
        """Whether a library for a device cannot choose by it."""
        return bool(self.penalties) or (self.min_p > 0 and self.temperature > 0)


GREEDY: Final = Sampling()


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody asks of `Sampling`; None leaves it open."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None

    def over(self, advised: Sampling) -> Sampling:
        """`advised` with what is asked in its place; ConfigError for a value outside its range."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(advised, **given)


NOTHING_ASKED: Final = Asked()


FLOAT32: Final = np.finfo(np.float32)
BELOW_ONE: Final = 1 - float(FLOAT32.epsneg)  # the largest float32 that is less than 1


def device_settings(sampling: Sampling, vocab_size: int) -> tuple[Floats, Ints, Floats]:
    """temperature f32[1], top_k i32[1] and top_p f32[1], as a library's `sample` takes them.

    What float32 or int32 cannot hold becomes the nearest value that means the same: a top_p
    rounded to 0 would leave no token in. The rest of `sampling` has no place there.
    """
    assert not sampling.host_only, sampling
    temperature = min(sampling.temperature, float(FLOAT32.max))
    top_p = max(sampling.top_p, float(FLOAT32.tiny))
    return (
        np.array([temperature], np.float32),
        np.array([min(sampling.top_k, vocab_size)], np.int32),
        np.array([top_p], np.float32),
    )


class Sampler:
    """A `Sampling`, its random state and what was said, beginning with the tokens of `prompt`.

    Equal seeds, prompts and logits give equal tokens.
    """

    def __init__(self, sampling: Sampling, prompt: Iterable[int] = ()) -> None:
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)
        self._penalties = sampling.penalties
        self._said = dict.fromkeys(prompt, 0)  # times that it was chosen, by id

    @property
    def greedy(self) -> bool:
        """Whether it draws nothing: the largest logit is chosen."""
        return self.sampling.temperature == 0

    def uniform(self) -> Floats:
        """The number that the next token is drawn by: f32[1], at least 0 and less than 1."""
        return np.array([min(self._random.random(), BELOW_ONE)], np.float32)

    def sample(self, logits: Floats) -> int:
        """One token id for logits f32[vocab]; it counts as said from then on."""
        if not self._penalties:
            return self._choose(logits)
        token = self._choose(self._penalties.apply(logits, self._said))
        self._said[token] = self._said.get(token, 0) + 1
        return token

    def _choose(self, logits: Floats) -> int:
        if self.greedy:
            return int(logits.argmax())
        candidates, weights = candidates_of(logits, self.sampling)
        mass = weights.cumsum()
        drawn = mass.searchsorted(self._random.random() * mass[-1], side="right")
        return int(candidates[min(drawn, mass.size - 1)])


def candidates_of(logits: Floats, sampling: Sampling) -> tuple[Indices, Doubles]:
    """Ids that may be drawn and their weights (not normalized; the likeliest has 1).

    As in transformers: temperature first, then the k largest, then among those the fewest
    whose share of the mass reaches p, then those with min_p of the likeliest's share.
    Never sorts the vocabulary unless p needs it.
    """
    limit = min(sampling.top_k or logits.size, logits.size)
    peak, temperature = float(logits.max()), sampling.temperature
    if limit < logits.size or sampling.top_p < 1:
        ids = _likeliest(logits, peak, limit, sampling)
    elif sampling.min_p > 0:
        ids = np.flatnonzero(logits >= _least(peak, sampling))
    else:
        return np.arange(logits.size), _weights(logits, peak, temperature)
    weights = _weights(logits[ids], peak, temperature)
    likely = weights >= sampling.min_p
    return ids[likely], weights[likely]


def largest(logits: Floats, k: int) -> Indices:
    """Ids of the k largest logits, largest first; equal ones by id."""
    ids = np.flatnonzero(logits >= _reached(logits, k)) if k < logits.size else np.arange(k)
    return ids[np.argsort(-logits[ids], kind="stable")][:k]


def _reached(logits: Floats, k: int) -> np.float32:
    """A number that k logits or more reach, but not many more: of k groups one each."""
    groups = logits.size // GROUP
    if 2 * k <= groups:
        # A group is a column: numpy compares whole rows, in a fifth of the time.
        logits = logits[: GROUP * groups].reshape(GROUP, groups).max(axis=0)
    reached: np.float32 = np.partition(logits, logits.size - k)[logits.size - k]
    return reached


def _likeliest(logits: Floats, peak: float, limit: int, sampling: Sampling) -> Indices:
    """The `limit` largest, of these the fewest that have top_p of their mass; largest first."""
    temperature, p = sampling.temperature, sampling.top_p
    everything = limit == logits.size
    ids = largest(logits, min(FIRST_LOOK, limit) if everything else limit)
    if p == 1:
        return ids
    mass = _weights(logits[ids], peak, temperature).cumsum()
    needed, off = p * mass[-1], 0.0
    if everything:
        needed, off = p * _rough_mass(logits, peak, temperature), ROUGH
    while mass[-1] < needed * (1 + off) and ids.size < limit:
        ids = largest(logits, min(limit, ids.size * WIDEN))
        mass = _weights(logits[ids], peak, temperature).cumsum()
    last, latest = mass.searchsorted((needed * (1 - off), needed * (1 + off)))
    if last != latest:
        last = mass.searchsorted(p * _weights(logits, peak, temperature).sum())
    return ids[: int(last) + 1]


def _least(peak: float, sampling: Sampling) -> float:
    """A logit such that those below it have less than min_p, with room for rounding."""
    below = sampling.temperature * (1 - math.log(sampling.min_p))
    return max(peak - below, float(FLOAT32.min))


def _rough_mass(logits: Floats, peak: float, temperature: float) -> float:
    """The sum of all weights, in float32, which takes a third of the time."""
    # Below, all but the largest have no weight; above, all have the same.
    divisor = np.float32(min(max(temperature, 1e-30), float(FLOAT32.max)))
    scaled = logits - np.float32(peak)
    scaled /= divisor
    return float(np.exp(scaled, out=scaled).sum(dtype=np.float64))


def _weights(logits: Floats, peak: float, temperature: float) -> Doubles:
    scaled: Doubles = logits.astype(np.float64)
    scaled -= peak
    scaled /= temperature
    return np.exp(scaled, out=scaled)
