"""The sampler draws what numpy draws by the same rules, for given uniforms; ties and edges."""

import functools

import numpy as np
import pytest

from mlc_compile.runtime.sampler import Sampling, candidates_of
from mlc_compile.schedule.kernels.gpu.sampler import sample
from mlc_compile.schedule.kernels.gpu.sampler_search import parts_of, workspace_shape
from tests.schedule.kernels.gpu.emission import (
    PRINTED,
    check_no_spills,
    device_of,
    simulate,
    source,
)

VOCAB = 700  # three pieces of 256, the last one rounded up


def oracle(logits, temperature, top_k, top_p, uniform):
    """By the CPU sampler's candidates and weights; drawn in the order of ids."""
    if temperature == 0:
        return int(logits.argmax())
    ids, weights = candidates_of(logits, Sampling(temperature, top_k, top_p))
    order = np.argsort(ids)
    mass = weights[order].cumsum()
    return int(ids[order][mass.searchsorted(uniform * mass[-1], side="right")])


@functools.cache
def kernel(vocab, row):
    return sample(vocab, device_of(row))


def draw(row, logits, temperature=1.0, top_k=0, top_p=1.0, uniform=0.5):
    """The token, after as many launches as promised."""
    vocab = logits.size
    token = np.full(1, -1, np.int32)
    work = [np.full(workspace_shape(vocab), np.nan, np.float32) for _ in range(2)]
    floats = [np.array([x], np.float32) for x in (temperature, top_p, uniform)]
    arguments = [logits[None], floats[0], np.array([top_k], np.int32), *floats[1:], token, *work]
    launches = simulate(kernel(vocab, row), row, *arguments)
    assert len(launches) == 10
    return int(token[0])


def random_logits(seed, vocab=VOCAB):
    return (3 * np.random.default_rng(seed).standard_normal(vocab)).astype(np.float32)


SAMPLINGS = {
    "everything": (1.0, 0, 1.0),
    "greedy": (0.0, 20, 0.9),
    "hot": (2.5, 0, 1.0),
    "top k": (0.7, 20, 1.0),
    "top p": (0.8, 0, 0.9),
    "both": (0.6, 20, 0.95),
    "k of one": (1.3, 1, 0.5),
    "k beyond the vocabulary": (1.0, 5000, 0.7),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_token_is_the_oracles(name):
    for seed, row in enumerate(("cuda-sm80", "webgpu")):
        logits, uniform = random_logits(seed), np.random.default_rng(seed).random()
        got = draw(row, logits, *SAMPLINGS[name], uniform)
        assert got == oracle(logits, *SAMPLINGS[name], uniform)


def test_every_candidate_is_drawn_by_its_share():
    """Uniforms in the middle of each candidate's interval, so that rounding decides nothing."""
    logits = random_logits(1)
    ids, weights = candidates_of(logits, Sampling(0.9, 5, 1.0))
    ids, weights = ids[np.argsort(ids)], weights[np.argsort(ids)]
    middles = (weights.cumsum() - weights / 2) / weights.sum()
    assert [draw("webgpu", logits, 0.9, 5, 1.0, u) for u in middles] == ids.tolist()


@pytest.mark.parametrize(("uniform", "expected"), [(0.1, 4), (0.5, 9), (0.9, 300)])
def test_of_ties_at_a_cut_the_first_stay_in(uniform, expected):
    logits = np.full(VOCAB, -5, np.float32)
    logits[[4, 9, 300, 500, 699]] = 2
    assert draw("webgpu", logits, 1.0, 3, 1.0, uniform) == expected


def test_ties_cut_by_p_are_the_first_too():
    logits = np.full(VOCAB, -80, np.float32)
    logits[[4, 9, 300, 500]] = 2
    drawn = {draw("webgpu", logits, 1.0, 0, 0.5, u) for u in (0.0, 0.3, 0.6, 0.999)}
    assert drawn == {4, 9}


def test_all_equal_logits_are_drawn_alike():
    logits = np.zeros(VOCAB, np.float32)
    for uniform in (0.0, 0.5, 0.999):
        assert draw("webgpu", logits, uniform=uniform) == int(uniform * VOCAB)


def test_zeros_of_either_sign_are_equal():
    logits = np.full(VOCAB, -1, np.float32)
    logits[[1, 2]] = -0.0, 0.0
    assert draw("webgpu", logits, temperature=0) == 1


def test_a_masked_token_is_never_drawn():
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[[7, 250]] = 0
    assert [draw("webgpu", logits, uniform=u) for u in (0.0, 0.4, 0.6, 0.999)] == [7, 7, 250, 250]


@pytest.mark.parametrize("edge", [0.0, 1 - 2**-24])
def test_the_ends_of_the_uniform_draw_tokens_of_the_vocabulary(edge):
    assert 0 <= draw("webgpu", random_logits(3, 5), uniform=edge) < 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["top p", "both"])
def test_the_whole_vocabulary_of_qwen(name):
    """In as many launches: `draw` counts them."""
    logits = random_logits(5, 151936)
    got = draw("cuda-sm80", logits, *SAMPLINGS[name], 0.37)
    assert got == oracle(logits, *SAMPLINGS[name], 0.37)


def test_parts_cover_the_vocabulary():
    for vocab in (1, 256, 32768, 32769, 151936):
        parts = parts_of(vocab)
        assert parts.count <= 128
        assert (parts.count - 1) * parts.size < vocab <= parts.count * parts.size
        assert workspace_shape(vocab) == (parts.count + 2, 256)


@pytest.mark.parametrize("row", PRINTED)
def test_every_code_generator_prints_it(row):
    assert "exp" in source(row, sample(151936, device_of(row)))


@pytest.mark.slow
def test_nothing_spills_on_cuda():
    check_no_spills(sample(151936, device_of("cuda-sm80")))
