"""`--dump-ir`: numbered TVMScript after each phase, and after each pass that changed something."""

import json

import pytest

from mlc_compile.driver.clock import Clock
from mlc_compile.driver.dump import Dump, dump_ir
from mlc_compile.driver.job import Options
from mlc_compile.driver.optimize import optimize
from mlc_compile.emit.cpu import tvm_target
from mlc_compile.errors import ConfigError
from mlc_compile.passes import events
from mlc_compile.pipeline import phases
from mlc_compile.progress import SILENT
from mlc_compile.target import find_target

PHASES = ["import", "graph", "activations", "kernels", "memory", "runtime"]


@pytest.fixture(scope="module")
def dumped(nano_plan, tmp_path_factory):
    """(directory, clock, module) of one run."""
    directory = tmp_path_factory.mktemp("ir")
    mod, plan = nano_plan("cpu", "q4f16_1")
    clock = Clock(SILENT)
    with tvm_target(plan.target):
        mod = optimize(mod, plan, clock, (Dump(directory),))
    return directory, clock, mod


def test_names_sort_as_the_passes_ran(dumped):
    directory, _, _ = dumped
    names = sorted(path.name for path in directory.glob("*.py"))
    assert names[0] == "00-imported.py"
    ends = [f"{i:02}-{phase}.py" for i, phase in enumerate(PHASES, 1)]
    assert [name for name in names if name in ends] == ends
    assert "02-graph-06-FuseSwiGLU.py" in names
    assert names.index("02-graph-06-FuseSwiGLU.py") < names.index("02-graph.py")


def test_the_last_file_is_the_module_that_is_compiled(dumped):
    directory, _, mod = dumped
    assert (directory / "06-runtime.py").read_text() == mod.script()


def test_a_pass_that_changed_nothing_has_no_file(dumped):
    directory, _, _ = dumped
    # In the nano model every operator has a kernel of ours: TVM has nothing to legalize.
    assert not list(directory.glob("04-kernels-*-LegalizeOps.py"))
    before = (directory / "02-graph-06-FuseSwiGLU.py").read_text()
    assert before != (directory / "02-graph-05-CancelSplitConcat.py").read_text()


def test_the_events_are_beside_them(dumped):
    directory, _, mod = dumped
    told = json.loads((directory / "events.json").read_text())
    assert [event["source"] for event in told] == [e.source for e in events.read(mod)]


def test_somebody_s_files_are_not_taken_for_an_earlier_dump(nano_checkpoint, tmp_path):
    (tmp_path / "01-intro.py").write_text("print('mine')")
    with pytest.raises(ConfigError, match="named like a dump's, and no dump"):
        dump_ir(nano_checkpoint, [find_target("cpu")], "q4f16_1", tmp_path, Options(), SILENT)
    assert (tmp_path / "01-intro.py").is_file()


def test_every_pass_is_timed(dumped, nano_plan):
    _, clock, _ = dumped
    _, plan = nano_plan("cpu", "q4f16_1")
    ran = {p.name: [str(step.info.name) for step in p.passes] for p in phases(plan)}
    assert {phase: list(times) for phase, times in clock.passes.items()} == ran


def test_variants_have_directories_and_a_second_dump_replaces_the_first(nano_checkpoint, tmp_path):
    target = find_target("cpu-x86-64-v3+v4")
    stale, foreign = (tmp_path / "cpu-x86-64-v3" / n for n in ("09-old.py", "notes.txt"))
    stale.parent.mkdir()
    stale.write_text("")
    (stale.parent / "events.json").write_text("[]")
    foreign.write_text("mine")
    dump_ir(nano_checkpoint, (target,), "q4f16_1", tmp_path, Options(), SILENT)
    assert not stale.exists()
    assert foreign.read_text() == "mine"
    for row in target.libraries:
        assert (tmp_path / row.name / "06-runtime.py").is_file()
