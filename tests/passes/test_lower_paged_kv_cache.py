"""attention(qkv, gamma_q, gamma_k, kv)  ->  norms and TVM's builtin; a function makes kv.

On a GPU the norms are one operator, and all kernels of the cache are ours.
"""

import functools

import pytest
from tvm import IRModule, relax
from tvm.ir.transform import Sequential
from tvm.tirx import PrimFunc
from tvm_ffi import StructuralKey

from mlc_compile import ops
from mlc_compile.emit.cpu import tvm_target
from mlc_compile.errors import TargetError
from mlc_compile.model.rope import Rope
from mlc_compile.passes.lower_paged_kv_cache import (
    ATTEND,
    CREATE,
    CREATE_ARGUMENTS,
    LowerPagedKVCache,
)
from mlc_compile.schedule.kernels.gpu.attention import paged_kv_kernels
from mlc_compile.target import find_target, host_target

H_Q, H_KV, D = 4, 2, 16
HEADS = H_Q + 2 * H_KV
EPS = 1e-6
PLAIN = Rope(theta=1e6, original_context=4096)
INPUTS = {"qkv": (1, "n", HEADS * D), "q_norm": (D,), "k_norm": (D,), "kv": None}


@pytest.fixture(autouse=True)
def under_the_target():
    """The kernels that the cache carries are made for the current TVM target."""
    with tvm_target(host_target()):
        yield


@functools.cache  # TVM takes seconds to write its kernels
def _lowered(same, dtype, rope):
    return LowerPagedKVCache(host_target(), rope, dtype)(same.key)


def lower(module, dtype="float32", rope=PLAIN):
    return _lowered(StructuralKey(module), dtype, rope)


def attention(layer=0, rope=PLAIN, d=D):
    inv_freq = tuple(float(f) for f in rope.inverse_frequencies(d))
    return ops.Attention(layer, H_Q, H_KV, d, EPS, rope.attention_factor, inv_freq)


def one_layer(emit, *args, **attributes):
    return emit(ops.attention(*args, attention(**attributes)))


def lowered_layer(emit, qkv, q_norm, k_norm, kv, *, dtype="float32", layer=0):
    """What one layer must become."""
    b, n, _ = qkv.ty.shape.values
    view = emit(relax.op.reshape(qkv, [b, n, HEADS, D]))
    split = emit(relax.op.split(view, [H_Q, H_Q + H_KV], axis=2))
    q, k, v = (emit(relax.TupleGetItem(split, i)) for i in range(3))
    q = emit(relax.op.nn.rms_norm(q, q_norm, axes=-1, epsilon=EPS))
    k = emit(relax.op.nn.rms_norm(k, k_norm, axes=-1, epsilon=EPS))
    fused = emit(relax.op.concat([q, k, v], axis=2))
    if dtype != "float32":
        fused = emit(relax.op.astype(fused, dtype))
    fused = emit(relax.op.reshape(fused, [n, HEADS, D]))
    args = [kv, relax.prim_value(layer), relax.prim_value(0.25), fused]  # 1 / sqrt(16)
    out = relax.TensorType([n, H_Q, D], dtype)
    o = emit(relax.call_dps_packed(ATTEND, args, out_ty=out))
    o = emit(relax.op.reshape(o, [b, n, H_Q * D]))
    if dtype != "float32":
        o = emit(relax.op.astype(o, "float32"))
    return emit(relax.Tuple([o, kv]))


def only(module, name="main"):
    """One function of a module, without the tuples that nobody reads any more."""
    module = IRModule({module.get_global_var(name): module[name]})
    clean = (relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination())
    return Sequential(clean)(module)


def test_layers_that_turn_otherwise_are_our_bug(graph):
    def body(emit, *args):
        first = emit(ops.attention(*args, attention()))
        kv = emit(relax.TupleGetItem(first, 1))
        other = attention(1, rope=Rope(theta=1e4, original_context=4096))
        return emit(ops.attention(*args[:3], kv, other))

    with pytest.raises(AssertionError, match="turns all layers alike"):
        lower(graph(INPUTS, body))


