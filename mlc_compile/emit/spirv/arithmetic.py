"""Operators of two operands: which instruction, by node class and kind of operand.

Floats: every sum and product is exact to its own rounding (NoContraction), except a product
that is a summand at once: `a + b * c` may be one fused multiply-add. And that not where the
product is of a constant and a whole number, `x - floor(y) * c`: so are arguments reduced in
parts, which must cancel digit by digit. Min and max of a NaN and a number are the
number. Comparisons with NaN are false, but for "not equal".

Integers wrap. Vulkan leaves the remainder of a negative number undefined, so remainders are
made of quotients. Shifts by the width or more, and divisions by zero, mean nothing, as in C.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tvm import tirx
from tvm.runtime import Object as Node

from . import declarations as d
from .dtypes import BOOL, WORD, Kind, Value
from .opcodes import Glsl, Op
from .state import Kernel


def _by_kind(*ops: Op | None) -> Mapping[Kind, Op]:
    """Instructions for float, int, uint and bool; None where there is none."""
    kinds: tuple[Kind, ...] = ("float", "int", "uint", "bool")
    return {kind: op for kind, op in zip(kinds, ops, strict=False) if op is not None}


ARITHMETIC: Final[Mapping[type, Mapping[Kind, Op]]] = {
    tirx.Add: _by_kind(Op.FAdd, Op.IAdd, Op.IAdd),
    tirx.Sub: _by_kind(Op.FSub, Op.ISub, Op.ISub),
    tirx.Mul: _by_kind(Op.FMul, Op.IMul, Op.IMul),
    tirx.Div: _by_kind(Op.FDiv, Op.SDiv, Op.UDiv),
    tirx.LShift: _by_kind(None, Op.ShiftLeftLogical, Op.ShiftLeftLogical),
    tirx.RShift: _by_kind(None, Op.ShiftRightArithmetic, Op.ShiftRightLogical),
    tirx.BitwiseAnd: _by_kind(None, Op.BitwiseAnd, Op.BitwiseAnd, Op.LogicalAnd),
    tirx.BitwiseOr: _by_kind(None, Op.BitwiseOr, Op.BitwiseOr, Op.LogicalOr),
    tirx.BitwiseXor: _by_kind(None, Op.BitwiseXor, Op.BitwiseXor, Op.LogicalNotEqual),
}

COMPARISONS: Final[Mapping[type, Mapping[Kind, Op]]] = {
    tirx.EQ: _by_kind(Op.FOrdEqual, Op.IEqual, Op.IEqual, Op.LogicalEqual),
    tirx.NE: _by_kind(Op.FUnordNotEqual, Op.INotEqual, Op.INotEqual, Op.LogicalNotEqual),
    tirx.LT: _by_kind(Op.FOrdLessThan, Op.SLessThan, Op.ULessThan),
    tirx.LE: _by_kind(Op.FOrdLessThanEqual, Op.SLessThanEqual, Op.ULessThanEqual),
    tirx.GT: _by_kind(Op.FOrdGreaterThan, Op.SGreaterThan, Op.UGreaterThan),
    tirx.GE: _by_kind(Op.FOrdGreaterThanEqual, Op.SGreaterThanEqual, Op.UGreaterThanEqual),
}

EXTREMES: Final[Mapping[type, Mapping[Kind, Glsl]]] = {
    tirx.Min: {"float": Glsl.NMin, "int": Glsl.SMin, "uint": Glsl.UMin},
    tirx.Max: {"float": Glsl.NMax, "int": Glsl.SMax, "uint": Glsl.UMax},
}

WIDENING: Final = {Op.IAdd, Op.ISub, Op.IMul, Op.SDiv, Op.ShiftLeftLogical, Op.Not}  # need `wrap`


def arithmetic(k: Kernel, node: Node) -> Value:
    """Products, quotients, shifts and bits."""
    a, b = k.value(node.a), k.value(node.b)
    return combine(k, node, type(node), a, b)


def shift(k: Kernel, node: Node) -> Value:
    """As `arithmetic`; 64 bits are held in 32, so what shifts more must still mean something."""
    a, b = k.value(node.a), k.value(node.b)
    if a.type.bits == 64:
        b = _distance(k, node, b)
    return combine(k, node, type(node), a, b)


def _distance(k: Kernel, node: Node, distance: Value) -> Value:
    """To the right, all from 31 on leave the sign; to the left the value would need 64 bits."""
    if isinstance(node, tirx.RShift):
        return k.body.glsl(Glsl.UMin, distance.type, distance, k.body.constant(distance.type, 31))
    by = node.b.value if isinstance(node.b, tirx.Broadcast) else node.b
    if not (isinstance(by, tirx.IntImm) and by.value < WORD):
        raise k.refuse(node, "it may need 64-bit integers, which these devices need not have")
    return distance


def total(k: Kernel, node: Node) -> Value:
    """A sum or a difference; products in it may keep their rounding or not."""
    terms = [_term(k, o) for o in (node.a, node.b)]
    exact = all(len(t) == 1 for t in terms) or any(_cancels(k, t) for t in terms)
    a, b = (_product(k, node, t, exact=exact) for t in terms)
    return combine(k, node, type(node), a, b, exact=exact)


def _term(k: Kernel, node: Node) -> tuple[Value, ...]:
    """The two factors of a float product, or the one value of anything else."""
    if isinstance(node, tirx.Mul) and k.type_of(node).kind == "float":
        return k.value(node.a), k.value(node.b)
    return (k.value(node),)


def _product(k: Kernel, node: Node, term: tuple[Value, ...], *, exact: bool) -> Value:
    return term[0] if len(term) == 1 else combine(k, node, tirx.Mul, *term, exact=exact)


def _cancels(k: Kernel, term: tuple[Value, ...]) -> bool:
    """Whether a term is a constant times a whole number."""
    ids = [factor.ids[0] for factor in term]
    constant, whole = (any(i in known for i in ids) for known in (k.body.constants, k.body.whole))
    return len(ids) == 2 and constant and whole


def combine(k: Kernel, node: Node, kind: type, a: Value, b: Value, *, exact: bool = True) -> Value:
    """What a node of class `kind` makes of two values."""
    op = ARITHMETIC[kind].get(a.type.kind)
    if op is None:
        raise k.refuse(node, f"there is no such operation on {a.type}")
    made = k.body.op(op, a.type, a, b, exact=exact and a.type.kind == "float")
    return wrap(k, made) if op in WIDENING else made


def comparison(k: Kernel, node: Node) -> Value:
    """Truth of a relation."""
    a, b = k.value(node.a), k.value(node.b)
    op = COMPARISONS[type(node)].get(a.type.kind)
    if op is None:
        raise k.refuse(node, f"{a.type} has no order")
    return k.body.op(op, BOOL.of(a.type.lanes), a, b)


def extreme(k: Kernel, node: Node) -> Value:
    """The lesser or greater of two."""
    a, b = k.value(node.a), k.value(node.b)
    number = EXTREMES[type(node)].get(a.type.kind)
    if number is None:
        raise k.refuse(node, f"{a.type} has no order")
    return k.body.glsl(number, a.type, a, b)


def wrap(k: Kernel, value: Value) -> Value:
    """An integer of 8 or 16 bits as it is held: its low bits, extended."""
    type_ = value.type
    if not type_.narrow:
        return value
    if type_.kind == "uint":
        mask = k.body.constant(type_, (1 << type_.bits) - 1)
        return k.body.op(Op.BitwiseAnd, type_, value, mask)
    low = d.word(k.module, 0), d.word(k.module, type_.bits)
    return k.body.op(Op.BitFieldSExtract, type_, value, after=low)


def remainder(k: Kernel, node: Node) -> Value:
    """a - truncated(a / b) * b, of the sign of a."""
    a, b = k.value(node.a), k.value(node.b)
    return truncated_remainder(k, a, b)


def truncated_remainder(k: Kernel, a: Value, b: Value) -> Value:
    """As C's `%` and `fmod`."""
    if a.type.kind == "float":
        return k.body.op(Op.FRem, a.type, a, b)
    if a.type.kind == "uint":
        return k.body.op(Op.UMod, a.type, a, b)
    quotient = k.body.op(Op.SDiv, a.type, a, b)
    return k.body.op(Op.ISub, a.type, a, k.body.op(Op.IMul, a.type, quotient, b))


