"""Random graphs of small operators, and what TVM computes by them for numbers of every kind."""

import functools

import numpy as np
import tvm
from tvm import relax

SEEDS = range(8)
STEPS = 40

# NaN, infinities, both zeros, a subnormal, what overflows, what float16 rounds away.
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, -1.0, 1.0, 2.5, 1.0 + 2**-12, 70000.0]
SHAPES = [(24,), (4, 6), (6, 4), (2, 3, 4), (1, 24)]
CASTS = {  # what LLVM casts without help; of a float an integer may be undefined
    "float16": ("float16", "float32"),
    "float32": ("float16", "float32", "float64"),
    "float64": ("float32", "float64"),
    "int32": ("int32", "int64", "float64", "float32"),
    "int64": ("int32", "int64"),
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
    with np.errstate(over="ignore"):
        inputs = [floats[0].astype("float32"), floats[1].astype("float16")]
    inputs.append(random.integers(-9, 9, (4, 6)).astype("int32"))
    executable = tvm.compile(mod, tvm.target.Target({"kind": "llvm"}))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return [r.numpy() for r in machine["main"](*map(tvm.runtime.tensor, inputs))]


def assert_equal_to_the_bit(got, expected):
    """Equal numbers, equal signs of zeros, NaN where NaN is expected."""
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
        numbers = ~np.isnan(other)
        np.testing.assert_array_equal(np.signbit(one)[numbers], np.signbit(other)[numbers])
