"""The result goes to stdout, the story to stderr; the common options are every command's."""

import inspect
import json
from pathlib import Path
from typing import Annotated

import pytest
import typer

from mlc_compile.cli import console
from mlc_compile.cli.console import Bars, Output, output_options, plain_table, tell_error
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


@pytest.mark.parametrize(
    ("hint", "told"), [("mend it", "error: torn\n hint: mend it\n"), ("", "error: torn\n")]
)
def test_an_error_is_told_with_its_hint_if_it_has_one(capsys, hint, told):
    tell_error("torn", hint)
    assert capsys.readouterr().err == told


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
        pytest.param(["--cache-dir", ""], "/b", Path("/b"), id="empty leaves it to the variable"),
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


def test_a_paragraph_of_help_breaks_where_the_terminal_does():
    @output_options
    def act(output: Output) -> None:
        """Act.

        A paragraph of
        two lines.
        """

    assert act.__doc__ == "Act.\n\nA paragraph of two lines."
