"""Every knob of every family: another point is another order of work, and the same results.

int8 kernels sum integers exactly and scale a group at a time in the same order, so their
results are the default's bits. In float32 a dozen sums of k terms may come in another order.
"""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from mlc_compile.artifact import FlatKV
from mlc_compile.ops import Attention, Source
from mlc_compile.schedule import families
from mlc_compile.schedule.kernels.dot import dot_for
from mlc_compile.schedule.kernels.weights import codec_of
from mlc_compile.target import find_target
from mlc_compile.tune.inputs import fill, situation

from .kernels.emulated_tiles import EmulatedTiles

HERE = find_target("cpu")
EPS = np.finfo(np.float32).eps
LAYER = 1
AT_RANDOM = 3  # points, beside those that move one knob alone


def gemm(n, k, residual):
    codec = codec_of("q4f16_1", n, k)
    return families.int8_gemm_family(codec, n, dot_for(HERE), HERE, residual=residual)


def tiles(n, k):
    codec = codec_of("q4f16_1", n, k)
    return families.bf16_gemm_family(codec, n, EmulatedTiles(), HERE, residual=True)


def gemv(n, k, source, swiglu=False):
    codec = codec_of("q4f32_1", n, k)
    given = Source(source, k, 1e-6)
    return families.int8_gemv_family(
        codec, n, given, dot_for(HERE), residual=not swiglu, swiglu=swiglu
    )


def floats(scheme, n, k, many, eps=None):
    codec = codec_of(scheme, n, k)
    if many:
        return families.gemm_family(codec, n, HERE, eps=eps, residual=True)
    return families.gemv_family(codec, n, eps=eps, residual=eps is not None)


def attention(h_q, h_kv, rows, dtype="float16"):
    inv_freq = tuple(1.0 / (i + 1) for i in range(16))
    a = Attention(0, h_q, h_kv, 32, 1e-6, 1.0, inv_freq)
    kv = FlatKV(layers=2, kv_heads=h_kv, head_dim=32, page=32, dtype=dtype)
    if rows == "step":
        return families.step_family(a, kv, HERE)
    return families.attend_family(a, kv, HERE, rows)


CASES = {
    "gemm, parts and strips of all sizes": (gemm(192, 384, residual=True), 0),
    "gemm, a ragged last block": (gemm(40, 128, residual=False), 0),
    "gemv, tasks and bodies of all sizes": (gemv(192, 512, "rms_norm"), 0),
    "gemv, an odd group": (gemv(96, 96, "plain"), 0),
    "gemv with SwiGLU": (gemv(128, 128, "plain", swiglu=True), 0),
    "tiles of bfloat16": (tiles(96, 64), 0),
    "float gemm": (floats("q4f16_1", 192, 256, many=True), 64 * EPS),
    "float gemm after a norm, a ragged block": (floats("q0f16", 40, 128, True, 1e-6), 64 * EPS),
    "float gemv": (floats("q0f32", 40, 128, many=False), 64 * EPS),
    "float gemv after a norm": (floats("q4f32_1", 64, 96, False, 1e-6), 64 * EPS),
    "attend many": (attention(8, 2, None), 64 * EPS),
    "attend one": (attention(8, 2, 1), 64 * EPS),
    "step": (attention(8, 2, "step"), 64 * EPS),
    "step, int8 pages": (attention(8, 2, "step", "int8"), 64 * EPS),
}


def results(compile_kernel, family, point):
    func = family.build(point)
    made = situation(func, family.operands, {"m": 7, "pages": 3}, length=61)
    random = np.random.default_rng(0)
    arrays = [fill(a, 61, random) if a.shape else LAYER for a in made.arguments]
    after = compile_kernel(func)(*arrays)
    tensors = [o for o in family.operands if o.values != "layer"]
    return [x for x, o in zip(after, tensors, strict=True) if o.role == "result"]


def points(space):
    """The default with one knob moved, for every choice; some more where all are moved."""
    single = [
        replace(space.default, **{name: value})
        for name, choices in space.choices.items()
        for value in choices
    ]
    others = list(space.points())
    drawn = Random(0).sample(others, min(AT_RANDOM, len(others)))
    wanted = dict.fromkeys(p for p in (*single, *drawn) if p != space.default)
    return [p for p in wanted if space.point(space.choice(p)) == p]


@pytest.mark.parametrize("name", CASES)
def test_every_point_gives_the_defaults_results(compile_kernel, name):
    family, tolerance = CASES[name]
    expected = results(compile_kernel, family, family.space.default)
    assert all(np.isfinite(x).all() for x in expected)
    for point in points(family.space):
        found = results(compile_kernel, family, point)
        for want, got in zip(expected, found, strict=True):
            assert (np.abs(got - want) <= tolerance * np.abs(want).max()).all(), point


@pytest.mark.parametrize("name", CASES)
def test_a_workload_and_a_space_tell_families_apart(name):
    family, _ = CASES[name]
    same = [n for n, (f, _) in CASES.items() if f.workload == family.workload]
    assert same == [name]
    assert family.space.size > 1
