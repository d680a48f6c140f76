"""What a Relax function calls, as plain data: who writes how much, and whose weights it reads.

Reads a module at any point between the phases "import" and "memory", so that operators before
fusion and kernels after it are told in the same words. Sizes are for a stated number of
tokens: the symbolic dimension of the function's first parameter.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from tvm import ir, relax, tirx
from tvm.sym import Analyzer

from mlc_compile import ops
from mlc_compile.artifact import WeightPlan

WEIGHT_READ: Final = "vm.builtin.tuple_getitem"  # as BindWeights reads one
TO_KERNELS: Final = (  # first argument: what is called; second: a tuple of what it is given
    "relax.call_tir",
    "relax.call_tir_inplace",
    "relax.call_dps_packed",
)
PACKED: Final = ("relax.call_pure_packed", "relax.call_inplace_packed")
NO_WORK: Final = ("mlc.weight", "relax.reshape")  # moves nothing at run time
Shaped = tuple[tuple[int, ...], str]  # of a tensor: shape, dtype
_LAYER: Final = re.compile(r"^model\.layers\.\d+\.")


@dataclass(frozen=True, slots=True)
class Read:
    """A part of a weight that a call reads; no bytes before the weight plan is written."""

    family: str  # the weight's name without its layer
    sources: tuple[str, ...]  # checkpoint names
    nbytes: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call, bytes as for `tokens`; tensors of the cache and weights are not activations."""

    name: str
    weights: tuple[Read, ...]
    read_bytes: int  # of activations
    written_bytes: int  # of activations
    rows: int  # m of its first result [1, m, ..] or [m, k]
    results: int  # numbers in its first result
    numbers: int  # the most activations in one of its tensors
    given: int  # numbers, or words of them, in its first activations
    is_result: bool  # what it writes is returned, no intermediate


def calls_of(func: relax.Function, tokens: int, plan: WeightPlan | None = None) -> tuple[Call, ...]:
    """The calls of a function in order; `plan` once its weights are bound."""
    reads = () if plan is None else tuple(_reads(plan))
    return tuple(_Walk(func, tokens, reads).calls())


def _reads(plan: WeightPlan) -> Iterator[Read]:
    """In the order of the library's parameters."""
    for tensor in plan.tensors:
        for part in tensor.parts:
            name = family(part.name.rpartition(".")[0])
            yield Read(name, tensor.sources, part.nbytes)


