"""linear(x, w1), linear(x, w2)  ->  split(linear(x, rows of w1 then w2))."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.merge_projections import MergeProjections

X = {"x": (1, "n", 8)}


def three(weight):
    """q, k and v of one input, used apart."""

    def body(emit, x):
        q = emit(ops.linear(x, emit(weight("q.weight", 16, 8))))
        k = emit(ops.linear(x, emit(weight("k.weight", 4, 8))))
        v = emit(ops.linear(x, emit(weight("v.weight", 4, 8))))
        return emit(relax.op.concat([v, q, k], axis=-1))

    return body


def test_layers_of_one_input_become_one_and_a_split(graph, weight, same):
    def after(emit, x):
        y = emit(ops.linear(x, emit(weight("q.weight k.weight v.weight", 24, 8))))
        parts = emit(relax.op.split(y, [16, 20], axis=-1))
        q, k, v = (emit(relax.TupleGetItem(parts, i)) for i in range(3))
        return emit(relax.op.concat([v, q, k], axis=-1))

    got = MergeProjections()(graph(X, three(weight)))
    expected = events.record(
        graph(X, after),
        [events.Event("MergeProjections", "q.weight + k.weight + v.weight", "done")],
    )
    same(got, expected)


def test_layers_computed_at_different_places_join_at_the_first(graph, weight, same):
    def before(emit, x):
        a = emit(relax.op.nn.silu(emit(ops.linear(x, emit(weight("a.weight", 4, 8))))))
        b = emit(ops.linear(x, emit(weight("b.weight", 4, 8))))
        return emit(relax.op.add(a, b))

    def after(emit, x):
        y = emit(ops.linear(x, emit(weight("a.weight b.weight", 8, 8))))
        parts = emit(relax.op.split(y, [4], axis=-1))
        a = emit(relax.op.nn.silu(emit(relax.TupleGetItem(parts, 0))))
        return emit(relax.op.add(a, emit(relax.TupleGetItem(parts, 1))))

    got = MergeProjections()(graph(X, before))
    same(got.without_attr(events.ATTRIBUTE), graph(X, after))


def test_groups_of_different_inputs_stay_apart(graph, weight):
    def before(emit, x, z):
        pairs = [
            emit(ops.linear(source, emit(weight(f"{name}.weight", 4, 8))))
            for name, source in (("a", x), ("b", z), ("c", x), ("d", z))
        ]
        return emit(relax.op.concat(pairs, axis=-1))

    got = MergeProjections()(graph({"x": (1, "n", 8), "z": (1, "n", 8)}, before))
    assert [e.subject for e in events.read(got)] == [
        "a.weight + c.weight",
        "b.weight + d.weight",
    ]


def alone(emit, weight, x, z):
    return emit(ops.linear(x, emit(weight("a.weight", 4, 8))))


def other_input(emit, weight, x, z):
    a = emit(ops.linear(x, emit(weight("a.weight", 4, 8))))
    b = emit(ops.linear(z, emit(weight("b.weight", 4, 8))))
    return emit(relax.op.add(a, b))


def chained(emit, weight, x, z):
    a = emit(ops.linear(x, emit(weight("a.weight", 8, 8))))
    return emit(ops.linear(a, emit(weight("b.weight", 4, 8))))


def no_weights(emit, weight, x, z):
    a = emit(ops.linear(x, emit(relax.op.reshape(z, (8, 8)))))
    b = emit(ops.linear(x, emit(relax.op.reshape(z, (8, 8)))))
    return emit(relax.op.add(a, b))


@pytest.mark.parametrize("near_miss", [alone, other_input, chained, no_weights])
def test_nothing_else_is_joined(graph, weight, stays, near_miss):
    z = (1, 8, 8) if near_miss is no_weights else (1, "n", 8)
    inputs = {"x": (1, "n", 8), "z": z}
    module = graph(inputs, lambda emit, x, z: near_miss(emit, weight, x, z))
    stays(MergeProjections(), module)
    assert events.read(MergeProjections()(module)) == ()


def test_a_second_run_changes_nothing(graph, weight, stays):
    stays(MergeProjections(), MergeProjections()(graph(X, three(weight))))


def test_the_event_is_told_once_for_all_functions(graph, weight):
    first = graph(X, three(weight), name="prefill")
    both = graph(X, three(weight), name="decode", also=first)
    assert len(events.read(MergeProjections()(both))) == 1
