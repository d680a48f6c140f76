"""Every operator computes what C computes, in the type of its operands."""

import math

import numpy as np
import pytest
from tvm import tirx

from tests.simt import DivisionByZero, run

from .building import arg as argument
from .building import call, elementwise, kernel, launch, local, put, vector

FLOATS = np.array([0.25, 0.5, 1.0, 1.5, 2.0, 3.75], "float32")
SIGNED = np.array([-7, -6, -1, 1, 6, 7], "int32")
DIVISORS = np.array([2, -4, 3, -3, 4, -2], "int32")


def evaluate(compute, *inputs, out):
    """What one thread per element computes."""
    result = np.zeros(len(inputs[0]), out)
    run(elementwise(compute, inputs, out), *inputs, result)
    return result


@pytest.mark.parametrize(
    ("compute", "oracle"),
    [
        pytest.param(tirx.Div, lambda a, b: int(a / b), id="division truncates"),
        pytest.param(tirx.Mod, math.fmod, id="remainder has the sign of the dividend"),
        pytest.param(tirx.FloorDiv, lambda a, b: a // b, id="floor division"),
        pytest.param(tirx.FloorMod, lambda a, b: a % b, id="floor remainder"),
        pytest.param(tirx.Min, min, id="min"),
        pytest.param(tirx.Max, max, id="max"),
        pytest.param(tirx.BitwiseXor, lambda a, b: a ^ b, id="xor"),
    ],
)
def test_integer_operators(compute, oracle):
    got = evaluate(compute, SIGNED, DIVISORS, out="int32")
    expected = [oracle(a, b) for a, b in zip(SIGNED.tolist(), DIVISORS.tolist(), strict=True)]
    np.testing.assert_array_equal(got, expected)


def test_right_shift_of_signed_is_arithmetic_and_of_unsigned_logical():
    one = np.ones(6, "int32")
    got = evaluate(tirx.RShift, SIGNED, one, out="int32")
    np.testing.assert_array_equal(got, np.floor(SIGNED / 2))
    bits = SIGNED.view("uint32")
    got = evaluate(tirx.RShift, bits, one.view("uint32"), out="uint32")
    np.testing.assert_array_equal(got, bits // 2)


def test_integers_wrap():
    x = np.array([2**31 - 1, -(2**31)], "int32")
    got = evaluate(lambda a: a + tirx.IntImm("int32", 1), x, out="int32")
    np.testing.assert_array_equal(got, [-(2**31), -(2**31) + 1])


def test_half_precision_rounds_at_every_step():
    x = np.array([2048.0, 4096.0], "float16")
    one = tirx.FloatImm("float16", 1.0)
    got = evaluate(lambda a: a + one + one, x, out="float16")
    np.testing.assert_array_equal(got, x)  # 2049 and 4097 are no float16


@pytest.mark.parametrize(
    ("compute", "oracle"),
    [
        (tirx.exp, math.exp),
        (tirx.exp2, lambda x: 2.0**x),
        (tirx.log, math.log),
        (tirx.log2, math.log2),
        (tirx.sqrt, math.sqrt),
        (tirx.rsqrt, lambda x: x**-0.5),
        (tirx.tanh, math.tanh),
        (tirx.erf, math.erf),
        (tirx.sin, math.sin),
        (tirx.cos, math.cos),
        (tirx.sigmoid, lambda x: 1 / (1 + math.exp(-x))),
        (tirx.floor, math.floor),
        (tirx.ceil, math.ceil),
        (tirx.round, lambda x: math.floor(x + 0.5)),
        (lambda x: tirx.pow(x, x), lambda x: x**x),
        (lambda x: call("float32", "fma", x, x, x), lambda x: x * x + x),
    ],
)
def test_math(compute, oracle):
    got = evaluate(compute, FLOATS, out="float32")
    # numpy's float32 functions are within 4 ulp
    np.testing.assert_allclose(got, [oracle(x) for x in FLOATS.tolist()], rtol=5e-7, atol=1e-7)


def test_bit_counts():
    x = np.array([0, 1, 255, 2**31 - 1], "int32")
    got = evaluate(tirx.popcount, x, out="int32")
    np.testing.assert_array_equal(got, [0, 1, 8, 31])
    got = evaluate(tirx.clz, x, out="int32")
    np.testing.assert_array_equal(got, [32, 31, 24, 1])


@pytest.mark.parametrize("to", ["int8", "uint8", "int32", "float16", "bool", "int64"])
def test_casts_are_those_of_c(to):
    x = np.array([-3.7, 0.0, 2.9, 100.5], "float32") if to != "uint8" else FLOATS
    got = evaluate(lambda a: tirx.Cast(to, a), x, out=to)
    np.testing.assert_array_equal(got, x.astype(to))


def test_a_word_is_two_halves_lowest_first():
    halves = np.array([1.5, -2.0, 3.0, 0.25], "float16")
    words = halves.view("uint32")
    low, high = np.zeros(2, "float16"), np.zeros(2, "float16")
    with kernel() as k:
        x, a, b = argument("x", (2,), "uint32"), argument("a", (2,), "float16"), None
        b = argument("b", (2,), "float16")
        with launch(1, 2) as (_, tx):
            pair = call(vector("float16", 2), "reinterpret", x[tx])
            put(a, tx, tirx.Shuffle([pair], [0]))
            put(b, tx, tirx.Shuffle([pair], [1]))
    run(k.get(), words, low, high)
    np.testing.assert_array_equal(np.stack([low, high], 1).reshape(-1), halves)


def test_vectors_load_compute_and_store():
    x = np.arange(32, dtype="float32")
    y = np.zeros(32, "float16")
    with kernel() as k:
        a, b = argument("x", (32,)), argument("y", (32,), "float16")
        with launch(2, 4) as (bx, tx):
            place = tirx.Ramp((bx * 4 + tx) * 4, 1, 4)
            r = local(4)
            put(r, tirx.Ramp(0, 1, 4), a[place] * tirx.Broadcast(tirx.FloatImm("float32", 2), 4))
            value = tirx.Cast(vector("float16", 4), r[tirx.Ramp(0, 1, 4)])
            put(b, place, value)
    run(k.get(), x, y)
    np.testing.assert_array_equal(y, (2 * x).astype("float16"))


def test_select_and_let():
    v = tirx.Var("v", "float32")
    one = tirx.FloatImm("float32", 1)
    got = evaluate(
        lambda a: tirx.Select(a > one, tirx.Let(v, a * a, v + v), a), FLOATS, out="float32"
    )
    np.testing.assert_array_equal(got, np.where(FLOATS > 1, 2 * FLOATS**2, FLOATS))


def test_an_integer_divided_by_zero_is_refused():
    x, y = np.array([1, 2], "int32"), np.array([1, 0], "int32")
    with pytest.raises(DivisionByZero, match=r"thread \(1, 0, 0\)"):
        evaluate(tirx.FloorDiv, x, y, out="int32")


def test_the_untaken_side_of_a_condition_may_divide_by_zero():
    x, y = np.array([1, 6], "int32"), np.array([0, 2], "int32")
    zero = tirx.IntImm("int32", 0)
    got = evaluate(
        lambda a, b: tirx.if_then_else(b != zero, tirx.FloorDiv(a, b), zero), x, y, out="int32"
    )
    np.testing.assert_array_equal(got, [0, 3])


def test_infinities_and_nans_pass():
    got = evaluate(lambda a: tirx.log(a - a), FLOATS, out="float32")
    assert np.isneginf(got).all()
