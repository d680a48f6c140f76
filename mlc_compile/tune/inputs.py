"""What a kernel is called with when there is no model: arrays by what they hold.

Numbers are random, but such that every kernel is defined on them: scales are finite, codes
count as int8, pages exist.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from mlc_compile.artifact import SCALE_ROWS
from mlc_compile.schedule.operand import Operand, Role, Values

if TYPE_CHECKING:
    from tvm import tirx

Array = npt.NDArray[Any]

FINITE: Final = 0x3BFF3BFF  # of packed words: any float16 or float32 within is then below 1
BLOCK: Final = 1 << 20  # numbers drawn; more are the same again


class Argument(msgspec.Struct, frozen=True):
    """One parameter as an array; a scalar has no shape."""

    shape: tuple[int, ...]
    dtype: str
    values: Values
    role: Role


class Situation(msgspec.Struct, frozen=True):
    """One way to call a kernel: what each parameter is, and how much this way counts.

    `filled` is the share of the state's pages that holds tokens after the call.
    """

    arguments: tuple[Argument, ...]
    length: int  # tokens in the cache before the call
    weight: float = 1.0
    rows: int = 1  # tokens of the call
    filled: float = 1.0

    @property
    def layers(self) -> int:
        """Of the state; 1 where there is none."""
        return next((a.shape[0] for a in self.arguments if a.role == "state"), 1)

    def nbytes(self, role: str) -> int:
        """Of all arguments of a role."""
        return sum(
            math.prod(a.shape) * np.dtype(a.dtype).itemsize
            for a in self.arguments
            if a.role == role
        )


def symbols(func: "tirx.PrimFunc") -> frozenset[str]:
    """The names of the symbolic dimensions of a kernel's parameters."""
    from tvm import tirx

    buffers = [param for param in func.params if tirx.is_buffer_var(param)]
    dims = [dim for buffer in buffers for dim in buffer.shape]
    return frozenset(str(dim.name) for dim in dims if isinstance(dim, tirx.Var))


def situation(
    func: "tirx.PrimFunc",
    operands: Sequence[Operand],
    sizes: Mapping[str, int],
    length: int = 0,
    weight: float = 1.0,
    rows: int = 1,
    filled: float = 1.0,
) -> Situation:
    """A call of `func` with its symbolic dimensions as `sizes` says."""
    pairs = zip(func.params, operands, strict=True)
    arguments = tuple(_argument(p, o, sizes) for p, o in pairs)
    return Situation(arguments, length, weight, rows, filled)


def _argument(param: Any, operand: Operand, sizes: Mapping[str, int]) -> Argument:
    from tvm import tirx

    if not tirx.is_buffer_var(param):
        return Argument((), "int64", operand.values, operand.role)
    shape = (sizes[str(d.name)] if isinstance(d, tirx.Var) else int(d) for d in param.shape)
    return Argument(tuple(shape), str(param.dtype), operand.values, operand.role)


def fill(argument: Argument, length: int, random: np.random.Generator) -> Array:
    """The array of one argument."""
    if argument.role == "result":
        return unwritten(argument)
    if argument.values == "pages":
        return np.arange(math.prod(argument.shape), dtype=argument.dtype).reshape(argument.shape)
    if argument.values == "length":
        return np.full(argument.shape, length, argument.dtype)
    if argument.role == "state" and argument.dtype == "int8":
        return _quantized(argument, random)
    return _repeated(_drawn(argument.values, _few(argument.shape), random), argument)


def unwritten(argument: Argument) -> Array:
    """A result before the call: what no kernel writes."""
    nothing = -1 if argument.values == "pairs" else np.nan  # which is a pair of NaNs
    return np.full(argument.shape, nothing, argument.dtype)


def _quantized(argument: Argument, random: np.random.Generator) -> Array:
    """Pages of codes; those of keys end with scales, see `artifact.FlatKV`."""
    codes = random.integers(-127, 128, _few(argument.shape), np.int8)
    pages = _repeated(codes, argument)
    if argument.values == "keys":
        rows = pages[..., -SCALE_ROWS:, :]
        scales = _drawn("positive", rows.size // 4, random).astype(np.float32)
        rows[...] = scales.view(np.int8).reshape(rows.shape)
    return pages


def _few(shape: tuple[int, ...]) -> int:
    return min(math.prod(shape), BLOCK)


def _repeated(drawn: Array, argument: Argument) -> Array:
    """The numbers again and again, as the argument's array."""
    filled = np.resize(drawn, math.prod(argument.shape))
    return filled.astype(argument.dtype, copy=False).reshape(argument.shape)


def _drawn(values: str, count: int, random: np.random.Generator) -> Array:
    if values == "positive":
        return random.uniform(0.001, 0.02, count)
    if values == "codes":
        return random.integers(-127, 128, (count, 4), np.int8).view(np.int32)[:, 0]
    if values == "pairs":
        halves = random.standard_normal((count, 2), np.float32).view(np.uint16)[:, 1::2]
        return np.ascontiguousarray(halves).view(np.int32)[:, 0]
    if values == "offsets":
        return random.integers(-1000, 1000, count)
    if values == "packed":
        return random.integers(0, 2**31, count, np.int64) & FINITE
    return random.standard_normal(count, np.float32)
