"""What all fusions share: who reads what, and what a variable was made of."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.fuse_residual import FuseResidual
from mlc_compile.passes.fuse_rms_norm_linear import FuseRMSNormLinear
from mlc_compile.passes.fuse_swiglu_epilogue import FuseSwiGLUEpilogue
from mlc_compile.target import find_target

K = N = 64
GPU = find_target("cuda-multi")
MATRIX = ops.Matrix(N, "q0f32")


def norm(y, _x, gamma, _w):
    return relax.op.nn.rms_norm(y, gamma, axes=-1, epsilon=1e-5)


def matmul(y, _x, _gamma, w):
    return ops.quantized_matmul(y, [w], MATRIX)


def residual(y, x, _gamma, _w):
    return y + x


def swiglu(y, _x, _gamma, _w):
    return ops.swiglu(y)


PATTERNS = {
    "FuseRMSNormLinear": (FuseRMSNormLinear(GPU), norm, matmul),
    "FuseResidual": (FuseResidual(), matmul, residual),
    "FuseSwiGLUEpilogue": (FuseSwiGLUEpilogue(GPU), matmul, swiglu),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_what_another_block_kept_to_itself_is_not_read(name):
    """The first half is made of a variable that ends with its dataflow block."""
    step, first, second = PATTERNS[name]
    shapes = {"x": (1, 1, K), "gamma": (K,), "w": (N // 16, K, 16)}
    x, gamma, w = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items())
    builder = relax.BlockBuilder()
    with builder.function("main", [x, gamma, w]):
        with builder.dataflow():
            handed_on = builder.emit_output(first(builder.emit(x + x), x, gamma, w))
        builder.emit(relax.op.null_value())  # between them: or they would be one block
        with builder.dataflow():
            out = builder.emit_output(second(handed_on, x, gamma, w))
        builder.emit_func_output(out)
    got = step(builder.get())
    relax.analysis.well_formed(got)
    assert not any(event.source == name and event.outcome == "done" for event in events.read(got))
