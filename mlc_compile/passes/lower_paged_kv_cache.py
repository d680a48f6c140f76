"""Give the abstract KV cache TVM's paged form: an object of the runtime, opaque to us.

    f(x, kv): attention(qkv, gamma_q, gamma_k, kv)
    ->
    f(x, kv):
        q, k, v = split(reshape(qkv, [1, m, h_q + 2 h_kv, d]))
        qkv = concat(rms_norm(q, gamma_q), rms_norm(k, gamma_k), v)  # in the cache's type
        attention_kv_cache_attention_with_fused_qkv(kv, layer, 1 / sqrt(d), qkv)

and the module gains `create_tir_paged_kv_cache`, which makes the object from five shapes of
one number each, as MLC's and web-llm's runtimes call it. The builtin rotates q and k, appends
and attends by kernels that the object carries, so they are chosen here. The reshapes are meant
as views: LegalizeOps has to skip them. Must run after BindWeights, since the new function takes
no weights.

On a GPU the norms are one operator, `mlc.qk_norm`; the result stays in the cache's type, which
matmuls take as it is; and the kernels are given to the pass. Elsewhere they are TVM's own, made
for the current TVM target.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import tvm
from tvm import IRModule, relax, tirx
from tvm.ir import StringImm
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.frontend.nn.llm.kv_cache import AttnKind, RopeMode, TIRPagedKVCache

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
MAKE: Final = "vm.builtin.paged_attention_kv_cache_create"
TIR: Final = "tirx"  # the runtime's name of kernels that are not a library's

# Gives the kernels of the attention of so many layers by the names of `_device_cache`.
MakeKernels = Callable[[ops.Attention, int], Mapping[str, tirx.PrimFunc]]


@module_pass(opt_level=0, name="LowerPagedKVCache")
@dataclass(frozen=True)
class LowerPagedKVCache:
    """`dtype` is the type of pages, and thus of what the builtin takes and gives.

    A target with a device needs `kernels`: the one that the pass uses.

    Raises TargetError if `rope` is not the plain one, all that the builtin computes. It does
    so when it is made, not when it runs: of an error in a running pass TVM keeps the text only.
    """

    target: Target
    rope: Rope
    dtype: str
    kernels: MakeKernels | None = None

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
        angles = tuple(self.rope.inverse_frequencies(layers[0].d))
        assert all(a.inv_freq == angles for a in layers), "the builtin turns all layers alike"
        on_gpu = self.target.device is not None
        lowered = rewrite_functions(mod, lambda m, f: mutate(_Lowerer(m, self.dtype, on_gpu), f))
        lowered = relax.transform.CanonicalizeBindings()(lowered)
        return _add_create(lowered, lambda sizes: self._cache(sizes, layers))

    def _cache(self, sizes: list[tirx.Var], layers: list[ops.Attention]) -> relax.Call:
        """The call that makes the object; its kernels go into the current builder's module."""
        if self.target.device is None:
            return _host_cache(sizes, layers, self.rope.theta, self.dtype)
        assert self.kernels is not None, f"{self.target.name} needs kernels for its device"
        kernels = self.kernels(layers[0], len(layers))
        return _device_cache(sizes, layers, self.rope.theta, self.dtype, kernels)


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
    def __init__(self, mod: IRModule, dtype: str, on_gpu: bool) -> None:
        super().__init__(mod)
        self.dtype = dtype
        self.on_gpu = on_gpu

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not ops.is_call(call, "mlc.attention"):
            return super().visit_call_(call)
        a = ops.Attention.of(call)
        qkv, gamma_q, gamma_k, kv = (self.visit_expr(arg) for arg in call.args)
        b, m, _ = ops.shape_of(qkv)
        normal = self._emit_qk_norm if self.on_gpu else self._normalized
        fused = normal(qkv, (gamma_q, gamma_k), a)  # (b m, h_q + 2 h_kv, d)
        scalars = [relax.prim_value(a.layer), relax.prim_value(a.d**-0.5)]
        result = relax.TensorType([b * m, a.h_q, a.d], self.dtype)
        o = self._emit(relax.call_dps_packed(ATTEND, [kv, *scalars, fused], out_ty=result))
        o = self._reshape(o, [b, m, a.h_q * a.d])
        return relax.Tuple([o if self.on_gpu else self._cast(o, ops.COMPUTE_DTYPE), kv])

    def _emit_qk_norm(
        self, qkv: relax.Expr, gammas: tuple[relax.Expr, relax.Expr], a: ops.Attention
    ) -> relax.Var:
        return self._emit(ops.qk_norm(qkv, *gammas, a, self.dtype))

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
        fused = self._cast(self._emit(relax.op.concat([*normal, v], axis=2)), self.dtype)
        return self._reshape(fused, [b * m, a.h_q + 2 * a.h_kv, a.d])

    def _reshape(self, x: relax.Expr, shape: list[Any]) -> relax.Var:
        return self._emit(relax.op.reshape(x, shape))

    def _cast(self, x: relax.Var, dtype: str) -> relax.Var:
        return x if x.ty.dtype == dtype else self._emit(relax.op.astype(x, dtype))

    def _emit(self, expr: relax.Expr) -> relax.Var:
        return self.builder_.emit(expr)


