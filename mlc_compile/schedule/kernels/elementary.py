"""Elementary functions of vectors: exponentials, SiLU, a reciprocal.

Polynomials in plain arithmetic, as LLVM would call libm once a lane. Those for what is then
rounded to bfloat16 are as exact as that needs.
"""

from collections.abc import Sequence
from typing import Final

from tvm import tirx

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.vector import LANES, Expr

# 2**r, |r| <= 1/2, by falling powers of r. Within 2 ulp: 1 + r p(r), p of degree 5 from Cephes
# (exp2f.c, S. Moshier). Within 2**-13, for what is then rounded to bfloat16: minimax by Remez.
EXP2: Final = (
    1.535336188319500e-4,
    1.339887440266574e-3,
    9.618437357674640e-3,
    5.550332471162809e-2,
    2.402264791363012e-1,
    6.931472028550421e-1,
    1.0,
)
EXP2_BF16: Final = (5.517166906e-2, 2.426111222e-1, 6.932609855e-1, 9.999280735e-1)
RECIPROCAL: Final = 0x7EF311C3  # less the bits of x: those of about 1 / x


def exp(x: Expr, lanes: int = LANES) -> Expr:
    """e**x in float32 by range reduction, within 2 ulp for |x| < 87; x is clamped to that.

    x = n ln 2 + r, |r| <= ln 2 / 2; e**r by the degree-5 minimax polynomial of Cephes
    (expf.c, S. Moshier), 2**n by its exponent bits.
    """

    def s(value: float) -> Expr:
        return v.splat(value, lanes)

    x = tirx.max(tirx.min(x, s(87.0)), s(-87.0))
    n = tirx.floor(x * s(1.44269504088896341) + s(0.5))
    r = x - n * s(0.693359375) - n * s(-2.12194440e-4)
    y = s(1.9875691500e-4)
    for c in (
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    ):
        y = y * r + s(c)
    y = y * r * r + r + s(1.0)
    whole = tirx.Cast(v.vector_type("int32", lanes), n)
    bits = (whole + v.splat_i32(127, lanes)) << v.splat_i32(23, lanes)
    return y * tirx.reinterpret(v.vector_type(v.F32, lanes), bits)


def exp2(x: Expr, lanes: int = LANES, powers: Sequence[float] = EXP2) -> Expr:
    """2**x in float32 for x <= 127, as near as `powers`; 2**-125 for anything less than -125.

    x = n + r, |r| <= 1/2, without a rounding; n is added to the exponent bits of 2**r.
    """
    x = tirx.max(x, v.splat(-125.0, lanes))
    whole, held = v.splat(v.WHOLE, lanes), v.local(1, lanes)
    v.store(x + whole, held, 0, 0, lanes=lanes)  # or TVM simplifies: nothing is rounded
    shifted = v.load(held, 0, 0, lanes=lanes)
    r = x - (shifted - whole)
    y = v.splat(powers[0], lanes)
    for c in powers[1:]:
        y = y * r + v.splat(c, lanes)
    kind = v.vector_type("int32", lanes)
    bits = tirx.reinterpret(kind, y) + (tirx.reinterpret(kind, shifted) << v.splat_i32(23, lanes))
    return tirx.reinterpret(v.vector_type(v.F32, lanes), bits)


def silu(x: Expr, lanes: int = LANES) -> Expr:
    """x / (1 + exp(-x)): x times its sigmoid."""
    return x / (v.splat(1.0, lanes) + exp(v.splat(0.0, lanes) - x, lanes))


def silu_bf16(x: Expr, lanes: int = LANES) -> Expr:
    """The same for what is then rounded to bfloat16, without a division.

    Within 2**-12 for x > -83; below, x 2**-120 is left, nothing to speak of.
    """
    power = tirx.min(x * v.splat(-1.44269504088896341, lanes), v.splat(120.0, lanes))
    return x * reciprocal(v.splat(1.0, lanes) + exp2(power, lanes, EXP2_BF16), lanes)


def reciprocal(x: Expr, lanes: int = LANES) -> Expr:
    """1 / x within 2**-17, for 1 <= x < 2**124, in a third of a division's time on Emerald Rapids.

    The exponent's bits are negated, and the mantissa's with them: that is within 0.051. Each of
    two steps of Newton's method squares what it is off by.
    """
    kind = v.vector_type("int32", lanes)
    held = v.local(2, lanes)
    v.store(x, held, 0, 0, lanes=lanes)
    x = v.load(held, 0, 0, lanes=lanes)
    guess = v.splat_i32(RECIPROCAL, lanes) - tirx.reinterpret(kind, x)
    v.store(tirx.reinterpret(v.vector_type(v.F32, lanes), guess), held, 1, 0, lanes=lanes)
    for _ in range(2):
        y = v.load(held, 1, 0, lanes=lanes)
        v.store(y * (v.splat(2.0, lanes) - x * y), held, 1, 0, lanes=lanes)
    return v.load(held, 1, 0, lanes=lanes)