class _Walk:
    def __init__(self, func: relax.Function, tokens: int, reads: Sequence[Read]) -> None:
        self.func = func
        self.reads = reads
        self.known = Analyzer()
        self.sizes: dict[ir.Expr, int] = dict.fromkeys(_symbols(func), tokens)
        for symbol in self.sizes:
            self.known.bind(symbol, tirx.IntImm("int64", tokens))
        self.weights: dict[relax.Var, Read] = {}
        self.tuples: dict[relax.Var, relax.Expr] = {}
        self.held: dict[relax.Expr, list[Shaped]] = {}

    def calls(self) -> Iterator[Call]:
        result = self._returned()
        for block in self.func.body.blocks:
            for binding in block.bindings:
                var, value = binding.var, binding.value
                read = self._weight(value)
                if read is not None:
                    self.weights[var] = read
                elif isinstance(value, relax.Call) and _operator(value) not in NO_WORK:
                    yield self._call(var, value, is_result=var in result)
                elif isinstance(value, relax.Tuple):
                    self.tuples[var] = value

    def _returned(self) -> set[relax.Var]:
        """Variables whose tensors the function returns, tuples taken apart."""
        bound = {b.var: b.value for block in self.func.body.blocks for b in block.bindings}
        found: set[relax.Var] = set()
        todo = [self.func.body.body]
        while todo:
            expr = todo.pop()
            if isinstance(expr, relax.Tuple):
                todo += list(expr.fields)
            elif isinstance(expr, relax.Var) and expr not in found:
                found.add(expr)
                value = bound.get(expr)
                if isinstance(value, relax.Tuple | relax.Var):
                    todo.append(value)
        return found

    def _weight(self, value: relax.Expr) -> Read | None:
        if ops.is_call(value, "mlc.weight"):
            weight = ops.Weight.of(value)
            return Read(family(weight.sources[0]), weight.sources, 0)
        if not self.reads or _callee(value) != WEIGHT_READ:
            return None
        return self.reads[int(value.args[2])]

    def _call(self, var: relax.Var, call: relax.Call, *, is_result: bool) -> Call:
        given = [a for arg in _arguments(call) for a in self._fields(arg)]
        reads = tuple(self.weights[a] for a in given if a in self.weights)
        inputs = [t for a in given if a not in self.weights for t in self._held(a)]
        fresh = self._held(var)
        first = fresh[0][0] if fresh else (0,)
        sizes = [_nbytes(*t) for t in fresh]
        return Call(
            name=_callee(call),
            weights=reads,
            read_bytes=sum(_nbytes(*t) for t in inputs),
            written_bytes=sum(sizes),
            rows=first[1] if len(first) > 2 else first[0],
            results=math.prod(first),
            given=math.prod(inputs[0][0]) if inputs else 0,
            numbers=max((math.prod(shape) for shape, _ in (*inputs, *fresh)), default=0),
            is_result=is_result,
        )

    def _fields(self, arg: relax.Expr) -> Iterator[relax.Expr]:
        arg = self.tuples.get(arg, arg) if isinstance(arg, relax.Var) else arg
        if isinstance(arg, relax.Tuple):
            for field in arg.fields:
                yield from self._fields(field)
        elif isinstance(arg.ty, relax.TensorType | relax.TupleType):
            yield arg

    def _held(self, expr: relax.Expr) -> list[Shaped]:
        """The activations that an expression holds: worked out once, read by many calls."""
        if expr not in self.held:
            self.held[expr] = list(self._tensors(expr.ty))
        return self.held[expr]

    def _tensors(self, ty: ir.Type) -> Iterator[Shaped]:
        """The activations in a type; the cache's tensors are none."""
        if isinstance(ty, relax.TupleType):
            for field in ty.fields:
                yield from self._tensors(field)
        elif isinstance(ty, relax.TensorType) and ty.shape is not None:
            shape = [self._size(dim) for dim in ty.shape.values]
            if None not in shape:
                yield tuple(int(s) for s in shape if s is not None), str(ty.dtype)

    def _size(self, dim: ir.Expr) -> int | None:
        """None for a size that another variable than the tokens decides: pages of the cache."""
        if isinstance(dim, tirx.IntImm):
            return int(dim)
        if dim in self.sizes:
            return self.sizes[dim]
        if isinstance(dim, tirx.Var):
            return None
        value = self.known.simplify(dim)
        return int(value) if isinstance(value, tirx.IntImm) else None


def family(name: str) -> str:
    """`model.layers.3.mlp.down_proj` -> `mlp.down_proj`: all layers' are one."""
    return _LAYER.sub("", name).removeprefix("model.")


def _symbols(func: relax.Function) -> Iterator[tirx.Var]:
    """The symbolic dimension of the first parameter: the tokens of a call."""
    ty = func.params[0].ty if func.params else None
    if isinstance(ty, relax.TensorType):
        yield from (dim for dim in ty.shape.values if isinstance(dim, tirx.Var))


def _operator(expr: relax.Expr) -> str:
    """The operator that is called; empty for no call of one."""
    called = expr.op if isinstance(expr, relax.Call) else None
    return str(called.name) if isinstance(called, ir.Op) else ""


def _callee(call: relax.Expr) -> str:
    """The operator, kernel or function of the runtime that is called; empty for no call."""
    if not isinstance(call, relax.Call):
        return ""
    operator = _operator(call)
    if operator in (*TO_KERNELS, *PACKED):
        called = call.args[0]
        is_kernel = isinstance(called, ir.GlobalVar)
        return str(called.name_hint if is_kernel else called.global_symbol)
    return operator or str(call.op)


def _arguments(call: relax.Call) -> list[relax.Expr]:
    operator = _operator(call)
    if operator in TO_KERNELS:
        return [call.args[1]]
    return list(call.args[1:] if operator in PACKED else call.args)


def _nbytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize
