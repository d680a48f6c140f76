"""`doctor`: what it finds, and the command beside whatever is not well."""

import json

import msgspec
import pytest

from mlc_compile.cli import doctor
from mlc_compile.cli.targets import usable_targets
from mlc_compile.emit.backend import EMITTERS
from mlc_compile.emit.probe import Ability, ability
from mlc_compile.emit.vulkan.devices import Lack, Seen
from mlc_compile.target import find_target, host_target, target_names

FOREIGN = "cpu-aarch64" if host_target().arch != "aarch64" else "cpu-x86-64-v3"


KNOWN = frozenset(target_names())


@pytest.fixture
def no_zig(monkeypatch):
    """A machine without the `cross` extra."""
    monkeypatch.setattr("mlc_compile.emit.link.linker.importlib.util.find_spec", lambda _name: None)


@pytest.fixture
def no_compiler(monkeypatch):
    """A machine without a C compiler."""
    monkeypatch.setattr("mlc_compile.emit.link.linker.shutil.which", lambda _name: None)


@pytest.fixture
def no_cuda(monkeypatch):
    """A machine without nvcc and NVRTC."""
    monkeypatch.setattr("mlc_compile.emit.cuda.toolchain.FINDERS", ())


def emitted(row, *, own=False):
    return doctor.emit_finding(row, ability(row), KNOWN, own=own)


def test_this_machine_passes_and_every_target_has_its_two_lines(cli):
    ran = cli("doctor", "--json")
    assert ran.code == 0, ran.err
    for name in target_names():
        areas = [f["area"] for f in ran.json if f["subject"] == name]
        assert areas == ["emit", "run"]
    own = [f["status"] for f in ran.json if f["subject"] == "cpu"]
    assert own == ["ok", "ok"]


def test_whatever_could_be_mended_names_the_command(cli):
    for finding in cli("doctor", "--json").json:
        if (
            finding["status"] != "ok" and finding["area"] != "run"
        ):  # no command gives a CPU features
            assert finding["fix"], finding


@pytest.mark.usefixtures("no_zig", "no_compiler")
def test_without_a_linker_this_machine_has_a_problem_and_others_a_note():
    own = emitted(host_target(), own=True)
    assert own.status == "problem"
    assert "C compiler" in own.detail
    assert "mlc_compile[cross]" in own.fix
    assert emitted(find_target(FOREIGN)).status == "note"


@pytest.mark.usefixtures("no_zig")
def test_the_system_compiler_does_not_link_for_another_machine():
    assert emitted(host_target(), own=True).status == "ok"
    foreign = emitted(find_target(FOREIGN))
    assert foreign.status == "note"
    assert "nothing: no linker" in foreign.detail
    assert "zig" in foreign.detail


@pytest.mark.usefixtures("no_cuda")
def test_without_a_cuda_compiler_there_is_source_only():
    found = emitted(find_target("cuda-sm80"))
    assert found.status == "note"
    assert "the kernels' source only: no CUDA compiler" in found.detail
    assert "mlc_compile[cuda]" in found.fix


def test_a_backend_without_an_emitter_gives_nothing(monkeypatch):
    monkeypatch.delitem(EMITTERS, "vulkan")
    found = emitted(find_target("vulkan"))
    assert "nothing: this version emits no vulkan libraries" in found.detail


def test_without_a_vulkan_device_libraries_are_emitted_and_the_fix_is_named(monkeypatch):
    lack = Lack("there is no Vulkan loader (libvulkan)", "apt-get install libvulkan1")
    monkeypatch.setattr("mlc_compile.emit.vulkan.devices.missing", lambda: lack)
    row = msgspec.structs.replace(find_target("vulkan"), triple=host_target().triple, requires=())
    found = doctor.run_finding(ability(row))
    assert (found.status, found.detail, found.fix) == ("note", lack.what, lack.fix)
    assert emitted(row).status == "ok"


def test_what_can_be_done_names_the_tools_and_the_device(monkeypatch):
    able = Ability("vulkan", "library", ("cc (Debian 12.2.0-14) 12.2.0", "nvcc 13.0"), (), ())
    row = find_target("vulkan")
    built = doctor.emit_finding(row, able, KNOWN, own=False)
    assert built.detail == "can build (cc 12.2.0 and nvcc 13.0)"
    seen = Seen("A GPU", 256, 1 << 15, 1 << 27, 8, f16=True, int8=True)
    monkeypatch.setattr("mlc_compile.emit.vulkan.devices.missing", lambda: None)
    monkeypatch.setattr("mlc_compile.emit.vulkan.devices.devices", lambda: (seen,))
    assert doctor.run_finding(able, doctor.devices_of(row)).detail == "can run (A GPU)"
    cpu = host_target()
    assert doctor.run_finding(ability(cpu), doctor.devices_of(cpu)).detail == "can run"


@pytest.mark.parametrize("lack", [None, Lack("there is no Vulkan loader (libvulkan)")])
def test_a_driver_that_names_no_device_is_survived(monkeypatch, lack):
    monkeypatch.setattr("mlc_compile.emit.vulkan.devices.missing", lambda: lack)
    monkeypatch.setattr("mlc_compile.emit.vulkan.devices.devices", lambda: "it crashed")
    assert doctor.devices_of(find_target("vulkan")) == ""


def test_where_the_device_is_absent_the_library_is_emitted_and_does_not_run():
    metal = doctor.run_finding(ability(find_target("metal")))
    assert (metal.status, metal.area) == ("note", "run")
    assert "this machine is" in metal.detail


def test_wrong_packages_are_problems(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda _name: None)
    found = {f.subject: f for f in doctor.packages()}
    assert found["apache-tvm"].status == "problem"
    assert "must be 0.27.0.post1, found none" in found["apache-tvm"].detail
    assert found["torch"].status == "note"


def test_a_tvm_that_dies_is_reported_and_not_shared(monkeypatch):
    monkeypatch.setattr(doctor, "PROBE", "import os; os.kill(os.getpid(), 11)")
    known = doctor.emittable(usable_targets())
    assert known == "exit status -11"
    finding = doctor.emit_finding(host_target(), ability(host_target()), known, own=True)
    assert finding.status == "problem"
    assert "TVM does not start" in finding.detail


def test_a_cpu_that_llvm_does_not_know_is_not_emitted():
    finding = doctor.emit_finding(host_target(), ability(host_target()), frozenset(), own=False)
    assert finding.status == "note"
    assert host_target().mcpu in finding.detail


def test_a_disk_that_is_nearly_full_or_read_only_is_noted(monkeypatch, tmp_path):
    inside = tmp_path / "not" / "yet" / "there"
    monkeypatch.setattr(doctor, "LOW_DISK", 1)
    assert doctor.disk_finding("cache", inside, "move it").status == "ok"
    monkeypatch.setattr(doctor, "LOW_DISK", 1 << 62)
    assert doctor.disk_finding("cache", inside, "move it").fix == "move it"
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert "not writable" in doctor.disk_finding("cache", inside, "move it").detail


def test_a_problem_makes_the_command_fail_after_its_result(monkeypatch, capsys):
    from mlc_compile.cli.app import invoke

    monkeypatch.setattr(doctor, "PROBE", "raise SystemExit('no such wheel')")
    assert invoke(["doctor", "--json"]) == 4
    said = capsys.readouterr()
    assert "no such wheel" in said.out
    assert "cannot build for itself: emit cpu" in json.loads(said.err.splitlines()[-1])["error"]
