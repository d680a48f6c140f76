"""f(x, packed): packed[i]  ->  f(x): mlc.weight."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes.name_weights import NameWeights

NAMES = ("a.weight", "b.weight")
PACKED = relax.TupleType([relax.TensorType([8, 4], "float32"), relax.TensorType([4], "float16")])


def module(body, name="main", also=None):
    """f(x[1, n, 4], packed)."""
    from tvm import tirx

    builder = relax.BlockBuilder(also)
    x = relax.Var("x", relax.TensorType([1, tirx.Var("n", "int64"), 4], "float32"))
    packed = relax.Var("packed", PACKED)
    with builder.function(name, [x, packed], attrs={"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit, x, packed))
        builder.emit_func_output(out)
    return builder.get()


def test_fields_become_weights_of_their_shape_and_dtype(graph, weight, same):
    def before(emit, x, packed):
        y = emit(ops.linear(x, emit(relax.TupleGetItem(packed, 0))))
        return emit(relax.Tuple([y, emit(relax.TupleGetItem(packed, 1))]))

    def after(emit, x):
        y = emit(ops.linear(x, emit(weight("a.weight", 8, 4))))
        return emit(relax.Tuple([y, emit(weight("b.weight", 4, dtype="float16"))]))

    got = NameWeights(NAMES)(module(before))
    assert "num_input" not in got["main"].attrs  # it counted the parameters before the tuple
    same(got, graph({"x": (1, "n", 4)}, after))


def test_every_function_is_rewritten(weight):
    def before(emit, x, packed):
        return emit(ops.linear(x, emit(relax.TupleGetItem(packed, 0))))

    got = NameWeights(NAMES)(module(before, "second", also=module(before, "first")))
    assert {name: len(got[name].params) for name in ("first", "second")} == {
        "first": 1,
        "second": 1,
    }


def test_fields_of_other_tuples_stay(graph, same):
    def before(emit, x, packed):
        halves = emit(relax.op.split(x, 2, axis=-1))
        return emit(relax.TupleGetItem(halves, 1))

    def after(emit, x):
        return emit(relax.TupleGetItem(emit(relax.op.split(x, 2, axis=-1)), 1))

    same(NameWeights(NAMES)(module(before)), graph({"x": (1, "n", 4)}, after))


def test_a_second_run_changes_nothing(stays):
    def body(emit, x, packed):
        return emit(ops.linear(x, emit(relax.TupleGetItem(packed, 0))))

    stays(NameWeights(NAMES), NameWeights(NAMES)(module(body)))


@pytest.mark.parametrize("tied", [True, False])
def test_the_model_names_every_weight_it_has(nano_checkpoint, tied):
    from mlc_compile.checkpoint import read_config
    from mlc_compile.model import load_config
    from mlc_compile.model.qwen3 import export
    from mlc_compile.model.weights import weight_specs
    from mlc_compile.passes.rewrite import bindings_of, relax_functions

    config = load_config(read_config(nano_checkpoint), "config.json")
    exported, names = export(config, tied=tied)
    named = NameWeights(names)(exported)
    found = {
        (w.sources[0], w.shape)
        for _, func in relax_functions(named)
        for value in bindings_of(func).values()
        if ops.is_call(value, "mlc.weight")
        for w in [ops.Weight.of(value)]
    }
    assert found == {(spec.name, spec.shape) for spec in weight_specs(config, tied)}