def creation(module):
    """The arguments of the builtin that makes the cache."""
    values = relax.analysis.get_var2val(module[CREATE]).values()
    (call,) = (v for v in values if ops.is_call(v, "relax.call_pure_packed"))
    builtin, *args = call.args
    assert builtin.global_symbol == "vm.builtin.paged_attention_kv_cache_create"
    return args


@pytest.mark.parametrize(("n", "dtype"), [(1, "float32"), ("n", "float16")])
def test_attention_becomes_norms_and_the_builtin(graph, same, n, dtype):
    inputs = {**INPUTS, "qkv": (1, n, HEADS * D)}
    expected = graph(inputs, lambda emit, *args: lowered_layer(emit, *args, dtype=dtype))
    same(only(lower(graph(inputs, one_layer), dtype)), expected)


def test_layers_share_the_cache_and_differ_by_number(graph, same):
    def stack(layer):
        def body(emit, qkv, q_norm, k_norm, kv):
            outs = []
            for i in range(2):
                both = layer(emit, qkv, q_norm, k_norm, kv, layer=i)
                outs.append(emit(relax.TupleGetItem(both, 0)))
                kv = emit(relax.TupleGetItem(both, 1))
            return emit(relax.Tuple([*outs, kv]))

        return graph(INPUTS, body)

    lowered = lower(stack(one_layer))
    same(only(lowered), only(stack(lowered_layer)))
    assert [int(x) for x in creation(lowered)[1].values] == [0, 2]  # one stage of two layers


def test_the_creator_takes_five_shapes_of_one_number(graph):
    create = lower(graph(INPUTS, one_layer))[CREATE]
    assert create.attrs["global_symbol"] == CREATE
    shapes = [p.ty.values for p in create.params]
    assert [[str(v.name) for v in values] for values in shapes] == [[a] for a in CREATE_ARGUMENTS]
    assert all(isinstance(p.ty, relax.ShapeType) for p in create.params)


def test_one_creator_serves_all_functions(graph):
    module = graph(INPUTS, one_layer, name="decode", also=graph(INPUTS, one_layer, name="prefill"))
    lowered = lower(module)
    names = {gv.name_hint for gv, f in lowered.functions.items() if isinstance(f, relax.Function)}
    assert names == {"decode", "prefill", CREATE}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_pages_are_of_the_asked_type(graph, dtype):
    example = creation(lower(graph(INPUTS, one_layer), dtype))[12]
    assert example.ty.dtype == dtype


@pytest.mark.parametrize(
    "rope",
    [
        pytest.param(Rope(theta=5e5, original_context=4096), id="default"),
        pytest.param(Rope(theta=5e5, original_context=4096, kind="yarn"), id="yarn, factor 1"),
    ],
)
def test_the_builtin_rotates_by_the_models_theta(graph, rope):
    lowered = lower(graph(INPUTS, lambda emit, *a: one_layer(emit, *a, rope=rope)), rope=rope)
    mode, scale, theta, factors = (float(x.value) for x in creation(lowered)[8:12])
    assert (mode, scale, theta, factors) == (1, 1, 5e5, 0)  # mode 1: q and k before they are kept


STRETCHED = {
    "frequencies": {"factor": 2.0},
    "magnitude": {"attention_factor": 1.1},
    "both": {"factor": 4.0, "attention_factor": 1.14},
}


@pytest.mark.parametrize("yarn", STRETCHED.values(), ids=STRETCHED)
def test_stretched_rope_is_refused_and_told_where_it_works(yarn):
    rope = Rope(theta=1e6, original_context=4096, kind="yarn", **yarn)
    with pytest.raises(TargetError, match=r"target cpu: .* plain RoPE only") as refusal:
        LowerPagedKVCache(host_target(), rope, "float32")
    assert "flat KV cache: cpu, " in refusal.value.hint


