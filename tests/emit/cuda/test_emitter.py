"""CUDA libraries made without a GPU: code for every architecture, the same as TVM would make."""

import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import IRModule
from tvm.tirx.script import builder as T

from mlc_compile.emit.backend import Emitted
from mlc_compile.emit.cuda import emitter, nvcc
from mlc_compile.emit.cuda.compiler import Fatbin
from mlc_compile.emit.cuda.emitter import build, emit, source, spill_events, tvm_target
from mlc_compile.emit.cuda.fatbin import MACHINE_CODE, MAGIC, PTX, entries
from mlc_compile.emit.cuda.toolchain import find_compiler, probe
from mlc_compile.emit.link.linker import find_linker
from mlc_compile.errors import TargetError
from mlc_compile.target import find_target, target_names
from tests.emit.cuda.fatbins import whole
from tests.emit.gpu_kernels import KERNELS, THREADS, hoard, module, prim_func

MULTI = find_target("cuda-multi")
ARCHS = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100"]
PRESETS = [n for n in target_names() if n.startswith("cuda-")]
GOLDEN = Path(__file__).parents[2] / "golden" / "cuda"

needs_nvcc = pytest.mark.skipif(nvcc.find_nvcc() is None, reason="needs nvcc of a CUDA toolkit")


def library(out, target=MULTI, **bodies):
    """The library of some kernels, and what they take."""
    resources = emit(module(**(bodies or KERNELS)), target, find_linker(target), out).resources
    return out.read_bytes(), resources


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`library` of KERNELS for all architectures."""
    return library(tmp_path_factory.mktemp("made") / "lib.so")


def fatbins(code):
    """The fat binaries in a library."""
    starts = (m.start() for m in re.finditer(re.escape(struct.pack("<I", MAGIC)), code))
    return [code[s : s + 16 + struct.unpack_from("<Q", code, s + 8)[0]] for s in starts]


@needs_nvcc
@pytest.mark.parametrize("name", PRESETS)
def test_a_library_has_machine_code_for_each_architecture_and_ptx_of_the_newest(
    made, tmp_path, name
):
    target = find_target(name)
    code, _ = made if target == MULTI else library(tmp_path / "lib.so", target)
    (fatbin,) = fatbins(code)
    numbers = [int(arch.removeprefix("sm_")) for arch in target.device.archs]
    machine_code = ((MACHINE_CODE, n) for n in sorted(numbers))
    assert sorted(entries(fatbin)) == [(PTX, max(numbers)), *machine_code]
    assert b"__global__" not in code  # no source is left


@needs_nvcc
def test_the_same_kernels_give_the_same_library_wherever_it_is_made(made, tmp_path, monkeypatch):
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    monkeypatch.setattr(nvcc.tempfile, "tempdir", str(tmp_path / "deeper"))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert library(tmp_path / "deeper" / "lib.so") == made


# Makes libraries with TVM's own module for CUDA code, which exists only where libcuda loads;
# a stand-in that fails every call is enough, since nothing is run.
WITH_DRIVER = """
import ctypes, sys
from pathlib import Path
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
sys.path.insert(0, sys.argv[2])
from tests.emit.cuda import test_emitter as t
assert t.tvm.get_global_func("ffi.Module.create.cuda", allow_missing=True), "no CUDA runtime"
ours, theirs = Path("ours.so"), Path("theirs.so")
t.library(ours)
t.by_tvm(theirs)
kernels = [m for m in t.modules(t.tvm.runtime.load_module(str(ours))) if m.kind == "cuda"]
print([m.implements_function(f"{name}_kernel") for m in kernels for name in t.KERNELS])
"""
CALLED = (  # of libcuda, by TVM's CUDA runtime
    "cuDeviceGetName",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernelEx",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)


def by_tvm(out):
    """The library of KERNELS as TVM makes it where it may compile, with our compiler."""
    archs = MULTI.device.archs

    def compiled(code):
        return find_compiler(archs).compile(code, archs).code

    tvm_ffi.register_global_func(emitter.CALLBACK, compiled, override=True)
    target = tvm_target(MULTI)
    linked = emitter.as_tvm_callback(find_linker(MULTI), out)
    with target:
        made = emitter.relax.build(module(**KERNELS), target, relax_pipeline=None)
        made.export_library(str(out), fcompile=linked)


def modules(root):
    yield root
    for one in root.imports:
        yield from modules(one)


@needs_nvcc
def test_a_driver_changes_nothing_and_tvm_itself_would_write_the_same_and_loads_it(made, tmp_path):
    missing = probe(MULTI.device.archs).run_missing
    if "libcudart" in missing:
        pytest.skip(missing)
    compiler = shutil.which("gcc") or shutil.which("cc")
    stub = tmp_path / "libcuda.so.1"
    text = "\n".join(
        f"int {name}(void) {{ return 100; }}" for name in CALLED
    )  # CUDA_ERROR_NO_DEVICE
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", stub, "-xc", "-"]
    subprocess.run(command, input=text, text=True, check=True)
    ran = subprocess.run(
        [sys.executable, "-c", WITH_DRIVER, str(stub), str(Path(__file__).parents[3])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TVM_LOG_DEBUG": ""},
    )
    if "no CUDA runtime" in ran.stderr:
        pytest.skip("needs libcudart.so.13: pip install 'mlc_compile[cuda]'")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "[True, True, True]\n"
    here, _ = made
    assert (tmp_path / "ours.so").read_bytes() == here
    assert (tmp_path / "theirs.so").read_bytes() == here


@pytest.mark.parametrize("name", PRESETS)
def test_the_source_does_not_depend_on_the_architecture(name):
    bodies = module(**KERNELS)
    assert source(bodies, find_target(name)) == source(bodies, MULTI)


def test_what_the_target_says_reaches_tvm():
    row = tvm_target(find_target("cuda-sm90"))
    expected = {
        "arch": "sm_90",
        "max_num_threads": 1024,
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
    }
    assert {name: row.attrs[name] for name in expected} == expected
    assert str(row.host.attrs["mcpu"]) == find_target("cuda-sm90").mcpu
    assert str(tvm_target(MULTI).attrs["arch"]) == "sm_80"


def test_generating_code_leaves_tvms_own_compiler_in_its_place():
    before = tvm.get_global_func(emitter.CALLBACK)
    build(module(**KERNELS), MULTI)
    assert tvm.get_global_func(emitter.CALLBACK).same_as(before)


@needs_nvcc
def test_resources_are_those_of_every_kernel_on_every_architecture(made):
    _, resources = made
    names = [f"{name}_kernel" for name in KERNELS]
    assert [(r.kernel, r.arch) for r in resources] == [(k, a) for k in names for a in ARCHS]
    for one in resources:
        assert one.threads == THREADS
        assert 4 <= one.registers <= 64
        assert one.occupancy == 1.0
        assert not one.spills
        assert one.shared_bytes == (4 * THREADS if one.kernel == "row_sums_kernel" else 0)
    assert spill_events(resources) == ()


@needs_nvcc
def test_a_kernel_that_spills_is_an_event_with_its_name_and_architecture(tmp_path):
    target = find_target("cuda-sm90")
    _, resources = library(tmp_path / "lib.so", target, hoard=hoard)
    (event,) = spill_events(resources)
    assert event.subject == "hoard_kernel on sm_90"
    stores, loads = resources[0].spill_store_bytes, resources[0].spill_load_bytes
    assert min(stores, loads) > 0
    assert event.reason == (
        f"warning: out of registers, a thread spills {stores} bytes and reloads {loads}"
    )


@needs_nvcc
def test_a_module_without_kernels_needs_no_compilation(tmp_path, monkeypatch):
    def compile_nothing(*_arguments):
        raise AssertionError("there is nothing to compile")

    monkeypatch.setattr(nvcc.Nvcc, "compile", compile_nothing)
    host_only = IRModule(
        {
            "one": prim_func(
                lambda a: T.buffer_store(a("x", (1,)), 1.0, [0]),
                global_symbol="one",
                target=tvm_target(MULTI).host,
            )
        }
    )
    assert emit(host_only, MULTI, find_linker(MULTI), tmp_path / "lib.so") == Emitted()


def test_without_a_compiler_nothing_is_generated(tmp_path, monkeypatch):
    monkeypatch.setattr(emitter, "find_compiler", lambda _archs: find_compiler(("sm_9999",)))
    monkeypatch.setattr(emitter, "build", None)
    with pytest.raises(TargetError, match=r"sm_9999|no CUDA compiler"):
        library(tmp_path / "lib.so")


def test_what_the_compiler_makes_is_what_the_library_carries(tmp_path, monkeypatch):
    class Compiler:
        name = "fake 1"

        def compile(self, text, archs):
            assert "double_kernel" in text
            assert archs == MULTI.device.archs
            return whole(archs, [f"{name}_kernel" for name in KERNELS], b"the machine's code")

    monkeypatch.setattr(emitter, "find_compiler", lambda _archs: Compiler())
    assert b"the machine's code" in library(tmp_path / "lib.so")[0]


@pytest.mark.parametrize(
    ("names", "code", "fault"),
    [
        (list(KERNELS), b"garbage", "no fat binary"),
        (list(KERNELS)[1:], None, r"what is taken by double_kernel on sm_80"),
    ],
)
def test_what_is_not_whole_is_refused_and_no_library_is_left(
    tmp_path, monkeypatch, names, code, fault
):
    class Compiler:
        name = "fake 1"

        def compile(self, _text, archs):
            made = whole(archs, [f"{name}_kernel" for name in names])
            return made if code is None else Fatbin(code, made.resources)

    monkeypatch.setattr(emitter, "find_compiler", lambda _archs: Compiler())
    with pytest.raises(TargetError, match=f"fake 1 ended without an error, but .*{fault}"):
        library(tmp_path / "lib.so")
    assert not (tmp_path / "lib.so").exists()


@pytest.mark.parametrize("name", KERNELS)
def test_emitted_source_is_the_golden_one(name, request):
    """`pytest tests/emit --refresh-goldens` writes what is emitted now."""
    text = source(module(**{name: KERNELS[name]}), MULTI)
    # What TVM puts before the kernels is its own affair.
    text = text[text.index('extern "C" __global__') :]
    golden = GOLDEN / f"{name}.cu"
    if request.config.getoption("--refresh-goldens", default=False):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.gpu
@needs_nvcc
def test_kernels_compute_on_a_device(tmp_path):
    if not probe(ARCHS).devices or not tvm.cuda().exist:
        pytest.skip("needs a CUDA device")
    library(tmp_path / "lib.so")
    loaded = tvm.runtime.load_module(str(tmp_path / "lib.so"))
    device = tvm.cuda()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4 * THREADS), np.float32)
    half = x[:, :THREADS].astype(np.float16)
    cases = {
        "double": (x, 2 * x, 0),
        # 128 terms of size one, summed in another order.
        "row_sums": (x[:, :THREADS].copy(), x[:, :THREADS].sum(1), 1e-4),
        "widen": (half, np.exp(half.astype(np.float32)), 1e-5),
    }
    for name, (given, expected, tolerance) in cases.items():
        y = tvm.runtime.tensor(np.empty_like(expected), device)
        run = loaded.get_function(name, query_imports=True)
        run(tvm.runtime.tensor(given, device), y)
        np.testing.assert_allclose(y.numpy(), expected, rtol=tolerance, atol=tolerance)


def test_a_target_keeps_its_order_of_architectures_but_names_the_oldest_to_tvm():
    device = msgspec.structs.replace(MULTI.device, archs=("sm_90", "sm_80"))
    assert str(tvm_target(msgspec.structs.replace(MULTI, device=device)).attrs["arch"]) == "sm_80"
