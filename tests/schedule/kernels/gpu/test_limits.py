"""What matmul kernels take of a device: never more than its row promises, and no spills."""

from collections.abc import Iterator

import msgspec
import pytest
import tvm
from tvm import tirx

from mlc_compile.emit import cuda, nvcc
from mlc_compile.quant import SCHEMES
from mlc_compile.schedule.kernels.gpu.gemm import gemm
from mlc_compile.schedule.kernels.gpu.gemv import gemv
from mlc_compile.schedule.kernels.gpu.slots import Source
from mlc_compile.schedule.kernels.gpu.weights import codec_of
from mlc_compile.target import find_target, target_names

# Rows with the same limits stand for one another: a row of each kind of device.
GPUS = {
    msgspec.structs.replace(device, archs=()): name
    for name in target_names()
    if (device := find_target(name).device)
}.values()
BYTES = {"float16": 2, "float32": 4}

# Qwen3-0.6B: (n, k, what is fused) of qkv, attention's output, gate and up, down, the head.
MATRICES = [
    (4096, 1024, {"source": Source(1e-6)}),
    (1024, 2048, {"residual": True}),
    (6144, 1024, {"source": Source(1e-6), "swiglu": True}),
    (1024, 3072, {"residual": True}),
    (151936, 1024, {"source": Source(1e-6)}),
]


def statements(stmt: object) -> Iterator[object]:
    """A statement and those inside it."""
    yield stmt
    for field in ("body", "then_case", "else_case"):
        inner = getattr(stmt, field, None)
        if inner is not None:
            yield from statements(inner)
    for inner in getattr(stmt, "seq", ()):
        yield from statements(inner)


def launches(func: tirx.PrimFunc) -> list[object]:
    """The statements that launch a grid."""
    return [
        s
        for s in statements(func.body)
        if isinstance(s, tirx.AttrStmt) and s.node.thread_tag == "blockIdx.x"
    ]


def taken(launch: object) -> tuple[int, int, list[int]]:
    """Threads, bytes of shared memory, and the constant extents along x."""
    threads, shared, grid = 1, 0, []
    for s in statements(launch):
        if isinstance(s, tirx.AttrStmt) and s.node.thread_tag.startswith("threadIdx"):
            threads *= int(s.value)
        if isinstance(s, tirx.AttrStmt) and isinstance(s.value, tirx.IntImm):
            grid += [int(s.value)] if s.node.thread_tag == "blockIdx.x" else []
        if isinstance(s, tirx.AllocBuffer) and s.buffer.scope() == "shared":
            (size,) = s.buffer.shape
            shared += int(size) * BYTES[str(s.buffer.dtype)]
    return threads, shared, grid


def kernels(scheme, n, k, device, slots):
    """gemv and gemm of a matrix, with all that can be fused."""
    codec = codec_of(scheme, n, k)
    in_gemm = {key: value for key, value in slots.items() if key != "source"}
    yield gemv(codec, n, device, **slots)
    for compute in BYTES:
        yield gemm(codec, n, device, compute=compute, **in_gemm)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_kernel_takes_more_than_the_row_promises(name, scheme):
    device = find_target(name).device
    for n, k, slots in [*MATRICES, (100, 25600, {"residual": True})]:
        for func in kernels(scheme, n, k, device, slots):
            assert len(func.params) <= (device.buffers or 32)
            assert launches(func)
            for launch in launches(func):
                threads, shared, grid = taken(launch)
                assert 32 <= threads <= device.threads
                assert 0 < shared <= device.shared_bytes
                assert all(extent <= device.grid for extent in grid)


@pytest.mark.skipif(nvcc.find_nvcc() is None, reason="needs nvcc of a CUDA toolkit")
@pytest.mark.slow
def test_no_kernel_of_the_small_model_spills():
    row = find_target("cuda-sm80")
    functions = {}
    for i, (n, k, slots) in enumerate(MATRICES):
        for j, func in enumerate(kernels("q4f16_1", n, k, row.device, slots)):
            name = f"matmul_{i}_{j}"
            functions[name] = func.with_attr("global_symbol", name)
    mod = tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule(functions))
    fatbin = nvcc.find_nvcc().compile(cuda.source(mod, row), ["sm_80"])
    assert len(fatbin.resources) == 5 * len(MATRICES)  # gemm is two kernels
    assert [r.kernel for r in fatbin.resources if r.spills or r.local_bytes] == []
    assert all(r.occupancy >= 0.25 for r in fatbin.resources)
