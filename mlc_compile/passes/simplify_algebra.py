"""Replace expressions by shorter ones that are equal to the last bit.

    reshape(reshape(x, a), b)   ->   reshape(x, b)      and the other rules of passes.algebra

Bindings are looked through, in the form that was already simplified, so chains of any length
collapse in one pass. What other readers need stays.
"""

from collections.abc import Callable, Iterator
from typing import ClassVar, Final

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator

from mlc_compile import ops
from mlc_compile.passes.algebra import COMMUTATIVE, RULES, Match, Node, Pattern, Rule, replacement
from mlc_compile.passes.rewrite import Fuser, fuse_functions
from mlc_compile.passes.values import behind, tidied

# A right side has fewer operators than its left one, so this many steps end every chain.
MOST_STEPS: Final = 1000

See = Callable[[relax.Expr], relax.Expr]  # what is behind a variable


@module_pass(opt_level=0, name="SimplifyAlgebra")
class SimplifyAlgebra:
    """Apply the rules of algebra until none fires."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return tidied(mod, fuse_functions(mod, _Simplifier))


@mutator
class _Simplifier(Fuser):
    step: ClassVar[str] = "SimplifyAlgebra"

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        expr: relax.Expr = self.visit_expr_post_order(call)
        for _ in range(MOST_STEPS):
            simpler = self._once(expr)
            if simpler is None:
                return expr
            expr = self.builder_.normalize(simpler)
        raise AssertionError("the rules of algebra do not end")

    def _once(self, expr: relax.Expr) -> relax.Expr | None:
        """What the first rule that holds makes of a call; None if none does."""
        for rule, match in _candidates(expr, lambda e: behind(e, self.builder_)):
            broken = next((g.reason for g in rule.guards if not g.holds(match)), None)
            if broken is None:
                self.done(rule.name)
                return replacement(rule, match)
            self.refused(rule.name, broken)
        return None


def _candidates(expr: relax.Expr, see: See) -> Iterator[tuple[Rule, Match]]:
    """The rules whose case `expr` is, but for their guards."""
    if not isinstance(expr, relax.Call):
        return
    for rule in RULES_OF.get(str(getattr(expr.op, "name", "")), ()):
        for left in _orders(rule.left):
            match = _match(left, expr, see)
            if match is not None and all(condition(match) for condition in rule.when):
                yield rule, match
                break


def _orders(left: Node) -> tuple[Node, ...]:
    if left.operator not in COMMUTATIVE:
        return (left,)
    return left, Node(left.operator, left.args[::-1])


def _match(left: Node, call: relax.Call, see: See) -> Match | None:
    calls: list[relax.Call] = []
    holes: dict[str, relax.Expr] = {}

    def meets(pattern: Pattern, expr: relax.Expr) -> bool:
        if isinstance(pattern, str):
            return bool(holes.setdefault(pattern, expr).same_as(expr))
        seen = see(expr)
        if not ops.is_call(seen, pattern.operator) or len(seen.args) != len(pattern.args):
            return False
        calls.append(seen)
        return all(meets(p, a) for p, a in zip(pattern.args, seen.args, strict=True))

    if not meets(left, call):
        return None
    return Match(tuple(calls), holes, {name: see(hole) for name, hole in holes.items()})


RULES_OF: Final = {
    operator: tuple(rule for rule in RULES if rule.left.operator == operator)
    for operator in {rule.left.operator for rule in RULES}
}
