"""A process that answers, hangs, crashes or refuses, and is replaced."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mlc_compile.tune.worker import Trouble, Worker
from tests.killing import Victim, wait_for

HERE = Path(__file__).parent
PROMPT = 0.2  # seconds: a worker that hangs does so for minutes

ASK = """
import sys
from pathlib import Path
from mlc_compile.tune.worker import Worker
worker = Worker("toy_worker", room=Path(sys.argv[1]))
print(worker.ask("a", dict, 60), flush=True)
if len(sys.argv) > 2:
    worker.ask(sys.argv[2], dict, 600)
sys.stdin.read()
"""


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    made = Worker("toy_worker")
    yield made
    made.close()


def ask(worker, question, seconds=60):
    return worker.ask(question, dict, seconds)


def test_one_process_answers_many_questions(worker):
    assert ask(worker, "a")["pid"] == ask(worker, "b")["pid"]
    assert worker.starts == 1


def test_what_a_library_prints_is_no_answer(worker):
    assert ask(worker, "print")["question"] == "print"


def test_a_refusal_leaves_the_process_as_it_is(worker):
    first = ask(worker, "a")["pid"]
    with pytest.raises(Trouble, match="ValueError: not like this") as raised:
        ask(worker, "refuse")
    assert raised.value.kind == "refused"
    assert ask(worker, "b")["pid"] == first


@pytest.mark.parametrize(
    ("question", "kind", "said"),
    [
        pytest.param("hang", "hang", "no answer in", id="a hang"),
        pytest.param("crash", "crash", "signal 11", id="a crash"),
        pytest.param("exit", "crash", "exit code 3: out of luck", id="an end of its own"),
    ],
)
def test_a_process_that_fails_is_killed_and_replaced(worker, question, kind, said):
    first = ask(worker, "a")["pid"]
    with pytest.raises(Trouble, match=said) as raised:
        ask(worker, question, PROMPT if kind == "hang" else 60)
    assert raised.value.kind == kind
    assert not psutil.pid_exists(first)
    assert ask(worker, "b")["pid"] != first


def test_closing_leaves_no_process(worker):
    pid = ask(worker, "a")["pid"]
    worker.close()
    assert not psutil.pid_exists(pid)


def test_a_module_that_is_not_there_is_a_crash():
    worker = Worker("mlc_compile.no_such_module")
    with pytest.raises(Trouble, match="No module named") as raised:
        ask(worker, "a")
    assert raised.value.kind == "crash"


@pytest.mark.parametrize("doing", [pytest.param([], id="nothing"), ["hang"], ["work"]])
def test_whatever_it_does_it_ends_when_who_asked_is_killed(monkeypatch, tmp_path, doing):
    """With what it started, such as a linker; a file put aside lies where it was told."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parents[1])]))
    with Victim([sys.executable, "-c", ASK, tmp_path, *doing], stdin=subprocess.PIPE) as victim:
        assert victim.line()
        family = 2 + (doing == ["work"])
        wait_for(lambda: len(victim.family()) == family)
        victim.kill()
        assert victim.left() == []
    assert len(list(tmp_path.iterdir())) == (doing == ["work"])