def lower_for_gpu(module, dtype="float16", row="webgpu-f16", page=16):
    """As the pipeline makes the pass for a target with a device."""
    target = find_target(row)

    def kernels(a, layers):
        return paged_kv_kernels(a, layers, dtype=dtype, page=page, device=target.device)

    return LowerPagedKVCache(target, PLAIN, dtype, kernels)(module)


def gpu_layer(emit, qkv, q_norm, k_norm, kv, *, dtype, layer=0):
    """What one layer must become there."""
    _, n, _ = qkv.ty.shape.values
    fused = emit(ops.qk_norm(qkv, q_norm, k_norm, attention(layer), dtype))
    args = [kv, relax.prim_value(layer), relax.prim_value(0.25), fused]
    out = relax.TensorType([n, H_Q, D], dtype)
    o = emit(relax.call_dps_packed(ATTEND, args, out_ty=out))
    return emit(relax.Tuple([emit(relax.op.reshape(o, [1, n, H_Q * D])), kv]))


@pytest.mark.parametrize("n", [1, "n"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_on_a_gpu_norms_are_one_operator_and_the_result_stays_narrow(graph, same, n, dtype):
    inputs = {**INPUTS, "qkv": (1, n, HEADS * D)}
    expected = graph(inputs, lambda emit, *args: gpu_layer(emit, *args, dtype=dtype))
    same(only(lower_for_gpu(graph(inputs, one_layer), dtype)), expected)


def test_on_a_gpu_the_cache_has_our_kernels_where_the_builtin_looks_for_them(graph):
    lowered = lower_for_gpu(graph(INPUTS, one_layer))
    args = creation(lowered)
    assert len(args) == 28

    def name(argument):
        return argument.name_hint if isinstance(argument, relax.GlobalVar) else None

    tuples = {i: [name(x) for x in a.fields] for i, a in enumerate(args) if is_tuple(a)}
    assert {i: n for i, a in enumerate(args) if (n := name(a))} == {
        13: "kv_append",
        24: "kv_rotate",
        25: "kv_copy_page",
        26: "kv_read_back",
        27: "kv_compact",
    }
    assert tuples == {
        15: [None, "kv_attend_new"],
        16: [None, "kv_attend_pages"],
        17: [None, "kv_decode"],
        **{i: [] for i in range(18, 23)},  # sliding windows, token trees, latent attention
        23: ["kv_merge"],
    }
    kernels = {gv.name_hint for gv, f in lowered.functions.items() if isinstance(f, PrimFunc)}
    assert kernels == {n for n in kernels if n.startswith("kv_")}, "none of TVM's is left"
    assert [str(a.fields[0].value) for i, a in enumerate(args) if i in (15, 16, 17)] == ["tirx"] * 3


def is_tuple(argument):
    return isinstance(argument, relax.Tuple)


def test_on_a_gpu_both_ways_agree_on_what_is_no_kernel(graph):
    """The numbers that the builtin counts off are those that TVM's own class gives it."""
    ours = creation(lower_for_gpu(graph(INPUTS, one_layer), "float32"))
    tvms = creation(lower(graph(INPUTS, one_layer)))
    numbers = [[[float(x.value) for x in args[i : i + 4]] for i in (2, 8)] for args in (ours, tvms)]
    assert numbers[0] == numbers[1]
    for i in (1, 6):
        assert list(map(int, ours[i].values)) == list(map(int, tvms[i].values))
    assert ours[12].ty.dtype == tvms[12].ty.dtype


def test_a_second_run_changes_nothing(graph, stays):
    stays(lower, lower(graph(INPUTS, one_layer)))


def test_a_module_without_attention_stays(graph, stays):
    stays(lower, graph({"x": (1, "n", 8)}, lambda emit, x: emit(relax.op.nn.silu(x))))
