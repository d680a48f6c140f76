"""Give the abstract KV cache TVM's paged form: an object of the runtime, opaque to us.

    f(x, kv): attention(qkv, gamma_q, gamma_k, kv)
    ->
    f(x, kv):
        q, k, v = split(reshape(qkv, [1, m, h_q + 2 h_kv, d]))
        qkv = concat(rms_norm(q, gamma_q), rms_norm(k, gamma_k), v)  # in the cache's type
        attention_kv_cache_attention_with_fused_qkv(kv, layer, 1 / sqrt(d), qkv)

and the module gains `create_tir_paged_kv_cache`, which makes the object from five shapes of
one number each, as MLC's and web-llm's runtimes call it. The builtin rotates q and k, appends
and attends by kernels that the object carries, so they are chosen here: the pass must run
under the TVM target of the library. The reshapes are meant as views: LegalizeOps has to skip
them. Must run after BindWeights, since the new function takes no weights.
"""

from dataclasses import dataclass
from typing import Any, Final

import tvm
from tvm import IRModule, relax, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.frontend.nn.llm.kv_cache import RopeMode, TIRPagedKVCache

from mlc_compile import ops
from mlc_compile.errors import TargetError, listing
from mlc_compile.model.rope import Rope
from mlc_compile.passes.rewrite import bindings_of, mutate, relax_functions, rewrite_functions
from mlc_compile.target import HOST, Target, find_target, target_names

CREATE: Final = "create_tir_paged_kv_cache"
CREATE_ARGUMENTS: Final = (
    "max_batch_size",
    "max_total_seq_len",
    "prefill_chunk_size",
    "page_size",
    "support_sliding_window",
)
ATTEND: Final = "vm.builtin.attention_kv_cache_attention_with_fused_qkv"


@module_pass(opt_level=0, name="LowerPagedKVCache")
@dataclass(frozen=True)
class LowerPagedKVCache:
    """`dtype` is the type of pages, and thus of what the builtin takes and gives.

    Raises TargetError if `rope` is not the plain one, all that the builtin computes. It does
    so when it is made, not when it runs: of an error in a running pass TVM keeps the text only.
    """

    target: Target
    rope: Rope
    dtype: str

    def __post_init__(self) -> None:
        if (self.rope.factor, self.rope.attention_factor) == (1, 1):
            return
        able = [n for n in target_names() if n == HOST or find_target(n).kv == "flat"]
        raise TargetError(
            f"target {self.target.name}: TVM's paged KV cache computes plain RoPE only, "
            f"and this model's is stretched by YaRN, factor {self.rope.factor:g}",
            hint="remove rope_scaling from config.json and stay within the native context, "
            f"or use a target with a flat KV cache: {listing(able, len(able))}",
        )

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        layers = _layers(mod)
        if not layers:
            return mod
        assert layers[0].inv_freq == tuple(self.rope.inverse_frequencies(layers[0].d))
        lowered = rewrite_functions(mod, lambda m, f: mutate(_Lowerer(m, self.dtype), f))
        lowered = relax.transform.CanonicalizeBindings()(lowered)
        return _add_create(lowered, layers, self.rope.theta, self.dtype)


def _layers(mod: IRModule) -> list[ops.Attention]:
    """The attention of each layer, in order."""
    calls = [
        value
        for _, func in relax_functions(mod)
        for value in bindings_of(func).values()
        if ops.is_call(value, "mlc.attention")
    ]
    found = {a.layer: a for a in map(ops.Attention.of, calls)}
    return [found[i] for i in sorted(found)]


@mutator
class _Lowerer(PyExprMutator):
    def __init__(self, mod: IRModule, dtype: str) -> None:
        super().__init__(mod)
        self.dtype = dtype

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not ops.is_call(call, "mlc.attention"):
            return super().visit_call_(call)
        a = ops.Attention.of(call)
        qkv, gamma_q, gamma_k, kv = (self.visit_expr(arg) for arg in call.args)
        b, m, _ = ops.shape_of(qkv)
        fused = self._normalized(qkv, (gamma_q, gamma_k), a)  # (b, m, h_q + 2 h_kv, d)
        fused = self._reshape(fused, [b * m, a.h_q + 2 * a.h_kv, a.d])
        scalars = [relax.prim_value(a.layer), relax.prim_value(a.d**-0.5)]
        result = relax.TensorType([b * m, a.h_q, a.d], self.dtype)
        o = self._emit(relax.call_dps_packed(ATTEND, [kv, *scalars, fused], out_ty=result))
        o = self._cast(self._reshape(o, [b, m, a.h_q * a.d]), ops.COMPUTE_DTYPE)
        return relax.Tuple([o, kv])

    def _normalized(
        self, qkv: relax.Expr, gammas: tuple[relax.Expr, relax.Expr], a: ops.Attention
    ) -> relax.Var:
        b, m, _ = ops.shape_of(qkv)
        heads = self._reshape(qkv, [b, m, a.h_q + 2 * a.h_kv, a.d])
        split = self._emit(relax.op.split(heads, [a.h_q, a.h_q + a.h_kv], axis=2))
        *qk, v = (self._emit(relax.TupleGetItem(split, i)) for i in range(3))
        normal = [
            self._emit(relax.op.nn.rms_norm(x, gamma, axes=-1, epsilon=a.eps))
            for x, gamma in zip(qk, gammas, strict=True)
        ]
        return self._cast(self._emit(relax.op.concat([*normal, v], axis=2)), self.dtype)

    def _reshape(self, x: relax.Expr, shape: list[Any]) -> relax.Var:
        return self._emit(relax.op.reshape(x, shape))

    def _cast(self, x: relax.Var, dtype: str) -> relax.Var:
        return x if x.ty.dtype == dtype else self._emit(relax.op.astype(x, dtype))

    def _emit(self, expr: relax.Expr) -> relax.Var:
        return self.builder_.emit(expr)


def _add_create(mod: IRModule, layers: list[ops.Attention], theta: float, dtype: str) -> IRModule:
    sizes = [tirx.Var(name, "int64") for name in CREATE_ARGUMENTS]
    params = [relax.Var(f"{size.name}_", relax.ShapeType([size])) for size in sizes]
    builder = relax.BlockBuilder(mod)
    with builder.function(CREATE, params):
        with builder.dataflow():
            made = builder.emit_output(_cache(sizes, layers, theta, dtype))
        builder.emit_func_output(made)
    return builder.get()


def _cache(
    sizes: list[tirx.Var], layers: list[ops.Attention], theta: float, dtype: str
) -> relax.Call:
    """The call that makes the object; its kernels go into the current builder's module."""
    a = layers[0]
    cache = TIRPagedKVCache(
        "mha",
        *sizes,
        layer_partition=relax.ShapeExpr([0, len(layers)]),
        num_hidden_layers=len(layers),
        num_attention_heads=a.h_q,
        num_key_value_heads=a.h_kv,
        qk_head_dim=a.d,
        v_head_dim=a.d,
        mla_original_qk_head_dim=0,
        mla_original_v_head_dim=0,
        rope_mode=RopeMode.NORMAL,
        rope_scale=1,
        rope_theta=theta,
        rope_scaling={},
        rope_ext_factors=relax.prim_value(0),  # a tensor would select another rope, at run time
        rotary_dim=a.d,
        enable_disaggregation=False,
        dtype=dtype,
        target=tvm.target.Target.current(allow_none=False),
    )
    return cache._expr
