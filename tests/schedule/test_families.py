"""Every knob of every family: another point is another order of work, and the same results.

int8 kernels sum integers exactly and scale a group at a time in the same order, so their
results are the default's bits. In float32 a dozen sums of k terms may come in another order; on
tiles the width of a strip decides in which of two orders a row of w adds its groups.
Attention on tiles rounds weights to 8 bits, from one maximum of the scores or another: two
roundings of half a unit of what is summed, of which the largest result is a measure.
"""

import functools
from itertools import combinations_with_replacement, islice

import numpy as np
import pytest

from mlc_compile.artifact import FlatKV
from mlc_compile.ops import Attention, Source
from mlc_compile.schedule import families
from mlc_compile.schedule.kernels.dot import dot_for
from mlc_compile.schedule.kernels.weights import codec_of
from mlc_compile.target import find_target
from mlc_compile.tune.inputs import fill, situation
from mlc_compile.tune.runner import Bench

from .kernels.bf16_products import BEST, HALF, UNITS

HERE = find_target("cpu")
EPS = np.finfo(np.float32).eps
LAYER = 1
MORE = 2  # points, beside those in which every choice of every knob is met


def gemm(n, k, residual):
    codec = codec_of("q4f16_1", n, k)
    return families.int8_gemm_family(codec, n, dot_for(HERE), HERE, residual=residual)


def tiles(n, k):
    codec = codec_of("q4f16_1", n, k)
    return families.bf16_gemm_family(codec, n, UNITS[BEST](), HERE, residual=True)


def gated_tiles(n, k):
    codec = codec_of("q4f16_1", n, k)
    return families.bf16_swiglu_family(codec, n, UNITS[BEST](), HERE)


def gemv(n, k, source, swiglu=False):
    codec = codec_of("q4f32_1", n, k)
    given = Source(source, k, 1e-6)
    return families.int8_gemv_family(
        codec, n, given, dot_for(HERE), HERE, residual=not swiglu, swiglu=swiglu
    )


def floats(scheme, n, k, many, eps=None):
    codec = codec_of(scheme, n, k)
    if many:
        return families.gemm_family(codec, n, HERE, eps=eps, residual=True)
    return families.gemv_family(codec, n, eps=eps, residual=eps is not None)


def attention(h_q, h_kv, rows, dtype="float16", *, rounded=False):
    inv_freq = tuple(1.0 / (i + 1) for i in range(16))
    a = Attention(0, h_q, h_kv, 32, 1e-6, 1.0, inv_freq)
    kv = FlatKV(layers=2, kv_heads=h_kv, head_dim=32, page=32, dtype=dtype)
    if rows == "step":
        return families.step_family(a, kv, HERE)
    if rows == "tiles":
        return families.tile_attend_family(a, kv, UNITS[BEST](), rounded=rounded)
    if rows == "project":
        codec = codec_of("q4f16_1", (h_q + 2 * h_kv) * 32, 64)
        return families.tile_project_family(a, kv, codec, UNITS[BEST](), HERE)
    return families.attend_family(a, kv, HERE, rows)


CASES = {
    "tiles of bfloat16": (tiles(96, 64), 64 * EPS),
    "tiles of bfloat16 with SwiGLU": (gated_tiles(192, 64), 0),
    "attend many on tiles": (attention(8, 2, "tiles"), 2 * HALF),
    "append many on tiles": (attention(7, 2, "project"), 0),
    "gemm, parts and strips of all sizes": (gemm(192, 384, residual=True), 0),
    "gemm, a ragged last block": (gemm(40, 128, residual=False), 0),
    "gemv, streams and bodies of all sizes": (gemv(192, 512, "rms_norm"), 0),
    "gemv, an odd group": (gemv(96, 96, "plain"), 0),
    "gemv with SwiGLU": (gemv(128, 128, "plain", swiglu=True), 0),
    "float gemm": (floats("q4f16_1", 192, 256, many=True), 64 * EPS),
    "float gemm after a norm, a ragged block": (floats("q0f16", 40, 128, True, 1e-6), 64 * EPS),
    "float gemv": (floats("q0f32", 40, 128, many=False), 64 * EPS),
    "float gemv after a norm": (floats("q4f32_1", 64, 96, False, 1e-6), 64 * EPS),
    "attend many": (attention(8, 2, None), 64 * EPS),
    "attend one": (attention(8, 2, 1), 64 * EPS),
    "step": (attention(8, 2, "step"), 64 * EPS),
    "step, int8 pages": (attention(8, 2, "step", "int8"), 64 * EPS),
}
ON_TILES = {name: family for name, (family, _) in [*CASES.items()][:4]} | {
    "attend many on tiles, rounded at once": attention(8, 2, "tiles", rounded=True)
}


