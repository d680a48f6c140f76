"""Graphs of matrix products whose activations are quantized, with every source."""

from tvm import relax

from mlc_compile import ops

N, K = 24, 64
W = ops.Matrix(N, "q4f16_1")
SOURCES = {
    "plain": ops.Source("plain", K),
    "rms_norm": ops.Source("rms_norm", K, 1e-5),
    "swiglu": ops.Source("swiglu", K),
}
DTYPES = {"packed": "int32"}


def module_of(graph, body, m, b=1):
    """`body(emit, sources' inputs, parts, residual)` with m rows."""
    inputs = {
        "x": (b, m, K),
        "gamma": (K,),
        "gate_up": (b, m, 2 * K),
        "packed": (2, 1, 144),
        "residual": (b, m, N),
    }

    def unpacked(emit, x, gamma, gate_up, packed, residual):
        given = {"plain": [x], "rms_norm": [x, gamma], "swiglu": [gate_up]}
        return body(emit, given, [packed], residual)

    return graph(inputs, unpacked, dtypes=DTYPES)


def acts_of(emit, inputs, source, order=(0, 1, 2)):
    """Codes, scales and offsets, in this order or another."""
    quantized = emit(ops.quantize_act(inputs, source))
    return [emit(relax.TupleGetItem(quantized, i)) for i in order]


def separate(kind, *, with_residual=False):
    """The body of a product that is quantized first."""

    def body(emit, given, parts, residual):
        matmul = ops.int8_matmul(acts_of(emit, given[kind], SOURCES[kind]), parts, W)
        return emit(ops.with_residual(matmul, matmul.args, residual) if with_residual else matmul)

    return body
