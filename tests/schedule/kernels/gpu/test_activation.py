"""SwiGLU on every kind of device against float64."""

import numpy as np
import pytest

from mlc_compile.schedule.kernels.gpu import activation
from tests.schedule.kernels.gpu.emission import (
    PRINTED,
    device_of,
    every_row,
    simulate,
    source,
)
from tests.schedule.kernels.gpu.place import ulps_of_exp

EPS = np.finfo(np.float32).eps


def check(gate_up, y):
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=-1)
    exact = gate / (1 + np.exp(-np.maximum(gate, -700))) * up
    # Four operations round beside exp. Below -87 its argument is clamped: what should be
    # smaller than gate exp(-87) up is then no larger than that.
    rounding = (6 + ulps_of_exp(np.clip(gate, -87, 87))) * EPS
    bound = rounding * np.abs(exact) + 2 * np.exp(-87.0) * np.abs(np.minimum(gate, 0) * up)
    assert (np.abs(y - exact) <= bound).all()


@every_row
@pytest.mark.parametrize("i", [1, 6, 96, 300])
@pytest.mark.parametrize("rows", [1, None])
def test_any_width_and_number_of_rows(row, i, rows):
    random = np.random.default_rng(i)
    func = activation.swiglu(i, rows, device_of(row))
    for m in [1] if rows else [1, 2, 5]:
        x = random.uniform(-20, 20, (1, m, 2 * i)).astype(np.float32)
        y = np.full((1, m, i), np.nan, np.float32)
        simulate(func, row, x, y)
        check(x, y)


@every_row
def test_extremes_neither_overflow_nor_change_sign(row):
    gates = np.array([0, 1e-30, -1e-30, -86, -88, -200, -1e9, 86, 88, 1e9, 1e37], np.float32)
    x = np.concatenate([np.resize(gates, 16), np.full(16, 2.0)]).astype(np.float32)[None, None]
    y = np.full((1, 1, 16), np.nan, np.float32)
    simulate(activation.swiglu(16, 1, device_of(row)), row, x, y)
    check(x, y)
    assert (y[x[..., :16] < 0] <= 0).all()


@pytest.mark.parametrize("row", PRINTED)
def test_every_code_generator_prints_it(row):
    assert "exp(" in source(row, activation.swiglu(3072, None, device_of(row))).replace("f(", "(")
