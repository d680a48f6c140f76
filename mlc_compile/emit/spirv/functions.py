"""Functions of floats, as one instruction where there is one that keeps C's promise.

Vulkan promises little of some (units in the last place, ULP, of the result): exp and exp2
3 + 2|x| ULP, log and log2 3 ULP (2**-21 absolute in [0.5, 2]), sqrt and a quotient about 2.5
ULP, and sin, cos only 2**-11 absolute in [-pi, pi]. Softmax, silu and norms stand what exp and
sqrt may be off. No kernel of ours takes sin or cos: the one that rotates queries and keys
(`schedule.kernels.gpu.attention_pages`) reduces angles and has polynomials of its own. pow is
of a base that is not negative. NaN is found by its bits, for a device may assume that there is
none.

Tanh and erf are composed here: GLSL's tanh may overflow, and it has no erf. Coefficients are
our own least-squares fits, of the largest relative error, on the intervals that stand beside
them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from . import casts
from .dtypes import BOOL, FLOAT32, UINT32, Type, Value
from .opcodes import Glsl, Op
from .state import Kernel

Function = Callable[[Kernel, Sequence[Value]], Value]
Unary = Callable[["Sums", Value], Value]

# tanh(x) = x + x**3 P(x**2) to |x| = 0.625, then 1 - 2 / (exp(2|x|) + 1), which is 1 from 10 on.
TANH_SMALL: Final = (
    -0.33333277702331543,
    0.13331328332424164,
    -0.05372922867536545,
    0.02060200646519661,
    -0.005660788621753454,
)
TANH_LIMIT, TANH_ONE = 0.625, 10.0

# erf(x) = x P(x**2) to |x| = 1, then 1 - exp(-Q(|x|)), which is 1 from 4 on.
ERF_SMALL: Final = (
    1.1283791065216064,
    -0.3761262595653534,
    0.1128358542919159,
    -0.026853812858462334,
    0.005188327748328447,
    -0.0008010193705558777,
    7.853860734030604e-05,
)
ERF_LARGE: Final = (
    -0.0001880370546132326,
    1.1295783519744873,
    0.6332198977470398,
    0.1084185540676117,
    -0.025208240374922752,
    0.004204556345939636,
    -0.00044133528717793524,
    2.1686762920580804e-05,
)
ERF_LIMIT, ERF_ONE = 1.0, 4.0

SIGN: Final = 0x80000000
INFINITY: Final = 0x7F800000


class Sums:
    """Formulas of floats of one type, each operation with its own rounding."""

    def __init__(self, k: Kernel, type_: Type) -> None:
        self.k = k
        self.type = type_
        self.truth = BOOL.of(type_.lanes)
        self.words = UINT32.of(type_.lanes)

    def number(self, value: float) -> Value:
        """In every lane."""
        return self.k.body.constant(self.type, value)

    def op(self, op: Op, *operands: Value) -> Value:
        """A float, rounded for itself."""
        return self.k.body.op(op, self.type, *operands, exact=True)

    def glsl(self, number: Glsl, *operands: Value) -> Value:
        """A float."""
        return self.k.body.glsl(number, self.type, *operands)

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """c[0] + c[1] x + ..., by Horner's rule."""
        *rest, highest = coefficients
        total = self.number(highest)
        for coefficient in reversed(rest):
            total = self.op(Op.FAdd, self.op(Op.FMul, total, x), self.number(coefficient))
        return total

    def choose(self, condition: Value, yes: Value, no: Value) -> Value:
        """Lane by lane."""
        return self.k.body.op(Op.Select, self.type, condition, yes, no)

    def from_to(self, x: Value, limit: float, below: Value, beyond: Value) -> Value:
        """`beyond` from |x| = limit on, `below` else and of NaN."""
        far = self.k.body.op(Op.FOrdGreaterThanEqual, self.truth, x, self.number(limit))
        return self.choose(far, beyond, below)

    def bits(self, x: Value) -> Value:
        """Of float32."""
        return self.k.body.op(Op.Bitcast, self.words, x)

    def with_sign(self, magnitude: Value, x: Value) -> Value:
        """A number that is not negative, with the sign of x."""
        body, words = self.k.body, self.words
        sign = body.op(Op.BitwiseAnd, words, self.bits(x), body.constant(words, SIGN))
        both = body.op(Op.BitwiseOr, words, self.bits(magnitude), sign)
        return body.op(Op.Bitcast, self.type, both)


