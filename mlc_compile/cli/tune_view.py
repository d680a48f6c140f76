"""How tuning looks while it runs: a line a task, drawn over and over on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlc_compile.cli.console import Output, plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from mlc_compile.records import Choice
    from mlc_compile.tune.events import Event, Progressed


@dataclass(slots=True)
class View:
    """What is known of each task; `draw` shows it, `say` tells of what is over."""

    say: Callable[[str], None]
    draw: "Callable[[Table], None] | None" = None
    tasks: "dict[str, Progressed | None]" = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    left: float | None = None

    def take(self, event: "Event") -> None:
        """Show one event."""
        from mlc_compile.tune import events

        match event:
            case events.Planned():
                self.tasks = {row.name: None for row in event.tasks}
                self.say(f"{len(event.tasks)} kernels to tune, {len(event.untunable)} kinds not")
            case events.Progressed():
                self.tasks[event.task] = event
                self.left = event.left_seconds
            case events.Rounded():
                self.rounds[event.task] = event.round
                if self.draw is None:
                    self.say(_told(event))
            case events.Recorded():
                gain = event.default_microseconds / event.microseconds
                self.say(f"record: {event.task}: {told(event.choice)}, {gain:.3f} times as fast")
            case events.Noted():
                self.say(event.text)
        if self.draw is not None:
            self.draw(self._table())

    def _table(self) -> "Table":
        left = "" if self.left is None else f"{self.left / 60:.1f} min left"
        table = plain_table(f"kernel  {left}", "best", "x default", "rounds", "trials", "errors")
        for name, last in self.tasks.items():
            numbers = ("", "", "", "", "")
            if last is not None:
                numbers = (
                    f"{last.best_microseconds:.0f} us",
                    f"{last.speedup:.3f}",
                    str(self.rounds.get(name, 0)),
                    str(last.trials),
                    str(last.errors),
                )
            table.add_row(name, *numbers)
        return table


def told(choice: "Choice") -> str:
    """`m=2 blocks=1`."""
    if isinstance(choice, list):
        return "a trace of MetaSchedule's"
    return " ".join(f"{name}={value}" for name, value in choice.items())


def _told(event: "Event") -> str:
    from mlc_compile.tune.events import Rounded

    assert isinstance(event, Rounded)
    rank = "" if event.correlation is None else f", rank correlation {event.correlation:.2f}"
    return (
        f"{event.task}: round {event.round}, {event.trials} trials, {event.errors} errors, "
        f"{event.speedup:.3f} x default{rank}, {event.seconds:.0f} s"
    )


@contextmanager
def opened(output: Output) -> Iterator[View]:
    """A view on stderr: drawn in place on a terminal, else a line a round."""
    if output.quiet or not sys.stderr.isatty():
        yield View(output.story)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with Live(console=console, refresh_per_second=4) as live:
        yield View(live.console.print, live.update)
