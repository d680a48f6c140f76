"""Which linker is taken, what it is asked for, and what is said when there is none."""

import errno
import importlib.util
import platform
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlc_compile.emit.link import linker
from mlc_compile.emit.link.linker import Linker, find_linker, is_native
from mlc_compile.errors import TargetError
from mlc_compile.target import find_target, target_names

ROWS = [find_target(n) for n in target_names() if n != "cpu"]
TOOLS = {"lib.a": "ar", "lib.wasm": "c++"}  # zig's, where it is not cc


@pytest.fixture
def tools(monkeypatch):
    """`tools("gcc", zig="0.17.1", lief=True)`: pretend that only these are installed."""

    def install(*compilers, zig, lief=True):
        monkeypatch.setattr(shutil, "which", lambda name: name if name in compilers else None)
        there = {"ziglang": zig, "lief": "1.0.0" if lief else None}
        monkeypatch.setattr(importlib.util, "find_spec", there.get)
        monkeypatch.setattr(linker, "installed", there.get)
        monkeypatch.setattr(linker, "zig_program", lambda: zig and Path("zig"))

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
    tools(compiler, zig="0.17.1")
    linker = find_linker(find_target("cpu"))
    assert linker.name == compiler
    assert linker.command[0] == compiler
    assert "-shared" in linker.command


def test_zig_links_for_this_machine_when_there_is_no_compiler(tools):
    tools(zig="0.17.1", lief=False)  # a library that runs here shows what it is by running
    target = find_target("cpu")
    linker = find_linker(target)
    assert linker.name == "zig"
    assert linker.command[:6] == (sys.executable, "-m", "ziglang", "cc", "-target", target.zig)


@pytest.mark.parametrize("zig", ["0.15.2", None])
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