def _glsl(number: Glsl) -> Function:
    """One extended instruction."""

    def function(k: Kernel, args: Sequence[Value]) -> Value:
        return k.body.glsl(number, args[0].type, *args)

    return function


def _core(op: Op) -> Function:
    """One core instruction."""

    def function(k: Kernel, args: Sequence[Value]) -> Value:
        return k.body.op(op, args[0].type, *args, exact=True)

    return function


def _in_float32(formula: Unary) -> Function:
    """A formula of float32; float16 is widened, which is exact, and the result rounded."""

    def function(k: Kernel, args: Sequence[Value]) -> Value:
        (x,) = args
        wide = casts.cast(k, x, FLOAT32.of(x.type.lanes))
        made = formula(Sums(k, wide.type), wide)
        return casts.cast(k, made, x.type) if made.type.kind == "float" else made

    return function


def _round(f: Sums, x: Value) -> Value:
    """Halves away from zero: the whole part, and one more if half or more was cut off."""
    whole = f.glsl(Glsl.Trunc, x)
    rest = f.glsl(Glsl.FAbs, f.op(Op.FSub, x, whole))
    more = f.op(Op.FAdd, whole, f.with_sign(f.number(1), x))
    return f.from_to(rest, 0.5, whole, more)


def _tanh(f: Sums, x: Value) -> Value:
    size, square = f.glsl(Glsl.FAbs, x), f.op(Op.FMul, x, x)
    cube = f.op(Op.FMul, x, square)
    small = f.op(Op.FAdd, x, f.op(Op.FMul, cube, f.polynomial(square, TANH_SMALL)))
    capped = f.glsl(Glsl.NMin, size, f.number(TANH_ONE))
    grown = f.glsl(Glsl.Exp, f.op(Op.FMul, capped, f.number(2)))
    rest = f.op(Op.FDiv, f.number(2), f.op(Op.FAdd, grown, f.number(1)))
    large = f.with_sign(f.op(Op.FSub, f.number(1), rest), x)
    return f.from_to(size, TANH_LIMIT, small, large)


def _erf(f: Sums, x: Value) -> Value:
    size, square = f.glsl(Glsl.FAbs, x), f.op(Op.FMul, x, x)
    small = f.op(Op.FMul, x, f.polynomial(square, ERF_SMALL))
    capped = f.glsl(Glsl.NMin, size, f.number(ERF_ONE))
    exponent = f.op(Op.FSub, f.number(0), f.polynomial(capped, ERF_LARGE))
    rest = f.glsl(Glsl.Exp, exponent)
    large = f.with_sign(f.op(Op.FSub, f.number(1), rest), x)
    return f.from_to(size, ERF_LIMIT, small, large)


def _isnan(f: Sums, x: Value) -> Value:
    """The bits of |x| are above those of infinity."""
    body, words = f.k.body, f.words
    size = body.op(Op.BitwiseAnd, words, f.bits(x), body.constant(words, SIGN - 1))
    return body.op(Op.UGreaterThan, f.truth, size, body.constant(words, INFINITY))


OPERATORS: Final[Mapping[str, Function]] = {
    "exp": _glsl(Glsl.Exp),
    "exp2": _glsl(Glsl.Exp2),
    "log": _glsl(Glsl.Log),
    "log2": _glsl(Glsl.Log2),
    "pow": _glsl(Glsl.Pow),
    "sqrt": _glsl(Glsl.Sqrt),
    "rsqrt": _glsl(Glsl.InverseSqrt),
    "sin": _glsl(Glsl.Sin),
    "cos": _glsl(Glsl.Cos),
    "tan": _glsl(Glsl.Tan),
    "floor": _glsl(Glsl.Floor),
    "ceil": _glsl(Glsl.Ceil),
    "trunc": _glsl(Glsl.Trunc),
    "nearbyint": _glsl(Glsl.RoundEven),
    "fabs": _glsl(Glsl.FAbs),
    "fma": _glsl(Glsl.Fma),
    "fmod": _core(Op.FRem),
    "round": _in_float32(_round),
    "tanh": _in_float32(_tanh),
    "erf": _in_float32(_erf),
    "isnan": _in_float32(_isnan),
}

# Those that C's mathematics has under this name: `expf` is exp of float32.
C: Final = frozenset(OPERATORS) - {"rsqrt", "isnan"}
