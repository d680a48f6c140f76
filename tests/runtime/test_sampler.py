"""Sampling against the plain definition, which sorts everything."""

from time import perf_counter

import numpy as np
import pytest

from mlc_compile.errors import ConfigError
from mlc_compile.runtime.sampler import (
    Sampler,
    Sampling,
    candidates_of,
    device_settings,
    largest,
)

QWEN_VOCAB = 151_936


def reference(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Probabilities over the vocabulary, as transformers' warpers define them."""
    scaled = logits.astype(np.float64) / sampling.temperature
    order = np.argsort(-scaled, kind="stable")
    kept = order[: sampling.top_k or logits.size]
    p = np.exp(scaled[kept] - scaled[kept].max())
    p /= p.sum()
    count = int((p.cumsum() < sampling.top_p).sum()) + 1 if sampling.top_p < 1 else p.size
    result = np.zeros(logits.size)
    result[kept[:count]] = p[:count] / p[:count].sum()
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
    ],
    ids=str,
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


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": -0.1}, "temperature must be 0 or more"),
        ({"temperature": float("nan")}, "temperature must be 0 or more"),
        ({"top_k": -1}, "top-k must be"),
        ({"top_p": 0.0}, "top-p must be"),
        ({"top_p": 1.01}, "top-p must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_values_outside_their_range_are_refused(fields: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Sampling(**fields)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(0.6, top_k=20, top_p=0.95), Sampling(1.0, top_p=0.95), Sampling(1.0)],
    ids=str,
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
        ({"seed": -1}, "seed left out: another text each time"),
        ({"temperature": -1.0}, "temperature 0 chooses greedily"),
        ({"top_k": -3, "seed": -1}, "top-k 0 leaves every token in; seed left out: another text"),
    ],
)
def test_a_hint_is_about_the_value_that_is_wrong(fields: dict[str, float], hint: str) -> None:
    with pytest.raises(ConfigError) as e:
        Sampling(**fields)
    assert e.value.hint.startswith(hint)
