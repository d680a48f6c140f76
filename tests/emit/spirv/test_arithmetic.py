"""Operators: what may be fused, what NaN does, and integers at their edges."""

import numpy as np
import pytest
from tvm import tirx

from mlc_compile.emit.spirv.enumerants import Decoration
from mlc_compile.emit.spirv.opcodes import Op

from .reading import Code
from .writing import F32, I32, THREADS, call, const, kernel, load, store

XYZ = {"x": F32, "y": F32, "z": F32}


def emitted(emit, expression):
    """The code of z = expression(x, y)."""

    def body(n):
        return [store(n.z, expression(load(n.x, n.thread), load(n.y, n.thread)), n.thread)]

    return Code(emit(kernel(body, XYZ)).code)


def exact(code, op):
    """Whether each instruction of a kind has a rounding of its own."""
    apart = code.decorated(Decoration.NoContraction)
    return [i.result in apart for i in code.all(op)]


def floor(x):
    return call("tirx.floor", F32, x)


@pytest.mark.parametrize(
    ("expression", "products", "sums"),
    [
        pytest.param(lambda x, y: x + y, [], [True], id="sum"),
        pytest.param(lambda x, y: x + x * y, [False], [False], id="multiply-add"),
        pytest.param(lambda x, y: x * y - x, [False], [False], id="multiply-subtract"),
        pytest.param(lambda x, y: x * y * x, [True, True], [], id="products"),
        pytest.param(lambda x, y: (x + y) * x, [True], [True], id="product of a sum"),
        pytest.param(
            lambda x, y: x - floor(y) * const(F32, 1.5703125), [True], [True], id="reduction"
        ),
        pytest.param(
            lambda x, y: x - const(F32, 3.0) * tirx.Cast(F32, tirx.Cast(I32, y)),
            [True],
            [True],
            id="reduction by an integer",
        ),
        pytest.param(lambda x, y: x - floor(y) * y, [False], [False], id="whole but no constant"),
    ],
)
def test_only_a_sum_with_a_product_may_be_fused(emit, expression, products, sums):
    code = emitted(emit, expression)
    assert exact(code, Op.FMul) == products
    assert exact(code, Op.FAdd) + exact(code, Op.FSub) == sums


def test_magic_numbers_of_dequantization_keep_their_difference(emit):
    """(float(bits | exponent) - 2**23) is exact, and must not meet another constant."""
    code = emitted(emit, lambda x, y: y + (x - const(F32, 8388615.0)) * y)
    assert exact(code, Op.FSub) == [True]
    assert exact(code, Op.FAdd) == [False]


@pytest.mark.vulkan
@pytest.mark.parametrize(("node", "other"), [(tirx.Min, np.fmin), (tirx.Max, np.fmax)])
def test_the_number_wins_over_nan(run, node, other):
    def body(n):
        return [store(n.z, node(load(n.x, n.thread), load(n.y, n.thread)), n.thread)]

    rng = np.random.default_rng(0)
    x, y = (rng.choice(np.array([np.nan, -1, 2, np.inf], F32), THREADS) for _ in range(2))
    z = np.zeros_like(x)
    run(kernel(body, XYZ), [x, y, z])
    np.testing.assert_array_equal(z, other(x, y))


@pytest.mark.vulkan
@pytest.mark.parametrize(
    ("node", "function"),
    [
        (tirx.EQ, np.equal),
        (tirx.NE, np.not_equal),
        (tirx.LT, np.less),
        (tirx.LE, np.less_equal),
        (tirx.GT, np.greater),
        (tirx.GE, np.greater_equal),
    ],
)
def test_comparisons_with_nan_are_false_but_for_not_equal(run, node, function):
    def body(n):
        return [store(n.z, node(load(n.x, n.thread), load(n.y, n.thread)), n.thread)]

    x = np.resize(np.array([np.nan, 1, np.inf, -0.0], F32), THREADS)
    y = np.repeat(np.array([np.nan, 1, -np.inf, 0.0], F32), THREADS // 4)
    z = np.zeros(THREADS, bool)
    run(kernel(body, {"x": F32, "y": F32, "z": "bool"}), [x, y, z])
    np.testing.assert_array_equal(z, function(x, y))


def c_remainder(a, b):
    return np.fmod(a.astype("int64"), b).astype(a.dtype)


@pytest.mark.vulkan
@pytest.mark.parametrize(
    ("node", "function"),
    [
        (tirx.Mod, c_remainder),
        (tirx.FloorMod, lambda a, b: (a.astype("int64") % b).astype(a.dtype)),
        (tirx.FloorDiv, lambda a, b: (a.astype("int64") // b).astype(a.dtype)),
        (tirx.Div, lambda a, b: np.trunc(a / b.astype("float64")).astype("int64").astype(a.dtype)),
    ],
)
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_quotients_and_remainders_of_every_sign(run, node, function, dtype):
    def body(n):
        return [store(n.z, node(load(n.x, n.thread), load(n.y, n.thread)), n.thread)]

    x = np.resize(np.array([-7, -6, -1, 0, 1, 6, 7, np.iinfo(dtype).min], dtype), THREADS)
    last = 5 if dtype == "int32" else -1  # -128 / -1 is -128 again, but int32's means nothing
    y = np.repeat(np.array([-3, -2, -7, 1, 2, 3, 7, last], dtype), THREADS // 8)
    z = np.zeros_like(x)
    run(kernel(body, {"x": dtype, "y": dtype, "z": dtype}), [x, y, z])
    np.testing.assert_array_equal(z, function(x, y))


@pytest.mark.vulkan
@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("node", [tirx.Div, tirx.FloorDiv])
def test_the_least_narrow_integer_by_minus_one_wraps_before_it_is_used(run, node, dtype):
    def body(n):
        return [
            store(n.z, tirx.Cast(I32, node(load(n.x, n.thread), load(n.y, n.thread))), n.thread)
        ]

    least = np.iinfo(dtype).min
    x, y = np.full(THREADS, least, dtype), np.full(THREADS, -1, dtype)
    z = np.zeros(THREADS, I32)
    run(kernel(body, {"x": dtype, "y": dtype, "z": I32}), [x, y, z])
    assert set(z) == {least}


def test_no_signed_remainder_is_emitted_which_vulkan_leaves_undefined(emit):
    def body(n):
        x = load(n.x, n.thread)
        return [store(n.x, tirx.FloorMod(x, const(I32, 3)), n.thread)]

    numbers = {i.op for i in Code(emit(kernel(body, {"x": I32})).code).instructions}
    assert not numbers & {138, 139}  # OpSRem, OpSMod


@pytest.mark.vulkan
def test_quotients_of_floats_are_rounded_at_most_by_three_ulp(run):
    def body(n):
        return [store(n.z, tirx.Div(load(n.x, n.thread), load(n.y, n.thread)), n.thread)]

    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, THREADS)).astype(F32)
    z = np.zeros_like(x)
    run(kernel(body, XYZ), [x, y, z])
    np.testing.assert_array_max_ulp(z, x / y, 3)
