"""Metal libraries from any machine: MSL in a dylib for macOS, in a static library for iOS."""

import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tvm

from mlc_compile.emit import cpu, metal
from mlc_compile.emit.link.binary import members, read
from mlc_compile.emit.link.check_library import check_library
from mlc_compile.emit.link.linker import as_tvm_callback, find_linker
from mlc_compile.errors import TargetError
from mlc_compile.schedule.kernels import norm
from mlc_compile.target import find_target
from tests.emit.gpu_kernels import KERNELS, module

GOLDEN = Path(__file__).parents[1] / "golden" / "metal"
ROWS = ["metal", "metal-ios"]
needs_zig = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None or importlib.util.find_spec("lief") is None,
    reason="needs zig and lief: pip install 'mlc_compile[cross]'",
)


def library(name, directory, kernels=KERNELS):
    target = find_target(name)
    out = directory / target.library
    metal.emit(module(**kernels), target, find_linker(target), out)
    return out


@pytest.mark.parametrize("name", ROWS)
def test_tvm_gets_the_limits_of_the_row_under_all_their_names(name):
    row = find_target(name)
    attrs = metal.tvm_target(row).attrs
    assert int(attrs["max_num_threads"]) == int(attrs["max_threads_per_block"]) == 1024
    assert int(attrs["max_shared_memory_per_block"]) == row.device.shared_bytes
    assert int(attrs["thread_warp_size"]) == row.device.subgroup
    host = metal.tvm_target(row).host
    assert (str(host.attrs["mtriple"]), str(host.attrs["mcpu"])) == (row.triple, row.mcpu)


def test_a_host_cpu_that_llvm_does_not_know_is_refused_with_those_it_may_have_meant():
    odd = msgspec.structs.replace(find_target("metal"), mcpu="apple-m99")
    with pytest.raises(TargetError, match="LLVM knows no CPU 'apple-m99'") as error:
        metal.tvm_target(odd)
    assert error.value.exit_code == 4
    assert "did you mean 'apple-" in error.value.hint


@needs_zig
def test_a_dylib_has_every_kernel_as_source_and_asks_for_nothing_of_metal(tmp_path):
    out = library("metal", tmp_path)
    found = check_library(out, find_target("metal"))
    assert (found.format, found.arch, found.oldest) == ("Mach-O", "aarch64", "macOS 13.0")
    assert found.needed == ("/usr/lib/libSystem.B.dylib",)
    assert "TVMFFIErrorSetRaisedFromCStrParts" in found.imports
    for name in KERNELS:
        assert b"kernel void %s_kernel(" % name.encode() in out.read_bytes()


@needs_zig
def test_a_static_library_registers_itself_when_the_program_starts(tmp_path):
    out = library("metal-ios", tmp_path)
    found = check_library(out, find_target("metal-ios"))
    assert (found.format, found.arch, found.oldest) == ("Mach-O archive", "aarch64", "iOS 16.0")
    assert "TVMFFIEnvModRegisterSystemLibSymbol" in found.imports
    prefix = metal.system_prefix(metal.with_exact_constants(module(**KERNELS)))
    assert found.prefix == prefix
    assert list(members(out.read_bytes())) == ["lib0.o", f"{prefix}devc.o"]
    host = read(members(out.read_bytes())["lib0.o"], "lib0.o")
    strong = {name for name in host.defines if name.startswith("__tvm_ffi_")} - {"__tvm_ffi_main"}
    assert strong == {f"__tvm_ffi_{prefix}{name}" for name in KERNELS}
    for name in KERNELS:
        assert f"kernel void {prefix}{name}_kernel(".encode() in out.read_bytes()


def test_a_library_that_is_linked_in_is_found_by_its_prefix(tmp_path):
    """For this CPU: a Metal one registers itself no differently, when the program starts."""
    kernel = norm.rms_norm(64, 1e-6, None).with_attr("global_symbol", "norm")
    mod = metal.as_system_library(tvm.IRModule({"norm": kernel}))
    prefix = str(mod.attrs["system_lib_prefix"])
    row, out = find_target("cpu"), tmp_path / "app.so"
    code = cpu.build(mod, row)
    code.export_library(str(out), fcompile=as_tvm_callback(find_linker(row), out))
    ctypes.CDLL(str(out))
    x = np.full((1, 3, 64), 4, np.float32)
    y = tvm.runtime.tensor(np.empty_like(x))
    run = tvm.runtime.system_lib(prefix).get_function("norm", query_imports=True)
    run(tvm.runtime.tensor(x), tvm.runtime.tensor(np.ones(64, np.float32)), y)
    np.testing.assert_allclose(y.numpy(), 1, rtol=1e-6)


def test_modules_of_one_app_have_prefixes_of_their_own():
    """Where a module is built, and when, does not change its prefix."""
    code = (
        "from mlc_compile.emit import metal; from tests.emit.gpu_kernels import KERNELS, module; "
        "print(metal.system_prefix(module(**KERNELS)))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    own = metal.system_prefix(module(**KERNELS))
    assert ran.stdout.split() == [own]
    assert metal.system_prefix(module(double=KERNELS["double"])) != own


@needs_zig
@pytest.mark.parametrize("name", ROWS)
def test_the_same_kernels_give_the_same_bytes_in_another_directory(tmp_path, name):
    places = [tmp_path / "a", tmp_path / "deeper" / "b"]
    for place in places:
        place.mkdir(parents=True)
    one, other = (library(name, place).read_bytes() for place in places)
    assert one == other


def test_constants_of_the_source_are_exact():
    """1.570312, the seven digits that would be printed, is another number."""
    from mlc_compile.schedule.kernels import vector as v

    with v.kernel() as builder:
        x, y = v.argument("x", (64,)), v.argument("y", (64,))
        with tvm.tirx.script.builder.launch_thread("threadIdx.x", 64) as lane:
            v.put(x[lane] * v.const(1.5703125), y, lane)
    mod = tvm.IRModule({"main": builder.get().with_attr("global_symbol", "main")})
    built = metal.build(mod, find_target("metal"))
    (text,) = metal.kernel_sources(built.mod).values()
    assert "as_type<float>((uint)1070137344)" in text
    assert "1.570312" not in text


@pytest.mark.parametrize("name", KERNELS)
def test_emitted_source_is_the_golden_one(name, request):
    """`pytest tests/emit --refresh-goldens` writes what is emitted now."""
    built = metal.build(module(**{name: KERNELS[name]}), find_target("metal"))
    (text,) = metal.kernel_sources(built.mod).values()
    golden = GOLDEN / f"{name}.metal"
    if request.config.getoption("--refresh-goldens"):
        golden.write_text(text)
    assert text == golden.read_text()
