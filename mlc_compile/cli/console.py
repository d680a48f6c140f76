"""What a command says and where: the result on stdout, the story on stderr.

A command takes an `Output` first and is decorated with `output_options`, which gives it
`--json`, `--quiet`, `--cache-dir` and `--traceback`:

    @output_options
    def inspect(output: Output, artifact: Path) -> None:
        output.result(manifest, shown=table)

rich is imported where it draws, so that `--help` of a command costs little.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Concatenate, Final, ParamSpec, get_args

import typer
from typer.models import ParameterInfo

from mlc_compile.artifact import pretty_json
from mlc_compile.cli.cache_dir import default_cache_dir
from mlc_compile.cli.values import place
from mlc_compile.progress import SILENT, Progress

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from rich.table import Table

PANEL: Final = "Common options"
CACHE_VARIABLE: Final = "MLC_COMPILE_CACHE"

P = ParamSpec("P")


@dataclass(frozen=True)  # no slots: one would be missing for what is cached
class Output:
    """Where one command's words go, and the options that every command shares."""

    json: bool = False
    quiet: bool = False
    cache: Path | None = None  # as asked for

    @cached_property
    def cache_dir(self) -> Path:
        """Where build cache and tuning records are; EnvironmentError_ if no place is safe."""
        return self.cache or default_cache_dir()

    def result(self, value: object, shown: "RenderableType | None" = None) -> None:
        """The result: `value` as JSON with `--json`, else `shown` (text or anything rich draws).

        `value` is what msgspec encodes: a Struct, a dataclass, dicts, lists, scalars.
        Without `shown`, people get the JSON too.
        """
        if self.json or shown is None:
            sys.stdout.write(pretty_json(value).decode())
        else:
            _stdout().print(shown)
        sys.stdout.flush()

    def stream(self, text: str) -> None:
        """A piece of a result that grows, such as generated text; JSON waits for the whole."""
        if not self.json:
            sys.stdout.write(text)
            sys.stdout.flush()

    def story(self, line: str) -> None:
        """One line for the person who waits: stderr, nothing with `--quiet`."""
        if not self.quiet:
            _stderr().print(line)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """A progress bar on stderr; silent with `--quiet` or where stderr is not a terminal."""
        if self.quiet or not sys.stderr.isatty():
            yield SILENT
            return
        with _bars() as bars:
            yield Bars(bars)


def tell_error(message: str, hint: str) -> None:
    """What is wrong and, if anything is known, what to do: on stderr, with `--quiet` too."""
    sys.stderr.write(f"error: {message}\n" + (f" hint: {hint}\n" if hint else ""))


class Bars:
    """`mlc_compile.progress.Progress` drawn by rich: a line per stage, the last one moving."""

    def __init__(self, bars: "RichProgress") -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def step(self, name: str, total: int | None = None) -> None:
        """Close the stage that runs and open the next; without a total the bar pulses."""
        if self._task is not None:
            self._bars.update(self._task, total=1, completed=1)
        self._task = self._bars.add_task(name, total=total)

    def advance(self, amount: int = 1) -> None:
        """Move the bar of the current stage."""
        if self._task is not None:
            self._bars.advance(self._task, amount)


def plain_table(*headers: str, folding: Sequence[str] = (), dropped: Sequence[str] = ()) -> "Table":
    """An empty table that reads well on a terminal and in a pipe: columns, no frame.

    On a narrow terminal columns in `folding` are folded and those in `dropped` left out, the
    first first; no other is ever cut.
    """
    from mlc_compile.cli.table import PlainTable, Yielding

    return PlainTable(headers, Yielding(folding, dropped))


def timings(seconds: Mapping[str, float]) -> str:
    """`importing 0.5 s, optimizing 2.0 s`: the stages of a job."""
    return ", ".join(f"{stage} {took:.1f} s" for stage, took in seconds.items())


def output_options(command: Callable[Concatenate[Output, P], None]) -> Callable[..., None]:
    """Make `command(output, ...)` what typer reads: the shared options in place of `output`."""

    @functools.wraps(command)
    def with_options(
        json: bool,
        quiet: bool,
        cache_dir: Path | None,
        traceback: bool,
        *args: P.args,
        **own: P.kwargs,
    ) -> None:
        del traceback  # `app.main` looks for it in the arguments: it handles what we raise
        command(Output(json, quiet, cache_dir), *args, **own)

    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    for parameter in own:
        _refuse_empty(parameter)
    parameters = [*own, *inspect.signature(_shared).parameters.values()]
    with_options.__doc__ = _flowing(command.__doc__ or "")
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    with_options.__dict__["__signature__"] = inspect.Signature(parameters)
    return with_options


def _flowing(text: str) -> str:
    """Paragraphs of a line each: typer would keep the breaks of the source beside its own."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _refuse_empty(parameter: inspect.Parameter) -> None:
    """Have typer read a path by `place`."""
    kind, *notes = get_args(parameter.annotation) or [None]
    if Path in (kind, *get_args(kind)):
        for note in notes:
            if isinstance(note, ParameterInfo):
                note.parser = place


def _asked(text: str) -> Path | None:
    """An empty `--cache-dir` leaves it to the variable, an empty variable to the default."""
    named = text or os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else None


def _shared(
    *,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the result, or the error, as JSON.", rich_help_panel=PANEL
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Say nothing on stderr but errors.", rich_help_panel=PANEL
        ),
    ] = False,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            envvar=CACHE_VARIABLE,
            help="Build cache and tuning records.",
            metavar="DIR",
            parser=_asked,
            show_default="~/.cache/mlc_compile",
            rich_help_panel=PANEL,
        ),
    ] = None,
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback", help="Show the Python traceback of an error.", rich_help_panel=PANEL
        ),
    ] = False,
) -> None:
    """Carry the signature of the shared options; never called."""


@cache
def _stdout() -> "Console":
    from rich.console import Console

    # A pipe has no width: never fold or cut what a script will read.
    width = None if sys.stdout.isatty() else 1000
    return Console(highlight=False, markup=False, soft_wrap=True, emoji=False, width=width)


@cache
def _stderr() -> "Console":
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True, emoji=False)


def _bars() -> "RichProgress":
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=_stderr(),
    )
