"""Libraries for every machine are what their target says, and one that is not is refused."""

import importlib.util
import os
import subprocess
from pathlib import Path

import msgspec
import pytest
from tvm import IRModule
from tvm_ffi.libinfo import find_libtvm_ffi

from mlc_compile.emit import cpu
from mlc_compile.emit.link.binary import members, read
from mlc_compile.emit.link.check_library import check_library
from mlc_compile.emit.link.linker import ZIG, find_linker
from mlc_compile.emit.link.symbols import FFI
from mlc_compile.errors import TargetError
from mlc_compile.schedule.kernels import norm, rope
from mlc_compile.target import find_target

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("ziglang") is None or importlib.util.find_spec("lief") is None,
        reason="needs zig and lief: pip install 'mlc_compile[cross]'",
    )
]

RAISE = "TVMFFIErrorSetRaisedFromCStrParts"
SYSTEM = "/usr/lib/libSystem.B.dylib"

# target -> format, arch, oldest system, libraries it loads, some of what it asks for
CHECKED = {
    "cpu-aarch64": ("ELF", "aarch64", "glibc 2.17", {"libm.so.6"}, {"sincosf"}),
    "cpu-android-arm64": ("ELF", "aarch64", "", {"libm.so", "libtvm_ffi.so"}, {"sinf", "cosf"}),
    "cpu-apple-m1": ("Mach-O", "aarch64", "macOS 13.0", {SYSTEM}, {"__sincosf_stret"}),
    "cpu-windows-x86-64": ("PE", "x86_64", "Windows 6.0", {"tvm_ffi.dll", "KERNEL32.dll"}, set()),
}
# zig builds its C library for Windows before the first link: a minute.
ON_MANY = [
    pytest.param(name, marks=pytest.mark.slow if "windows" in name else ()) for name in CHECKED
]


def module():
    """Kernels that ask for TVM, and for sine and cosine."""
    kernels = {"norm": norm.rms_norm(64, 1e-6, None), "angles": rope.angles(16, 1.0)}
    return IRModule({n: k.with_attr("global_symbol", n) for n, k in kernels.items()})


def library(name, directory):
    target = find_target(name)
    out = directory / target.library
    cpu.emit(module(), target, find_linker(target), out)
    return out


@pytest.mark.parametrize("name", ON_MANY)
def test_a_library_is_what_its_target_says(tmp_path, name):
    found = check_library(library(name, tmp_path), find_target(name))
    form, arch, oldest, needed, imports = CHECKED[name]
    assert (found.format, found.arch, found.oldest) == (form, arch, oldest)
    assert needed <= set(found.needed)
    assert imports | {RAISE} <= set(found.imports)


@pytest.mark.parametrize("name", ON_MANY)
def test_the_same_kernels_give_the_same_bytes_in_another_directory(tmp_path, name):
    places = [tmp_path / "a", tmp_path / "deeper" / "b"]
    for place in places:
        place.mkdir(parents=True)
    one, other = (library(name, place) for place in places)
    assert one.read_bytes() == other.read_bytes()
    assert [p.name for p in places[0].iterdir()] == [one.name]  # and nothing beside it


def test_this_machine_s_own_library_is_read_too(tmp_path):
    assert RAISE in check_library(library("cpu", tmp_path), find_target("cpu")).imports


def test_what_is_left_to_tvm_is_what_its_library_has():
    path = Path(find_libtvm_ffi())
    assert read(path.read_bytes(), path.name).defines >= FFI


@pytest.fixture
def assembled(tmp_path):
    """`assembled("cpu-aarch64", ".globl f\\nf: ...")`: a library of hand-written code."""

    def link(name, text, **fields):
        target = msgspec.structs.replace(find_target(name), **fields)
        (tmp_path / "lib0.s").write_text(text)
        compile_ = [*ZIG, "cc", "-target", target.zig, "-c", "lib0.s", "-o", "lib0.o"]
        subprocess.run(compile_, cwd=tmp_path, check=True)
        find_linker(target).link([str(tmp_path / "lib0.o")], tmp_path / target.library)
        return tmp_path / target.library, target

    return link


ELF_CALL = ".globl __tvm_ffi_f\n__tvm_ffi_f: b {}\n"
MACHO_CALL = ".globl ___tvm_ffi_f\n___tvm_ffi_f: b _{}\n"


