"""Sampling against the plain definition, which sorts everything."""

from dataclasses import asdict, fields, replace
from time import perf_counter

import numpy as np
import pytest

from mlc_compile.errors import ConfigError
from mlc_compile.runtime.penalties import Penalties
from mlc_compile.runtime.ranges import RANGES
from mlc_compile.runtime.sampler import (
    GREEDY,
    NOTHING_ASKED,
    Asked,
    Sampler,
    Sampling,
    candidates_of,
    device_settings,
    largest,
)

QWEN_VOCAB = 151_936


def told(sampling: Sampling) -> str:
    """The fields that are not at their defaults."""
    given = {f.name: getattr(sampling, f.name) for f in fields(Sampling)}
    return " ".join(f"{k}={v}" for k, v in given.items() if v != getattr(GREEDY, k))


def reference(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Probabilities over the vocabulary, as transformers' warpers define them."""
    scaled = logits.astype(np.float64) / sampling.temperature
    order = np.argsort(-scaled, kind="stable")
    kept = order[: sampling.top_k or logits.size]
    p = np.exp(scaled[kept] - scaled[kept].max())
    p /= p.sum()
    count = int((p.cumsum() < sampling.top_p).sum()) + 1 if sampling.top_p < 1 else p.size
    p = p[:count] * (p[:count] >= sampling.min_p * p[0])
    result = np.zeros(logits.size)
    result[kept[:count]] = p / p.sum()
    return result


@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0),
        Sampling(0.7, top_k=1),
        Sampling(0.7, top_k=20),
        Sampling(1.3, top_k=5000),
        Sampling(1.0, top_p=0.9),
        Sampling(0.6, top_k=20, top_p=0.95),
        Sampling(1.0, top_p=1e-9),
        Sampling(1.0, top_p=0.999999),
        Sampling(1e-50, top_p=0.9),
        Sampling(1.5, min_p=0.1),
        Sampling(1.0, min_p=1.0),
        Sampling(1.3, top_k=50, min_p=0.05),
        Sampling(1.0, top_p=0.9, min_p=0.02),
    ],
    ids=told,
)
def test_candidates_are_those_of_the_definition(spread: float, sampling: Sampling) -> None:
    logits = np.random.default_rng(3).standard_normal(3000).astype(np.float32) * np.float32(spread)
    ids, weights = candidates_of(logits, sampling)
    got = np.zeros(logits.size)
    got[ids] = weights / weights.sum()
    np.testing.assert_allclose(got, reference(logits, sampling), atol=1e-12)


def test_drawn_shares_are_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler = Sampler(Sampling(1.0, seed=1))
    counts = np.bincount([sampler.sample(logits) for _ in range(20_000)], minlength=4)
    np.testing.assert_allclose(counts / 20_000, [0.5, 0.3, 0.15, 0.05], atol=0.015)  # 4 sigma


def test_temperature_zero_takes_the_largest() -> None:
    assert Sampler(Sampling()).sample(np.array([0.0, 3.0, 3.0, -1.0], np.float32)) == 1


def test_equal_seeds_draw_equal_tokens() -> None:
    logits = np.random.default_rng(0).standard_normal(500).astype(np.float32)

    def draw(seed: int) -> list[int]:
        sampler = Sampler(Sampling(1.0, seed=seed))
        return [sampler.sample(logits) for _ in range(20)]

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)


def test_the_device_draws_by_the_same_random_stream() -> None:
    """`uniform` takes the number that `sample` would have taken, rounded to float32."""
    logits = np.zeros(64, np.float32)
    one, other = Sampler(Sampling(1.0, seed=2)), Sampler(Sampling(1.0, seed=2))
    for _ in range(50):
        assert one.sample(logits) == int(other.uniform()[0] * 64)


def test_a_number_just_below_one_stays_below_it_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Last:
        def random(self) -> float:
            return 1 - 2**-53

    sampler = Sampler(Sampling(1.0))
    monkeypatch.setattr(sampler, "_random", Last())
    (drawn,) = sampler.uniform()
    assert drawn.dtype == np.float32
    assert drawn == np.nextafter(np.float32(1), np.float32(0))


def test_settings_for_a_device_keep_their_meaning_in_fewer_bits() -> None:
    def told(sampling: Sampling) -> list[float]:
        settings = device_settings(sampling, vocab_size=100)
        assert [(s.dtype.name, s.shape) for s in settings] == [
            ("float32", (1,)),
            ("int32", (1,)),
            ("float32", (1,)),
        ]
        return [s[0].item() for s in settings]

    assert told(Sampling(0.5, 20, 0.75)) == [0.5, 20, 0.75]
    assert told(Sampling(1.0)) == [1, 0, 1]
    hot, most, least = told(Sampling(1e300, 10**12, 1e-300))
    assert np.isfinite(hot)
    assert most == 100  # every token
    assert least > 0  # the likeliest alone


def test_largest_breaks_ties_by_id() -> None:
    assert largest(np.array([1, 2, 2, 0, 3], np.float32), 3).tolist() == [4, 1, 2]


@pytest.mark.parametrize("values", [2, 40, 10**6])
@pytest.mark.parametrize("k", [1, 20, 61, 62, 300, 3990, 4000])
def test_largest_are_the_first_of_the_sorted(values: int, k: int) -> None:
    """With many ties and with few, and with logits that fill no group of 64."""
    logits = np.random.default_rng(k).integers(values, size=4000).astype(np.float32)
    assert largest(logits, k).tolist() == np.argsort(-logits, kind="stable")[:k].tolist()


