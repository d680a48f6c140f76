"""What a function's kernels allocate, how large it can get, and from which call to which it lives.

For functions in destination-passing style without control flow, as CallTIRRewrite leaves
them: every kernel writes into tensors that `builtin.alloc_tensor` made. Steps are the calls
of kernels, in order.

A tensor that is part of the result, or that something unknown may keep, escapes: it is no
intermediate. A function of the runtime that is called only for what it writes (nobody reads
its result) keeps nothing, but it takes tensors only at the start of their storage.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tvm import IRModule, ir, relax, tirx
from tvm.runtime import DataType
from tvm.sym import Analyzer

from mlc_compile import ops
from mlc_compile.passes.plan_memory.inplace import overwrites
from mlc_compile.passes.plan_memory.packing import Lifetime
from mlc_compile.passes.rewrite import uses_of

ALLOC: Final = "relax.builtin.alloc_tensor"
VIEWS: Final = ("relax.reshape", "relax.memory.view")  # the result lies where the argument lies
BOUNDS: Final = "tir_var_upper_bound"
INFINITE: Final = 2**62  # what TVM says of a size without a bound is larger

# What a variable holds: allocations, or for a tuple what each of its fields holds.
Held = frozenset[relax.Var] | tuple["Held", ...]
NOTHING: Final[frozenset[relax.Var]] = frozenset()


@dataclass(frozen=True, slots=True)
class Intermediate:
    """Allocations that share one place: one, or a chain in which each overwrites the last."""

    vars: tuple[relax.Var, ...]
    name: str  # the kernel that writes it first; `kernel.5` if that has several results: its place
    lifetime: Lifetime
    movable: bool  # whether it may begin anywhere in a storage


@dataclass(frozen=True, slots=True)
class Step:
    """A call that writes its arguments: of a kernel, or of a function of the runtime."""

    call: relax.Call
    args: tuple[frozenset[relax.Var], ...]  # the allocations that each argument holds

    @property
    def name(self) -> str:
        """Of what is called."""
        op = self.call.op
        return str(op.name_hint if isinstance(op, ir.GlobalVar) else op.global_symbol)

    def positions(self) -> Mapping[relax.Var, int]:
        """Allocation -> where it is among the arguments; of those that are there once."""
        count = Counter(var for arg in self.args for var in arg)
        return {v: i for i, arg in enumerate(self.args) for v in arg if count[v] == 1}


@dataclass(frozen=True, slots=True)
class Liveness:
    """A function's steps and intermediates."""

    steps: tuple[Step, ...]
    intermediates: tuple[Intermediate, ...]  # in the order of their first steps
    naive_bytes: int  # if each allocation had its own memory
    results: Mapping[relax.Var, int]  # allocations that escape -> bytes
    overwriting: tuple[relax.GlobalVar, ...]  # kernels that write over an argument
    unbounded: int  # allocations whose size nothing bounds


def liveness_of(mod: IRModule, func: relax.Function, *, in_place: bool = True) -> Liveness:
    """The intermediates of one function of `mod`; `in_place`: join those that may overwrite."""
    walk = _Walk(mod, func)
    for block in func.body.blocks:
        for binding in block.bindings:
            walk.bind(binding.var, binding.value)
    walk.escape(walk.holding(func.body.body))
    return walk.liveness(in_place=in_place)


def bounds_of(func: relax.Function) -> Analyzer:
    """What BoundTokens said of the symbolic sizes of `func`."""
    most = {str(name): int(n) for name, n in dict(func.attrs or {}).get(BOUNDS, {}).items()}
    analyzer = Analyzer()
    for var in relax.analysis.defined_symbolic_vars(func):
        if str(var.name) in most:
            analyzer.bind(var, ir.Range(0, most[str(var.name)] + 1))
    return analyzer


def upper_bytes(call: relax.Call, bounds: Analyzer) -> int | None:
    """Bytes of an allocation where its symbolic sizes are largest; None if they have no bound."""
    return most_bytes(call.args[0].values, str(call.ty.dtype), bounds)


def most_bytes(shape: Iterable[tirx.Expr], dtype: str, bounds: Analyzer) -> int | None:
    """Bytes of a tensor where its sizes are largest; None if they have no bound."""
    total = DataType(dtype).itemsize
    for size in shape:
        most = int(bounds.const_int_bound(size).max_value)
        if most > INFINITE:
            return None
        total *= most
    return int(total)


@dataclass(slots=True)
class _Use:
    """What is known of one allocation so far."""

    nbytes: int
    steps: list[int] = field(default_factory=list)
    name: str = ""
    movable: bool = True

    def like(self, other: "_Use") -> bool:
        """Whether one may take the place of the other."""
        return self.nbytes == other.nbytes and self.movable == other.movable