def test_an_old_zig_is_refused_with_the_version_that_will_do(tools, system):
    system("Linux", "x86_64")
    tools("cc", zig="0.13.0.post1")
    said = r"zig 0\.13\.0 is too old to link for cpu-aarch64: 0\.15 or newer is needed"
    with pytest.raises(TargetError, match=said) as error:
        find_linker(find_target("cpu-aarch64"))
    assert (error.value.exit_code, error.value.hint) == (4, "pip install 'ziglang>=0.15'")
    assert find_linker(find_target("cpu")).name == "cc"  # does not need it


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An empty folder in place of the package ziglang, which pip still knows."""
    (tmp_path / "ziglang").mkdir()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "ziglang")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    monkeypatch.setattr(linker, "installed", lambda _name: "0.17.1")
    return tmp_path / "ziglang"


def test_zig_without_its_program_is_refused_before_anything_is_begun(system, package):
    system("Linux", "x86_64")
    target = find_target("cpu-aarch64")
    for breaking in (lambda: None, (package / "zig").mkdir, (package / "zig.exe").touch):
        breaking()
        with pytest.raises(TargetError, match="cpu-aarch64: the package ziglang is without") as e:
            find_linker(target)
        assert (e.value.exit_code, "--force-reinstall" in e.value.hint) == (4, True)
    (package / "zig.exe").chmod(0o755)
    assert find_linker(target).name == "zig"


def test_a_library_that_could_not_be_checked_is_not_begun(tools, system):
    system("Linux", "x86_64")
    tools("cc", zig="0.17.1", lief=False)
    with pytest.raises(TargetError, match="metal could not be checked: lief is needed") as error:
        find_linker(find_target("metal"))
    assert error.value.exit_code == 4


@pytest.mark.parametrize(
    ("zig", "message"),
    [(None, "no linker for webgpu: zig is needed"), ("0.14.1", "zig 0.14.1 is too old")],
)
def test_without_a_zig_that_will_do_there_is_no_library_for_browsers(tools, zig, message):
    tools("cc", zig=zig)
    with pytest.raises(TargetError, match=message) as error:
        find_linker(find_target("webgpu"))
    assert error.value.exit_code == 4
    assert error.value.hint.startswith("pip install")


def test_without_any_tool_this_machine_is_refused_too(tools):
    tools(zig=None)
    with pytest.raises(TargetError, match="a C compiler or zig is needed"):
        find_linker(find_target("cpu"))


@pytest.mark.parametrize(
    ("name", "machine", "prefix"),
    [
        ("Linux", "x86_64", "x86_64-unknown-linux"),
        ("Linux", "aarch64", "aarch64-unknown-linux"),
        ("Darwin", "arm64", "arm64-apple-macos"),
        ("Darwin", "x86_64", None),
        ("Windows", "AMD64", "x86_64-pc-windows"),
    ],
)
def test_native_means_this_format_and_instruction_set(system, name, machine, prefix):
    system(name, machine)
    native = {t.name for t in ROWS if is_native(t)}
    assert native == {t.name for t in ROWS if prefix and t.triple.startswith(prefix)}
    assert bool(native) is bool(prefix)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_zig_has_a_way_to_every_target(tools, system, row):
    system("Plan 9", "alpha")
    tools(zig="0.17.1")
    command = find_linker(row).command
    made = TOOLS.get(row.library, "cc")
    assert command[:4] == (sys.executable, "-m", "ziglang", made)
    assert ("-shared" in command) is (made == "cc")


# A linker made of Python: what it is given, it writes into the output.
ECHO = "import sys; _, *args = sys.argv; open(args[args.index('-o') + 1], 'w').write(repr(args))"


def test_the_output_is_named_by_itself_and_the_objects_by_where_they_are(tmp_path):
    command = (sys.executable, "-c", ECHO, "-soname,{name}")
    linker = Linker("cc", command, libraries=("-lm",))
    linker.link([str(tmp_path / "a.o")], tmp_path / "lib.so")
    expected = ["-soname,lib.so", "-o", "lib.so", str(tmp_path / "a.o"), "-lm"]
    assert (tmp_path / "lib.so").read_text() == repr(expected)


def test_what_a_linker_leaves_beside_the_library_is_thrown_away(tmp_path):
    litter = f"open('lib0.lib', 'w'); {ECHO}"
    Linker("cc", (sys.executable, "-c", litter)).link(["a.o"], tmp_path / "lib.dll")
    assert [p.name for p in tmp_path.iterdir()] == ["lib.dll"]


def test_that_the_first_link_takes_long_is_told_until_there_was_one(tools, monkeypatch, tmp_path):
    tools(zig="0.17.1")
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(tmp_path))
    windows = find_target("cpu-windows-x86-64")
    linker = find_linker(windows)
    assert linker.slow_start() == "linking for x86_64-windows-gnu takes a minute the first time"
    assert find_linker(find_target("metal-ios")).slow_start() == ""  # an archiver
    linked = Linker("zig", (sys.executable, "-c", ECHO), first=linker.first, mark=linker.mark)
    linked.link(["a.o"], tmp_path / "lib.dll")
    assert find_linker(windows).slow_start() == ""
    tools(zig="0.18.0")  # builds its own
    assert find_linker(windows).slow_start() != ""


def test_a_linker_that_fails_is_quoted(tmp_path):
    broken = Linker("cc", (sys.executable, "-c", "raise SystemExit('ld: no such object')"))
    with pytest.raises(TargetError, match=r"cc could not link lib\.so: ld: no such object"):
        broken.link(["a.o"], tmp_path / "lib.so")
    assert list(tmp_path.iterdir()) == []


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


def test_android_is_not_asked_for_a_function_that_none_of_its_libraries_has(tmp_path):
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("needs zig: pip install 'mlc_compile[cross]'")
    from mlc_compile.emit.link.stand_ins import android

    with pytest.raises(TargetError, match="no library of Android is known to have __addtf3"):
        android(linker.ZIG, ["__addtf3", "memset"], tmp_path)
