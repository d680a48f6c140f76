"""`targets`: each preset once, and an honest "runs here"."""

import msgspec
import pytest

from mlc_compile.cli.targets import usable_targets, why_not_here
from mlc_compile.errors import TargetError
from mlc_compile.target import find_target, host_target, target_names


def test_json_lists_every_target_once(cli):
    ran = cli("targets", "--json")
    assert ran.code == 0
    assert [row["name"] for row in ran.json] == list(target_names())
    for row in ran.json:
        assert row["runs_here"] == (row["reason"] == "")


def test_the_table_names_every_target(cli):
    out = cli("targets").out
    for name in target_names():
        assert name in out


def test_this_machine_runs_its_own_target():
    assert why_not_here(host_target()) == ""


def test_a_missing_feature_is_named():
    wants = msgspec.structs.replace(host_target(), requires=("no_such_feature",))
    assert why_not_here(wants) == "this CPU lacks no_such_feature"


def test_another_system_does_not_run_here_though_it_requires_no_feature():
    other = msgspec.structs.replace(host_target(), triple="x86_64-pc-windows-gnu", requires=())
    assert "this machine is" in why_not_here(other)


def test_on_a_cpu_without_preset_the_others_are_still_listed(monkeypatch):
    def too_old():
        raise TargetError("this CPU is below x86-64-v2")

    monkeypatch.setattr("mlc_compile.target.host_target", too_old)
    names = [target.name for target in usable_targets()]
    assert names == [name for name in target_names() if name != "cpu"]


@pytest.mark.parametrize("name", target_names())
def test_every_preset_says_what_it_is(name):
    assert find_target(name).about
