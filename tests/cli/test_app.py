"""The program as a whole: start-up, help, and how each failure ends."""

import errno
import json
import os
import resource
import shlex
import subprocess
import sys

import pytest
import typer
from typer.main import get_command

from mlc_compile import errors
from mlc_compile.cli import app as program

HEAVY = {"tvm", "tvm_ffi", "numpy", "torch", "transformers", "tokenizers", "xgboost"}


def fail_with(monkeypatch, error, *arguments, name="fail"):
    """Replace the program by one whose command, `name`, raises."""
    app = typer.Typer()
    app.callback()(lambda: None)

    @app.command(name)
    def fail(json: bool = False, traceback: bool = False):
        raise error

    monkeypatch.setattr(program, "app", app)
    return program.invoke([name, *arguments])


def loaded_by(*arguments):
    """Top-level modules that a command line has loaded when it ends."""
    code = (
        "import sys\nfrom mlc_compile.cli.app import invoke\n"
        f"invoke({list(arguments)!r})\n"
        "print(*{m.partition('.')[0] for m in sys.modules}, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stderr.split())


@pytest.mark.parametrize("command", [None, *program.COMMANDS])
def test_help_loads_nothing_heavy(command):
    arguments = [command, "--help"] if command else ["--help"]
    assert not loaded_by(*arguments) & HEAVY


def test_help_costs_less_than_twice_what_it_costs_typer_s_own_program():
    """In time of the processor: whatever machine this is, and busy or not."""

    def took(module):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", module, "--help"], stdout=subprocess.DEVNULL, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    ours, theirs = zip(*((took("mlc_compile"), took("typer")) for _ in range(3)), strict=True)
    assert min(ours) < 2 * min(theirs)


def test_every_command_has_help_and_the_common_options(here):
    for name in program.COMMANDS:
        ran = here(name, "--help", env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"})
        assert ran.code == 0, name
        for option in ("--json", "--quiet", "--cache-dir", "--traceback"):
            assert option in ran.out, (name, option)


def test_without_arguments_it_shows_its_help(cli):
    assert cli().out == cli("--help").out


def test_version_names_the_compiler_beneath(cli):
    ran = cli("--version")
    assert ran.code == 0
    assert ran.out.startswith("mlc-compile ")
    assert "apache-tvm 0.27.0.post1" in ran.out


def test_an_unknown_command_is_a_usage_error_with_a_near_match(cli):
    ran = cli("targetz")
    assert (ran.code, ran.out) == (2, "")
    assert "'targetz'" in ran.err
    assert "targets" in ran.err


def test_with_json_an_error_is_one_object_on_stderr(cli):
    ran = cli("targets", "--json", "--no-such-option")
    assert (ran.code, ran.out) == (2, "")
    told = json.loads(ran.err)
    assert told["exit_code"] == 2
    assert "--no-such-option" in told["error"]
    assert told["hint"] == "see mlc-compile targets --help"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ConfigError, 2),
        (errors.CheckpointError, 3),
        (errors.TargetError, 4),
        (errors.TuningError, 5),
        (errors.DamageError, 6),
        (errors.EnvironmentError_, 7),
    ],
)
def test_our_errors_end_with_their_code_sentence_and_hint(monkeypatch, capsys, kind, code):
    assert fail_with(monkeypatch, kind("it broke", hint="mend it")) == code
    assert capsys.readouterr().err == "error: it broke\n hint: mend it\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_what_the_system_refuses_ends_with_7_and_names_the_file(monkeypatch, capsys, number):
    assert fail_with(monkeypatch, OSError(number, os.strerror(number), "/far/file")) == 7
    assert f"/far/file: {os.strerror(number).lower()}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EFBIG, "ulimit -f"),
        (errno.ENOENT, "check the path"),
        (errno.ENOTDIR, "is a file, not a directory"),
    ],
)
@pytest.mark.parametrize("command", ["build", "run"])
def test_a_hint_fits_the_error_and_the_command(monkeypatch, capsys, number, told, command):
    fail_with(monkeypatch, OSError(number, os.strerror(number), "/far"), name=command)
    hint = capsys.readouterr().err.splitlines()[1]
    assert told in hint
    elsewhere = command == "build" and number in {errno.ENOSPC, errno.EFBIG}
    assert ("-o" in hint.split()) == elsewhere


