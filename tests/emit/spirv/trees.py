"""Random expression trees, each with what numpy says that it is.

Integers wrap, so any tree of them is exact. Floats stay exact too: a tree knows the largest
magnitude and the smallest step that its values can have, and grows only while the type holds
all of them; then it makes no difference whether a product is fused with a sum. A function that
rounds may stand at the root, with a tolerance in units in the last place.
"""

from dataclasses import dataclass

import numpy as np
from tvm import tirx

from .writing import call

INTS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
FLOATS = ("float16", "float32")
STORED = ("bool", *INTS, *FLOATS)  # dtypes of buffers
DTYPES = (*STORED, "int64")
EXACT_BITS = {"float16": 11, "float32": 24, "int64": 31}  # of a magnitude in steps
INPUTS = 3  # elements of each dtype that a thread reads


@dataclass(frozen=True)
class Tree:
    """An expression, its values in all threads, and a bound: |value| <= most / 2**fraction."""

    node: object
    value: np.ndarray
    most: float = 0
    fraction: int = 0

    @property
    def dtype(self):
        return str(self.value.dtype)


def truncated(a, b):
    wide, by = a.astype("int64"), b.astype("int64")
    quotient = np.abs(wide) // np.abs(by) * np.sign(wide) * np.sign(by)
    return quotient.astype(a.dtype)  # -128 / -1 is -128 again


def bit_count(x):
    return np.bitwise_count(x.view(f"u{x.itemsize}")).astype(x.dtype)


def leading_zeros(x):
    bits = 8 * x.itemsize
    wide = x.view(f"u{x.itemsize}").astype("float64")
    return (bits - np.where(wide > 0, np.floor(np.log2(np.maximum(wide, 1))) + 1, 0)).astype(
        "int32"
    )


def half_away(x):
    return np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x)