def floor_quotient(k: Kernel, node: Node) -> Value:
    """floor(a / b)."""
    a, b = k.value(node.a), k.value(node.b)
    type_ = a.type
    if type_.kind == "float":
        return k.body.glsl(Glsl.Floor, type_, k.body.op(Op.FDiv, type_, a, b, exact=True))
    if type_.kind == "uint":
        return k.body.op(Op.UDiv, type_, a, b)
    quotient = k.body.op(Op.SDiv, type_, a, b)
    one, zero = k.body.constant(type_, 1), k.body.constant(type_, 0)
    less = k.body.op(Op.Select, type_, _below(k, a, b), one, zero)
    return wrap(k, k.body.op(Op.ISub, type_, quotient, less))


def floor_remainder(k: Kernel, node: Node) -> Value:
    """a - floor(a / b) * b, of the sign of b."""
    a, b = k.value(node.a), k.value(node.b)
    type_ = a.type
    if type_.kind == "float":
        ratio = k.body.op(Op.FDiv, type_, a, b, exact=True)
        whole = k.body.glsl(Glsl.Floor, type_, ratio)
        product = k.body.op(Op.FMul, type_, whole, b, exact=True)
        return k.body.op(Op.FSub, type_, a, product, exact=True)
    rest = truncated_remainder(k, a, b)
    if type_.kind == "uint":
        return rest
    zero = k.body.constant(type_, 0)
    more = k.body.op(Op.Select, type_, _below(k, a, b), b, zero)
    return k.body.op(Op.IAdd, type_, rest, more)


def _below(k: Kernel, a: Value, b: Value) -> Value:
    """Whether the truncated quotient is one above the floored one."""
    truth = BOOL.of(a.type.lanes)
    rest, zero = truncated_remainder(k, a, b), k.body.constant(a.type, 0)
    inexact = k.body.op(Op.INotEqual, truth, rest, zero)
    signs = k.body.op(Op.BitwiseXor, a.type, rest, b)
    apart = k.body.op(Op.SLessThan, truth, signs, zero)
    return k.body.op(Op.LogicalAnd, truth, inexact, apart)


Rule = Callable[[Kernel, Node], Value]

RULES: Final[Mapping[type, Rule]] = {
    **dict.fromkeys(ARITHMETIC, arithmetic),
    tirx.LShift: shift,
    tirx.RShift: shift,
    tirx.Add: total,
    tirx.Sub: total,
    **dict.fromkeys(COMPARISONS, comparison),
    **dict.fromkeys(EXTREMES, extreme),
    tirx.Mod: remainder,
    tirx.FloorDiv: floor_quotient,
    tirx.FloorMod: floor_remainder,
}
