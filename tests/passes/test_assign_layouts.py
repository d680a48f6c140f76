"""Every raw weight gets the packing of its kernels; shapes follow, bytes do not move."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.layout import LAYOUTS
from mlc_compile.passes.assign_layouts import AssignLayouts

X = {"x": (1, "n", 64)}


IDS = {"ids": ("n",)}

# scheme -> its raw parts of w[n, k], and what rows16 makes of them
RAW = {
    "q0f16": lambda n, k: [("weight", (n, k), "float16")],
    "q0f32": lambda n, k: [("weight", (n, k), "float32")],
    "q4f16_1": lambda n, k: [
        ("q_weight", (n, k // 8), "uint32"),
        ("q_scale", (n, k // 32), "float16"),
    ],
    "q4f32_1": lambda n, k: [
        ("q_weight", (n, k // 8), "uint32"),
        ("q_scale", (n, k // 32), "float32"),
    ],
}
PACKED = [
    ("q0f16", (48, 64), ("weight", (3, 64, 16), "float16")),
    ("q0f32", (47, 5), ("weight", (3, 5, 16), "float32")),
    ("q4f16_1", (48, 64), ("packed", (3, 1, 144), "int32")),
    ("q4f16_1", (33, 96), ("packed", (3, 2, 144), "int32")),
    ("q4f32_1", (1, 32), ("packed", (1, 1, 160), "int32")),
]


def weights(emit, weight, parts, layout):
    return [
        emit(weight("a.weight b.weight", *shape, part=part, layout=layout, dtype=dtype))
        for part, shape, dtype in parts
    ]


@pytest.mark.parametrize(("scheme", "shape", "packed"), PACKED)
def test_the_parts_that_a_matmul_reads_become_what_its_kernel_reads(
    graph, weight, same, scheme, shape, packed
):
    n, k = shape

    def of(parts, layout):
        def body(emit, x):
            args = weights(emit, weight, parts, layout)
            return emit(ops.quantized_matmul(x, args, ops.Matrix(n, scheme)))

        return graph({"x": (1, "n", k)}, body)

    same(AssignLayouts("rows16")(of(RAW[scheme](n, k), ops.RAW)), of([packed], "rows16"))


@pytest.mark.parametrize(("scheme", "shape", "packed"), PACKED)
def test_the_parts_that_a_lookup_reads_are_packed_alike(graph, weight, same, scheme, shape, packed):
    n, k = shape

    def of(parts, layout):
        def body(emit, ids):
            args = weights(emit, weight, parts, layout)
            return emit(ops.quantized_take(ids, args, ops.Matrix(n, scheme), k))

        return graph(IDS, body, dtypes={"ids": "int32"})

    same(AssignLayouts("rows16")(of(RAW[scheme](n, k), ops.RAW)), of([packed], "rows16"))


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


def test_a_cast_of_a_vector_to_another_type_stays(graph, weight, same):
    def of(layout, dtype):
        def body(emit, x):
            stored = emit(weight("g.weight", 64, layout=layout, dtype=dtype))
            return emit(relax.Tuple([x, emit(relax.op.astype(stored, "bfloat16"))]))

        return graph(X, body)

    same(AssignLayouts("rows16")(of(ops.RAW, "float16")), of("wide", "float32"))


def test_casts_of_other_tensors_stay(graph, stays):
    module = graph(X, lambda emit, x: emit(relax.op.astype(x, "float16")))
    stays(AssignLayouts("rows16"), module)


def test_weights_that_have_a_layout_stay(graph, weight, stays):
    def before(emit, x):
        gamma = emit(weight("g.weight", 64, layout="wide"))
        packed = weight("w.weight", 3, 1, 144, part="packed", layout="rows16", dtype="int32")
        x = emit(relax.op.multiply(x, gamma))
        return emit(ops.quantized_matmul(x, [emit(packed)], ops.Matrix(48, "q4f16_1")))

    stays(AssignLayouts("rows16"), graph(X, before))


def test_a_second_run_changes_nothing(graph, weight, stays):
    def before(emit, x):
        parts = [
            emit(weight("w.weight", 48, 8, part="q_weight", dtype="uint32")),
            emit(weight("w.weight", 48, 2, part="q_scale", dtype="float16")),
        ]
        norm = emit(relax.op.astype(emit(weight("g.weight", 64, dtype="float16")), "float32"))
        scaled = emit(relax.op.multiply(x, norm))
        return emit(ops.quantized_matmul(scaled, parts, ops.Matrix(48, "q4f16_1")))

    step = AssignLayouts("rows16")
    stays(step, step(graph(X, before)))


@pytest.mark.parametrize(("most", "layout"), [(2048, "plain"), (1024, "plain2"), (1000, "plain3")])
def test_what_a_kernel_cannot_see_whole_is_cut_into_ranges(graph, weight, same, most, layout):
    """64 rows of 32 bytes of codes; the scales stay whole."""
    n, raw = 64, RAW["q4f32_1"](64, 64)
    shapes = LAYOUTS[layout].shapes({part: (shape, dtype) for part, shape, dtype in raw})
    packed = [(part, shape, dtype) for part, (shape, dtype) in shapes.items()]

    def of(parts, layout):
        def body(emit, x):
            args = weights(emit, weight, parts, layout)
            return emit(ops.quantized_matmul(x, args, ops.Matrix(n, "q4f32_1")))

        return graph(X, body)

    step = AssignLayouts("plain", most)
    same(step(of(raw, ops.RAW)), of(packed, layout))
    same(step(of(packed, layout)), of(packed, layout))
