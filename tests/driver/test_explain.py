"""`cache explain` says what a build would find, and only looks."""

import pytest

from mlc_compile.cache import Store
from mlc_compile.driver import decide as deciding
from mlc_compile.driver import prove as proving
from mlc_compile.driver.explain import explain
from mlc_compile.driver.job import DEFAULTS, Options
from mlc_compile.errors import TargetError
from mlc_compile.target import find_target

BUDGET = Options(memory_budget=1 << 30)


@pytest.fixture
def told(nano, tmp_path):
    """`told(options)`: {step: outcome}, and the steps."""

    def run(options=DEFAULTS, cache="cache"):
        store = Store(tmp_path / cache)
        steps = explain(nano.path, (find_target("cpu"),), "q4f16_1", options, store)
        return {step.step: step.outcome for step in steps}, steps

    return run


def snapshot(directory):
    paths = sorted(directory.rglob("*"))
    return {p: (p.lstat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in paths}


def test_it_leaves_the_cache_as_it_is(made, told, tmp_path):
    made()
    before = snapshot(tmp_path / "cache")
    assert set(told()[0].values()) == {"hit"}
    told(Options(context=100))
    told(BUDGET)
    assert snapshot(tmp_path / "cache") == before
    told(cache="none")
    assert not (tmp_path / "none").exists()


def test_limits_that_nobody_worked_out_are_a_miss_and_not_worked_out(made, told, monkeypatch):
    made()
    prepare = deciding.prepare

    def without_budget(subject, target, quant, options, records):
        assert options.memory_budget is None
        return prepare(subject, target, quant, options, records)

    monkeypatch.setattr(deciding, "prepare", without_budget)
    outcomes, steps = told(BUDGET)
    assert outcomes == {"weights": "hit"} | dict.fromkeys(
        ("limits", "library", "packed", "proof"), "miss"
    )
    assert all(step.reason or step.differences for step in steps if step.outcome == "miss")


def test_limits_that_are_known_lead_to_the_library(made, told):
    made(options=BUDGET)
    outcomes, _steps = told(BUDGET)
    assert outcomes == dict.fromkeys(("weights", "limits", "library", "packed", "proof"), "hit")


def test_a_proof_that_cannot_run_here_is_no_miss(made, told, monkeypatch):
    def refuse(_manifest):
        raise TargetError("it is for another machine")

    monkeypatch.setattr(proving, "loadable_libraries", refuse)
    made()
    outcomes, steps = told()
    assert outcomes["proof"] == "not run"
    assert steps[-1].reason == "it is for another machine"
