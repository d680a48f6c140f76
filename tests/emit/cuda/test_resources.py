"""What a kernel takes is read from the compiler's report, and how many fit from a table."""

import pytest

from mlc_compile.emit.cuda.compiler import FIRST_RELEASE
from mlc_compile.emit.cuda.resources import (
    MULTIPROCESSORS,
    Resources,
    arch_number,
    occupancy,
    read_resources,
)

SOURCE = """
extern "C" __global__ void __launch_bounds__(256) sum_kernel(float* x);
extern "C" __global__ void __launch_bounds__(256) sum_kernel(float* x) {
}
extern "C" __global__ void any_kernel(float* x) {
}
"""

# As `ptxas -v` of CUDA 13.0 reports through nvcc.
NVCC = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'sum_kernel' for 'sm_90'
ptxas info    : Function properties for sum_kernel
    2800 bytes stack frame, 3548 bytes spill stores, 3536 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 157.921 ms
ptxas info    : Compiling entry function 'any_kernel' for 'sm_90'
ptxas info    : Function properties for any_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 368 bytes cmem[0]
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'sum_kernel' for 'sm_80'
ptxas info    : Function properties for helper
    16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Function properties for sum_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 20 registers, used 1 barriers, 1024 bytes smem, 368 bytes cmem[0]
"""

# The same through NVRTC's log: the line of the stack begins otherwise.
NVRTC = NVCC.replace("\n    ", "\nptxas         .     ")


@pytest.mark.parametrize("said", [NVCC, NVRTC], ids=["nvcc", "nvrtc"])
def test_reports_are_read_by_kernel_and_architecture(said):
    none = {"local_bytes": 0, "spill_store_bytes": 0, "spill_load_bytes": 0}
    assert read_resources(SOURCE, said) == (
        Resources(
            kernel="any_kernel",
            arch="sm_90",
            threads=None,
            registers=8,
            shared_bytes=0,
            occupancy=None,
            **none,
        ),
        Resources(
            kernel="sum_kernel",
            arch="sm_80",
            threads=256,
            registers=20,
            shared_bytes=1024,
            occupancy=1.0,
            **none,
        ),
        Resources(
            kernel="sum_kernel",
            arch="sm_90",
            threads=256,
            registers=64,
            shared_bytes=1024,
            local_bytes=2800,
            spill_store_bytes=3548,
            spill_load_bytes=3536,
            occupancy=0.5,
        ),
    )
    assert [one.spills for one in read_resources(SOURCE, said)] == [False, False, True]


def test_a_silent_compiler_reports_nothing():
    assert read_resources(SOURCE, "") == ()


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "warps", "of"),
    [
        pytest.param("sm_80", 256, 32, 0, 64, 64, id="all fit"),
        pytest.param("sm_80", 256, 64, 0, 32, 64, id="registers"),
        pytest.param("sm_80", 256, 33, 0, 48, 64, id="registers are handed out by eight a thread"),
        pytest.param("sm_80", 32, 16, 0, 32, 64, id="blocks"),
        pytest.param("sm_86", 32, 16, 0, 16, 48, id="fewer blocks"),
        pytest.param("sm_86", 1024, 32, 0, 32, 48, id="blocks do not divide the warps"),
        pytest.param("sm_90", 256, 32, 48 << 10, 32, 64, id="shared memory, 1 KiB of it kept"),
        pytest.param("sm_89", 128, 32, 99 << 10, 4, 48, id="one block takes all shared memory"),
        pytest.param("sm_100", 33, 32, 0, 64, 64, id="a warp is never shared"),
        pytest.param("sm_120", 32, 16, 0, 24, 48, id="blocks of a smaller one"),
        pytest.param("sm_120", 128, 32, 49 << 10, 8, 48, id="two share 100 KiB"),
    ],
)
def test_occupancy_is_what_the_scarcest_resource_allows(
    arch, threads, registers, shared, warps, of
):
    assert occupancy(arch, threads, registers, shared) == warps / of


def test_every_architecture_whose_release_we_know_has_a_row():
    assert set(MULTIPROCESSORS) == set(FIRST_RELEASE)


def test_occupancy_is_unknown_without_a_block_size_or_a_row():
    assert occupancy("sm_80", None, 32, 0) is None
    assert occupancy("sm_999", 256, 32, 0) is None


def test_architectures_are_ordered_by_number():
    assert sorted(["sm_100", "sm_90a", "sm_80"], key=arch_number) == ["sm_80", "sm_90a", "sm_100"]