def test_a_temperature_near_zero_takes_the_largest_without_a_warning() -> None:
    logits = np.array([-80.0, 3.0, 2.5, 80.0], np.float32)
    for sampling in (Sampling(1e-300, top_p=0.9), Sampling(1e-300, min_p=0.5)):
        assert Sampler(sampling).sample(logits) == 3


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(presence_penalty=1.5),
        Sampling(frequency_penalty=-0.25),
        Sampling(repetition_penalty=1.75),
        Sampling(0.8, 20, 0.9, 3, presence_penalty=0.5, frequency_penalty=0.3,
                 repetition_penalty=1.2),
    ],
    ids=told,
)  # fmt: skip
def test_penalties_are_of_what_was_chosen_and_repetition_of_the_prompt_too(
    sampling: Sampling,
) -> None:
    logits = np.random.default_rng(9).standard_normal(50).astype(np.float32) * 2
    prompt, said = [4, 7, 4, int(logits.argmax())], np.zeros(50, int)
    plain = replace(sampling, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0)
    sampler, expected = Sampler(sampling, prompt), Sampler(plain)
    before = logits.copy()
    for _ in range(30):
        changed = logits - np.float32(sampling.presence_penalty) * (said > 0)
        changed -= np.float32(sampling.frequency_penalty) * said.astype(np.float32)
        factor = np.float32(sampling.repetition_penalty)
        repeated = [i for i in range(50) if i in prompt or said[i]]
        for i in repeated:
            changed[i] = changed[i] / factor if changed[i] > 0 else changed[i] * factor
        token = sampler.sample(logits)
        assert token == expected.sample(changed.astype(np.float32))
        said[token] += 1
    np.testing.assert_array_equal(logits, before)  # they may be the library's own


def test_penalties_are_exact_in_float32() -> None:
    logits = np.array([1.1, -0.7, 3.3, 0.2], np.float32)
    f = np.float32
    got = Penalties(0.3, 0.7, 1.3).apply(logits, {0: 0, 1: 2, 2: 1})
    expected = [
        f(1.1) / f(1.3),  # of the prompt alone
        (f(-0.7) - f(0.3) - f(2) * f(0.7)) * f(1.3),
        (f(3.3) - f(0.3) - f(0.7)) / f(1.3),
        f(0.2),
    ]
    assert got.tolist() == [e.item() for e in expected]


@pytest.mark.parametrize(
    ("sampling", "alone"),
    [
        (Sampling(0.6, 20, 0.95), False),
        (Sampling(min_p=0.5), False),  # greedy, whatever min-p
        (Sampling(1.0, min_p=0.5), True),
        (Sampling(repetition_penalty=1.1), True),
        (Sampling(0.6, presence_penalty=1.5), True),
    ],
)
def test_what_a_library_cannot_choose_by_is_known(sampling: Sampling, alone: bool) -> None:
    assert sampling.host_only == alone


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": -0.1}, "temperature must be 0 or more"),
        ({"temperature": float("nan")}, "temperature must be 0 or more"),
        ({"top_k": -1}, "top-k must be"),
        ({"top_p": 0.0}, "top-p must be"),
        ({"top_p": 1.01}, "top-p must be"),
        ({"seed": -1}, "seed must be"),
        ({"min_p": 1.5}, "min-p must be from 0 to 1"),
        ({"presence_penalty": 2.5}, "presence-penalty must be from -2 to 2"),
        ({"frequency_penalty": -3}, "frequency-penalty must be from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition-penalty must be from 0.1 to 10"),
        ({"repetition_penalty": float("inf")}, "repetition-penalty must be"),
    ],
)
def test_values_outside_their_range_are_refused(fields: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Sampling(**fields)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(0.6, top_k=20, top_p=0.95), Sampling(1.0, top_p=0.95), Sampling(1.0)],
    ids=told,
)
def test_a_full_vocabulary_costs_little_beside_decoding(sampling: Sampling) -> None:
    logits = np.random.default_rng(1).standard_normal(QWEN_VOCAB).astype(np.float32) * 4
    sampler = Sampler(sampling)
    times = []
    for _ in range(7):
        start = perf_counter()
        sampler.sample(logits)
        times.append(perf_counter() - start)
    # Decoding 0.6B takes some 40 ms; sorting the vocabulary with an object sort would take 100.
    assert min(times) < 0.02


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"top_p": 3.0}, "top-p 1 leaves every token in"),
        ({"top_k": -3}, "top-k 0 leaves every token in"),
        ({"repetition_penalty": 0}, "repetition-penalty 1 changes nothing"),
        ({"seed": -1}, "seed left out: another text each time"),
        ({"temperature": -1.0}, "temperature 0 chooses greedily"),
        ({"top_k": -3, "seed": -1}, "top-k 0 leaves every token in; seed left out: another text"),
    ],
)
def test_a_hint_is_about_the_value_that_is_wrong(fields: dict[str, float], hint: str) -> None:
    with pytest.raises(ConfigError) as e:
        Sampling(**fields)
    assert e.value.hint.startswith(hint)


def test_what_nobody_asks_is_as_advised() -> None:
    advised = Sampling(0.6, 20, 0.95)
    assert NOTHING_ASKED.over(advised) == advised
    asked = Asked(temperature=0.0, seed=3, min_p=0.1, presence_penalty=1.5)
    assert asked.over(advised) == Sampling(0.0, 20, 0.95, 3, min_p=0.1, presence_penalty=1.5)


def test_every_field_has_a_range_and_does_nothing_by_default() -> None:
    assert asdict(GREEDY) == {name: RANGES[name].neutral for name in asdict(GREEDY)}
    assert set(RANGES) == set(asdict(GREEDY)) == set(asdict(NOTHING_ASKED))
