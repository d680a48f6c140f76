"""`tune`: the kernels of one model on one target, measured here or by devices of a tracker.

What wins goes to the records.
"""

import fnmatch
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mlc_compile.cache import Store
from mlc_compile.cache.room import room
from mlc_compile.driver.compile import import_model, prepare, require_code
from mlc_compile.driver.job import DEFAULTS, Job, Options
from mlc_compile.driver.subject import read_subject
from mlc_compile.emit.backend import emitter_of
from mlc_compile.errors import ConfigError, TargetError, listing
from mlc_compile.quant import find_scheme
from mlc_compile.records import Partition, RecordStore, partition_of
from mlc_compile.runtime.host import available_cores
from mlc_compile.target import Backend, Target, missing_features, triple_mismatch

if TYPE_CHECKING:
    from mlc_compile.tune.events import Listener
    from mlc_compile.tune.measure import Measurer
    from mlc_compile.tune.remote import Remote
    from mlc_compile.tune.result import TuneResult
    from mlc_compile.tune.tasks import Tasks

# What measuring for a GPU would take.
DEVICES: Final[dict[Backend, str]] = {
    "cuda": "an NVIDIA GPU of architecture {archs} and its driver",
    "metal": "a Mac with an Apple GPU, and macOS on it",
    "vulkan": "a GPU with a Vulkan driver that has what the target requires",
    "webgpu": "a browser with WebGPU on the device",
}


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to tune, what, and with which seed.

    `pattern`: only tasks with it in their name; `*` and `?` are as in file names.
    """

    seconds: float | None = None
    trials: int | None = None
    pattern: str = "*"
    seed: int = 0


EVERYTHING: Final = Effort()


@dataclass(frozen=True, slots=True)
class Request:
    """What to tune; measured here, or by `remote` devices."""

    model: Path
    target: Target
    quant: str
    options: Options = DEFAULTS
    effort: Effort = field(default_factory=Effort)
    remote: "Remote | None" = None


def tune_model(request: Request, cache_dir: Path, listener: "Listener") -> "TuneResult":
    """Tune the kernels of a model; records and samples go under `cache_dir`, and candidates
    while they are tried.

    Raises what `compile` raises early, TargetError where this machine cannot run the target's
    code or the devices are not there, ConfigError where no task matches, TuningError where
    nothing could be measured.
    """
    find_scheme(request.quant)
    row = require_here(request.target) if request.remote is None else tunable(request.target)
    with (
        room(Store(cache_dir), "tune") as place,
        _measuring(row, request.remote, place, listener) as (measurer, partition),
    ):
        result = _tune(request, cache_dir, listener, measurer, partition)
    from mlc_compile.tune.remote import RemoteMeasurer

    return measurer.counted(result) if isinstance(measurer, RemoteMeasurer) else result


def _tune(
    request: Request,
    cache_dir: Path,
    listener: "Listener",
    measurer: "Measurer",
    partition: Partition,
) -> "TuneResult":
    row, effort = request.target, request.effort
    job = prepare(read_subject(request.model), row, request.quant, request.options)
    require_code(row)
    tasks = _matching(_tasks(job, row), effort.pattern)
    from mlc_compile.tune.cost_model import Boosted
    from mlc_compile.tune.memory import Memory
    from mlc_compile.tune.session import Budget, Session

    model = Boosted(effort.seed)
    session = Session(
        partition=partition,
        store=RecordStore(cache_dir),
        measurer=measurer,
        model=model,
        memory=Memory.open(cache_dir, partition),
        budget=Budget(effort.seconds, effort.trials),
        seed=effort.seed,
        listener=listener,
    )
    try:
        return session.run(tasks)
    finally:
        model.close()


@contextmanager
def _measuring(
    row: Target, remote: "Remote | None", place: Path, listener: "Listener"
) -> "Iterator[tuple[Measurer, Partition]]":
    """What measures, and where its measurements hold."""
    from mlc_compile.tune.events import Noted
    from mlc_compile.tune.local import LocalMeasurer
    from mlc_compile.tune.remote import RemoteMeasurer
    from mlc_compile.tune.workshop import Workshop

    measurer: Measurer
    workshop = Workshop(row, place)
    if remote is None:
        measurer, partition = LocalMeasurer(workshop), partition_of(row, available_cores())
    else:
        measurer = RemoteMeasurer.open(workshop, remote, lambda text: listener(Noted(text)))
        partition = measurer.partition
    try:
        yield measurer, partition
    finally:
        measurer.close()


def tunable(target: Target) -> Target:
    """`target`, if there is a machine that could measure its kernels; else it says why not."""
    if target.variants:
        raise ConfigError(
            f"{target.name} is several libraries, and each is tuned by itself",
            hint=f"tune {listing(row.name for row in target.variants)} one after the other",
        )
    if target.device is not None:
        needs = DEVICES[target.backend].format(archs=listing(target.device.archs))
        raise TargetError(
            f"tuning measures on the device: {target.name} needs {needs}, "
            "and its kernels are tuned on CPUs only as yet",
            hint="build without tuning: the rules' schedules need none",
        )
    return target


def require_here(target: Target) -> Target:
    """`target`, if its kernels can be measured here; TargetError says what that takes."""
    tunable(target)
    elsewhere = triple_mismatch(target.triple)
    if elsewhere is not None:
        raise TargetError(
            f"target {target.name} cannot be measured here: {elsewhere}",
            hint="measure on such a machine with --rpc and --key, where `device-server` runs, "
            "or tune there and bring the records with `cache export` and `import`",
        )
    missing = missing_features(target.requires)
    if missing:
        raise TargetError(
            f"target {target.name} cannot be measured here: this CPU lacks {listing(missing, 12)}",
            hint="measure on a CPU that has them with --rpc and --key, where `device-server` "
            "runs, or tune there and bring the records with `cache export` and `import`",
        )
    return target


def _tasks(job: Job, row: Target) -> "Tasks":
    from mlc_compile.tune.designs import with_leftovers
    from mlc_compile.tune.tasks import tasks_of

    mod, plan = import_model(job, row)
    with emitter_of(row).tvm_target(row):
        return with_leftovers(tasks_of(mod, plan), mod, plan)


def _matching(tasks: "Tasks", pattern: str) -> "Tasks":
    """Those whose name matches; ConfigError if none does."""
    chosen = tuple(t for t in tasks.tasks if _matches(t.name, pattern))
    if not chosen:
        names: Sequence[str] = [task.name for task in tasks.tasks]
        known = f"one of: {'; '.join(names)}" if names else "this model has nothing to tune here"
        raise ConfigError(f"no task matches {pattern!r}", hint=known)
    return replace(tasks, tasks=chosen)


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, f"*{pattern}*")
