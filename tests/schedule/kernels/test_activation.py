"""SwiGLU against float64."""

import numpy as np
import pytest

from mlc_compile.schedule.kernels import activation

EPS = np.finfo(np.float32).eps


def check(gate_up, y):
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=-1)
    exact = gate / (1 + np.exp(-gate)) * up
    # exp is within 2 ulp, and three more operations round. Below -87 it is clamped: what
    # should be smaller than 87 exp(-87) |up| then is no larger than that.
    bound = 6 * EPS * np.abs(exact) + 1e2 * np.exp(-87.0) * np.maximum(1, np.abs(up))
    assert (np.abs(y - exact) <= bound).all()


@pytest.mark.parametrize("i", [1, 6, 24, 192])
@pytest.mark.parametrize("rows", [1, None])
def test_any_width_and_number_of_rows(compile_kernel, unwritten, i, rows):
    random = np.random.default_rng(i)
    run = compile_kernel(activation.swiglu(i, rows))
    for m in [1] if rows else [1, 2, 9]:
        x = random.uniform(-20, 20, (1, m, 2 * i)).astype(np.float32)
        _, y = run(x, unwritten((1, m, i)))
        check(x, y)


def test_every_level_agrees(compile_kernel, unwritten, level):
    x = np.random.default_rng(0).uniform(-20, 20, (1, 1, 96)).astype(np.float32)
    _, y = compile_kernel(activation.swiglu(48, 1), level)(x, unwritten((1, 1, 48)))
    check(x, y)


def test_extremes_neither_overflow_nor_change_sign(compile_kernel, unwritten):
    gates = np.array([0, 1e-30, -1e-30, -86, -87, -88, -200, -1e9, 86, 88, 1e9, 1e38], np.float32)
    x = np.concatenate([np.resize(gates, 16), np.full(16, 2.0)]).astype(np.float32)[None, None]
    _, y = compile_kernel(activation.swiglu(16, 1))(x, unwritten((1, 1, 16)))
    negative_and_far = x[..., :16] < -88
    check(np.where(np.tile(negative_and_far, 2), 0, x), np.where(negative_and_far, 0, y))
    far = y[negative_and_far]
    assert (far <= 0).all()
    assert (np.abs(far) <= 2 * np.abs(x[..., :16][negative_and_far]) * 1.7e-38).all()
