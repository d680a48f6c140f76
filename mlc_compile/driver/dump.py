"""`--dump-ir`: the module as TVMScript at every step of the pipeline, in numbered files.

    00-imported.py
    02-graph-03-FuseSwiGLU.py    after a pass, if it changed a function
    02-graph.py                  after a phase
    events.json                  what the passes decided, in order

It runs the passes itself and generates no code, so that it shows the same whether or not the
library comes from the cache. Where a pass fails, the files show all that went before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mlc_compile.artifact import pretty_json
from mlc_compile.driver.clock import Clock
from mlc_compile.driver.compile import import_model, prepare
from mlc_compile.driver.job import Job, Options
from mlc_compile.driver.optimize import optimize
from mlc_compile.driver.subject import read_subject
from mlc_compile.emit.backend import emitter_of
from mlc_compile.errors import ConfigError
from mlc_compile.passes.watch import At
from mlc_compile.progress import SILENT, Progress
from mlc_compile.records import RecordStore
from mlc_compile.target import Target

if TYPE_CHECKING:
    from tvm import IRModule

EVENTS: Final = "events.json"
STEPS: Final = "[0-9][0-9]-*.py"


def dump_ir(
    model: Path,
    targets: Sequence[Target],
    quant: str,
    directory: Path,
    options: Options,
    progress: Progress,
    records: RecordStore | None = None,
) -> None:
    """Write the steps of each library into `directory`, a subdirectory each if there are several.

    Files of an earlier dump are removed. Raises what `compile` raises early.
    """
    subject = read_subject(model)
    jobs = [prepare(subject, target, quant, options, records) for target in targets]
    rows = [(job, row) for job in jobs for row in job.target.libraries]
    for job, row in rows:
        progress.step(f"dumping the IR of {row.name}")
        place = directory / row.name if len(rows) > 1 else directory
        _clear(place)
        _dump_one(job, row, place)


def _clear(place: Path) -> None:
    """Make the directory, or remove an earlier dump from it and nothing else."""
    if place.exists() and not place.is_dir():
        raise ConfigError(f"{place} is a file", hint="choose another directory with --dump-ir")
    place.mkdir(parents=True, exist_ok=True)
    if any(place.glob(STEPS)) and not (place / EVENTS).is_file():
        raise ConfigError(
            f"{place} holds files that are named like a dump's, and no dump",
            hint="choose another directory with --dump-ir, or empty this one",
        )
    for pattern in (STEPS, EVENTS):
        for path in place.glob(pattern):
            path.unlink()


def _dump_one(job: Job, row: Target, directory: Path) -> None:
    mod, plan = import_model(job, row)
    with emitter_of(row).tvm_target(row):
        optimize(mod, plan, Clock(SILENT), (Dump(directory),))


@dataclass(slots=True)
class Dump:
    """Writes what it sees into `directory`; a `passes.watch.Watcher`."""

    directory: Path
    last: "IRModule | None" = None

    def start(self, mod: "IRModule") -> None:
        """The module as imported."""
        self._write("00-imported", mod)

    def after(self, at: At, mod: "IRModule") -> None:
        """Write what a pass changed, and what a phase left."""
        from mlc_compile.passes import events

        phase = f"{at.phase_number:02}-{at.phase}"
        if self.last is None or not _same_functions(self.last, mod):
            self._write(f"{phase}-{at.step_number:02}-{at.step}", mod)
        if at.ends_phase:
            self._write(phase, mod)
            (self.directory / EVENTS).write_bytes(pretty_json(events.read(mod)))

    def _write(self, name: str, mod: "IRModule") -> None:
        (self.directory / f"{name}.py").write_text(mod.script(), encoding="utf-8")
        self.last = mod


def _same_functions(one: "IRModule", other: "IRModule") -> bool:
    """Whether nothing changed but what passes noted."""
    from tvm_ffi import structural_equal

    before, after = ({str(gv.name_hint): f for gv, f in m.functions.items()} for m in (one, other))
    return before.keys() == after.keys() and all(
        structural_equal(before[name], after[name]) for name in before
    )
