"""Constants that seven digits do not hold are given by their bits; the others stay."""

import numpy as np
import pytest
import tvm
from tvm import IRModule

from mlc_compile.emit.exact_constants import is_printed_exactly, with_exact_constants
from mlc_compile.schedule.kernels import vector as v

EXACT = (0.0, 1.0, -0.5, 0.1, 0.30000001192092896, 8388608.0, -1e30)
INEXACT = (1.5703125, 2 / np.pi, 16777216.0, 2.0**-24)


def shifted(constants, dtype="float32"):
    """y[i] = x[i] + each of the constants."""
    with v.kernel() as builder:
        x = v.argument("x", (len(constants),), dtype)
        y = v.argument("y", (len(constants),), dtype)
        for i, constant in enumerate(constants):
            v.put(x[i] + tvm.tirx.const(constant, dtype), y, i)
    return IRModule({"main": builder.get().with_attr("global_symbol", "main")})


@pytest.mark.parametrize("value", [*EXACT, *INEXACT])
def test_seven_digits_hold_a_constant_or_not(value):
    printed = np.float32(f"{np.float32(value):.6e}")
    assert is_printed_exactly(float(np.float32(value))) is bool(printed == np.float32(value))
    assert is_printed_exactly(value) is (value in EXACT)


def test_only_what_seven_digits_lose_is_replaced_and_the_values_stay():
    mod = with_exact_constants(shifted(EXACT + INEXACT))
    assert mod["main"].script().count("T.reinterpret(") == len(INEXACT)
    x = tvm.runtime.tensor(np.zeros(len(EXACT + INEXACT), np.float32))
    y = tvm.runtime.tensor(np.ones(len(EXACT + INEXACT), np.float32))
    tvm.compile(mod, target=tvm.target.Target({"kind": "llvm"}))["main"](x, y)
    np.testing.assert_array_equal(y.numpy(), np.array(EXACT + INEXACT, np.float32))


@pytest.mark.parametrize(
    ("constants", "dtype"), [(EXACT, "float32"), ((1.5703125,), "float64"), ((0.333,), "float16")]
)
def test_functions_without_such_constants_stay_as_they_are(constants, dtype):
    mod = shifted(constants, dtype)
    assert with_exact_constants(mod)["main"].same_as(mod["main"])


def test_attributes_of_the_module_and_of_functions_are_kept():
    mod = shifted(INEXACT).with_attr("system_lib_prefix", "x_")
    after = with_exact_constants(mod)
    assert after.attrs["system_lib_prefix"] == "x_"
    assert dict(after["main"].attrs) == dict(mod["main"].attrs)
