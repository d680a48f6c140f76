"""What is computed twice from the same values is computed once, unless it has an effect."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import tirx as T

from mlc_compile import ops
from mlc_compile.passes.eliminate_common_subexpressions import (
    EFFECT,
    NEVER,
    READ,
    STATEFUL,
    WRITTEN,
    EliminateCommonSubexpressions,
    has_effect,
)
from mlc_compile.passes.fold_constants import FoldConstants
from mlc_compile.passes.rewrite import bindings_of
from mlc_compile.passes.simplify_algebra import SimplifyAlgebra
from tests.passes.expressions import (
    SEEDS,
    assert_equal_to_the_bit,
    expression,
    plain_results,
    results,
)

op = relax.op
NAME = "EliminateCommonSubexpressions"
X = {"x": (1, "n", 64), "gamma": (64,), "kv": None}
HEADS = ops.Attention(layer=0, h_q=2, h_kv=1, d=16, eps=1e-6, rope_scale=1.0, inv_freq=(1.0,) * 8)
GAMMA = relax.const(np.ones(64, np.float32))


def weight(name="w", layout=ops.RAW, shape=(64, 64)):
    return ops.weight(ops.Weight((name,), "weight", layout, shape, "float32"))


def norm(x, gamma, eps=1e-6):
    return op.nn.rms_norm(x, gamma, axes=-1, epsilon=eps)


def added(emit, *values):
    total, *rest = values
    for value in rest:
        total = emit(op.add(total, value))
    return total


# Each gives the values of one expression for `emit`; twice and once, they are before and after.
MERGED = {
    "relax.nn.rms_norm": lambda e, x, gamma, kv: e(norm(x, gamma)),
    "relax.astype": lambda e, x, gamma, kv: e(op.astype(e(op.astype(x, "float16")), "float32")),
    "mlc.linear": lambda e, x, gamma, kv: e(ops.linear(x, e(weight()))),
    "mlc.weight": lambda e, x, gamma, kv: e(op.multiply(x, e(weight(shape=(64,))))),
    "mlc.swiglu": lambda e, x, gamma, kv: e(op.tile(e(ops.swiglu(x)), 2)),
    "mlc.quantize_act": lambda e, x, gamma, kv: quantized(e, x, gamma),
    "relax.multiply": lambda e, x, gamma, kv: e(op.multiply(x, GAMMA)),
    "relax.split": lambda e, x, gamma, kv: swapped(e, x),
}


def swapped(emit, x):
    halves = emit(op.split(x, 2, axis=-1))
    return emit(op.concat([emit(relax.TupleGetItem(halves, i)) for i in (1, 0)], axis=-1))


def quantized(emit, x, gamma):
    codes = emit(ops.quantize_act([x, gamma], ops.Source("rms_norm", 64, 1e-6)))
    scales = emit(relax.TupleGetItem(codes, 1))
    return emit(op.tile(scales, 32))


@pytest.mark.parametrize("name", MERGED)
def test_the_same_value_is_computed_once(graph, same, told, name):
    make = MERGED[name]
    twice = graph(X, lambda e, *v: added(e, make(e, *v), make(e, *v)))
    once = graph(X, lambda e, *v: added(e, *[make(e, *v)] * 2))
    got = EliminateCommonSubexpressions()(twice)
    same(got, once)
    assert (name, "done", "") in told(got, NAME)


@pytest.mark.parametrize("name", MERGED)
def test_a_second_run_changes_nothing(graph, stays, name):
    make = MERGED[name]
    twice = graph(X, lambda e, *v: added(e, make(e, *v), make(e, *v)))
    stays(EliminateCommonSubexpressions(), EliminateCommonSubexpressions()(twice))


def test_equal_constants_are_one_value(graph, same):
    """A gamma of ones in each of two layers is not two tensors."""

    def before(emit, x, gamma, kv):
        other = relax.const(np.ones(64, np.float32))
        return added(emit, *[emit(norm(x, c)) for c in (GAMMA, other)])

    def after(emit, x, gamma, kv):
        y = emit(norm(x, GAMMA))
        return emit(op.add(y, y))

    same(EliminateCommonSubexpressions()(graph(X, before)), graph(X, after))


DIFFERENT = {
    "attributes": lambda e, x, gamma, kv: (e(norm(x, gamma)), e(norm(x, gamma, 1e-5))),
    "attributes of ours": lambda e, x, gamma, kv: tuple(
        quantized_as(e, x, gamma, eps) for eps in (1e-6, 1e-5)
    ),
    "arguments": lambda e, x, gamma, kv: (e(op.add(x, gamma)), e(op.add(x, x))),
    "the order of arguments": lambda e, x, gamma, kv: (
        e(op.subtract(x, gamma)),
        e(op.subtract(gamma, x)),
    ),
    "types": lambda e, x, gamma, kv: (
        e(op.astype(e(op.astype(x, "float16")), "float32")),
        e(op.astype(e(op.astype(x, "float64")), "float32")),
    ),
    "constants": lambda e, x, gamma, kv: (
        e(op.multiply(x, GAMMA)),
        e(op.multiply(x, relax.const(np.full(64, 2, np.float32)))),
    ),
    "zeros of other signs": lambda e, x, gamma, kv: (
        e(op.add(x, relax.const(np.float32(0.0)))),
        e(op.add(x, relax.const(np.float32(-0.0)))),
    ),
    "weights": lambda e, x, gamma, kv: (
        e(ops.linear(x, e(weight("q")))),
        e(ops.linear(x, e(weight("k")))),
    ),
    "layouts of a weight": lambda e, x, gamma, kv: (
        e(ops.linear(x, e(weight()))),
        e(ops.linear(x, e(weight(layout="rows16")))),
    ),
}


def quantized_as(emit, x, gamma, eps):
    acts = emit(ops.quantize_act([x, gamma], ops.Source("rms_norm", 64, eps)))
    return emit(op.tile(emit(relax.TupleGetItem(acts, 1)), 32))


@pytest.mark.parametrize("what", DIFFERENT)
def test_values_of_different(graph, stays, what):
    stays(
        EliminateCommonSubexpressions(),
        graph(X, lambda e, *v: added(e, *DIFFERENT[what](e, *v))),
    )


def attended(emit, x, gamma, kv):
    """The result of one attention, and what it makes of the cache."""
    small = emit(weight("gamma", shape=(16,)))
    both = emit(ops.attention(x, small, small, kv, HEADS))
    return emit(relax.TupleGetItem(both, 0)), emit(relax.TupleGetItem(both, 1))


def test_attention_appends_as_often_as_it_is_called(graph, told):
    """TVM's own pass makes one of these, and the cache would miss tokens."""

    def body(emit, x, gamma, kv):
        (one, _), (other, _) = (attended(emit, x, gamma, kv) for _ in range(2))
        return emit(op.add(one, other))

    mod = graph(X, body)
    got = EliminateCommonSubexpressions()(mod)
    assert count(got, "mlc.attention") == count(mod, "mlc.attention") == 2
    assert count(relax.transform.EliminateCommonSubexpr()(mod), "mlc.attention") == 1
    assert told(got, NAME)[-1] == ("mlc.attention", "refused", EFFECT)


