"""The vector words: reductions of a register, widths."""

import numpy as np
import pytest

from mlc_compile.schedule.kernels import vector as v


def fold_kernel(fold, lanes):
    with v.kernel() as builder:
        x = v.argument("x", (1, lanes))
        y = v.argument("y", (1,))
        v.put(fold(x, 0, lanes), y, 0)
    return builder.get()


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_a_register_is_folded_whatever_its_width(compile_kernel, unwritten, lanes):
    x = np.random.default_rng(lanes).integers(-9, 9, (1, lanes)).astype(np.float32)
    for fold, expected in ((v.total, x.sum()), (v.largest, x.max())):
        _, y = compile_kernel(fold_kernel(fold, lanes))(x, unwritten((1,)))
        assert y[0] == expected


@pytest.mark.parametrize(("width", "lanes"), [(64, 16), (24, 8), (12, 4), (6, 2), (7, 1)])
def test_the_widest_vector_that_divides_is_taken(width, lanes):
    assert v.lanes_for(width) == lanes
