"""Every raw weight gets the packing of its kernels; shapes follow, bytes do not move."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes.assign_layouts import AssignLayouts

X = {"x": (1, "n", 64)}


@pytest.mark.parametrize(
    ("part", "raw", "dtype", "packed", "packed_dtype"),
    [
        ("q_weight", (48, 8), "uint32", (3, 2, 4, 16), "int32"),
        ("q_weight", (33, 8), "uint32", (3, 2, 4, 16), "int32"),
        ("q_scale", (48, 2), "float16", (3, 2, 16), "float16"),
        ("q_scale", (1, 2), "float32", (1, 2, 16), "float32"),
        ("weight", (48, 64), "float16", (3, 64, 16), "float16"),
        ("weight", (47, 5), "float32", (3, 5, 16), "float32"),
    ],
)
def test_a_matrix_is_packed_in_blocks_of_rows(
    graph, weight, same, part, raw, dtype, packed, packed_dtype
):
    def of(shape, layout, dtype):
        return graph(
            X,
            lambda emit, x: emit(weight("w.weight", *shape, part=part, layout=layout, dtype=dtype)),
        )

    same(AssignLayouts("rows16")(of(raw, ops.RAW, dtype)), of(packed, "rows16", packed_dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_vector_becomes_wide_and_its_cast_goes(graph, weight, same, dtype):
    def before(emit, x):
        stored = emit(weight("g.weight", 64, dtype=dtype))
        if dtype != "float32":
            stored = emit(relax.op.astype(stored, "float32"))
        return emit(relax.op.multiply(x, stored))

    def after(emit, x):
        return emit(relax.op.multiply(x, emit(weight("g.weight", 64, layout="wide"))))

    same(AssignLayouts("rows16")(graph(X, before)), graph(X, after))


def test_casts_of_other_tensors_stay(graph, stays):
    module = graph(X, lambda emit, x: emit(relax.op.astype(x, "float16")))
    stays(AssignLayouts("rows16"), module)


def test_weights_that_have_a_layout_stay(graph, weight, stays):
    def before(emit, x):
        matrix = weight("w.weight", 3, 2, 16, part="q_scale", layout="rows16", dtype="float16")
        return emit(relax.Tuple([emit(matrix), emit(weight("g.weight", 64, layout="wide"))]))

    stays(AssignLayouts("rows16"), graph(X, before))


def test_a_second_run_changes_nothing(graph, weight, stays):
    def before(emit, x):
        parts = [
            emit(weight("w.weight", 48, 8, part="q_weight", dtype="uint32")),
            emit(weight("w.weight", 48, 2, part="q_scale", dtype="float16")),
        ]
        norm = emit(relax.op.astype(emit(weight("g.weight", 64, dtype="float16")), "float32"))
        return emit(ops.quantized_matmul(emit(relax.op.multiply(x, norm)), parts, 48, "q4f16_1"))

    step = AssignLayouts("rows16")
    stays(step, step(graph(X, before)))
