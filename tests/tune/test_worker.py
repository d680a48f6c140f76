"""A process that answers, hangs, crashes or refuses, and is replaced."""

from pathlib import Path

import psutil
import pytest

from mlc_compile.tune.worker import Trouble, Worker

HERE = Path(__file__).parent
PROMPT = 0.2  # seconds: a worker that hangs does so for minutes


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