def count(mod, name, function="main"):
    return sum(ops.is_call(v, name) for v in bindings_of(mod[function]).values())


def packed_twice(make):
    return lambda e, x, gamma, kv: added(e, e(make(x)), e(make(x)))


EFFECTS = {
    "a packed function in place": packed_twice(
        lambda x: op.call_inplace_packed("f", x, inplace_indices=[0], ty_args=x.ty)
    ),
    "a packed function": packed_twice(lambda x: relax.call_pure_packed("f", x, ty_args=x.ty)),
    "a packed function that is given its result": packed_twice(
        lambda x: relax.call_dps_packed("f", relax.Tuple([x]), x.ty)
    ),
    "new memory": lambda e, x, gamma, kv: added(
        e,
        *[
            e(op.builtin.alloc_tensor(relax.ShapeExpr([64]), "float32", 0, "global"))
            for _ in range(2)
        ],
    ),
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_calls_that_may_have_an_effect_stay(graph, refused, effect):
    assert refused(EliminateCommonSubexpressions(), graph(X, EFFECTS[effect])) == [EFFECT]


def test_calls_of_functions_stay(refused):
    """Whose purity may be a promise that the callee does not keep."""
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    y = relax.Var("y", x.ty)
    builder = relax.BlockBuilder()
    with builder.function("twice", [y]):
        builder.emit_func_output(builder.emit(op.add(y, y)))
    (callee,) = builder.get().get_global_vars()
    with builder.function("main", [x]):
        one, other = (builder.emit(relax.Call(callee, [x])) for _ in range(2))
        builder.emit_func_output(builder.emit(op.add(one, other)))
    assert refused(EliminateCommonSubexpressions(), builder.get()) == [EFFECT]


def overwritten(emit, x, through=lambda emit, y: y):
    """Zeros that a call may overwrite; whoever reads other zeros must not see it."""
    one, other = (emit(op.zeros((64,), "float32")) for _ in range(2))
    given = through(emit, one)
    done = emit(op.call_inplace_packed("f", given, inplace_indices=[0], ty_args=given.ty))
    flat = emit(op.reshape(done, (64,)))
    return added(emit, x, flat, other)


VIEWS = {
    "given itself": lambda emit, y: y,
    "given reshaped": lambda emit, y: emit(op.reshape(y, (8, 8))),
    "given out of a tuple": lambda emit, y: emit(
        relax.TupleGetItem(emit(relax.Tuple([emit(op.reshape(y, (64, 1)))])), 0)
    ),
}


@pytest.mark.parametrize("how", VIEWS)
def test_what_is_overwritten_is_nobody_else_s(graph, refused, how):
    mod = graph(X, lambda e, x, gamma, kv: overwritten(e, x, VIEWS[how]))
    assert refused(EliminateCommonSubexpressions(), mod) == [WRITTEN]


def test_what_is_read_may_be_overwritten_in_between(graph, refused):
    def body(emit, x, gamma, kv):
        before = emit(op.abs(x))
        done = emit(op.call_inplace_packed("f", x, inplace_indices=[0], ty_args=x.ty))
        return added(emit, before, done, emit(op.abs(x)))

    assert refused(EliminateCommonSubexpressions(), graph(X, body)) == [READ]


def kernel(inplace):
    @T.prim_func(s_tir=True)
    def double(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        for i in range(64):
            with T.sblock("b"):
                v = T.axis.spatial(64, i)
                b[v] = a[v] * T.float32(2)

    @T.prim_func(s_tir=True)
    def double_in_place(a: T.Buffer((64,), "float32")):
        for i in range(64):
            with T.sblock("b"):
                v = T.axis.spatial(64, i)
                a[v] = a[v] * T.float32(2)

    return double_in_place if inplace else double


@pytest.mark.parametrize(("inplace", "left"), [(False, 1), (True, 2)])
def test_kernels_merge_but_in_place(inplace, left):
    x = relax.Var("x", relax.TensorType((64,), "float32"))
    builder = relax.BlockBuilder()
    gv = builder.add_func(kernel(inplace), "double")
    call = relax.call_tir_inplace if inplace else relax.call_tir
    where = ([0],) if inplace else ()
    with builder.function("main", [x]):
        with builder.dataflow():
            one, other = (builder.emit(call(gv, [x], *where, x.ty)) for _ in range(2))
            out = builder.emit_output(op.add(one, other))
        builder.emit_func_output(out)
    got = EliminateCommonSubexpressions()(builder.get())
    name = "relax.call_tir_inplace" if inplace else "relax.call_tir"
    assert count(got, name) == left


def test_blocks_keep_what_is_their_own():
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        outs = []
        for _ in range(2):
            with builder.dataflow():
                outs.append(builder.emit_output(op.abs(builder.emit(op.exp(x)))))
            outs += [builder.emit(op.abs(x)) for _ in range(2)]
        builder.emit_func_output(relax.Tuple(outs))
    got = EliminateCommonSubexpressions()(builder.get())  # the check after each pass would fail
    assert count(got, "relax.exp") == 2
    assert count(got, "relax.abs") == 4  # of each block one; they were two more


def test_two_results_of_a_block_may_be_one_value(graph, same):
    x = relax.Var("x", relax.TensorType((4,), "float32"))

    def made(merged):
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            with builder.dataflow():
                one = builder.emit_output(op.exp(x))
                other = one if merged else builder.emit_output(op.exp(x))
            builder.emit_func_output(relax.Tuple([one, other]))
        return builder.get()

    same(EliminateCommonSubexpressions()(made(False)), made(True))


def test_every_operator_of_ours_is_known_by_what_it_does_to_the_cache():
    """A new one has to be put here: whoever merges calls must know."""
    pure = {
        *("mlc.weight", "mlc.linear", "mlc.swiglu", "mlc.qk_norm", "mlc.rope_angles"),
        *("mlc.quantized_matmul", "mlc.quantized_take"),
        *("mlc.quantize_act", "mlc.int8_matmul", "mlc.int8_gemv"),
        *("mlc.round_act", "mlc.bf16_matmul", "mlc.bf16_swiglu"),
    }
    assert pure | set(STATEFUL) == set(ops.OPERATORS)
    assert not pure & set(STATEFUL)


@pytest.mark.parametrize("name", sorted(NEVER))
def test_the_listed_operators_exist(name):
    assert has_effect(relax.Call(tvm.ir.Op.get(name), []))


def test_a_symbolic_size_is_part_of_the_value(graph, stays):
    def body(emit, x, y):
        one = emit(op.zeros(x.ty.shape, "float32"))
        other = emit(op.zeros(y.ty.shape, "float32"))
        return emit(relax.Tuple([emit(op.add(x, one)), emit(op.add(y, other))]))

    stays(EliminateCommonSubexpressions(), graph({"x": ("n",), "y": ("m",)}, body))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs_compute_the_same_to_the_bit(seed, told):
    merged = EliminateCommonSubexpressions()(expression(seed))
    assert {outcome for _, outcome, _ in told(merged, NAME)} == {"done"}
    assert_equal_to_the_bit(results(merged, seed), plain_results(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_so_they_do_after_folding_and_simplifying(seed):
    short = SimplifyAlgebra()(FoldConstants()(expression(seed)))
    merged = EliminateCommonSubexpressions()(short)
    assert_equal_to_the_bit(results(merged, seed), plain_results(seed))
