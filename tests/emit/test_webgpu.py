"""Libraries for browsers, linked here: WGSL, host code and runtime in one checked wasm module."""

import importlib.util

import pytest
import tvm

from mlc_compile.emit import webgpu
from mlc_compile.emit.link.binary import read
from mlc_compile.emit.link.check_library import check_library
from mlc_compile.emit.link.linker import ZIG, find_linker
from mlc_compile.emit.tool import run_tool
from mlc_compile.emit.wasm import abi
from mlc_compile.emit.wasm.module import MAGIC
from mlc_compile.emit.wasm.runtime import runtime_objects
from mlc_compile.errors import TargetError
from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels.gpu import attention_pages
from mlc_compile.target import find_target, target_names
from tests.emit.gpu_kernels import KERNELS, module

ROW = find_target("webgpu")
BROWSERS = [name for name in target_names() if find_target(name).page_runs]
needs_zig = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None or importlib.util.find_spec("lief") is None,
    reason="needs zig and lief: pip install 'mlc_compile[cross]'",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library of KERNELS."""
    out = tmp_path_factory.mktemp("webgpu") / ROW.library
    webgpu.emit(module(**KERNELS), ROW, find_linker(ROW), out)
    return out


def test_tvm_gets_the_limits_of_the_row():
    target = webgpu.tvm_target(ROW)
    assert int(target.attrs["max_num_threads"]) == ROW.device.threads
    assert int(target.attrs["max_shared_memory_per_block"]) == ROW.device.shared_bytes
    assert str(target.host.attrs["mtriple"]) == ROW.triple


def test_floats_are_told_by_their_bits_where_seven_digits_are_not_enough():
    """683565248, of RoPE's angles, would be printed as 6.835653e+08."""
    heads = Attention(0, 4, 2, 32, 1e-6, 1.0, (1.0,) * 16)
    kernel = attention_pages.rotate(heads, "float32", ROW.device)
    built = webgpu.build(tvm.IRModule({"f": kernel.with_attr("global_symbol", "f")}), ROW)
    (wgsl,) = webgpu.shaders(built.mod).values()
    assert "bitcast<f32>" in wgsl
    assert "6.835653e+08" not in wgsl


@needs_zig
def test_a_library_asks_for_what_the_page_provides_and_has_what_it_calls(library):
    found = check_library(library, ROW)
    assert (found.format, found.arch) == ("WebAssembly", "wasm32")
    assert found.needed == ("env", "wasi_snapshot_preview1")
    assert set(found.imports) <= frozenset().union(*abi.IMPORTS.values())
    assert read(library.read_bytes(), library.name).defines >= abi.EXPORTS
    for name in KERNELS:
        assert b"fn %s_kernel(" % name.encode() in library.read_bytes()


@needs_zig
def test_the_bytes_depend_on_the_module_alone(library, tmp_path):
    again = tmp_path / "elsewhere" / ROW.library
    again.parent.mkdir()
    webgpu.emit(module(**KERNELS), ROW, find_linker(ROW), again)
    assert again.read_bytes() == library.read_bytes()


@needs_zig
def test_an_import_that_the_page_lacks_is_refused_by_name(tmp_path):
    source, out = tmp_path / "f.c", tmp_path / ROW.library
    source.write_text(
        "int start_thread(int);\n"
        '__attribute__((export_name("f"))) int f(int x) { return start_thread(x); }\n'
    )
    command = [*ZIG, "cc", "-target", ROW.zig, "-c", "-o", "f.o", source.name]
    run_tool(command, tmp_path, tmp_path / "f.o", "there is no object", "")
    find_linker(ROW).link([*runtime_objects(), str(tmp_path / "f.o")], out)
    with pytest.raises(TargetError, match="asks for start_thread of env") as error:
        check_library(out, ROW)
    assert error.value.exit_code == 4


def test_a_module_without_the_runtime_is_refused(tmp_path):
    out = tmp_path / ROW.library
    out.write_bytes(MAGIC)
    with pytest.raises(TargetError, match=r"lib\.wasm for webgpu lacks TVMFFI"):
        check_library(out, ROW)


@pytest.mark.parametrize("name", BROWSERS)
def test_no_profile_promises_more_than_web_llm_asks_a_device_for(name):
    """It asks for these, or for less; of what it does not ask, a device has the defaults."""
    device = find_target(name).device
    assert device.threads <= 1024
    assert device.shared_bytes <= 32 << 10
    assert device.buffers <= 10
    assert device.binding_bytes in {128 << 20, 1 << 30}
    assert (device.subgroup, device.grid) == (1, 65535)
