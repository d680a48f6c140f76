"""The rules of algebra as data: which expression may stand for which, and when exactly.

A rule holds to the last bit, for every input: NaN, infinities and the sign of zero included.
Where one looks as if it could be used but does not hold, its guard says why.

A pattern is a hole (a name, which stands for any expression) or `Node`: an operator on patterns.
`SimplifyAlgebra` applies the rules left to right, so each right side has fewer operators.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import tvm_ffi
from tvm import relax
from tvm.tirx import IntImm

from mlc_compile import ops
from mlc_compile.passes.values import filling

COMMUTATIVE: Final = frozenset({"relax.add", "relax.multiply"})


@dataclass(frozen=True, slots=True)
class Node:
    """`operator` on `args`, whatever its attributes."""

    operator: str
    args: tuple["Pattern", ...] = ()


Pattern = str | Node


@dataclass(frozen=True, slots=True)
class Match:
    """The calls that a left side met, outermost first, and what its holes stand for."""

    calls: tuple[relax.Call, ...]
    holes: Mapping[str, relax.Expr]  # as they are used
    known: Mapping[str, relax.Expr]  # what is behind their variables

    @property
    def whole(self) -> relax.Call:
        """What is replaced."""
        return self.calls[0]

    @property
    def x(self) -> relax.Expr:
        """The operand that stays: hole x."""
        return self.holes["x"]


@dataclass(frozen=True, slots=True)
class Guard:
    """What must hold for a rule to be exact, and the reason to give where it does not."""

    holds: Callable[[Match], bool]
    reason: str


@dataclass(frozen=True, slots=True)
class Rule:
    """`left` -> `right`: `when` says whether it is the case, `guards` whether it then holds."""

    name: str
    left: Node
    right: Pattern
    when: tuple[Callable[[Match], bool], ...] = ()
    guards: tuple[Guard, ...] = ()


def _all_zero(m: Match) -> bool:
    numbers = filling(m.known["c"])
    return numbers is not None and not np.any(numbers)


def _all_one(m: Match) -> bool:
    numbers = filling(m.known["c"])
    return numbers is not None and bool(np.all(numbers == 1))


def _has_shape(m: Match) -> bool:
    return isinstance(m.whole.ty.shape, relax.ShapeExpr)


def _same_type(m: Match) -> bool:
    """Of the shapes too, so both must be known: equal types without one say nothing of it."""
    return _has_shape(m) and bool(tvm_ffi.structural_equal(m.whole.ty, m.x.ty))


def _same_dtype(m: Match) -> bool:
    return _dtype(m.whole) == _dtype(m.x)


def _widens_twice(m: Match) -> bool:
    """One kind of number all along, so that no target converts by way of a third type."""
    x, between, last = _dtype(m.x), _dtype(m.calls[1]), _dtype(m.whole)
    kinds = {NUMBERS[d].kind for d in (x, between, last) if d in NUMBERS}
    return len(kinds) == 1 and holds_all(last, between)


def _is_integer(m: Match) -> bool:
    number = NUMBERS.get(_dtype(m.whole))
    return number is not None and number.kind == "integer"


def _keeps_zeros_sign(sign: bool) -> Callable[[Match], bool]:
    """Whether c's zeros have that sign bit: x - 0 and x + -0 keep -0, x + 0 does not."""

    def holds(m: Match) -> bool:
        numbers = filling(m.known["c"])
        assert numbers is not None
        return _is_integer(m) or bool(np.all(np.signbit(numbers) == sign))

    return holds


def _first_cast_is_exact(m: Match) -> bool:
    return holds_all(_dtype(m.calls[1]), _dtype(m.x))


def _axes(call: relax.Call) -> list[int]:
    rank = len(ops.shape_of(call))
    axes = call.attrs.axes
    return list(range(rank))[::-1] if axes is None else [int(a) % rank for a in axes]


def _moves_nothing(m: Match) -> bool:
    return _has_shape(m) and _axes(m.whole) == sorted(_axes(m.whole))


def _is_eye(m: Match) -> bool:
    eye = m.known["x"]
    if not (_has_shape(m) and ops.is_call(eye, "relax.eye") and _same_type(m)):
        return False
    diagonal = eye.args[2]
    return isinstance(diagonal, IntImm) and int(diagonal) == 0


def _dtype(expr: relax.Expr) -> str:
    return str(expr.ty.dtype)


@dataclass(frozen=True, slots=True)
class Number:
    """A type of numbers: kind, bits of a value (without the sign), bits of the exponent."""

    kind: str
    bits: int
    exponent: int = 0
    signed: bool = True


