"""gemm for every kind of device, interpreted, against float64 on the values of the weights."""

import functools

import msgspec
import pytest

from mlc_compile.quant import SCHEMES
from mlc_compile.schedule.kernels.gpu import gemm as kernels
from mlc_compile.schedule.kernels.gpu.gemm import BATCH
from mlc_compile.target import Device
from tests.schedule.kernels.gpu.emission import device_of, source
from tests.schedule.kernels.gpu.products import GEMMS, Case

gemm = functools.cache(kernels.gemm)  # a kernel that is run again is not lowered again
every_gemm = pytest.mark.parametrize(("row", "compute"), GEMMS)


def is_half(device: Device, compute: str, m: int) -> bool:
    """Whether factors are rounded to float16: where asked for and possible, beyond a batch."""
    return device.f16 and compute == "float16" and m > BATCH


@every_gemm
@pytest.mark.parametrize("m", [1, 2, 5, 33, 128])
def test_gemm_takes_any_number_of_rows(row, compute, m):
    case, device = Case("q4f16_1", 70, 96), device_of(row)
    x = case.normal(1, m, case.k)
    y = case.run(gemm(case.codec, case.n, device, compute=compute), x)
    case.product(x, half=is_half(device, compute, m)).check(y)


@pytest.mark.parametrize(
    ("scheme", "row", "compute"),
    [
        (scheme, *GEMMS[(i + j) % len(GEMMS)])  # two devices each, and every device
        for i, scheme in enumerate(sorted(SCHEMES.keys() - {"q4f16_1"}))
        for j in range(2)
    ],
)
@pytest.mark.parametrize("m", [BATCH, BATCH + 1])
def test_gemm_multiplies_by_the_stored_values(row, scheme, compute, m):
    case, device = Case(scheme, 33, 160), device_of(row)
    x = case.normal(1, m, case.k)
    y = case.run(gemm(case.codec, case.n, device, compute=compute), x)
    case.product(x, half=is_half(device, compute, m)).check(y)


@every_gemm
@pytest.mark.parametrize("k", [1, 50, 76])
def test_k_need_not_fill_a_step(row, compute, k):
    case, device = Case("q0f16", 20, k), device_of(row)
    for m in (3, 17):
        x = case.normal(1, m, k)
        y = case.run(gemm(case.codec, case.n, device, compute=compute), x)
        case.product(x, half=is_half(device, compute, m)).check(y)


@every_gemm
@pytest.mark.parametrize("m", [4, 40])
def test_a_residual_is_added(row, compute, m):
    case, device = Case("q4f16_1", 50, 64), device_of(row)
    x, residual = case.normal(1, m, case.k), case.normal(1, m, case.n)
    func = gemm(case.codec, case.n, device, compute=compute, residual=True)
    near = case.product(x, half=is_half(device, compute, m)).plus(residual)
    near.check(case.run(func, x, after=(residual,)))


@every_gemm
@pytest.mark.parametrize("m", [4, 40])
def test_swiglu_joins_the_halves(row, compute, m):
    case, device = Case("q4f16_1", 142, 64), device_of(row)  # 71 outputs: a ragged second tile
    x = case.normal(1, m, case.k)
    func = gemm(case.codec, case.n, device, compute=compute, swiglu=True)
    case.product(x, half=is_half(device, compute, m)).swiglu().check(case.run(func, x))


@every_gemm
def test_x_may_be_float16(row, compute):
    case, device = Case("q4f16_1", 20, 64), device_of(row)
    for m in (2, 20):
        x = case.normal(1, m, case.k, dtype="float16")
        func = gemm(case.codec, case.n, device, x_dtype="float16", compute=compute)
        case.product(x, half=is_half(device, compute, m)).check(case.run(func, x))


@pytest.mark.parametrize("swiglu", [False, True])
def test_wide_tiles_of_tensor_cores(swiglu):
    """From 4096 rows of w on a tile is 128 wide; here the last one is ragged."""
    case, device = Case("q4f16_1", 4130, 32), device_of("cuda-sm80")
    x = case.normal(1, 9, case.k)
    near = case.product(x, half=True)
    func = gemm(case.codec, case.n, device, compute="float16", swiglu=swiglu)
    (near.swiglu() if swiglu else near).check(case.run(func, x))


@pytest.mark.parametrize(
    ("row", "compute", "instruction"),
    [
        ("cuda-sm80", "float16", "wmma::mma_sync"),
        ("metal", "float16", "simdgroup_multiply_accumulate"),
        ("metal", "float32", "simdgroup_multiply_accumulate"),
        ("cuda-sm80", "float32", None),
        ("webgpu", "float16", None),
    ],
)
def test_matrices_are_multiplied_whole_where_the_device_can(row, compute, instruction):
    case = Case("q4f16_1", 64, 64)
    printed = source(row, gemm(case.codec, case.n, device_of(row), compute=compute))
    for name in ("wmma::mma_sync", "simdgroup_multiply_accumulate"):
        assert (name in printed) == (name == instruction)


def test_without_tensor_cores_cuda_takes_the_common_kernel():
    device = msgspec.structs.replace(device_of("cuda-sm80"), tensor_cores=False)
    case = Case("q4f16_1", 33, 64)
    x = case.normal(1, 10, case.k)
    y = case.run(gemm(case.codec, case.n, device, compute="float16"), x)
    case.product(x, half=True).check(y)


def test_float16_is_not_used_where_the_device_has_none():
    case = Case("q4f16_1", 33, 64)
    x = case.normal(1, 10, case.k)
    y = case.run(gemm(case.codec, case.n, device_of("webgpu"), compute="float16"), x)
    case.product(x).check(y)
