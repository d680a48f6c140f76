"""RoPE angles and the rotation of a head, against float64."""

import numpy as np
import pytest
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import rope
from mlc_compile.schedule.kernels import vector as v


def frequencies(half):
    return (1e6 ** -(np.arange(half) / half)).astype(np.float32)


def exact_angles(length, m, inv_freq, scale):
    positions = np.arange(length, length + m).astype(np.float32)
    angles = np.outer(positions, inv_freq).astype(np.float32).astype(np.float64)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=-1) * scale


@pytest.mark.parametrize("half", [8, 20, 64])
@pytest.mark.parametrize("scale", [1.0, 1.1386])
def test_angles_of_a_call_start_at_the_length(compile_kernel, unwritten, half, scale):
    run = compile_kernel(rope.angles(half, scale))
    for length, m in ((0, 1), (0, 7), (5, 1), (63, 3), (40_000, 5)):
        inv_freq = frequencies(half)
        *_, y = run(np.array([length], np.int32), inv_freq, unwritten((m, 2 * half)))
        # The angle itself is the same float32; cosine, sine and the scale round within 2 ulp.
        assert np.abs(y - exact_angles(length, m, inv_freq, scale)).max() <= 2e-7 * scale


def rotation_kernel(d):
    with v.kernel() as builder:
        head = v.argument("head", (2, d))
        angles = v.argument("angles", (3, d))
        with T.serial(0, 2) as i:
            rope.rotate(head, (i,), angles, i + 1, d)
    return builder.get()


@pytest.mark.parametrize("d", [2, 16, 40, 128])
def test_halves_of_a_head_rotate_against_each_other(compile_kernel, d):
    head = np.random.default_rng(d).standard_normal((2, d)).astype(np.float32)
    angles = exact_angles(3, 3, frequencies(d // 2), 1.0).astype(np.float32)
    got, _ = compile_kernel(rotation_kernel(d))(head, angles)
    a, b = np.split(head.astype(np.float64), 2, axis=-1)
    cos, sin = np.split(angles[1:].astype(np.float64), 2, axis=-1)
    exact = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    # Two products and a sum, each rounded once.
    scale = np.tile(np.abs(a) + np.abs(b), 2)
    assert (np.abs(got - exact) <= 2 * np.finfo(np.float32).eps * scale).all()
