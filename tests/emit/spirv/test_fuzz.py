"""Thousands of random expressions of every type compute on a device what numpy computes."""

import numpy as np
import pytest
from tvm import tirx

from .trees import INPUTS, STORED, Grower
from .writing import THREADS, kernel, store

DEPTH = 5
# How many kernels of how many trees, by lanes: 2080 trees. Many small kernels, since what a
# device's compiler takes grows faster than they do.
KERNELS = {1: (40, 30), 2: (16, 30), 3: (4, 30), 4: (8, 30), 8: (4, 10)}


def inputs(rng, size):
    """Values of each dtype; floats are quarters up to 16, so that trees stay exact."""
    values = {}
    for dtype in STORED:
        kind = np.dtype(dtype)
        if kind.kind == "f":
            values[dtype] = (rng.integers(-64, 65, size) / 4).astype(dtype)
        elif kind.kind == "b":
            values[dtype] = rng.integers(0, 2, size).astype(dtype)
        else:
            ends = np.iinfo(kind).min, np.iinfo(kind).max
            values[dtype] = rng.integers(*ends, size, dtype, endpoint=True)
            values[dtype][::5] = rng.integers(0, 9, len(values[dtype][::5])).astype(dtype)
            values[dtype][1::5] = rng.choice(np.array(ends, dtype), len(values[dtype][1::5]))
    return values


def forest(rng, lanes, trees):
    """A kernel of random trees, the values it reads, and those it must write by dtype."""
    size = THREADS * lanes
    values, expected, grown = inputs(rng, size * INPUTS), {d: [] for d in STORED}, []

    def body(n):
        base = tirx.Mul(n.thread, tirx.IntImm("int32", lanes))
        buffers = {d: getattr(n, f"x_{d}") for d in STORED}
        grower = Grower(rng, lanes, buffers, values, base)
        for i in range(trees):
            tree = grower.grow(STORED[i % len(STORED)], int(rng.integers(1, DEPTH + 1)))
            grown.append(tree)
            place = tirx.Add(base, tirx.IntImm("int32", len(expected[tree.dtype]) * size))
            expected[tree.dtype].append(tree.value)
            yield store(getattr(n, f"y_{tree.dtype}"), tree.node, place, lanes)

    named = {f"{side}_{dtype}": dtype for side in "xy" for dtype in STORED}
    func = kernel(body, named, size=size * trees)
    return func, values, expected, grown


@pytest.mark.vulkan
@pytest.mark.parametrize("lanes", KERNELS)
def test_random_expressions_are_what_numpy_says(run, lanes):
    kernels, trees = KERNELS[lanes]
    for seed in range(kernels):
        rng = np.random.default_rng([seed, lanes])
        func, values, expected, grown = forest(rng, lanes, trees)
        made = {d: np.zeros(len(e) * THREADS * lanes, d) for d, e in expected.items()}
        run(func, [*values.values(), *made.values()])
        for dtype, arrays in expected.items():
            nodes = [tree.node for tree in grown if tree.dtype == dtype]
            got = made[dtype].reshape(len(arrays), THREADS * lanes)
            check(nodes, arrays, got)


def check(nodes, arrays, got):
    """The same bits but for zeros; else the first expression that differs is shown."""
    for node, want, have in zip(nodes, arrays, got, strict=True):
        if not np.array_equal(have, want):
            np.testing.assert_array_equal(have, want, err_msg=str(node))