def _add_create(mod: IRModule, cache: Callable[[list[tirx.Var]], relax.Call]) -> IRModule:
    """The function that makes the object by the call that `cache` gives for five sizes."""
    sizes = [tirx.Var(name, "int64") for name in CREATE_ARGUMENTS]
    params = [relax.Var(f"{size.name}_", relax.ShapeType([size])) for size in sizes]
    builder = relax.BlockBuilder(mod)
    with builder.function(CREATE, params):
        with builder.dataflow():
            made = builder.emit_output(cache(sizes))
        builder.emit_func_output(made)
    return builder.get()


def _device_cache(
    sizes: list[tirx.Var],
    layers: list[ops.Attention],
    theta: float,
    dtype: str,
    kernels: Mapping[str, tirx.PrimFunc],
) -> relax.Call:
    """The call with kernels of ours; the arguments are those that its builtin counts off."""
    a, builder = layers[0], relax.BlockBuilder.current()
    kernel = {name: builder.add_func(func, name) for name, func in kernels.items()}
    numbers = (a.h_q, a.h_kv, a.d, a.d)  # the last: of v
    absent = relax.Tuple([])
    made_of = [
        relax.ShapeExpr(sizes),
        relax.ShapeExpr([0, len(layers)]),  # one stage has all layers
        *map(relax.prim_value, numbers),
        relax.ShapeExpr([int(AttnKind.MHA)] * len(layers)),
        relax.prim_value(False),  # no transfer between machines
        relax.prim_value(int(RopeMode.NORMAL)),
        relax.prim_value(1),  # RoPE's scale
        relax.prim_value(theta),
        relax.prim_value(0),  # a tensor here would select another RoPE
        relax.op.zeros((), dtype),
        kernel["kv_append"],
        relax.prim_value(0),  # appends latent keys
        *(_tir(kernel[name]) for name in ("kv_attend_new", "kv_attend_pages", "kv_decode")),
        *[absent] * 2,  # attend in a sliding window: to pages, decode
        *[absent] * 2,  # attend in a tree of tokens: to pages, to new ones
        absent,  # attends to latent keys
        relax.Tuple([kernel["kv_merge"]]),
        *(kernel[f"kv_{name}"] for name in ("rotate", "copy_page", "read_back", "compact")),
    ]
    return relax.call_pure_packed(MAKE, *made_of, ty_args=relax.AnyType())


def _tir(kernel: relax.GlobalVar) -> relax.Tuple:
    return relax.Tuple([StringImm(TIR), kernel])


def _host_cache(
    sizes: list[tirx.Var], layers: list[ops.Attention], theta: float, dtype: str
) -> relax.Call:
    """The call with TVM's kernels for the current TVM target."""
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
