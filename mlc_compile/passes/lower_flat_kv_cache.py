"""Give the abstract KV cache its flat form: plain tensors that our own kernels read and write.

    f(x, kv): attention(qkv, gamma_q, gamma_k, kv)
    ->
    f(x, (k_pages, v_pages, table, length)):
        angles = rope_angles(length, ..)          # once a call, if all layers turn alike
        q, k_pages, v_pages = flat_append(qkv, gamma_q, gamma_k, angles, ..)
        flat_attend(q, k_pages, v_pages, table, length)

For a single token `flat_step` is both at once. The pages are threaded through as values,
so the order of writes and reads is plain data dependence. The number of pages stays
symbolic: the runtime decides how many it allocates.
"""

from dataclasses import dataclass

import numpy as np
from tvm import IRModule, relax, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from mlc_compile import ops
from mlc_compile.artifact import FlatKV
from mlc_compile.passes.rewrite import bindings_of, rewrite_functions


@module_pass(opt_level=0, name="LowerFlatKVCache")
@dataclass(frozen=True)
class LowerFlatKVCache:
    """`kv` is the shape of the cache."""

    kv: FlatKV

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        lowered = rewrite_functions(mod, self._function)
        return relax.transform.CanonicalizeBindings()(lowered)

    def _function(self, mod: IRModule, func: relax.Function) -> relax.Function:
        calls = [v for v in bindings_of(func).values() if ops.is_call(v, "mlc.attention")]
        if not calls:
            return func
        abstract = calls[0].args[3]
        flat = relax.Var("kv", _cache_type(self.kv))
        lowerer = _Lowerer(mod, func.params[0])
        lowerer.set_var_remap(abstract, flat)
        params = [flat if p.same_as(abstract) else p for p in func.params]
        return relax.Function(params, lowerer.visit_expr(func.body), None, func.is_pure, func.attrs)


def _cache_type(kv: FlatKV) -> relax.TupleType:
    pages = tirx.Var("pages", "int64")
    return relax.TupleType(
        [
            relax.TensorType(kv.k_shape(pages), kv.dtype),
            relax.TensorType(kv.v_shape(pages), kv.dtype),
            relax.TensorType([pages], "int32"),
            relax.TensorType([1], "int32"),
        ]
    )


@mutator
class _Lowerer(PyExprMutator):
    def __init__(self, mod: IRModule, x: relax.Var) -> None:
        super().__init__(mod)
        self.x = x  # has a row for each token; not qkv, which then has one reader
        self.angles: dict[tuple[object, float], relax.Var] = {}  # by frequencies and scale

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not ops.is_call(call, "mlc.attention"):
            return super().visit_call_(call)
        a = ops.Attention.of(call)
        qkv, gamma_q, gamma_k, kv = (self.visit_expr(arg) for arg in call.args)
        emit = self.builder_.emit
        k, v, table, length = (emit(relax.TupleGetItem(kv, i)) for i in range(4))
        angles = self._angles_of(length, a)
        args = [qkv, gamma_q, gamma_k, angles, k, v, table, length]
        if ops.is_one_row(qkv):
            step = emit(ops.flat_step(args, a))
            o, k, v = (emit(relax.TupleGetItem(step, i)) for i in range(3))
        else:
            appended = emit(ops.flat_append(args, a))
            q, k, v = (emit(relax.TupleGetItem(appended, i)) for i in range(3))
            o = emit(ops.flat_attend([q, k, v, table, length], a))
        # A variable of its own: what reads it then does not seem to read o.
        return relax.Tuple([o, emit(relax.Tuple([k, v, table, length]))])

    def _angles_of(self, length: relax.Var, a: ops.Attention) -> relax.Var:
        key = (a.inv_freq, a.rope_scale)
        if key not in self.angles:
            inv_freq = relax.const(np.array(a.inv_freq, np.float32))
            call = ops.rope_angles(length, inv_freq, self.x, a.rope_scale)
            self.angles[key] = self.builder_.emit(call)
        return self.angles[key]
