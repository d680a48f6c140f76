"""The result goes to stdout, the story to stderr; the common options are every command's."""

import inspect
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Annotated

import pytest
import typer

from mlc_compile.cli import console
from mlc_compile.cli.console import Bars, Output, default_cache_dir, output_options, plain_table
from mlc_compile.errors import EnvironmentError_
from mlc_compile.progress import SILENT


@pytest.fixture(autouse=True)
def fresh_consoles():
    """rich keeps the stream it first saw; each test has streams of its own."""
    console._stdout.cache_clear()
    console._stderr.cache_clear()
    yield
    console._stdout.cache_clear()
    console._stderr.cache_clear()


@output_options
def weigh(output: Output, thing: Path, *, unit: Annotated[str, typer.Option()] = "kg") -> None:
    """Weigh a thing."""
    output.story("weighing")
    output.result({"thing": str(thing), "unit": unit}, f"{thing} in {unit}")


def call(*arguments):
    app = typer.Typer()
    app.command()(weigh)
    return app(list(arguments), standalone_mode=False)


def test_people_get_text_on_stdout_and_the_story_on_stderr(capsys):
    call("stone", "--unit", "lb")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("stone in lb\n", "weighing\n")


def test_json_replaces_the_text_and_quiet_silences_the_story(capsys):
    call("stone", "--json", "--quiet")
    said = capsys.readouterr()
    assert json.loads(said.out) == {"thing": "stone", "unit": "kg"}
    assert said.err == ""


def test_the_decorated_command_shows_its_own_parameters_first():
    names = list(inspect.signature(weigh).parameters)
    assert names == ["thing", "unit", "json", "quiet", "cache_dir", "traceback"]


def test_a_result_without_text_is_json_for_people_too(capsys):
    Output().result([1, 2])
    assert json.loads(capsys.readouterr().out) == [1, 2]


def test_brackets_and_long_lines_come_out_as_they_are(capsys):
    text = "[bold]not markup[/bold] :smile: " + "x" * 300
    Output().result({}, text)
    assert capsys.readouterr().out == text + "\n"


def test_a_table_in_a_pipe_is_neither_folded_nor_cut(capsys):
    table = plain_table("name", "value")
    table.add_row("a", "y" * 300)
    Output().result({}, table)
    assert "y" * 300 in capsys.readouterr().out


def test_streamed_text_waits_for_the_object_with_json(capsys):
    Output(json=True).stream("word")
    Output().stream("word")
    assert capsys.readouterr().out == "word"


@pytest.mark.parametrize("quiet", [True, False])
def test_without_a_terminal_there_is_no_bar(capsys, quiet):
    with Output(quiet=quiet).progress() as progress:
        assert progress is SILENT
    assert capsys.readouterr().err == ""


def test_a_stage_counts_and_the_next_one_closes_it():
    bars = console._bars()
    stages = Bars(bars)
    stages.step("convert", 4)
    stages.advance(3)
    assert (bars.tasks[0].completed, bars.tasks[0].total) == (3, 4)
    stages.step("compile")
    assert bars.tasks[0].finished
    assert not bars.tasks[1].finished


@pytest.mark.parametrize(
    ("options", "variable", "expected"),
    [
        pytest.param(["--cache-dir", "/a"], "/b", Path("/a"), id="the option wins"),
        pytest.param([], "/b", Path("/b"), id="then the variable"),
        pytest.param(["--cache-dir", ""], "", Path("/xdg/mlc_compile"), id="empty is none"),
        pytest.param([], None, Path("/xdg/mlc_compile"), id="then XDG"),
    ],
)
def test_where_caches_go(monkeypatch, options, variable, expected):
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    if variable is None:
        monkeypatch.delenv(console.CACHE_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(console.CACHE_VARIABLE, variable)
    seen = []

    @output_options
    def look(output: Output) -> None:
        seen.append(output.cache_dir)

    app = typer.Typer()
    app.command()(look)
    app(options, standalone_mode=False)
    assert seen == [expected]


def test_without_a_home_caches_go_to_the_temporary_directory(monkeypatch, nowhere):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert default_cache_dir() == nowhere


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """Where caches go for who has no home."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"mlc_compile-{os.getuid()}"


def test_an_empty_home_is_as_good_as_none(nowhere):
    for _ in range(2):  # the second time it is there
        assert default_cache_dir() == nowhere
        assert stat.S_IMODE(nowhere.lstat().st_mode) == 0o700


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: path.mkdir() or path.chmod(0o770), id="writable by others"),
        pytest.param(lambda path: path.symlink_to(path.parent), id="a link"),
        pytest.param(Path.touch, id="a file"),
    ],
)
def test_a_cache_that_another_user_may_have_put_there_is_refused(nowhere, make):
    make(nowhere)
    with pytest.raises(EnvironmentError_, match="is not this user's alone") as e:
        default_cache_dir()
    assert "--cache-dir" in e.value.hint
    assert Output(cache=Path("elsewhere")).cache_dir == Path("elsewhere")


def test_another_user_s_cache_is_refused(nowhere, monkeypatch):
    nowhere.mkdir(mode=0o700)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    nowhere.rename(nowhere.with_name(f"mlc_compile-{me + 1}"))
    with pytest.raises(EnvironmentError_):
        default_cache_dir()


def test_a_paragraph_of_help_breaks_where_the_terminal_does():
    @output_options
    def act(output: Output) -> None:
        """Act.

        A paragraph of
        two lines.
        """

    assert act.__doc__ == "Act.\n\nA paragraph of two lines."