NUMBERS: Final[Mapping[str, Number]] = {
    **{f"int{b}": Number("integer", b - 1) for b in (8, 16, 32, 64)},
    **{f"uint{b}": Number("integer", b, signed=False) for b in (8, 16, 32, 64)},
    "bool": Number("integer", 1, signed=False),
    "float16": Number("float", 11, 5),
    "bfloat16": Number("brain", 8, 8),
    "float32": Number("float", 24, 8),
    "float64": Number("float", 53, 11),
}


def holds_all(wide: str, narrow: str) -> bool:
    """Whether type `wide` has every value of type `narrow`, so that a cast to it rounds nothing."""
    if wide not in NUMBERS or narrow not in NUMBERS:
        return wide == narrow
    w, n = NUMBERS[wide], NUMBERS[narrow]
    if w.kind == "integer" and (n.kind != "integer" or (n.signed and not w.signed)):
        return False
    # An integer of b bits needs the exponents up to b.
    needed = n.exponent if n.exponent else n.bits.bit_length() + 1
    return w.bits >= n.bits and (w.kind == "integer" or w.exponent >= needed)


SAME_TYPE: Final = Guard(_same_type, "it may also give x another shape or type")
INTEGER: Final = Guard(_is_integer, "a float that is NaN or infinite times 0 is NaN")
EXACT: Final = Guard(_first_cast_is_exact, "the first cast may round")
PLUS: Final = Guard(_keeps_zeros_sign(sign=True), "-0 + 0 is 0, not -0")
MINUS: Final = Guard(_keeps_zeros_sign(sign=False), "-0 - -0 is 0, not -0")

CAST, RESHAPE, PERMUTE = "relax.astype", "relax.reshape", "relax.permute_dims"

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "x * 0 -> 0",
        Node("relax.multiply", ("x", "c")),
        Node("relax.zeros"),
        when=(_all_zero, _has_shape),
        guards=(INTEGER,),
    ),
    Rule(
        "x * 1 -> x",
        Node("relax.multiply", ("x", "c")),
        "x",
        when=(_all_one,),
        guards=(SAME_TYPE,),
    ),
    Rule(
        "x / 1 -> x", Node("relax.divide", ("x", "c")), "x", when=(_all_one,), guards=(SAME_TYPE,)
    ),
    Rule(
        "x + 0 -> x",
        Node("relax.add", ("x", "c")),
        "x",
        when=(_all_zero,),
        guards=(SAME_TYPE, PLUS),
    ),
    Rule(
        "x - 0 -> x",
        Node("relax.subtract", ("x", "c")),
        "x",
        when=(_all_zero,),
        guards=(SAME_TYPE, MINUS),
    ),
    Rule("cast to x's own type -> x", Node(CAST, ("x",)), "x", when=(_same_dtype,)),
    Rule(
        "cast and back -> x",
        Node(CAST, (Node(CAST, ("x",)),)),
        "x",
        when=(_same_dtype,),
        guards=(EXACT,),
    ),
    Rule(
        "cast twice -> cast",
        Node(CAST, (Node(CAST, ("x",)),)),
        Node(CAST, ("x",)),
        when=(_widens_twice, _first_cast_is_exact),
    ),
    Rule("permute nothing -> x", Node(PERMUTE, ("x",)), "x", when=(_moves_nothing,)),
    Rule("transpose of the identity -> x", Node(PERMUTE, ("x",)), "x", when=(_is_eye,)),
    Rule(
        "permute twice -> permute",
        Node(PERMUTE, (Node(PERMUTE, ("x",)),)),
        Node(PERMUTE, ("x",)),
        when=(_has_shape,),
    ),
    Rule("reshape to x's own shape -> x", Node(RESHAPE, ("x", "s")), "x", when=(_same_type,)),
    Rule(
        "reshape twice -> reshape",
        Node(RESHAPE, (Node(RESHAPE, ("x", "r")), "s")),
        Node(RESHAPE, ("x", "s")),
    ),
)


def _permute(m: Match) -> relax.Call:
    """permute(permute(x, p), q) -> permute(x, p[q])."""
    outer, inner = (_axes(call) for call in m.calls)
    return relax.op.permute_dims(m.x, [inner[a] for a in outer])


BUILD: Final[Mapping[str, Callable[[Match], relax.Call]]] = {  # the nodes of right sides
    "relax.zeros": lambda m: relax.op.zeros(m.whole.ty.shape, m.whole.ty.dtype),
    CAST: lambda m: relax.op.astype(m.x, m.whole.ty.dtype),
    RESHAPE: lambda m: relax.op.reshape(m.x, m.holes["s"]),
    PERMUTE: _permute,
}


def replacement(rule: Rule, m: Match) -> relax.Expr:
    """The right side of a rule whose left side met `m`."""
    if isinstance(rule.right, str):
        return m.holes[rule.right]
    return BUILD[rule.right.operator](m)
