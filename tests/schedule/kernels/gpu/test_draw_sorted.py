"""A token is drawn from sorted probabilities as by cumulative sums in float64."""

import functools

import numpy as np
import pytest

from mlc_compile.schedule.kernels.gpu.draw_sorted import (
    THREADS,
    draw_sorted,
    part_size,
    parts_of,
)
from tests.schedule.kernels.gpu.emission import PRINTED, device_of, simulate, source

EVERYTHING = 1.0


@functools.cache
def kernel(vocab):
    return draw_sorted(vocab, device_of("webgpu"))


def draw(x, uniform, top_p=EVERYTHING):
    """The place among the sorted of the token; tokens are numbered from 1000 backwards."""
    order = 1000 - np.arange(x.size, dtype=np.int32)
    token = np.full(1, -1, np.int32)
    given = [np.array([value], np.float32) for value in (uniform, top_p)]
    work = np.full(parts_of(x.size), np.nan, np.float32)
    arguments = [x[None], order[None], given[0], np.zeros(1, np.int32), given[1], token, work]
    launches = simulate(kernel(x.size), "webgpu", *arguments)
    assert len(launches) == 2
    return 1000 - int(token[0])


def probabilities(vocab, seed=0):
    x = np.random.default_rng(seed).dirichlet(np.full(vocab, 0.2))
    return np.sort(x)[::-1].astype(np.float32)


@pytest.mark.parametrize("vocab", [1, 40, 256, 700])
@pytest.mark.parametrize("top_p", [EVERYTHING, 0.9, 0.5, 1e-5])
def test_each_item_of_the_nucleus_is_drawn_by_its_share(vocab, top_p):
    """Uniforms in the middle of intervals, so that the order of sums decides nothing."""
    x = probabilities(vocab, vocab)
    mass = x.astype(np.float64).cumsum()
    cut = vocab - 1 if top_p == EVERYTHING else int(mass.searchsorted(top_p))
    wide = np.flatnonzero(x[: cut + 1] > 1e-4 * mass[cut])
    for item in {int(wide[0]), int(wide[len(wide) // 2]), int(wide[-1])}:
        uniform = (mass[item] - x[item] / 2) / mass[cut]
        assert draw(x, uniform, top_p) == item


@pytest.mark.parametrize("top_p", [EVERYTHING, 0.7])
def test_the_ends_of_the_uniform_draw_the_ends_of_the_nucleus(top_p):
    x = np.array([0.4, 0.3, 0.2, 0.1, 0, 0], np.float32)
    last = 3 if top_p == EVERYTHING else 1
    assert draw(x, 0.0, top_p) == 0
    assert draw(x, 1 - 2**-24, top_p) == last


def test_what_has_no_mass_is_never_drawn():
    x = np.zeros(600, np.float32)
    x[:2] = 0.5
    assert [draw(x, u) for u in (0, 0.499, 0.501, 1 - 2**-24)] == [0, 0, 1, 1]


def test_all_mass_on_one_item_leaves_no_choice():
    x = np.zeros(300, np.float32)
    x[0] = 1
    assert {draw(x, u, p) for u in (0, 0.5, 0.9999) for p in (1e-5, 0.5, 1.0)} == {0}


def test_parts_cover_the_vocabulary():
    for vocab in (1, 256, 65536, 65537, 151936):
        assert parts_of(vocab) <= THREADS
        assert part_size(vocab) % THREADS == 0
        assert (
            (parts_of(vocab) - 1) * part_size(vocab) < vocab <= parts_of(vocab) * part_size(vocab)
        )


@pytest.mark.slow
@pytest.mark.parametrize("top_p", [EVERYTHING, 0.95])
def test_the_whole_vocabulary_of_qwen(top_p):
    x = probabilities(151936)
    mass = x.astype(np.float64).cumsum()
    cut = mass[-1] if top_p == EVERYTHING else mass[mass.searchsorted(top_p)]
    item = draw(x, 0.37, top_p)
    near = 1e-5  # float32 sums of 152 thousand terms, in parts
    assert mass[item] - x[item] - near < 0.37 * cut < mass[item] + near


@pytest.mark.parametrize("row", PRINTED)
def test_every_code_generator_prints_it(row):
    assert source(row, draw_sorted(151936, device_of(row)))