@pytest.mark.parametrize(
    ("name", "text", "symbol"),
    [
        ("cpu-aarch64", ELF_CALL, "nobody_has_this"),
        ("cpu-apple-m1", MACHO_CALL, "nobody_has_this"),
        ("cpu-aarch64", ELF_CALL, "TVMBackendParallelLaunch"),  # a pointer that the loader fills
    ],
)
def test_a_function_that_nobody_has_is_refused(assembled, name, text, symbol):
    path, target = assembled(name, text.format(symbol))
    said = f"{path.name} for {name} asks for {symbol}, expected only functions of TVM's runtime"
    with pytest.raises(TargetError, match=said) as error:
        check_library(path, target)
    assert error.value.exit_code == 4


@pytest.mark.parametrize(
    "text", [ELF_CALL.format("memcpy"), ELF_CALL.format(RAISE), ".weak w\n" + ELF_CALL.format("w")]
)
def test_functions_of_tvm_and_libc_and_weak_ones_may_be_asked_for(assembled, text):
    check_library(*assembled("cpu-aarch64", text))


def test_a_libc_newer_than_the_target_s_is_refused(assembled):
    path, target = assembled("cpu-aarch64", ELF_CALL.format("memcpy"))
    older = msgspec.structs.replace(target, zig="aarch64-linux-gnu.2.9")
    with pytest.raises(TargetError, match=r"needs glibc 2\.17, expected glibc 2\.9 or older"):
        check_library(path, older)
    check_library(path, msgspec.structs.replace(older, name="cpu"))  # this machine has what it has


def test_a_macos_newer_than_the_target_s_is_refused(assembled):
    path, target = assembled("cpu-apple-m1", MACHO_CALL.format("memcpy"))
    older = msgspec.structs.replace(target, zig="aarch64-macos.12.6")
    with pytest.raises(TargetError, match=r"needs macOS 13\.0, expected macOS 12\.6 or older"):
        check_library(path, older)


def test_another_machine_s_library_is_refused(assembled):
    path, _ = assembled("cpu-aarch64", ELF_CALL.format("memcpy"))
    for name, expected in (("cpu-x86-64-v3", "ELF for x86_64"), ("metal", "Mach-O for aarch64")):
        with pytest.raises(TargetError, match=f"is ELF for aarch64, expected {expected}"):
            check_library(path, find_target(name))


def test_a_library_that_loads_others_is_refused(assembled):
    """Android's are named otherwise than Linux's."""
    path, _ = assembled("cpu-aarch64", ELF_CALL.format("memcpy"))
    with pytest.raises(
        TargetError, match=r"loads libc\.so\.6, expected at most libc\.so, libm\.so"
    ):
        check_library(path, find_target("cpu-android-arm64"))


def test_a_library_that_calls_itself_by_another_name_is_refused(assembled):
    path, target = assembled("cpu-apple-m1", MACHO_CALL.format("memcpy"))
    path = path.rename(path.with_name("lib2.dylib"))
    said = "calls itself '@rpath/lib.dylib', expected '@rpath/lib2.dylib'"
    with pytest.raises(TargetError, match=said):
        check_library(path, target)


@pytest.mark.parametrize(
    "text", ["/srv/secret/lib0.o", r"C:\\Users\\me\\lib0.o", f"in {os.path.expanduser('~')}/lib0.o"]
)
def test_a_path_of_this_machine_is_refused(assembled, text):
    path, target = assembled(
        "cpu-aarch64", f'{ELF_CALL.format("memcpy")}.data\n.asciz ""\n.asciz "{text}"\n'
    )
    with pytest.raises(TargetError, match=r"contains the path .*, expected no absolute path"):
        check_library(path, target)


def test_a_library_that_shows_nothing_to_tvm_is_refused(assembled):
    path, target = assembled("cpu-aarch64", ".globl f\nf: b memcpy\n")
    with pytest.raises(TargetError, match="exports no function, expected names that begin with"):
        check_library(path, target)


def test_apple_silicon_gets_no_unsigned_code(assembled):
    import lief

    path, target = assembled("cpu-apple-m1", MACHO_CALL.format("memcpy"))
    dylib = lief.parse(str(path))
    dylib.remove_signature()
    dylib.write(str(path))
    with pytest.raises(TargetError, match="is not signed, expected a code signature"):
        check_library(path, target)


def test_what_is_no_library_is_refused(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(TargetError, match=r"lib\.so is no ELF, Mach-O, PE or WebAssembly"):
        check_library(path, find_target("cpu"))


def test_members_of_an_archive_have_their_names_and_contents(tmp_path):
    """A name stands in the header, or before the content where it is longer."""
    contents = {"a.o": b"odd", "a_long_name_with_a_tail.o": b"four"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    command = [*ZIG, "ar", "--format=darwin", "rcD", "x.a", *contents]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = members((tmp_path / "x.a").read_bytes())
    assert {name: content.rstrip(b"\n") for name, content in found.items()} == contents
