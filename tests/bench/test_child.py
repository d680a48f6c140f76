"""A process of our own: what it is asked, what it answers, and how its failures come back."""

import sys
from pathlib import Path

import pytest

from mlc_compile import errors
from mlc_compile.bench import child
from mlc_compile.bench.child import ask
from mlc_compile.errors import ConfigError, EnvironmentError_, MlcError

SERVANT = """
import json, os, sys
from mlc_compile.bench.child import serve
from mlc_compile.errors import *

def answer():
    {body}

serve(answer)
"""


@pytest.fixture
def servant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`servant(body)`: the name of a module whose `answer` has this body."""

    def write(body: str) -> str:
        (tmp_path / "servant.py").write_text(SERVANT.format(body=body))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return "servant"

    return write


def test_question_arguments_and_answer_go_through(servant) -> None:
    module = servant("return [json.load(sys.stdin), sys.argv[1:]]")
    got = ask(module, list[object], "asking", question={"n": 1}, arguments=["a b"])
    assert got == [{"n": 1}, ["a b"]]


@pytest.mark.parametrize("kind", MlcError.__subclasses__())
def test_an_error_comes_back_as_what_it_was(servant, kind: type[MlcError]) -> None:
    module = servant(f"raise {kind.__name__}('it broke\\nin two', hint='mend it')")
    with pytest.raises(kind, match="it broke\nin two") as e:
        ask(module, int, "asking")
    assert type(e.value) is kind
    assert e.value.hint == "mend it"


def test_every_exit_code_has_one_class() -> None:
    classes = MlcError.__subclasses__()
    assert [errors.error_class(kind.exit_code) for kind in classes] == classes
    assert errors.error_class(1) is MlcError
    assert errors.error_class(99) is MlcError


def test_what_the_system_refuses_is_the_machine_s_fault(servant) -> None:
    with pytest.raises(EnvironmentError_, match="/absent: no such file"):
        ask(servant("return open('/absent')"), int, "asking")


@pytest.mark.parametrize(("signal", "hint"), [(9, "memory"), (11, "mlc-compile doctor")])
def test_a_process_that_a_signal_ends_is_told(servant, signal: int, hint: str) -> None:
    module = servant(f"os.kill(os.getpid(), {signal})")
    with pytest.raises(EnvironmentError_, match=f"measuring x was ended by signal {signal}") as e:
        ask(module, int, "measuring x")
    assert hint in e.value.hint


def test_a_bug_is_told_by_its_last_line_and_keeps_its_traceback(servant) -> None:
    with pytest.raises(MlcError, match="asking failed: ZeroDivisionError: division") as e:
        ask(servant("return 1 / 0"), int, "asking")
    assert e.value.exit_code == 1
    assert "Traceback" in e.value.__notes__[0]


def test_a_silent_end_is_told_by_its_exit_code(servant) -> None:
    with pytest.raises(MlcError, match="asking failed: exit code 3"):
        ask(servant("sys.exit(3)"), int, "asking")


def test_files_in_the_current_directory_are_not_imported(
    nano_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("msgspec", "numpy", "mlc_compile", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is not a directory"):
        ask("mlc_compile.bench.verify", int, "asking", arguments=["gone"])
    assert child.sys is sys