RING = {tirx.Add: np.add, tirx.Sub: np.subtract, tirx.Mul: np.multiply}
ORDER = {tirx.Min: np.minimum, tirx.Max: np.maximum}
BITS = {
    tirx.BitwiseAnd: np.bitwise_and,
    tirx.BitwiseOr: np.bitwise_or,
    tirx.BitwiseXor: np.bitwise_xor,
}
SHIFTS = {tirx.LShift: np.left_shift, tirx.RShift: np.right_shift}
DIVISIONS = {
    tirx.Div: truncated,
    tirx.Mod: lambda a, b: a - truncated(a, b) * b,
    tirx.FloorDiv: lambda a, b: (a.astype("int64") // b.astype("int64")).astype(a.dtype),
    tirx.FloorMod: lambda a, b: (a.astype("int64") % b.astype("int64")).astype(a.dtype),
}
RELATIONS = {
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
}
WHOLE = {
    "tirx.floor": np.floor,
    "prim.ceil": np.ceil,
    "tirx.trunc": np.trunc,
    "tirx.round": half_away,
    "tirx.nearbyint": np.rint,
}


class Grower:
    """Grows trees of `lanes` over the values that buffers of STORED dtypes hold."""

    def __init__(self, rng, lanes, buffers, values, base):
        self.rng, self.lanes, self.buffers, self.values, self.base = (
            rng,
            lanes,
            buffers,
            values,
            base,
        )
        self.size = len(values["int32"]) // INPUTS
        self.pool = {dtype: [] for dtype in DTYPES}

    # ---- leaves

    def pick(self, options):
        return options[self.rng.integers(len(options))]

    def index(self, number):
        start = tirx.Add(self.base, tirx.IntImm("int32", number * self.size))
        return start if self.lanes == 1 else tirx.Ramp(start, tirx.IntImm("int32", 1), self.lanes)

    def loaded(self, dtype):
        if dtype == "int64":
            return self.cast(self.masked(self.loaded("int32"), 63), "int64", 63)
        number = int(self.rng.integers(INPUTS))
        value = self.values[dtype][number * self.size : (number + 1) * self.size]
        return Tree(self.buffers[dtype][self.index(number)], value, 64, 2)

    def constant(self, dtype):
        value = {
            "b": [0, 1],
            "i": [-128, -7, -1, 0, 1, 3, 127],
            "u": [0, 1, 5, 200, 255],
            "f": [-2.25, 0, 0.5, 3],
        }
        return self.number(dtype, self.pick(value[np.dtype(dtype).kind]))

    def number(self, dtype, number):
        made = np.dtype(dtype).type(number)
        kind = tirx.FloatImm if made.dtype.kind == "f" else tirx.IntImm
        node = kind(dtype, made.item())
        most, fraction = (
            (abs(float(made)) * 4, 2) if made.dtype.kind == "f" else (abs(int(made)), 0)
        )
        return Tree(self.wide(node), np.full(self.size, made), most, fraction)

    def wide(self, node):
        return node if self.lanes == 1 else tirx.Broadcast(node, self.lanes)

    # ---- growth

    def grow(self, dtype, depth):
        """A tree; now and then one that was made before, so that nodes are shared."""
        if depth == 0:
            return self.loaded(dtype) if self.rng.random() < 0.8 else self.constant(dtype)
        if self.pool[dtype] and self.rng.random() < 0.1:
            return self.pick(self.pool[dtype])
        made = self.pick(self.rules(dtype))(dtype, depth - 1)
        if made is None or not self.held(made):
            made = self.loaded(dtype)
        assert made.dtype == dtype, (made.dtype, dtype)
        self.pool[dtype].append(made)
        return made

    def held(self, tree):
        bits = EXACT_BITS.get(tree.dtype)
        return bits is None or (tree.most < 2**bits and tree.fraction < 8)

    def rules(self, dtype):
        kind = np.dtype(dtype).kind
        if dtype == "int64":
            return [self.ring, self.order, self.select]
        if kind == "b":
            return [self.relation, self.relation, self.logic, self.truth_of]
        common = [
            self.ring,
            self.ring,
            self.order,
            self.select,
            self.chosen,
            self.let,
            self.convert,
        ]
        if kind == "f":
            return [*common, self.whole, self.absolute]
        return [
            *common,
            self.bits,
            self.shift,
            self.division,
            self.complement,
            self.count,
            self.same_bits,
        ]

    def pair(self, dtype, depth):
        return self.grow(dtype, depth), self.grow(dtype, depth)

    def ring(self, dtype, depth):
        a, b = self.pair(dtype, depth)
        op = self.pick(list(RING))
        fraction = a.fraction + b.fraction if op is tirx.Mul else max(a.fraction, b.fraction)
        most = (
            a.most * b.most
            if op is tirx.Mul
            else sum(t.most * 2.0 ** (fraction - t.fraction) for t in (a, b))
        )
        return Tree(op(a.node, b.node), RING[op](a.value, b.value), most, fraction)

    def order(self, dtype, depth):
        a, b = self.pair(dtype, depth)
        op = self.pick(list(ORDER))
        return self.either(op(a.node, b.node), ORDER[op](a.value, b.value), a, b)

    def either(self, node, value, a, b):
        """One of two trees."""
        fraction = max(a.fraction, b.fraction)
        return Tree(
            node, value, max(t.most * 2.0 ** (fraction - t.fraction) for t in (a, b)), fraction
        )

    def select(self, dtype, depth):
        c, (a, b) = self.grow("bool", depth), self.pair(dtype, depth)
        return self.either(
            tirx.Select(c.node, a.node, b.node), np.where(c.value, a.value, b.value), a, b
        )

    def chosen(self, dtype, depth):
        """if_then_else; a load that it guards would be far outside."""
        if self.lanes > 1:
            return self.shuffled(dtype, depth)
        c, (a, b) = self.grow("bool", depth), self.pair(dtype, depth)
        far = tirx.Select(c.node, self.base, tirx.IntImm("int32", 2**28))
        inside = self.buffers[dtype][far] if dtype in self.buffers else a.node
        value = self.values[dtype][: self.size] if dtype in self.buffers else a.value
        node = call("prim.if_then_else", dtype, c.node, inside, b.node)
        first = Tree(node, value, 64, 2)
        return self.either(node, np.where(c.value, value, b.value), first, b)

    def shuffled(self, dtype, depth):
        a = self.grow(dtype, depth)
        order = self.rng.permutation(self.lanes)
        indices = [tirx.IntImm("int32", int(i)) for i in order]
        value = a.value.reshape(-1, self.lanes)[:, order].reshape(-1)
        return Tree(tirx.Shuffle([a.node], indices), value, a.most, a.fraction)

    def let(self, dtype, depth):
        a = self.grow(dtype, depth)
        kind = dtype if self.lanes == 1 else f"{dtype}x{self.lanes}"
        held = tirx.Var("held", kind)
        return Tree(tirx.Let(held, a.node, tirx.Min(held, held)), a.value, a.most, a.fraction)

    def bits(self, dtype, depth):
        a, b = self.pair(dtype, depth)
        op = self.pick(list(BITS))
        return Tree(op(a.node, b.node), BITS[op](a.value, b.value))

    def masked(self, a, mask):
        m = self.number(a.dtype, mask)
        return Tree(tirx.BitwiseAnd(a.node, m.node), a.value & m.value, mask, 0)

    def shift(self, dtype, depth):
        a, b = self.pair(dtype, depth)
        by = self.masked(b, 8 * a.value.itemsize - 1)
        op = self.pick(list(SHIFTS))
        return Tree(op(a.node, by.node), SHIFTS[op](a.value, by.value))

    def division(self, dtype, depth):
        a, b = self.pair(dtype, depth)
        small, one = self.masked(b, 7), self.number(dtype, self.pick([1, 3]))
        by = Tree(tirx.Add(small.node, one.node), small.value + one.value)
        if self.rng.random() < 0.5:
            signed = [-3, -100, 2, 7] if dtype == "int32" else [-1, -3, -100, 7]
            by = self.number(dtype, self.pick([2, 3, 100] if dtype[0] == "u" else signed))
        op = self.pick(list(DIVISIONS))
        return Tree(op(a.node, by.node), DIVISIONS[op](a.value, by.value))

    def complement(self, dtype, depth):
        a = self.grow(dtype, depth)
        return Tree(tirx.BitwiseNot(a.node), ~a.value)

    def count(self, dtype, depth):
        a = self.grow(self.pick(INTS), depth)
        name, function, result = self.pick(
            [("tirx.popcount", bit_count, a.dtype), ("prim.clz", leading_zeros, "int32")]
        )
        kind = result if self.lanes == 1 else f"{result}x{self.lanes}"
        return self.cast(Tree(call(name, kind, a.node), function(a.value)), dtype)

    def same_bits(self, dtype, _depth):
        """Of a loaded value: zeros that were computed may have either sign."""
        width = np.dtype(dtype).itemsize
        a = self.loaded(self.pick([d for d in (*INTS, *FLOATS) if np.dtype(d).itemsize == width]))
        kind = dtype if self.lanes == 1 else f"{dtype}x{self.lanes}"
        return Tree(
            call("tirx.reinterpret", kind, a.node), np.ascontiguousarray(a.value).view(dtype)
        )

    def absolute(self, dtype, depth):
        a = self.grow(dtype, depth)
        return Tree(
            call("tirx.fabs", str(a.node.ty.dtype), a.node), np.abs(a.value), a.most, a.fraction
        )

    def whole(self, dtype, depth):
        a = self.grow(dtype, depth)
        name = self.pick(list(WHOLE))
        most = a.most / 2.0**a.fraction + 1
        return Tree(call(name, str(a.node.ty.dtype), a.node), WHOLE[name](a.value), most, 0)

    # ---- between types

    def cast(self, a, dtype, most=0, fraction=0):
        kind = dtype if self.lanes == 1 else f"{dtype}x{self.lanes}"
        return Tree(tirx.Cast(kind, a.node), a.value.astype(dtype), most, fraction)

    def convert(self, dtype, depth):
        """From any type; what would not fit is made to, first."""
        source = self.pick([d for d in STORED if d != dtype])
        a = self.grow(source, depth)
        to_float, from_float = dtype in FLOATS, source in FLOATS
        if to_float and source in INTS:
            return self.from_int(a, dtype)
        if from_float and not to_float:
            return self.from_float(a, dtype)
        if source == "bool":
            return self.cast(a, dtype, 1, 0)
        return self.cast(a, dtype, a.most, a.fraction)

    def from_int(self, a, dtype):
        """Some bits of an integer, so many as the float holds; of both signs, and the highest."""
        if (a.dtype, dtype) == ("uint32", "float32") and self.rng.random() < 0.5:
            return self.cast(self.masked(a, 0xFFFF0000), dtype, 2**16, -16)
        low = self.masked(a, 63)
        if a.dtype[0] == "i":
            half = self.number(a.dtype, 32)
            low = Tree(tirx.Sub(low.node, half.node), low.value - half.value)
        return self.cast(low, dtype, 63, 0)

    def from_float(self, a, dtype):
        """A float in the range of the integer."""
        least = self.number(a.dtype, 0 if dtype[0] == "u" else -100)
        most = self.number(a.dtype, 3e9 if (a.dtype, dtype) == ("float32", "uint32") else 100)
        node = tirx.Max(tirx.Min(a.node, most.node), least.node)
        value = np.maximum(np.minimum(a.value, most.value), least.value)
        return self.cast(Tree(node, value), dtype)

    # ---- truth

    def relation(self, _dtype, depth):
        a, b = self.pair(self.pick((*INTS, *FLOATS, "int64")), depth)
        b = a if self.rng.random() < 0.15 else b  # equal ones are rare else
        op = self.pick(list(RELATIONS))
        return Tree(op(a.node, b.node), RELATIONS[op](a.value, b.value))

    def truth_of(self, _dtype, depth):
        return self.cast(self.grow(self.pick((*INTS, *FLOATS)), depth), "bool")

    def logic(self, dtype, depth):
        a, b = self.pair(dtype, depth)
        ops = [
            (tirx.BitwiseAnd, "&"),
            (tirx.BitwiseOr, "|"),
            (tirx.BitwiseXor, "^"),
            (tirx.NE, "^"),
            (tirx.EQ, "="),
        ]
        if self.lanes == 1:
            ops += [(tirx.And, "&"), (tirx.Or, "|")]
        op, symbol = self.pick(ops)
        a_, b_ = a.value, b.value
        value = {"&": a_ & b_, "|": a_ | b_, "^": a_ ^ b_, "=": a_ == b_}[symbol]
        if self.rng.random() < 0.3:
            return Tree(tirx.Not(op(a.node, b.node)), ~value)
        return Tree(op(a.node, b.node), value)
