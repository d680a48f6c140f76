"""Vulkan libraries from any machine: SPIR-V in a host library, as TVM's own would carry it."""

import ctypes
import hashlib
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tvm import IRModule
from tvm.tirx.script import builder as T

from mlc_compile.emit import gpu
from mlc_compile.emit.backend import Emitted
from mlc_compile.emit.cuda import emitter as cuda
from mlc_compile.emit.device_blob import OWN_CODE, read_blob, read_cuda
from mlc_compile.emit.link.check_library import check_library
from mlc_compile.emit.link.linker import find_linker
from mlc_compile.emit.vulkan.emitter import (
    HOOK,
    THEIRS,
    build,
    emit,
    facts_of,
    kernels_kept,
    shaders,
    tvm_target,
)
from mlc_compile.emit.vulkan.payload import LAYOUT, write_vulkan
from mlc_compile.errors import TargetError
from mlc_compile.target import find_target, target_names
from tests.emit.gpu_kernels import KERNELS, THREADS, module, prim_func

ROW = find_target("vulkan")
PRESETS = [name for name in target_names() if find_target(name).backend == "vulkan"]
NAMES = [f"{name}_kernel" for name in KERNELS]
SYMBOL = "__tvm_ffi__library_bin"  # where a library keeps its blob

needs_zig = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None or importlib.util.find_spec("lief") is None,
    reason="needs zig and lief: pip install 'mlc_compile[cross]'",
)


def library(out, target=ROW, **bodies):
    return emit(module(**(bodies or KERNELS)), target, find_linker(target), out)


def payload(target=ROW):
    """What a library of KERNELS is to carry."""
    kernels = build(module(**KERNELS), target).kernels
    entries = [gpu.kernel_entry(name, func) for name, func in kernels.items()]
    return write_vulkan(entries, shaders(kernels, target.device))


def blob_in(path):
    start = ctypes.addressof(ctypes.c_char.in_dll(ctypes.CDLL(str(path)), SYMBOL))
    return read_blob(ctypes.string_at(start, 8 + ctypes.c_uint64.from_address(start).value))


def hook():
    return tvm.get_global_func(HOOK, allow_missing=True)


@pytest.fixture
def their_generator():
    """A TVM that writes SPIR-V itself: here it gives no code for whatever it is asked."""
    asked = []
    tvm_ffi.register_global_func(HOOK, lambda mod, _target: asked.append(mod))
    yield asked
    tvm_ffi.registry.remove_global_func(HOOK)


@pytest.mark.parametrize("name", PRESETS)
def test_tvm_gets_the_limits_and_abilities_of_the_row(name):
    row = find_target(name)
    target = tvm_target(row)
    expected = {
        "max_num_threads": row.device.threads,
        "max_threads_per_block": row.device.threads,
        "max_shared_memory_per_block": row.device.shared_bytes,
        "thread_warp_size": 1,
        "supports_float16": row.device.f16,
        "supports_16bit_buffer": row.device.f16,
        "supports_8bit_buffer": row.device.int8,
    }
    assert {key: target.attrs[key] for key in expected} == expected
    assert str(target.host.attrs["mtriple"]) == row.triple


def test_the_host_calls_kernels_as_tvm_lets_it_call_those_for_cuda():
    source = cuda.build(module(**KERNELS), find_target("cuda-sm80"))
    blob = read_blob(
        tvm.get_global_func("runtime.ModulePackImportsToTensor")(source.mod).numpy().tobytes()
    )
    (theirs,) = (read_cuda(e.payload).kernels for e in blob.entries if e.kind == "cuda")
    ours = [gpu.kernel_entry(*pair) for pair in build(module(**KERNELS), ROW).kernels.items()]
    assert ours == sorted(theirs, key=lambda kernel: kernel.key)


def test_numbers_are_passed_by_their_types():
    def fill(argument):
        n, flag = (T.arg(t, tvm.tirx.Var(t, t)) for t in ("int32", "bool"))
        x = argument("x", (THREADS,))
        with T.launch_thread("threadIdx.x", THREADS) as lane, T.If(flag), T.Then():
            T.buffer_store(x, tvm.tirx.Cast("float32", n), [lane])

    ((name, func),) = build(module(fill=fill), ROW).kernels.items()
    types = zip(func.params, gpu.kernel_entry(name, func).types, strict=True)
    assert {str(param.name): one for param, one in types} == {
        "x_ptr": (3, 64, 1),
        "int32": (0, 32, 1),
        "bool": (6, 8, 1),
    }


def test_a_library_for_this_machine_carries_the_shaders_beside_its_own_code(tmp_path):
    library(tmp_path / "lib.so")
    blob = blob_in(tmp_path / "lib.so")
    assert [e.kind for e in blob.entries] == ["relax.VMExecutable", OWN_CODE, "vulkan"]
    assert blob.imports == ((1,), (2,), ())
    assert blob.entries[2].payload == payload()


@needs_zig
def test_a_library_for_android_carries_the_same_shaders(tmp_path):
    target = find_target("vulkan-android")
    library(tmp_path / "lib.so", target)
    found = check_library(tmp_path / "lib.so", target)
    assert (found.format, found.arch) == ("ELF", "aarch64")
    assert payload(target) in (tmp_path / "lib.so").read_bytes()


