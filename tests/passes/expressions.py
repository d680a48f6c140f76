"""Random graphs of small operators, and what numpy computes by them for numbers of every kind.

TVM's own kernels are no oracle: its simplifier takes x · 0 for 0, whatever x is, and x + 0 for x.
They would also take a hundred times longer.
"""

import functools

import numpy as np
from tvm import relax

from mlc_compile.passes.values import array_of

SEEDS = range(40)
STEPS = 40

# NaN, infinities, both zeros, a subnormal, what overflows, what float16 rounds away.
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, -1.0, 1.0, 2.5, 1.0 + 2**-12, 70000.0]
SHAPES = [(24,), (4, 6), (6, 4), (2, 3, 4), (1, 24)]
CASTS = {  # of a float an integer may be undefined
    "float16": ("float16", "float32"),
    "float32": ("float16", "float32", "float64"),
    "float64": ("float16", "float32", "float64"),
    "uint8": ("uint8", "int8", "int32", "float16"),
    "int8": ("uint8", "int8", "int64", "float16"),
    "int32": ("int8", "int32", "int64", "float64", "float32"),
    "int64": ("uint8", "int32", "int64"),
}
BINARY = (relax.op.add, relax.op.subtract, relax.op.multiply)
UNARY = (relax.op.negative, relax.op.abs)


class Expressions:
    """A dataflow block that grows by random operators on what it has; some are given again."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.builder = relax.BlockBuilder()
        self.params = [
            relax.Var(dtype, relax.TensorType((4, 6), dtype))
            for dtype in ("float32", "float16", "int32")
        ]
        self.values, self.made = list(self.params), []

    def module(self):
        with self.builder.function("main", self.params):
            with self.builder.dataflow():
                for _ in range(STEPS):
                    self._grow()
                # Half of what is computed comes out, so that no difference is lost on the way.
                results = [self.builder.emit_output(v) for v in self.values[::-2]]
            self.builder.emit_func_output(relax.Tuple(results))
        return self.builder.get()

    def _grow(self):
        if self.made and self.random.random() < 0.2:
            call = self._pick(self.made)
            call = relax.Call(call.op, call.args, call.attrs)
        else:
            # Late values more often, so that chains form.
            at = -1 - min(int(self.random.exponential(4)), len(self.values) - 1)
            x = self.values[at]
            call = self._pick(
                [self._binary, self._cast, self._reshape, self._permute, self._unary]
            )(x)
        self.made.append(call)
        self.values.append(self.builder.emit(call))

    def _pick(self, options):
        return options[self.random.integers(len(options))]

    def _binary(self, x):
        shape, dtype = tuple(map(int, x.ty.shape.values)), str(x.ty.dtype)
        alike = [v for v in self.values if v.ty == x.ty]
        if alike and self.random.random() < 0.4:
            return self._pick(BINARY)(x, self._pick(alike))
        made, other = (self._constant(shape, dtype) for _ in range(2))
        operands = self._pick([(x, made), (made, x), (made, other)])
        return self._pick(BINARY)(*operands)

    def _constant(self, shape, dtype):
        number = self._pick([0, 1, 0.0, -0.0, 1.0, 2.0, np.nan if "float" in dtype else 3])
        return relax.const(np.full(self._pick([(), shape]), number, dtype), dtype)

    def _cast(self, x):
        return relax.op.astype(x, self._pick(CASTS[str(x.ty.dtype)]))

    def _reshape(self, x):
        if not x.ty.shape.values:  # made of constants alone
            return relax.op.abs(x)
        return relax.op.reshape(x, self._pick(SHAPES))

    def _permute(self, x):
        return relax.op.permute_dims(x, self.random.permutation(len(x.ty.shape.values)).tolist())

    def _unary(self, x):
        return self._pick(UNARY)(x)


@functools.cache
def expression(seed):
    """A module whose `main` takes float32, float16 and int32 [4, 6]; it gives many results."""
    return Expressions(seed).module()


@functools.cache
def plain_results(seed):
    """What the graph computes as it is."""
    return results(expression(seed), seed)


def results(mod, seed):
    """What `main` of a module computes for the numbers of `seed`."""
    random = np.random.default_rng(seed)
    floats = [random.permutation(np.array(SPECIAL * 2)).reshape(4, 6) for _ in range(2)]
    with np.errstate(all="ignore"):  # overflow and NaN are results like any other
        inputs = [floats[0].astype("float32"), floats[1].astype("float16")]
        inputs.append(random.integers(-9, 9, (4, 6)).astype("int32"))
        return _computed(mod["main"], inputs)


def _computed(func, inputs):
    known = dict(zip(func.params, inputs, strict=True))

    def value(expr):
        if isinstance(expr, relax.Var):
            return known[expr]
        if isinstance(expr, relax.Tuple):
            return [value(field) for field in expr.fields]
        if isinstance(expr, relax.ShapeExpr):
            return [int(size) for size in expr.values]
        array = array_of(expr)
        return _call(expr, *map(value, expr.args)) if array is None else array

    for block in func.body.blocks:
        for binding in block.bindings:
            known[binding.var] = value(binding.value)
    return value(func.body.body)


def _call(call, *args):
    made = NUMPY[str(call.op.name)](call, *args)
    assert made.dtype == str(call.ty.dtype)
    return made


NUMPY = {
    "relax.add": lambda _, x, y: np.add(x, y),
    "relax.subtract": lambda _, x, y: np.subtract(x, y),
    "relax.multiply": lambda _, x, y: np.multiply(x, y),
    "relax.negative": lambda _, x: np.negative(x),
    "relax.abs": lambda _, x: np.abs(x),
    "relax.astype": lambda call, x: x.astype(str(call.ty.dtype)),
    "relax.permute_dims": lambda call, x: x.transpose([int(a) for a in call.attrs.axes]),
    "relax.reshape": lambda _, x, shape: x.reshape(shape),
    "relax.zeros": lambda call, shape: np.zeros(shape, str(call.ty.dtype)),
}


def assert_equal_to_the_bit(got, expected):
    """Equal numbers, equal signs of zeros, NaN where NaN is expected."""
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
        numbers = ~np.isnan(other)
        np.testing.assert_array_equal(np.signbit(one)[numbers], np.signbit(other)[numbers])
