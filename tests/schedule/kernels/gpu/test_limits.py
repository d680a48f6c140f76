"""What matmul kernels take of a device: never more than its row promises, and no spills."""

import msgspec
import pytest
import tvm
from tvm import tirx

from mlc_compile.emit.cuda import emitter, nvcc
from mlc_compile.quant import SCHEMES
from mlc_compile.schedule.kernels.gpu.gemm import gemm
from mlc_compile.schedule.kernels.gpu.gemv import gemv
from mlc_compile.schedule.kernels.gpu.slots import Source
from mlc_compile.schedule.kernels.gpu.weights import codec_of
from mlc_compile.schedule.limits import launches_of
from mlc_compile.target import find_target, target_names

# Rows with the same limits stand for one another: a row of each kind of device.
GPUS = [
    *{
        msgspec.structs.replace(device, archs=()): name
        for name in target_names()
        if (device := find_target(name).device)
    }.values()
]

# Qwen3-0.6B: (n, k, what is fused) of qkv, attention's output, gate and up, down, the head.
MATRICES = [
    (4096, 1024, {"source": Source(1e-6)}),
    (1024, 2048, {"residual": True}),
    (6144, 1024, {"source": Source(1e-6), "swiglu": True}),
    (1024, 3072, {"residual": True}),
    (151936, 1024, {"source": Source(1e-6)}),
]
*INNER, HEAD = MATRICES
LONG = (100, 25600, {"residual": True})


def kernels(scheme, n, k, device, slots):
    """gemv and gemm of a matrix, with all that can be fused."""
    codec = codec_of(scheme, n, k)
    in_gemm = {key: value for key, value in slots.items() if key != "source"}
    yield gemv(codec, n, device, **slots)
    for compute in ("float16", "float32"):
        yield gemm(codec, n, device, compute=compute, **in_gemm)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_kernel_takes_more_than_the_row_promises(name, scheme):
    """Of the widest and the longest matrix; the others take turns, on each device all of them."""
    device = find_target(name).device
    turn = GPUS.index(name) + list(SCHEMES).index(scheme)
    for n, k, slots in (HEAD, LONG, INNER[turn % len(INNER)]):
        for func in kernels(scheme, n, k, device, slots):
            assert len(func.params) <= (device.buffers or 32)
            launches = launches_of(func)
            assert launches
            for launch in launches:
                assert 32 <= launch.threads <= device.threads
                assert 0 < launch.shared_bytes <= device.shared_bytes
                assert launch.blocks <= device.grid


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
    fatbin = nvcc.find_nvcc().compile(emitter.source(mod, row), ["sm_80"])
    assert len(fatbin.resources) == 5 * len(MATRICES)  # gemm is two kernels
    assert [r.kernel for r in fatbin.resources if r.spills or r.local_bytes] == []
    assert all(r.occupancy >= 0.25 for r in fatbin.resources)
