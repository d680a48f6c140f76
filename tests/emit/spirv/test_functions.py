"""Functions are as near to mathematics as Vulkan promises, or as our formulas are.

Errors are in units in the last place (ULP) of float32 results against numpy's float64.
"""

import math

import numpy as np
import pytest
from tvm import tirx
from tvm.ir import StringImm

from mlc_compile.emit.spirv.functions import C

from .writing import F16, F32, THREADS, call, const, kernel, load, store

COUNT = 64 * THREADS
erf = np.vectorize(math.erf, otypes=[float])


def applied(run, make, *arrays, out=F32):
    """`make(values)` of the arrays' elements, computed by the device."""

    def body(n):
        i = tirx.Var("i", "int32")
        at = tirx.Add(tirx.Mul(i, const("int32", THREADS)), n.thread)
        values = [load(getattr(n, f"x{j}"), at) for j in range(len(arrays))]
        put = store(n.y, make(*values), at)
        return [tirx.For(i, const("int32", 0), const("int32", 64), tirx.ForKind.SERIAL, put)]

    y = np.zeros(COUNT, out)
    dtypes = {f"x{j}": str(a.dtype) for j, a in enumerate(arrays)}
    run(kernel(body, {**dtypes, "y": out}, size=COUNT), [*arrays, y])
    return y


def extern(name):
    return lambda *args: call("tirx.call_pure_extern", F32, StringImm(name), *args)


def uniform(low, high, dtype=F32):
    return np.random.default_rng(0).uniform(low, high, COUNT).astype(dtype)


def errors(made, exact):
    """In ULP of the exact results."""
    return np.abs(made.astype(float) - exact) / np.spacing(np.abs(exact).astype(made.dtype))


@pytest.mark.vulkan
@pytest.mark.parametrize(
    ("name", "exact", "low", "high", "ulp"),
    [
        ("expf", np.exp, -1, 1, 3 + 2),  # Vulkan: 3 + 2|x|
        ("expf", np.exp, -80, 80, 3 + 160),
        ("exp2f", np.exp2, -10, 10, 3 + 20),
        ("logf", np.log, 2, 1e6, 3),
        ("log2f", np.log2, 2, 1e6, 3),
        ("sqrtf", np.sqrt, 0.01, 1e6, 3),
        ("tanhf", np.tanh, -12, 12, 4),  # ours, with an exp of 3 + 2|x| of which little is left
        ("tanhf", np.tanh, -0.7, 0.7, 4),
        ("erff", erf, -5, 5, 6),  # ours: exp(-1) is 0.16 of what it is taken from
        ("erff", erf, -1e-3, 1e-3, 3),
        ("floorf", np.floor, -99, 99, 0),
        ("ceilf", np.ceil, -99, 99, 0),
        ("truncf", np.trunc, -99, 99, 0),
        ("nearbyintf", np.rint, -99, 99, 0),
        ("fabsf", np.abs, -99, 99, 0),
    ],
)
def test_functions_of_one_argument(run, name, exact, low, high, ulp):
    x = uniform(low, high)
    assert errors(applied(run, extern(name), x), exact(x.astype(float))).max() <= ulp


@pytest.mark.vulkan
@pytest.mark.parametrize(("name", "exact"), [("sinf", np.sin), ("cosf", np.cos)])
def test_sine_and_cosine_are_off_by_little_of_one(run, name, exact):
    x = uniform(-np.pi, np.pi)  # Vulkan: 2**-11 absolute
    assert np.abs(applied(run, extern(name), x) - exact(x.astype(float))).max() <= 2**-11


@pytest.mark.vulkan
def test_functions_of_more_arguments(run):
    x, y, z = uniform(0.5, 8), uniform(0.6, 3)[::-1].copy(), uniform(-9, 9)
    wide = [a.astype(float) for a in (x, y, z)]
    power = applied(run, extern("powf"), x, y)
    assert np.abs(power / wide[0] ** wide[1] - 1).max() < 2e-5  # exp2(y log2 x), each of 3 ULP
    fused = applied(run, extern("fmaf"), x, y, z)
    assert np.abs(fused - (wide[0] * wide[1] + wide[2])).max() < 4e-6  # may round twice
    rest = applied(run, extern("fmodf"), z, y)
    assert np.abs(rest - np.fmod(wide[2], wide[1])).max() < 1e-5


