"""Tools are asked and run so that whatever they do ends in an answer or a sentence."""

import errno
import os
import signal
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import psutil
import pytest

from mlc_compile.emit import tool
from mlc_compile.emit.tool import OVERRIDES, Answer, ask, environment, first_line, run_tool
from mlc_compile.errors import TargetError


def python(text):
    return (sys.executable, "-c", text)


def run(text, room):
    run_tool(python(text), room, room / "out", "cc could not link out", "hint")


def test_an_answer_is_what_was_said_on_both_streams():
    said = ask(python("import sys; print('out'); sys.exit('err')"))
    assert said == Answer(1, "out\n", "err\n")
    assert said.fault == "err"
    assert ask(python("print('out')")).fault == ""


def test_bytes_that_are_no_text_are_read_all_the_same():
    garbled = "import os; os.write(1, b'\\xff\\xfe version 1\\n'); os.write(2, b'\\xff')"
    assert ask(python(garbled)) == Answer(0, "\ufffd\ufffd version 1\n", "\ufffd")
    assert first_line(python(garbled)) == "\ufffd\ufffd version 1"


def test_a_tool_that_does_not_answer_is_ended_with_its_children(tmp_path, monkeypatch):
    # The child tells its number and holds the pipes for longer than any test may take.
    sleeping = "import os, time; open('child', 'w').write(str(os.getpid())); time.sleep(600)"
    waiting = (
        f"import os, subprocess, sys; os.chdir({str(tmp_path)!r}); "
        f"subprocess.run([sys.executable, '-c', {sleeping!r}])"
    )
    monkeypatch.setattr(tool, "LIMIT", 2.0)
    assert ask(python(waiting)) == Answer(None, "", "it does not answer within 2 seconds")
    number = int((tmp_path / "child").read_text())
    with suppress(psutil.NoSuchProcess):
        child = psutil.Process(number)
        for _ in range(600):  # a killed process lasts until the system comes to it
            if child.status() == psutil.STATUS_ZOMBIE:  # until init collects it
                break
            time.sleep(0.1)
        else:
            pytest.fail("the tool's child is still there")


def test_a_tool_that_does_not_start_is_an_answer_too(tmp_path):
    said = ask([str(tmp_path / "nothing")])
    assert said == Answer(None, "", "it does not start: No such file or directory")
    assert first_line([str(tmp_path / "nothing")]) == ""


@pytest.mark.parametrize("name", OVERRIDES)
def test_variables_that_would_change_what_is_made_do_not_reach_a_tool(name, tmp_path, monkeypatch):
    monkeypatch.setenv(name, "/elsewhere")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    run(f"import os; open('out', 'w').write(repr(os.environ.get({name!r})))", tmp_path)
    assert (tmp_path / "out").read_text() == "None"
    assert environment()["LC_ALL"] == "C"
    assert "PATH" not in environment(without=["PATH"])


@pytest.mark.parametrize(
    "said",
    [
        "ld: final link failed: No space left on device",
        "error: unable to build libc.so: NoSpaceLeft",
        "error(link): failed to write: NoSpaceLeft\nerror: the following command failed",
    ],
)
def test_a_full_disk_is_known_in_every_tool_s_words(said, tmp_path):
    with pytest.raises(OSError, match="No space left") as error:
        run(f"raise SystemExit({said!r})", tmp_path)
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it ended well, without a file"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import os; os.write(2, b'a\\nld: \\xff'); os._exit(1)", "ld: \ufffd"),
        (f"import os; os.kill(os.getpid(), {signal.SIGKILL})", "exit code -9"),
    ],
)
def test_a_failure_is_told_in_a_sentence(text, words, tmp_path):
    with pytest.raises(TargetError) as error:
        run(text, tmp_path)
    assert str(error.value) == f"cc could not link out: {words}"
    assert (error.value.exit_code, error.value.hint) == (4, "hint")


CRASHES = [
    f"import os; os.kill(os.getpid(), {signal.SIGABRT})",
    "raise SystemExit('collect2: fatal error: ld terminated with signal 7 [Bus error]')",
]


@pytest.mark.parametrize("text", CRASHES)
@pytest.mark.parametrize(("free", "error"), [(1 << 20, OSError), (1 << 40, TargetError)])
def test_a_crash_is_told_as_a_full_disk_only_where_little_is_free(
    text, free, error, tmp_path, monkeypatch
):
    disk = SimpleNamespace(free=free)
    monkeypatch.setattr(tool.shutil, "disk_usage", lambda _place: disk)
    with pytest.raises(error):
        run(text, tmp_path)
    with pytest.raises(TargetError, match="undefined symbol"):
        run("raise SystemExit('ld: error: undefined symbol')", tmp_path)


def test_a_tool_that_is_gone_is_named(tmp_path):
    gone = str(tmp_path / "cc")
    with pytest.raises(TargetError, match=f"{gone} does not start: {os.strerror(errno.ENOENT)}"):
        run_tool([gone], tmp_path, tmp_path / "out", "cc could not link out", "hint")
