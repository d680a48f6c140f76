"""g, u = split(y, 2, axis=-1);  silu(g) * u  ->  swiglu(y)."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes.fuse_swiglu import FuseSwiGLU

Y = {"y": (1, "n", 12), "z": (1, "n", 6)}


def gated(emit, y, *, gate=0, up=1, axis=-1, parts=2, activation=relax.op.nn.silu, flip=False):
    pieces = emit(relax.op.split(y, parts, axis=axis))
    g = emit(activation(emit(relax.TupleGetItem(pieces, gate))))
    u = emit(relax.TupleGetItem(pieces, up))
    return emit(relax.op.multiply(*((u, g) if flip else (g, u))))


@pytest.mark.parametrize("axis", [-1, 2])
@pytest.mark.parametrize("flip", [False, True])
def test_the_gated_activation_becomes_one_operator(graph, same, told, axis, flip):
    got = FuseSwiGLU()(graph(Y, lambda emit, y, z: gated(emit, y, axis=axis, flip=flip)))
    same(got, graph(Y, lambda emit, y, z: emit(ops.swiglu(y))))
    assert told(got, "FuseSwiGLU") == [("relax.nn.silu", "done", "")]


def test_a_half_that_is_read_elsewhere_too_is_still_there(graph, same):
    def before(emit, y, z):
        pieces = emit(relax.op.split(y, 2, axis=-1))
        g, u = (emit(relax.TupleGetItem(pieces, i)) for i in range(2))
        product = emit(relax.op.multiply(emit(relax.op.nn.silu(g)), u))
        return emit(relax.op.add(product, u))

    def after(emit, y, z):
        pieces = emit(relax.op.split(y, 2, axis=-1))
        u = emit(relax.TupleGetItem(pieces, 1))
        return emit(relax.op.add(emit(ops.swiglu(y)), u))

    same(FuseSwiGLU()(graph(Y, before)), graph(Y, after))


def of_two_splits(emit, y, z):
    one, other = (emit(relax.op.split(y, 2, axis=-1)) for _ in range(2))
    g = emit(relax.op.nn.silu(emit(relax.TupleGetItem(one, 0))))
    return emit(relax.op.multiply(g, emit(relax.TupleGetItem(other, 1))))


def of_another_tensor(emit, y, z):
    pieces = emit(relax.op.split(y, 2, axis=-1))
    g = emit(relax.op.nn.silu(emit(relax.TupleGetItem(pieces, 0))))
    return emit(relax.op.multiply(g, z))


def unequal(emit, y, z):
    pieces = emit(relax.op.split(y, [4], axis=-1))
    g = emit(relax.op.nn.silu(emit(relax.TupleGetItem(pieces, 0))))
    u = emit(relax.TupleGetItem(pieces, 1))
    return emit(relax.op.multiply(emit(relax.op.sum(g, axis=-1, keepdims=True)), u))


def broadcast(emit, y, z):
    """A half of one column would be broadcast over the other."""
    pieces = emit(relax.op.split(y, [1], axis=-1))
    g = emit(relax.op.nn.silu(emit(relax.TupleGetItem(pieces, 0))))
    return emit(relax.op.multiply(g, emit(relax.TupleGetItem(pieces, 1))))


def added(emit, y, z):
    pieces = emit(relax.op.split(y, 2, axis=-1))
    g = emit(relax.op.nn.silu(emit(relax.TupleGetItem(pieces, 0))))
    return emit(relax.op.add(g, emit(relax.TupleGetItem(pieces, 1))))


def both_activated(emit, y, z):
    pieces = emit(relax.op.split(y, 2, axis=-1))
    g, u = (emit(relax.op.nn.silu(emit(relax.TupleGetItem(pieces, i)))) for i in range(2))
    return emit(relax.op.multiply(g, u))


REFUSED = {
    "the halves in the other order": lambda emit, y, z: gated(emit, y, gate=1, up=0),
    "one half twice": lambda emit, y, z: gated(emit, y, up=0),
    "two of three parts": lambda emit, y, z: gated(emit, y, parts=3),
    "another axis": lambda emit, y, z: gated(emit, y, axis=1),
    "two splits": of_two_splits,
    "another tensor": of_another_tensor,
    "halves that broadcast": broadcast,
    "both halves activated": both_activated,
}
NO_GATE = {
    "another activation": lambda emit, y, z: gated(emit, y, activation=relax.op.nn.gelu),
    "a bare sigmoid": lambda emit, y, z: gated(emit, y, activation=relax.op.sigmoid),
    "no activation": unequal,
    "a sum": added,
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_gate_without_its_other_half_stays_and_an_event_says_why(graph, refused, case):
    inputs = {"y": (1, 12, 12), "z": (1, 12, 6)} if case == "another axis" else Y
    reasons = refused(FuseSwiGLU(), graph(inputs, REFUSED[case]))
    assert reasons == ["gate and up are not the halves of one tensor's last axis"]


def test_another_type_stays_as_the_operator_s_result_is_float32(graph, refused):
    halves = graph(Y, lambda emit, y, z: gated(emit, y), dtypes={"y": "float16"})
    assert refused(FuseSwiGLU(), halves) == ["it is float16: kernels take float32"]


@pytest.mark.parametrize("case", NO_GATE)
def test_anything_else_stays(graph, stays, case):
    stays(FuseSwiGLU(), graph(Y, NO_GATE[case]))


def test_a_second_run_changes_nothing(graph, stays):
    stays(FuseSwiGLU(), FuseSwiGLU()(graph(Y, lambda emit, y, z: gated(emit, y))))