@pytest.fixture
def compiled(request, name):
    """`compile_kernel`, for a target whose tiles `UNITS[BEST]` are where a family is of those."""
    if name in ON_TILES:
        return request.getfixturevalue("unit").compile
    return request.getfixturevalue("compile_kernel")


# By name, test for test: so kernels that two claims are about are still there for the second.
by_name = functools.partial(pytest.mark.parametrize, "name", scope="module")


def results(compiled, family, point):
    func = family.build(point)
    made = situation(func, family.operands, {"m": 7, "pages": 3}, length=61)
    random = np.random.default_rng(0)
    arrays = [fill(a, 61, random) if a.shape else LAYER for a in made.arguments]
    after = compiled(func)(*arrays)
    tensors = [o for o in family.operands if o.values != "layer"]
    return [x for x, o in zip(after, tensors, strict=True) if o.role == "result"]


def points(space):
    """A few beside the default: each has the most choices that no point before it has.

    Where that leaves a choice, the most pairs of them: knobs that break each other meet.
    """
    met = pairs(space, space.default)
    left = {point: pairs(space, point) for point in islice(space.points(), 1, None)}
    chosen, more = [], MORE

    def gain(point):
        new = left[point] - met
        return sum(one == other for one, other in new), len(new)

    while left:
        best = max(left, key=gain)
        alone, _ = gain(best)
        more -= not alone
        if more < 0:
            break
        chosen.append(best)
        met |= left.pop(best)
    return chosen


def pairs(space, point):
    """Of choices, each with itself among them."""
    return set(combinations_with_replacement(space.choice(point).items(), 2))


@by_name(CASES)
def test_every_point_gives_the_defaults_results(compiled, name):
    family, tolerance = CASES[name]
    expected = results(compiled, family, family.space.default)
    assert all(np.isfinite(x).all() for x in expected)
    for point in points(family.space):
        found = results(compiled, family, point)
        for want, got in zip(expected, found, strict=True):
            assert (np.abs(got - want) <= tolerance * np.abs(want).max()).all(), point


@by_name(CASES)
def test_a_workload_and_a_space_tell_families_apart(name):
    family, _ = CASES[name]
    same = [n for n, (f, _) in CASES.items() if f.workload == family.workload]
    assert same == [name]
    assert len([*islice(family.space.points(), 2)]) > 1


def on_tensors(run):
    """A kernel as a tuner calls it."""

    def kernel(*arguments):
        after = run(*(a if isinstance(a, int) else a.numpy() for a in arguments))
        tensors = [a for a in arguments if not isinstance(a, int)]
        for tensor, array in zip(tensors, after, strict=True):
            tensor.copyfrom(array)

    return kernel


@by_name(ON_TILES)
def test_a_tuner_takes_every_point_s_results_and_no_others(compiled, name):
    family = ON_TILES[name]
    func = family.build(family.space.default)
    made = situation(func, family.operands, {"m": 7, "pages": 3}, length=61)
    bench = Bench.of(made, np.random.default_rng(0))
    bench.expected = bench.results(on_tensors(compiled(func)))
    for point in points(family.space):
        assert bench.differs(on_tensors(compiled(family.build(point)))) == "", point
    assert "off by nan" in bench.differs(lambda *_: None)

    def doubled(*arguments):
        """Of float32, or of pairs of bfloat16: an exponent more by one in each."""
        on_tensors(compiled(func))(*arguments)
        y = arguments[-1].numpy().copy()
        more = 0x00800080 if y.dtype == np.int32 else np.int32(0x00800000)
        arguments[-1].copyfrom((y.view(np.int32) + np.int32(more)).view(y.dtype))

    assert "off by" in bench.differs(doubled)
