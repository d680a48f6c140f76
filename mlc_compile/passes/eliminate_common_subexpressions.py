"""Compute once what is computed twice from the same values.

    a = f(x); b = f(x)   ->   a = f(x), and b's readers read a

Equal operator, attributes and arguments, within one block: a block's own variables end with
it. TVM's EliminateCommonSubexpr also merges calls that Relax takes for pure although they write
to what they are given: attention, which appends to the KV cache, and kernels in place.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

import tvm_ffi
from tvm import IRModule, relax
from tvm.ir import Op
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator

from mlc_compile.passes import events
from mlc_compile.passes.rewrite import Bindings, Fuser, bindings_of, free_vars, fuse_functions
from mlc_compile.passes.values import tidied

# Operators on the KV cache -> their first argument that is of it; all after it are.
STATEFUL: Final[Mapping[str, int]] = {
    "mlc.attention": 3,
    "mlc.flat_append": 4,
    "mlc.flat_step": 4,
    "mlc.flat_attend": 1,
    "mlc.tile_append": 4,
    "mlc.tile_project": 5,
    "mlc.tile_attend": 1,
}

# Calls that may write to any argument, make memory or draw numbers, whatever their purity says.
NEVER: Final = frozenset(
    {
        "relax.call_builtin_with_ctx",
        "relax.call_dps_packed",
        "relax.call_inplace_packed",
        "relax.call_pure_packed",
        "relax.call_py_func",
        "relax.call_tir_inplace",
        "relax.invoke_pure_closure",
        "relax.nn.dropout",
    }
)
ALLOCATING: Final = ("relax.builtin.", "relax.memory.", "relax.vm.")
VIEWS: Final = frozenset(
    {"relax.expand_dims", "relax.flatten", "relax.memory.view", "relax.reshape", "relax.squeeze"}
)

EFFECT: Final = "it may have an effect"
WRITTEN: Final = "a call that may have an effect is given one of the two"
READ: Final = "a call that may have an effect is given what it reads"


@module_pass(opt_level=0, name="EliminateCommonSubexpressions")
class EliminateCommonSubexpressions:
    """Bind each value once."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return tidied(mod, fuse_functions(mod, _Eliminator))


def has_effect(call: relax.Call) -> bool:
    """Whether two such calls on the same values may differ, or do more than give a value."""
    if not isinstance(call.op, Op):
        return True
    name = str(call.op.name)
    if name in STATEFUL or name in NEVER or name.startswith(ALLOCATING):
        return True
    return not call.op.get_attr("FPurity")


@mutator
class _Eliminator(Fuser):
    step: ClassVar[str] = "EliminateCommonSubexpressions"

    def __init__(self, mod: IRModule, func: relax.Function, noted: list[events.Event]) -> None:
        super().__init__(mod, func, noted)
        self.written = _given_to_effects(bindings_of(func))
        # Value and type -> the first variable of the block that was bound to it.
        self.scope: dict[tvm_ffi.StructuralKey, relax.Var] = {}

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        outer, self.scope = self.scope, {}
        rebuilt = super().visit_binding_block_(block)
        self.scope = outer
        return rebuilt

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        outer, self.scope = self.scope, {}
        rebuilt = super().visit_dataflow_block_(block)
        self.scope = outer
        return rebuilt

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, binding.value
        if not isinstance(value, relax.Call | relax.TupleGetItem):
            super().visit_var_binding_(binding)
            return
        value = self.visit_expr(value)
        first = self.scope.setdefault(tvm_ffi.StructuralKey([value, var.ty]), var)
        if first is not var and self._may_merge(binding.value, first, var):
            self._merge(first, var)
        else:
            self.builder_.emit_normalized(relax.VarBinding(self.visit_var_def(var), value))

    def _may_merge(self, value: relax.Expr, first: relax.Var, var: relax.Var) -> bool:
        if isinstance(value, relax.TupleGetItem):
            return True
        reason = self._refusal(value, {first, var})
        if reason is not None:
            self.refused(_name(value), reason)
            return False
        self.done(_name(value))
        return True

    def _refusal(self, value: relax.Call, bound: set[relax.Var]) -> str | None:
        """Why two variables bound to `value` are two."""
        if has_effect(value):
            return EFFECT
        if self.written & bound:
            return WRITTEN
        return None if self.written.isdisjoint(free_vars(value)) else READ

    def _merge(self, first: relax.Var, var: relax.Var) -> None:
        kept = self.visit_expr(first)
        if isinstance(kept, relax.DataflowVar) and not isinstance(var, relax.DataflowVar):
            # What leaves the block keeps a name of its own.
            self.builder_.emit_normalized(relax.VarBinding(self.visit_var_def(var), kept))
        else:
            self.set_var_remap(var, kept)


def _name(call: relax.Call) -> str:
    return str(call.op.name) if isinstance(call.op, Op) else "a call of a function"


def _given_to_effects(bindings: Bindings) -> set[relax.Var]:
    """The variables whose memory some call may write to: given to it, or seen by a view given."""
    found: set[relax.Var] = set()
    left = [v for value in bindings.values() for v in _state(value)]
    while left:
        var = left.pop()
        if var not in found:
            found.add(var)
            left += _shared(bindings.get(var))
    return found


def _state(value: relax.Expr) -> list[relax.Var]:
    if not isinstance(value, relax.Call) or not has_effect(value):
        return []
    start = STATEFUL.get(_name(value), 0)
    return [v for arg in value.args[start:] for v in free_vars(arg)]


def _shared(value: relax.Expr | None) -> list[relax.Var]:
    """The variables whose memory `value` is part of or made of."""
    if isinstance(value, relax.Call):
        return free_vars(value.args[0]) if _name(value) in VIEWS else []
    return [] if value is None else free_vars(value)
