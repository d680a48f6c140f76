"""mlc.attention over an object  ->  append and attend over pages, a table and a length."""

import dataclasses

import msgspec
import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from mlc_compile import ops
from mlc_compile.artifact import FlatKV
from mlc_compile.passes.lower_flat_kv_cache import LowerFlatKVCache
from mlc_compile.passes.rewrite import bindings_of

ATTENTION = ops.Attention(0, 4, 2, 8, 1e-6, 1.0, (1.0, 0.5, 0.25, 0.125))
KV = FlatKV(layers=2, kv_heads=2, head_dim=8, page=64, dtype="float16")
INPUTS = {"qkv": (1, "n", 64), "gq": (8,), "gk": (8,), "kv": None}


def attentions(layers, scales=(1.0, 1.0)):
    def body(emit, qkv, gq, gk, kv):
        outs = []
        for layer in range(layers):
            a = dataclasses.replace(ATTENTION, layer=layer, rope_scale=scales[layer])
            both = emit(ops.attention(qkv, gq, gk, kv, a))
            outs.append(emit(relax.TupleGetItem(both, 0)))
            kv = emit(relax.TupleGetItem(both, 1))
        return emit(relax.Tuple([*outs, kv]))

    return body


def calls(module, name):
    return [v for v in bindings_of(module["main"]).values() if ops.is_call(v, name)]


def test_the_cache_parameter_is_four_tensors_with_symbolic_pages(graph):
    lowered = LowerFlatKVCache(KV)(graph(INPUTS, attentions(1)))
    kv = lowered["main"].params[-1]
    pages = kv.ty.fields[2].shape.values[0]
    expected = [
        relax.TensorType([2, pages, 2, 8, 64], "float16"),
        relax.TensorType([2, pages, 2, 64, 8], "float16"),
        relax.TensorType([pages], "int32"),
        relax.TensorType([1], "int32"),
    ]
    assert isinstance(pages, tirx.Var)
    for field, wanted in zip(kv.ty.fields, expected, strict=True):
        tvm.ir.assert_structural_equal(field, wanted, map_free_vars=True)
    relax.analysis.well_formed(lowered)


def test_the_pages_of_an_int8_cache_have_rows_for_scales(graph):
    kv = msgspec.structs.replace(KV, dtype="int8")
    lowered = LowerFlatKVCache(kv)(graph(INPUTS, attentions(1)))
    k, v, *_ = lowered["main"].params[-1].ty.fields
    pages = k.shape.values[1]
    for field, shape in ((k, [2, pages, 2, 16, 64]), (v, [2, pages, 2, 64, 8])):
        tvm.ir.assert_structural_equal(field, relax.TensorType(shape, "int8"), map_free_vars=True)


def test_a_layer_becomes_append_then_attend_on_what_append_wrote(graph):
    lowered = LowerFlatKVCache(KV)(graph(INPUTS, attentions(1)))
    (append,), (attend,) = calls(lowered, "mlc.flat_append"), calls(lowered, "mlc.flat_attend")
    bound = bindings_of(lowered["main"])
    q, k, v = (bound[a] for a in attend.args[:3])
    assert [item.index for item in (q, k, v)] == [0, 1, 2]
    assert all(bound[item.tuple_value].same_as(append) for item in (q, k, v))
    assert ops.Attention.of(append) == ATTENTION
    assert calls(lowered, "mlc.attention") == []


def test_angles_are_computed_once_a_call_and_layers_are_threaded(graph):
    lowered = LowerFlatKVCache(KV)(graph(INPUTS, attentions(2)))
    bound = bindings_of(lowered["main"])
    (angles,) = calls(lowered, "mlc.rope_angles")
    inv_freq = relax.const(np.array(ATTENTION.inv_freq, np.float32))
    tvm.ir.assert_structural_equal(angles.args[1], inv_freq)
    first, second = calls(lowered, "mlc.flat_append")
    assert [ops.Attention.of(c).layer for c in (first, second)] == [0, 1]
    assert first.args[3].same_as(second.args[3])
    for i in (4, 5):  # the second layer writes into the pages that the first one gave
        assert bound[bound[second.args[i]].tuple_value].same_as(first)


def test_layers_that_turn_otherwise_have_angles_of_their_own(graph):
    lowered = LowerFlatKVCache(KV)(graph(INPUTS, attentions(2, scales=(1.0, 0.5))))
    bound = bindings_of(lowered["main"])
    appends = calls(lowered, "mlc.flat_append")
    scales = [float(bound[append.args[3]].attrs["scale"]) for append in appends]
    assert scales == [1.0, 0.5]


def test_for_one_token_append_and_attend_are_one_step(graph):
    lowered = LowerFlatKVCache(KV)(graph({**INPUTS, "qkv": (1, 1, 64)}, attentions(2)))
    bound = bindings_of(lowered["main"])
    first, second = calls(lowered, "mlc.flat_step")
    assert calls(lowered, "mlc.flat_append") == calls(lowered, "mlc.flat_attend") == []
    assert [ops.Attention.of(c).layer for c in (first, second)] == [0, 1]
    (angles,) = calls(lowered, "mlc.rope_angles")
    assert all(bound[step.args[3]].same_as(angles) for step in (first, second))
    qkv, gamma_q, gamma_k, kv = lowered["main"].params
    for given, wanted in zip(first.args[:3], (qkv, gamma_q, gamma_k), strict=True):
        assert given.same_as(wanted)
    for i, arg in enumerate(first.args[4:]):  # pages, table and length of the parameter
        assert (bound[arg].index, bound[arg].tuple_value.same_as(kv)) == (i, True)
    for i in (4, 5):  # the second layer writes into the pages that the first one gave
        item = bound[second.args[i]]
        assert (item.index, bound[item.tuple_value].same_as(first)) == (i - 3, True)


def test_a_function_without_attention_stays(graph, same):
    module = graph({"x": (1, "n", 64)}, lambda emit, x: emit(relax.op.abs(x)))
    same(LowerFlatKVCache(KV)(module), module)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_second_run_lowers_nothing(graph, layers):
    once = LowerFlatKVCache(KV)(graph(INPUTS, attentions(layers)))
    twice = LowerFlatKVCache(KV)(once)
    assert twice["main"].params[-1].same_as(once["main"].params[-1])
    for name, count in (("flat_append", layers), ("flat_attend", layers), ("rope_angles", 1)):
        assert len(calls(twice, f"mlc.{name}")) == count