class _Walk:
    """Goes through the bindings in order."""

    def __init__(self, mod: IRModule, func: relax.Function) -> None:
        self.mod = mod
        self.bounds = bounds_of(func)
        self.read = uses_of(func)
        self.held: dict[relax.Var, Held] = {}
        self.uses: dict[relax.Var, _Use] = {}
        self.escaped: set[relax.Var] = set()
        self.unbounded = 0
        self.overwriting: dict[relax.GlobalVar, None] = {}  # in order
        self.steps: list[Step] = []

    def bind(self, var: relax.Var, value: relax.Expr) -> None:
        """Take in `var = value`."""
        if ops.is_call(value, ALLOC):
            self._allocate(var, value)
        elif not isinstance(value, relax.Call):
            self.held[var] = self.holding(value)
        elif any(ops.is_call(value, view) for view in VIEWS):
            self.held[var] = self.holding(value.args[0])
        elif self._is_kernel(value):
            self._step(value)
        elif isinstance(value.op, relax.ExternFunc) and self.read[var] == 0:
            for use in self._step(value):
                use.movable = False
        else:
            for arg in value.args:
                self.escape(self.holding(arg))

    def holding(self, expr: relax.Expr) -> Held:
        """What `expr` holds; all that it mentions escapes if it is of no kind we know."""
        if isinstance(expr, relax.Var):
            return self.held.get(expr, NOTHING)
        if isinstance(expr, relax.Tuple):
            return tuple(self.holding(f) for f in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            whole = self.holding(expr.tuple_value)
            return whole[expr.index] if isinstance(whole, tuple) else whole
        for var in relax.analysis.free_vars(expr):
            self.escape(self.held.get(var, NOTHING))
        return NOTHING

    def escape(self, held: Held) -> None:
        """These must outlive the function, as far as we know."""
        self.escaped |= _flat(held)

    def liveness(self, *, in_place: bool) -> Liveness:
        """What was found."""
        kept = {v: u for v, u in self.uses.items() if v not in self.escaped and u.steps}
        chains = self._chains(kept) if in_place else [(var,) for var in kept]
        found = [_joined(chain, kept) for chain in chains]
        return Liveness(
            steps=tuple(self.steps),
            intermediates=tuple(sorted(found, key=lambda one: one.lifetime.first)),
            naive_bytes=sum(use.nbytes for use in kept.values()),
            results={v: u.nbytes for v, u in self.uses.items() if v not in kept},
            overwriting=tuple(self.overwriting),
            unbounded=self.unbounded,
        )

    def _allocate(self, var: relax.Var, call: relax.Call) -> None:
        nbytes = upper_bytes(call, self.bounds)
        if nbytes is None:
            self.unbounded += 1
            return
        self.held[var] = frozenset({var})
        self.uses[var] = _Use(nbytes)

    def _step(self, call: relax.Call) -> list[_Use]:
        """Note the call; what it uses."""
        step = Step(call, tuple(_flat(self.holding(arg)) for arg in call.args))
        used = [(i, self.uses[var]) for i, arg in enumerate(step.args) for var in arg]
        fresh = [(i, use) for i, use in used if not use.steps]
        for i, use in fresh:
            use.name = step.name if len(fresh) == 1 else f"{step.name}.{i}"
        for _, use in used:
            use.steps.append(len(self.steps))
        self.steps.append(step)
        return [use for _, use in used]

    def _is_kernel(self, call: relax.Call) -> bool:
        return isinstance(call.op, ir.GlobalVar) and isinstance(
            self.mod.functions.get(call.op), tirx.PrimFunc
        )

    def _chains(self, kept: Mapping[relax.Var, _Use]) -> list[tuple[relax.Var, ...]]:
        """The allocations in order, those that overwrite one another joined."""
        after: dict[relax.Var, relax.Var] = {}
        for number, step in enumerate(self.steps):
            if not self._is_kernel(step.call):
                continue
            at = {var: i for var, i in step.positions().items() if var in kept}
            dying = [v for v in at if kept[v].steps[0] < number == kept[v].steps[-1]]
            born = [v for v in at if kept[v].steps[0] == number < kept[v].steps[-1]]
            for new in born:
                fits = (v for v in dying if kept[v].like(kept[new]) and v not in after)
                kernel = self.mod[step.call.op]
                old = next((v for v in fits if overwrites(kernel, at[v], at[new])), None)
                if old is not None:
                    after[old] = new
                    self.overwriting[step.call.op] = None
        replacing = set(after.values())
        return [tuple(_follow(var, after)) for var in kept if var not in replacing]


def _follow(var: relax.Var, after: Mapping[relax.Var, relax.Var]) -> Iterator[relax.Var]:
    while True:
        yield var
        if var not in after:
            return
        var = after[var]


def _joined(chain: tuple[relax.Var, ...], kept: Mapping[relax.Var, _Use]) -> Intermediate:
    uses = [kept[var] for var in chain]
    lifetime = Lifetime(uses[0].nbytes, uses[0].steps[0], uses[-1].steps[-1])
    return Intermediate(chain, uses[0].name, lifetime, movable=uses[0].movable)


def _flat(held: Held) -> frozenset[relax.Var]:
    """The allocations in it, whatever tuples they are in."""
    return frozenset().union(*map(_flat, held)) if isinstance(held, tuple) else held
