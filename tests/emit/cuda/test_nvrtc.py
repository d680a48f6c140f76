"""NVRTC from pip: found as pip lays it out, complete or refused, and as good as nvcc."""

import shutil
from types import SimpleNamespace

import msgspec
import pytest

from mlc_compile.emit.cuda import nvcc, nvrtc
from mlc_compile.emit.cuda.compiler import PIP_HINT
from mlc_compile.emit.cuda.nvrtc import FOLDER, PARTS, Nvrtc, find_nvrtc
from mlc_compile.errors import TargetError

ALL = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100")
# As TVM begins a source, with what our kernels use: fixed-width integers, half floats, infinity.
SOURCE = """
#include <cuda_fp16.h>
#include <math_constants.h>
#ifdef __CUDACC_RTC__
  #include <cuda/std/cstdint>
  using cuda::std::int64_t;
#else
  #include <cstdint>
  #include <cuda.h>
#endif
extern "C" __global__ void __launch_bounds__(128) widen_kernel(half* x, float* y, int64_t m) {
  __shared__ float last[128];
  last[threadIdx.x] = threadIdx.x < m ? expf(__half2float(x[threadIdx.x])) : -CUDART_INF_F;
  __syncthreads();
  y[threadIdx.x] = last[127 - threadIdx.x];
}
"""
REAL = find_nvrtc()

needs_nvrtc = pytest.mark.skipif(
    REAL is None or REAL.missing(ALL) is not None,
    reason="needs NVRTC: pip install 'mlc_compile[cuda]'",
)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """An empty folder where pip's packages of NVIDIA would be."""
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda _name: spec)
    monkeypatch.setattr(nvrtc, "installed", lambda _name: "13.0.88")
    return tmp_path / "nvidia" / FOLDER


def test_packages_without_nvrtc_are_none(packages):
    packages.mkdir(parents=True)
    assert find_nvrtc() is None


def test_no_packages_of_nvidia_at_all(monkeypatch):
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda _name: None)
    assert find_nvrtc() is None


def test_a_library_that_does_not_load_is_refused_and_not_raised(packages):
    for file in (nvrtc.NVRTC, *PARTS):
        (packages / file).parent.mkdir(parents=True, exist_ok=True)
        (packages / file).write_bytes(b"not a library")
    refusal = find_nvrtc().missing(ALL)
    assert str(refusal).startswith("nvrtc 13.0.88 does not load: ")
    assert refusal.exit_code == 4
    assert PIP_HINT in refusal.hint


@pytest.mark.parametrize("file", PARTS)
def test_each_package_that_is_missing_is_named(tmp_path, file):
    for other in set(PARTS) - {file}:
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).touch()
    refusal = Nvrtc("nvrtc 13.0", tmp_path, (13, 0)).missing(ALL)
    assert str(refusal) == f"nvrtc 13.0 needs {PARTS[file]}"
    assert refusal.hint == PIP_HINT


@needs_nvrtc
def test_kernels_take_what_they_take_through_nvcc():
    other = nvcc.find_nvcc()
    if other is None or other.release != REAL.release:
        pytest.skip(f"needs nvcc {REAL.release}")
    ours, theirs = (one.compile(SOURCE, ALL).resources for one in (REAL, other))
    assert len(ours) == len(ALL)
    for one, same in zip(ours, theirs, strict=True):  # all but the number of registers
        assert msgspec.structs.replace(one, registers=same.registers) == same


@needs_nvrtc
def test_the_same_source_gives_the_same_bytes_wherever_the_packages_are(tmp_path, monkeypatch):
    one = REAL.compile(SOURCE, ALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert REAL.compile(SOURCE, ALL) == one
    assert str(REAL.home).encode() not in one.code
    moved = tmp_path / FOLDER
    moved.symlink_to(REAL.home)
    assert Nvrtc(REAL.name, moved, REAL.release).compile(SOURCE, ALL).code == one.code


@needs_nvrtc
def test_an_error_in_the_source_is_quoted_with_its_line():
    with pytest.raises(
        TargetError, match=r"could not compile .* kernels\.cu\(1\): error: "
    ) as error:
        REAL.compile("nonsense x;", ("sm_80",))
    assert error.value.exit_code == 4


@needs_nvrtc
def test_an_architecture_that_it_does_not_know_is_told_with_near_ones():
    refusal = REAL.missing(("sm_80", "sm_900"))
    assert str(refusal) == f"{REAL.name} knows no architecture 'sm_900'"
    assert "'sm_90'" in refusal.hint


@needs_nvrtc
def test_it_compiles_where_no_program_can_be_run(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert shutil.which("gcc") is None
    assert REAL.compile(SOURCE, ("sm_80",)).code
