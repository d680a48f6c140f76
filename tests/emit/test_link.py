"""Which linker is taken, what it is asked for, and what is said when there is none."""

import errno
import platform
import shutil
import sys

import pytest

from mlc_compile.emit import link
from mlc_compile.emit.link import Linker, find_linker, is_native
from mlc_compile.errors import TargetError
from mlc_compile.target import find_target, target_names

CROSS = [n for n in target_names() if n != "cpu"]


@pytest.fixture
def tools(monkeypatch):
    """`tools("gcc", zig=False)`: pretend that only these are installed."""

    def install(*compilers, zig):
        monkeypatch.setattr(shutil, "which", lambda name: name if name in compilers else None)
        find = {True: lambda _name: object(), False: lambda _name: None}[zig]
        monkeypatch.setattr(link.importlib.util, "find_spec", find)

    return install


@pytest.fixture
def system(monkeypatch):
    """`system("Linux", "x86_64")`: pretend to be such a machine."""

    def pretend(name, machine):
        monkeypatch.setattr(platform, "system", lambda: name)
        monkeypatch.setattr(platform, "machine", lambda: machine)

    return pretend


@pytest.mark.parametrize("compiler", ["cc", "gcc", "clang"])
def test_the_system_compiler_links_for_this_machine(tools, compiler):
    tools(compiler, zig=True)
    linker = find_linker(find_target("cpu"))
    assert linker.name == compiler
    assert linker.command[0] == compiler
    assert "-shared" in linker.command


def test_zig_links_for_this_machine_when_there_is_no_compiler(tools):
    tools(zig=True)
    target = find_target("cpu")
    linker = find_linker(target)
    assert linker.name == "zig"
    assert linker.command[:6] == (sys.executable, "-m", "ziglang", "cc", "-target", target.zig)


@pytest.mark.parametrize("zig", [True, False])
def test_another_machine_needs_zig(tools, system, zig):
    system("Linux", "x86_64")
    tools("cc", zig=zig)
    target = find_target("cpu-aarch64")
    if zig:
        assert find_linker(target).name == "zig"
        return
    with pytest.raises(TargetError, match="no linker for cpu-aarch64: zig is needed") as error:
        find_linker(target)
    assert error.value.exit_code == 4
    assert "pip install 'mlc_compile[cross]'" in error.value.hint


def test_without_any_tool_this_machine_is_refused_too(tools):
    tools(zig=False)
    with pytest.raises(TargetError, match="a C compiler or zig is needed"):
        find_linker(find_target("cpu"))


@pytest.mark.parametrize(
    ("name", "machine", "prefix"),
    [
        ("Linux", "x86_64", "x86_64-unknown-linux"),
        ("Linux", "aarch64", "aarch64-unknown-linux"),
        ("Darwin", "arm64", "arm64-apple"),
        ("Darwin", "x86_64", None),
        ("Windows", "AMD64", None),
    ],
)
def test_native_means_this_format_and_instruction_set(system, name, machine, prefix):
    system(name, machine)
    rows = [find_target(n) for n in CROSS]
    native = {t.name for t in rows if is_native(t)}
    assert native == {t.name for t in rows if prefix and t.triple.startswith(prefix)}
    assert bool(native) is bool(prefix)


def test_a_linker_that_fails_is_quoted(tmp_path):
    broken = Linker("cc", (sys.executable, "-c", "raise SystemExit('ld: no such object')"))
    with pytest.raises(TargetError, match=r"cc could not link lib\.so: ld: no such object"):
        broken.link(["a.o"], tmp_path / "lib.so")


def test_a_disk_that_fills_up_under_the_linker_is_told_as_such(tmp_path):
    said = "ld: final link failed: No space left on device\\ncollect2: error: ld returned 1"
    full = Linker("cc", (sys.executable, "-c", f"raise SystemExit('{said}')"))
    with pytest.raises(OSError, match="No space left") as error:
        full.link(["a.o"], tmp_path / "lib.so")
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path / "lib.so"))


def test_a_linker_that_fails_in_silence_gives_its_exit_code(tmp_path):
    silent = Linker("cc", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(TargetError, match="exit code 3"):
        silent.link(["a.o"], tmp_path / "lib.so")


@pytest.mark.parametrize("name", CROSS)
@pytest.mark.parametrize("flags", [link.NATIVE_FLAGS, link.ZIG_FLAGS])
def test_every_system_has_flags_for_a_shared_library(name, flags):
    assert "-shared" in flags[find_target(name).system]