@pytest.mark.vulkan
def test_rounding_takes_halves_away_from_zero(run):
    x = uniform(-9, 9)
    below = np.nextafter(np.float32(0.5), np.float32(0))  # x + 0.5 would round to 1
    x[:9] = [0.5, -0.5, 1.5, 2.5, -2.5, below, -below, 8388609, -0.0]
    exact = np.trunc(x) + np.where(np.abs(x - np.trunc(x)) >= 0.5, np.sign(x), 0)
    np.testing.assert_array_equal(applied(run, extern("roundf"), x), exact)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-40, 3.4e38, -1], F32)


@pytest.mark.vulkan
@pytest.mark.parametrize("dtype", [F32, F16])
def test_what_is_no_number_is_found(run, dtype):
    with np.errstate(over="ignore"):
        x = np.resize(SPECIAL, COUNT).astype(dtype)
    made = applied(run, lambda a: call("tirx.isnan", "bool", a), x, out="bool")
    np.testing.assert_array_equal(made, np.isnan(x))


@pytest.mark.vulkan
@pytest.mark.parametrize(("name", "function"), [("tanhf", np.tanh), ("erff", erf)])
def test_composed_functions_keep_their_limits(run, name, function):
    made = applied(run, extern(name), np.resize(SPECIAL, COUNT))
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(made, function(np.resize(SPECIAL, COUNT)), atol=1e-38)


@pytest.mark.vulkan
@pytest.mark.parametrize(
    ("name", "exact", "low", "high", "ulp"),
    [
        ("tirx.exp", np.exp, -4, 4, 1 + 8),  # Vulkan: 1 + 2|x| of float16
        ("tirx.sqrt", np.sqrt, 0.1, 100, 2),
        ("tirx.tanh", np.tanh, -5, 5, 1),  # in float32, rounded either way
        ("tirx.erf", erf, -3, 3, 1),
        ("prim.ceil", np.ceil, -99, 99, 0),
    ],
)
def test_functions_of_float16(run, name, exact, low, high, ulp):
    x = uniform(low, high, F16)
    made = applied(run, lambda a: call(name, F16, a), x, out=F16)
    assert errors(made, exact(x.astype(float))).max() <= ulp + 0.5


@pytest.mark.vulkan
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32"])
def test_bits_are_counted_in_the_type(run, dtype):
    bits = 8 * np.dtype(dtype).itemsize
    x = np.random.default_rng(0).integers(-(2**31), 2**31, COUNT).astype(dtype)
    x[:2] = 0, -1 if dtype[0] == "i" else np.iinfo(dtype).max
    unsigned = x.astype("int64") & ((1 << bits) - 1)
    ones = applied(run, lambda a: call("tirx.popcount", dtype, a), x, out=dtype)
    np.testing.assert_array_equal(ones, np.bitwise_count(unsigned))
    zeros = applied(run, lambda a: call("prim.clz", "int32", a), x, out="int32")
    np.testing.assert_array_equal(zeros, [bits - int(v).bit_length() for v in unsigned])


def test_every_function_of_c_is_valid_in_both_types(emit):
    for name in sorted(C):
        count = {"pow": 2, "fmod": 2, "fma": 3}.get(name, 1)
        operator = f"prim.{name}" if name in ("ceil", "log2") else f"tirx.{name}"
        for dtype in (F32, F16):

            def body(n, operator=operator, dtype=dtype, count=count):
                value = call(operator, dtype, *[load(n.x, n.thread)] * count)
                return [store(n.x, value, n.thread)]

            emit(kernel(body, {"x": dtype}))
