"""What the graph passes share: run a mutator over every Relax function, and drop dead code."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import ClassVar

from tvm import IRModule, relax
from tvm.relax.analysis import get_var2val
from tvm.relax.expr_functor import PyExprMutator

from mlc_compile.passes import events
from mlc_compile.target import Target

Bindings = dict[relax.Var, relax.Expr]  # what each variable of a function is bound to


def rewrite_functions(
    mod: IRModule, rewrite: Callable[[IRModule, relax.Function], relax.Function]
) -> IRModule:
    """Apply `rewrite` to each Relax function and remove what it left unused."""
    out = IRModule(mod.functions, attrs=mod.attrs)
    for gv, func in relax_functions(mod):
        out[gv] = rewrite(mod, func)
    return relax.transform.DeadCodeElimination()(out)


class Fuser(PyExprMutator):
    """A mutator that knows what variables are bound to and who reads them, and says what it did.

    Subclasses carry TVM's `mutator` decorator and the name of their pass.
    """

    step: ClassVar[str]

    def __init__(self, mod: IRModule, func: relax.Function, noted: list[events.Event]) -> None:
        super().__init__(mod)
        self.bindings = {v: e for v, e in bindings_of(func).items() if stays_usable(v, e)}
        self.function = func
        self.noted = noted

    @cached_property
    def uses(self) -> Counter[relax.Var]:
        """`uses_of` the function: most fusers meet nothing for which they would ask."""
        return uses_of(self.function)

    def done(self, subject: str) -> None:
        """Note that `subject` was rewritten."""
        self.noted.append(events.Event(self.step, subject, "done"))

    def refused(self, subject: str, reason: str) -> None:
        """Note that `subject` stays although it looks as if it could be rewritten."""
        self.noted.append(events.Event(self.step, subject, "refused", reason))


class TargetFuser(Fuser):
    """A fuser that decides by the target's numbers."""

    def __init__(
        self, mod: IRModule, func: relax.Function, noted: list[events.Event], target: Target
    ) -> None:
        super().__init__(mod, func, noted)
        self.target = target


def first_reason(reasons: Mapping[str, bool]) -> str | None:
    """The first that holds of the reasons not to rewrite; None: there is none."""
    return next((reason for reason, holds in reasons.items() if holds), None)


FuserMaker = Callable[[IRModule, relax.Function, list[events.Event]], Fuser]


def fuse_functions(mod: IRModule, fuser: FuserMaker) -> IRModule:
    """Rewrite each Relax function by a `Fuser` of its own, and record what they noted."""
    noted: list[events.Event] = []

    def rewrite(mod: IRModule, func: relax.Function) -> relax.Function:
        return mutate(fuser(mod, func, noted), func)

    return events.record(rewrite_functions(mod, rewrite), noted)


def relax_functions(mod: IRModule) -> list[tuple[relax.GlobalVar, relax.Function]]:
    """The Relax functions of a module, by name, so that every run sees one order."""
    found = [(gv, f) for gv, f in mod.functions.items() if isinstance(f, relax.Function)]
    return sorted(found, key=lambda pair: pair[0].name_hint)


def bindings_of(func: relax.Function) -> Bindings:
    """Variable -> the expression bound to it."""
    return dict(get_var2val(func))


def stays_usable(var: relax.Var, bound: relax.Expr) -> bool:
    """Whether what `var` was made of can still be read wherever `var` can.

    A dataflow block's own variables end with it; what it hands on may be made of them.
    """
    return isinstance(var, relax.DataflowVar) or not any(
        isinstance(read, relax.DataflowVar) for read in free_vars(bound)
    )


def uses_of(func: relax.Function) -> Counter[relax.Var]:
    """Variable -> how many times it is read, the function's result included.

    Models have no branches here: what stands in one is not looked into.
    """
    values = [binding.value for block in func.body.blocks for binding in block.bindings]
    return Counter(v for value in [*values, func.body.body] for v in free_vars(value))


def free_vars(expr: relax.Expr) -> list[relax.Var]:
    """The variables that one binding's value mentions, each as often as it does."""
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.Call):
        return [v for a in expr.args for v in free_vars(a)]
    if isinstance(expr, relax.Tuple):
        return [v for f in expr.fields for v in free_vars(f)]
    if isinstance(expr, relax.TupleGetItem):
        return free_vars(expr.tuple_value)
    return []


def call_of(expr: relax.Expr, bindings: Bindings) -> relax.Expr:
    """`expr`, or what it is bound to if it is a variable."""
    return bindings.get(expr, expr) if isinstance(expr, relax.Var) else expr


def mutate(mutator: PyExprMutator, func: relax.Function) -> relax.Function:
    """The function with its body rewritten; parameters and attributes stay."""
    return relax.Function(
        func.params, mutator.visit_expr(func.body), None, func.is_pure, func.attrs
    )
