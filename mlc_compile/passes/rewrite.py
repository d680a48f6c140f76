"""What the graph passes share: run a mutator over every Relax function, and drop dead code."""

from collections.abc import Callable

from tvm import IRModule, relax
from tvm.relax.analysis import get_var2val
from tvm.relax.expr_functor import PyExprMutator

Bindings = dict[relax.Var, relax.Expr]  # what each variable of a function is bound to


def rewrite_functions(
    mod: IRModule, rewrite: Callable[[IRModule, relax.Function], relax.Function]
) -> IRModule:
    """Apply `rewrite` to each Relax function and remove what it left unused."""
    out = IRModule(mod.functions, attrs=mod.attrs)
    for gv, func in relax_functions(mod):
        out[gv] = rewrite(mod, func)
    return relax.transform.DeadCodeElimination()(out)


def relax_functions(mod: IRModule) -> list[tuple[relax.GlobalVar, relax.Function]]:
    """The Relax functions of a module, by name, so that every run sees one order."""
    found = [(gv, f) for gv, f in mod.functions.items() if isinstance(f, relax.Function)]
    return sorted(found, key=lambda pair: pair[0].name_hint)


def bindings_of(func: relax.Function) -> Bindings:
    """Variable -> the expression bound to it."""
    return dict(get_var2val(func))


def call_of(expr: relax.Expr, bindings: Bindings) -> relax.Expr:
    """`expr`, or what it is bound to if it is a variable."""
    return bindings.get(expr, expr) if isinstance(expr, relax.Var) else expr


def mutate(mutator: PyExprMutator, func: relax.Function) -> relax.Function:
    """The function with its body rewritten; parameters and attributes stay."""
    return relax.Function(
        func.params, mutator.visit_expr(func.body), None, func.is_pure, func.attrs
    )