def test_options_are_those_of_the_call_and_not_of_the_process(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pytest", "--json", "--traceback"])
    fail_with(monkeypatch, errors.ConfigError("it broke"))
    assert capsys.readouterr().err == "error: it broke\n"
    fail_with(monkeypatch, errors.ConfigError("it broke"), "--json")
    assert json.loads(capsys.readouterr().err)["error"] == "it broke"


def test_no_command_declares_a_flag_twice():
    for name, command in get_command(program.app).commands.items():
        flags = [flag for p in command.params for flag in (*p.opts, *p.secondary_opts)]
        assert sorted(flags) == sorted(set(flags)), name


INTERRUPTED_EARLY = """
import signal, sys
from mlc_compile.__main__ import main

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "mlc_compile.cli.app":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["mlc-compile", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "interrupted\n"),
        (("--json",), '{"error": "interrupted", "hint": "", "exit_code": 130}\n'),
    ],
)
def test_an_interrupt_while_the_program_is_imported_is_told_too(options, told):
    command = [sys.executable, "-c", INTERRUPTED_EARLY, "targets", *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", told)


def test_who_ignores_interrupts_is_not_interrupted():
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + INTERRUPTED_EARLY
    command = [sys.executable, "-c", ignoring, "targets", "--quiet"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "cpu" in ran.stdout


def test_an_interrupt_ends_with_130(monkeypatch, capsys):
    assert fail_with(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert fail_with(monkeypatch, KeyboardInterrupt(), "--json") == 130
    told = {"error": "interrupted", "hint": "", "exit_code": 130}
    assert json.loads(capsys.readouterr().err) == told


def test_with_json_the_last_line_of_a_failure_is_its_object(monkeypatch, capsys):
    """A story and a traceback may come before it."""
    fail_with(monkeypatch, errors.ConfigError("it\nbroke"), "--json", "--traceback")
    *before, last = capsys.readouterr().err.splitlines()
    assert before
    assert json.loads(last)["error"] == "it\nbroke"


BUG = """
from mlc_compile.cli import app as program

@program.app.command()
def fail(traceback: bool = False):
    raise ZeroDivisionError("a surprise")

program.main()
"""


@pytest.mark.parametrize(
    ("arguments", "variable", "shown"),
    [([], "0", False), (["--traceback"], "0", True), ([], "1", True)],
)
def test_what_nobody_foresaw_is_called_our_bug(arguments, variable, shown):
    env = os.environ | {"MLC_COMPILE_TRACEBACK": variable}
    command = [sys.executable, "-c", BUG, "fail", *arguments]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "this is a bug in mlc-compile: ZeroDivisionError: a surprise" in ran.stderr
    assert ("Traceback" in ran.stderr) == shown


def closed_pipe(*arguments):
    """Run a command whose reader is gone before it says anything."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "mlc_compile", *map(str, arguments)]
    ran = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    return ran.returncode, ran.stderr


@pytest.mark.parametrize("arguments", [["targets"], ["targets", "--json"], ["--help"]])
def test_a_reader_that_leaves_early_is_no_error(arguments):
    assert closed_pipe(*arguments) == (program.CLOSED_PIPE, "")


def test_a_reader_may_leave_in_the_middle_of_a_text(nano_artifact):
    asked = ["run", nano_artifact, "-p", "The", "--max-tokens", 8, "--quiet"]
    assert closed_pipe(*asked) == (program.CLOSED_PIPE, "")


def test_h_is_help(cli):
    assert cli("-h").out == cli("--help").out
    assert cli("run", "-h").out == cli("run", "--help").out


@pytest.mark.parametrize("command", ["run", "chat", "bench", "eval"])
def test_too_many_threads_are_told_before_anything_is_loaded(cli, tmp_path, command):
    text = tmp_path / "text"
    text.write_text("some words")
    extra = {"run": ["-p", "hi"], "chat": ["-p", "hi"], "eval": ["--text", text]}
    ran = cli(command, tmp_path, "--threads", 9999, *extra.get(command, []))
    assert (ran.code, ran.out) == (2, "")
    assert "--threads 9999, but this machine lets us use" in ran.err
    assert " hint: at most " in ran.err


def test_the_help_of_build_lists_the_choices(cli):
    out = cli("build", "--help", env=os.environ | {"COLUMNS": "300", "NO_COLOR": "1"}).out
    choices = "q4f16_1, q4f32_1, q0f16, q0f32", "float16, float32, int8", "float32, int8, bfloat16"
    assert all(words in out for words in choices)
    assert "mlc-compile targets" in out
    assert "a+b" in out


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_stream_is_no_bug(closed):
    command = f"{shlex.quote(sys.executable)} -m mlc_compile targets {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, "bug" in done.stderr) == (0, False)


def test_memory_that_runs_out_is_the_machine_s_fault(monkeypatch, capsys):
    fail_with(monkeypatch, MemoryError("Unable to allocate 238 GiB"))
    assert program.invoke(["fail"]) == errors.EnvironmentError_.exit_code
    assert "238 GiB" in capsys.readouterr().err
