"""What a machine can emit and run is told without an exception, with what would mend it."""

import importlib.util
import platform
import shutil
import subprocess
import sys

import msgspec
import pytest

from mlc_compile.emit import probe
from mlc_compile.emit.link import linker
from mlc_compile.emit.probe import Missing, ability, tools
from mlc_compile.emit.vulkan import devices
from mlc_compile.target import find_target, missing_features, target_names

CROSS_FIX = "pip install 'mlc_compile[cross]'"


@pytest.fixture
def machine(monkeypatch):
    """`machine("cc", ziglang="0.17.1")`: x86-64 Linux with only these."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")

    def has(*compilers, **packages):
        def which(name, **_where):
            return name if name in compilers else None

        monkeypatch.setattr(shutil, "which", which)
        for module in (linker, probe):
            monkeypatch.setattr(module, "installed", packages.get)
            monkeypatch.setattr(module, "zig_program", lambda: packages.get("ziglang"))
        monkeypatch.setattr(importlib.util, "find_spec", packages.get)

    return has


@pytest.mark.parametrize("name", [n for n in target_names() if n != "cpu"])
@pytest.mark.parametrize("packages", [{}, {"ziglang": "0.17.1", "lief": "1.0.0"}])
def test_every_target_has_an_answer(machine, name, packages):
    machine(**packages)
    seen = ability(find_target(name))
    assert seen.target == name
    assert (seen.emit == "library") is not bool(seen.to_emit)
    assert all(missing.what for missing in (*seen.to_emit, *seen.to_run))


def test_with_zig_and_lief_a_foreign_library_is_emitted_and_not_run(machine):
    machine(ziglang="0.17.1", lief="1.0.0")
    seen = ability(find_target("cpu-aarch64"))
    assert (seen.emit, seen.tools, seen.to_emit) == ("library", ("zig 0.17.1",), ())
    assert not seen.runs
    assert seen.to_run == (Missing("it is for aarch64 Linux, this machine is x86_64 Linux"),)


@pytest.mark.parametrize(
    ("packages", "what", "fix"),
    [
        ({}, "no linker for metal: zig is needed", CROSS_FIX),
        ({"ziglang": "0.11.0", "lief": "1.0.0"}, "zig 0.11.0 is too old", "pip install 'ziglang>"),
        ({"ziglang": "0.17.1"}, "lief is needed", CROSS_FIX),
    ],
)
def test_without_a_linker_metal_gives_its_source_alone(machine, packages, what, fix):
    machine("cc", **packages)
    seen = ability(find_target("metal"))
    assert seen.emit == "source"
    (missing,) = seen.to_emit
    assert what in missing.what
    assert missing.fix.startswith(fix)


def test_a_vulkan_library_needs_no_more_than_a_linker_and_to_run_a_device(machine, monkeypatch):
    machine("cc")
    lack = devices.Lack("there is no Vulkan loader (libvulkan)", "apt-get install libvulkan1")
    monkeypatch.setattr(devices, "missing", lambda: lack)
    here = msgspec.structs.replace(find_target("vulkan"), requires=())
    seen = ability(here)
    assert (seen.emit, seen.to_emit) == ("library", ())
    assert seen.to_run == (Missing(lack.what, lack.fix),)


def test_drivers_of_this_machine_are_not_asked_about_another_s(machine, monkeypatch):
    def ask(_wanted):
        raise AssertionError("a driver was asked")

    machine(ziglang="0.17.1", lief="1.0.0")
    monkeypatch.setattr(devices, "lacking", ask)
    (reason,) = ability(find_target("vulkan-android")).to_run
    assert "it is for aarch64 Android" in reason.what


def test_without_a_linker_a_cpu_target_gives_nothing(machine):
    machine()
    assert ability(find_target("cpu-x86-64-v3")).emit == "nothing"


def test_a_cpu_that_lacks_features_does_not_run_a_target(machine):
    machine("cc")
    row = find_target("cpu-sapphirerapids")
    lacks = missing_features(row.requires)
    assert ability(row).runs is not bool(lacks)


def test_tools_are_listed_with_what_brings_them(machine):
    machine(lief="1.0.0")
    listed = {tool.name: tool for tool in tools()}
    assert list(listed) == ["cc", "ziglang", "lief"]
    assert (listed["cc"].version, listed["lief"].version) == ("", "1.0.0")
    assert listed["ziglang"].fix == CROSS_FIX


def test_zig_without_its_program_is_absent(machine, monkeypatch):
    machine(ziglang="0.17.1", lief="1.0.0")
    assert {tool.name: tool.version for tool in tools()}["ziglang"] == "0.17.1"
    for module in (linker, probe):
        monkeypatch.setattr(module, "zig_program", lambda: None)
    assert {tool.name: tool.version for tool in tools()}["ziglang"] == ""
    seen = ability(find_target("cpu-aarch64"))
    assert seen.emit == "nothing"
    assert "without its program" in seen.to_emit[0].what


def test_asking_imports_no_tvm():
    code = (
        "import sys; from mlc_compile.emit.probe import ability; "
        "from mlc_compile.target import find_target; ability(find_target('metal')); "
        "print('tvm' in sys.modules, 'lief' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False False\n"
