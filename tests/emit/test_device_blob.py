"""The blob of modules: what TVM writes is read and written back, and TVM loads what we change."""

import ctypes

import pytest
import tvm
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from tvm import IRModule

from mlc_compile.emit import cpu
from mlc_compile.emit.device_blob import (
    OWN_CODE,
    Blob,
    CudaCode,
    Entry,
    KernelEntry,
    packer,
    read_blob,
    read_cuda,
    write_blob,
    write_cuda,
)
from mlc_compile.emit.link.linker import as_tvm_callback, find_linker
from mlc_compile.schedule.kernels import norm
from mlc_compile.target import find_target

HOST = find_target("cpu")
SYMBOL = "__tvm_ffi__library_bin"  # where a library keeps its blob


def built():
    """A library of one CPU kernel: the virtual machine's code, which imports our own code."""
    kernel = norm.rms_norm(64, 1e-6, None).with_attr("global_symbol", "rms_norm")
    return cpu.build(IRModule({"rms_norm": kernel}), HOST)


def library(out, **options):
    built().export_library(str(out), fcompile=as_tvm_callback(find_linker(HOST), out), **options)
    return out


def blob_in(path):
    """The blob that a library carries, its leading size included."""
    start = ctypes.addressof(ctypes.c_char.in_dll(ctypes.CDLL(str(path)), SYMBOL))
    return ctypes.string_at(start, 8 + ctypes.c_uint64.from_address(start).value)


def host():
    return cpu.tvm_target(HOST)


def test_what_tvm_writes_is_read_and_written_back(tmp_path):
    data = blob_in(library(tmp_path / "lib.so"))
    blob = read_blob(data)
    assert [e.kind for e in blob.entries] == ["relax.VMExecutable", OWN_CODE]
    assert blob.imports == ((1,), ())
    assert write_blob(blob) == data


def test_a_blob_that_is_left_alone_gives_the_library_that_tvm_makes(tmp_path):
    theirs = library(tmp_path / "theirs.so").read_bytes()
    left = packer(lambda blob: blob, host())
    assert library(tmp_path / "ours.so", fpack_imports=left).read_bytes() == theirs


def test_tvm_loads_a_module_that_was_added_where_our_own_code_finds_it(tmp_path):
    seen = []
    loader = "ffi.Module.load_from_bytes.mlc_test"

    def load(payload):
        seen.append(bytes(payload))
        return tvm.runtime.load_module(str(plain))

    plain = library(tmp_path / "plain.so")
    add = packer(lambda blob: blob.with_import(Entry("mlc_test", b"\x00code")), host())
    out = library(tmp_path / "lib.so", fpack_imports=add)
    tvm_ffi.register_global_func(loader, load)
    try:
        loaded = tvm.runtime.load_module(str(out))
    finally:
        tvm_ffi.registry.remove_global_func(loader)
    assert seen == [b"\x00code"]
    (own,) = loaded.imports
    assert own.kind == "library"
    assert len(own.imports) == 1


def test_a_payload_is_changed_by_kind():
    blob = Blob((Entry(OWN_CODE, None), Entry("cuda", b"a"), Entry("x", b"b")), ((1, 2), (), ()))
    changed = blob.map_payloads("cuda", lambda payload: payload * 2)
    assert changed.entries == (Entry(OWN_CODE, None), Entry("cuda", b"aa"), Entry("x", b"b"))
    assert changed.imports == blob.imports


def test_an_added_module_leaves_the_others_imports_as_they_were():
    blob = Blob((Entry("vm", b""), Entry(OWN_CODE, None), Entry("x", b"b")), ((1,), (2,), ()))
    added = blob.with_import(Entry("new", b"n"))
    assert added.imports == ((1,), (2, 3), (), ())
    assert read_blob(write_blob(added)) == added


@given(
    st.builds(
        CudaCode,
        st.sampled_from(["cuda", "ptx", "cubin"]),
        st.lists(
            st.builds(
                KernelEntry,
                key=st.text(),
                name=st.text(),
                types=st.lists(
                    st.tuples(st.integers(0, 17), st.integers(0, 255), st.integers(1, 65535))
                ).map(tuple),
                launch=st.lists(st.text()).map(tuple),
                extra=st.lists(st.integers(0, 1)).map(tuple),
            )
        ).map(tuple),
        st.binary(),
    )
)
def test_any_cuda_payload_is_read_as_it_was_written(code):
    assert read_cuda(write_cuda(code)) == code


@pytest.mark.parametrize("cut", [slice(None, -1), slice(8, None)], ids=["end", "start"])
def test_a_blob_that_is_cut_is_our_bug(tmp_path, cut):
    data = blob_in(library(tmp_path / "lib.so"))
    with pytest.raises(AssertionError, match=r"not a blob of TVM 0\.27"):
        read_blob(data[cut])