def test_what_each_kernel_takes_is_told_and_what_a_device_must_have(tmp_path):
    told = library(tmp_path / "lib.so")
    assert [one.kernel for one in told.shaders] == NAMES
    shared = {one.kernel: one.shared_bytes for one in told.shaders}
    assert shared == {"double_kernel": 0, "row_sums_kernel": 4 * THREADS, "widen_kernel": 0}
    for one in told.shaders:
        assert one.local_size == (THREADS, 1, 1)
        assert (one.buffers, one.scalars, one.uniform_block) == (2, 1, False)
        assert one.code_bytes > 100
    needs = told.needs
    assert needs.layout == LAYOUT
    assert (needs.threads, needs.shared_bytes, needs.buffers) == (THREADS, 4 * THREADS, 2)
    by_kernel = {one.kernel: set(one.capabilities) for one in told.shaders}
    assert "StorageBuffer16BitAccess" in by_kernel["widen_kernel"] - by_kernel["double_kernel"]
    assert set(needs.capabilities) == set.union(*by_kernel.values())


@pytest.mark.parametrize(("dtype", "nbytes"), [("float16", 2), ("float32", 4), ("int16", 4)])
def test_what_a_block_shares_is_told_as_the_shader_holds_it(dtype, nbytes):
    """Vectors with all their lanes, and a small whole number in a word."""

    def turned(argument):
        x, y = (argument(name, (4 * THREADS,), dtype) for name in "xy")
        with T.launch_thread("blockIdx.x", 1), T.launch_thread("threadIdx.x", THREADS) as lane:
            scratch = T.alloc_buffer((4 * THREADS,), dtype, scope="shared")
            at = tvm.tirx.Ramp(lane * 4, 1, 4)
            T.buffer_store(scratch, x[at], [at])
            T.evaluate(
                tvm.tirx.call_intrin("void", "tirx.tvm_storage_sync", tvm.ir.StringImm("shared"))
            )
            back = tvm.tirx.Ramp((THREADS - 1 - lane) * 4, 1, 4)
            T.buffer_store(y, scratch[back], [at])

    kernels = build(module(turned=turned), ROW).kernels
    ((func, shader),) = zip(kernels.values(), shaders(kernels, ROW.device), strict=True)
    assert facts_of(func, shader).shared_bytes == nbytes * 4 * THREADS


def digest(directory):
    """Of a library of KERNELS, for a process of its own too."""
    library(directory / "lib.so")
    return hashlib.sha256((directory / "lib.so").read_bytes()).hexdigest()


def test_the_same_kernels_give_the_same_bytes_in_another_process_and_directory(tmp_path):
    code = (
        "import sys; from pathlib import Path; "
        "from tests.emit.vulkan.test_emitter import digest; print(digest(Path(sys.argv[1])))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONHASHSEED": "7", "LC_ALL": "de_DE.UTF-8"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    (tmp_path / "deeper").mkdir()
    assert ran.stdout.split() == [digest(tmp_path / "deeper")]


def test_a_module_without_kernels_is_a_library_without_shaders(tmp_path):
    alone = prim_func(
        lambda a: T.buffer_store(a("x", (1,)), 1.0, [0]),
        global_symbol="one",
        target=tvm_target(ROW).host,
    )
    told = emit(IRModule({"one": alone}), ROW, find_linker(ROW), tmp_path / "lib.so")
    assert told == Emitted()
    kinds = [e.kind for e in blob_in(tmp_path / "lib.so").entries]
    assert kinds == ["relax.VMExecutable", OWN_CODE]


def test_a_generator_that_tvm_has_is_left_to_its_work_and_told(tmp_path, their_generator):
    before = hook()
    told = library(tmp_path / "lib.so")
    assert told == Emitted(events=(THEIRS,))
    assert len(their_generator) == 1
    assert hook().same_as(before)
    kinds = [e.kind for e in blob_in(tmp_path / "lib.so").entries]
    assert kinds == ["relax.VMExecutable", OWN_CODE]  # theirs gave nothing, and nothing is added


def test_tvm_is_answered_only_while_a_module_is_built(tmp_path):
    library(tmp_path / "lib.so")
    assert hook() is None

    def fail():
        with kernels_kept():
            assert hook() is not None
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fail()
    assert hook() is None


def test_a_kernel_that_cannot_be_said_in_spirv_is_named_and_no_library_is_left(tmp_path):
    def odd(argument):
        x = argument("x", (THREADS,))
        with T.launch_thread("threadIdx.x", THREADS) as lane:
            value = tvm.tirx.call_extern("float32", "an_unknown_function", x[lane])
            T.buffer_store(x, value, [lane])

    with pytest.raises(TargetError, match="odd_kernel") as error:
        library(tmp_path / "lib.so", double=KERNELS["double"], odd=odd)
    assert error.value.exit_code == 4
    assert "an_unknown_function" in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_emitted_is_valid(name, tmp_path):
    validator = shutil.which("spirv-val")
    if validator is None:
        pytest.skip("needs spirv-val: apt-get install spirv-tools")
    row = find_target(name)
    kernels = build(module(**KERNELS), row).kernels
    for shader in shaders(kernels, row.device):
        (tmp_path / shader.name).write_bytes(shader.code)
        assert struct.unpack_from("<2I", shader.code) == (0x07230203, 0x00010300)  # SPIR-V 1.3
        command = [validator, "--target-env", "vulkan1.1", str(tmp_path / shader.name)]
        subprocess.run(command, check=True)
