"""Weights become one tuple parameter, and the plan says where their bytes lie."""

from itertools import pairwise

import pytest
import tvm
from tvm import relax

from mlc_compile import ops
from mlc_compile.artifact import ALIGNMENT
from mlc_compile.passes.bind_weights import BindWeights, joined_name, read_plan
from mlc_compile.passes.rewrite import bindings_of, relax_functions

X = {"x": (1, "n", 64)}


def scale(weight, names, blocks=1):
    return weight(names, blocks, 2, 16, part="q_scale", layout="rows16", dtype="float16")


def codes(weight, names, blocks=1):
    return weight(names, blocks, 2, 4, 16, part="q_weight", layout="rows16", dtype="int32")


def matmul(emit, weight, x, names, blocks=4):
    parts = [emit(codes(weight, names, blocks)), emit(scale(weight, names, blocks))]
    return emit(ops.quantized_matmul(x, parts, ops.Matrix(16 * blocks, "q4f16_1")))


def two_functions(graph, weight):
    """`decode` reads layer 10 before layer 9; `embed` the embedding alone."""

    def decode(emit, x):
        y = matmul(emit, weight, x, "layers.10.a.weight")
        y = matmul(emit, weight, y, "layers.9.a.weight layers.9.b.weight")
        return matmul(emit, weight, y, "embed_tokens.weight")

    def embed(emit, x):
        return matmul(emit, weight, x, "embed_tokens.weight")

    return graph(X, embed, name="embed", also=graph(X, decode, name="decode"))


def test_the_plan_lists_each_weight_once_in_natural_order(graph, weight):
    plan = read_plan(BindWeights()(two_functions(graph, weight)))
    assert [t.name for t in plan.tensors] == ["embed_tokens", "layers.9.a+b", "layers.10.a"]
    assert [t.sources for t in plan.tensors][1] == ("layers.9.a.weight", "layers.9.b.weight")
    assert [p.name for p in plan.tensors[1].parts] == [
        "layers.9.a+b.q_weight",
        "layers.9.a+b.q_scale",
    ]
    assert {t.layout for t in plan.tensors} == {"rows16"}


def test_parts_lie_one_after_another_aligned_and_within_the_file(graph, weight):
    plan = read_plan(BindWeights()(two_functions(graph, weight)))
    parts = [p for t in plan.tensors for p in t.parts]
    assert parts[0].offset == 0
    for part, following in pairwise(parts):
        assert following.offset % ALIGNMENT == 0
        assert 0 <= following.offset - (part.offset + part.nbytes) < ALIGNMENT
    assert parts[-1].offset + parts[-1].nbytes == plan.nbytes
    assert {p.name.rpartition(".")[2]: p.nbytes for p in parts} == {
        "q_weight": 4 * 2 * 4 * 16 * 4,
        "q_scale": 4 * 2 * 16 * 2,
    }


def test_every_function_reads_its_own_fields_of_an_opaque_tuple(graph, weight):
    bound = BindWeights()(two_functions(graph, weight))
    parts = [p for t in read_plan(bound).tensors for p in t.parts]
    read = {}
    for gv, func in relax_functions(bound):
        params = func.params[-1]
        assert isinstance(params.ty, relax.AnyType)  # a tuple type would be checked at every call
        names = read.setdefault(gv.name_hint, [])
        for value in bindings_of(func).values():
            if ops.is_call(value, "relax.call_pure_packed") and value.args[1].same_as(params):
                part = parts[int(value.args[2])]
                wanted = relax.TensorType(list(part.shape), part.dtype)
                tvm.ir.assert_structural_equal(value.ty, wanted)
                names.append(part.name)
    assert read == {
        "embed": ["embed_tokens.q_weight", "embed_tokens.q_scale"],
        "decode": [
            f"{name}.{part}"
            for name in ("layers.10.a", "layers.9.a+b", "embed_tokens")
            for part in ("q_weight", "q_scale")
        ],
    }


def test_no_weight_operator_is_left(graph, weight):
    bound = BindWeights()(two_functions(graph, weight))
    values = [v for _, f in relax_functions(bound) for v in bindings_of(f).values()]
    assert not any(ops.is_call(v, "mlc.weight") for v in values)


def test_parts_of_one_tensor_stay_together_whoever_reads_them_first(graph, weight):
    def first(emit, x):
        return emit(scale(weight, "w.weight"))

    def second(emit, x):
        return matmul(emit, weight, x, "w.weight", blocks=1)

    module = graph(X, second, name="b", also=graph(X, first, name="a"))
    (tensor,) = read_plan(BindWeights()(module)).tensors
    assert {p.name for p in tensor.parts} == {"w.q_weight", "w.q_scale"}


def test_two_forms_of_one_weight_are_our_bug(graph, weight):
    def body(emit, x):
        forms = [emit(weight("w.weight", 64, dtype=dtype)) for dtype in ("float16", "float32")]
        return emit(relax.Tuple([x, *forms]))

    with pytest.raises(AssertionError, match="readers want one form"):
        BindWeights()(graph(X, body))


def test_a_module_without_weights_stays(graph, stays):
    stays(BindWeights(), graph(X, lambda emit, x: emit(relax.op.abs(x))))


def test_a_second_run_changes_nothing(graph, weight, stays):
    stays(BindWeights(), BindWeights()(two_functions(graph, weight)))


@pytest.mark.parametrize(
    ("sources", "name"),
    [
        (("model.norm.weight",), "model.norm"),
        (("lm_head.weight",), "lm_head"),
        (("a.0.q_proj.weight", "a.0.k_proj.weight"), "a.0.q_proj+k_proj"),
    ],
)
def test_a_joined_weight_is_named_after_its_sources(sources, name):
    assert joined_name(sources) == name


def test_equal_modules_give_equal_digests_and_others_do_not(graph, weight):
    def digest(module):
        return read_plan(BindWeights()(module)).digest()

    one = digest(two_functions(graph, weight))
    assert one == digest(two_functions(graph, weight))
    assert one != digest(graph(X, lambda emit, x: matmul(emit, weight, x, "embed_tokens.weight")))
