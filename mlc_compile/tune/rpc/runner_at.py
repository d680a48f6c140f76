"""One runner on another machine: asked through a process of ours, which is killed in vain waits."""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from mlc_compile.errors import TargetError
from mlc_compile.target import Target
from mlc_compile.tune.measure import GAUGE_SECONDS, PREPARE_SECONDS, RUN_SECONDS
from mlc_compile.tune.rpc import bridge
from mlc_compile.tune.rpc.bridge import Ask, Open, Opened, Said, Ship
from mlc_compile.tune.rpc.tracker import Address, Offer
from mlc_compile.tune.rpc.wire import Asked, Device, Failure, Hello
from mlc_compile.tune.runner import Compare, Compared, Gauge, Gauged, Prepare, Prepared
from mlc_compile.tune.worker import START_SECONDS, Trouble, Worker

if TYPE_CHECKING:
    from mlc_compile.tune.tasks import Task

OPEN_SECONDS: Final = 60.0  # to connect, while a process starts there
SHIP_SECONDS: Final = 60.0  # for one library
GRACE_SECONDS: Final = 10.0  # beside what the far end has for a question

T = TypeVar("T")


class Lost(Exception):
    """The device no longer answers: where, and what was the last sign."""


@dataclass(slots=True)
class RemoteRunner:
    """The near end of a runner; Trouble is the candidate's, Lost is the device's."""

    address: Address | None = None
    run_seconds: float = RUN_SECONDS
    grace_seconds: float = GRACE_SECONDS
    bridge: Worker = field(default_factory=lambda: Worker(bridge.MODULE, threads=1))
    _prepared: str = ""  # the task in hand
    _calls: float = 0.0  # seconds of one call of the default in each situation
    _count: Iterator[int] = field(default_factory=itertools.count)
    _shipped: dict[str, str] = field(default_factory=dict)  # task -> its default's name there

    def warm(self) -> None:
        """Be ready to connect at once: an offer does not stand for long."""
        try:
            self.bridge.warm()
        except Trouble as e:
            raise Lost(f"no process of ours could connect: {e}") from e

    def open(self, offer: Offer, target: Target) -> Device:
        """Connect, and learn what machine that is."""
        self.address = offer.address
        question = Open(*offer.address, offer.match)
        if not self._through(question, Opened, OPEN_SECONDS).ours:
            raise TargetError(
                f"what serves at {self.address} is a plain TVM RPC server, without our runner",
                hint="start `mlc-compile device-server` there instead",
            )
        try:
            return self._ask(Hello(target.triple, target.requires), Device, OPEN_SECONDS)
        except (Trouble, msgspec.DecodeError) as e:
            raise TargetError(
                f"the device at {self.address} does not answer as ours do: {e}",
                hint="install the same mlc_compile there",
            ) from e

    def compare(self, task: "Task", default: Path, library: Path, quick: Compare) -> Compared:
        """Check and time a library beside the task's default; `quick` says how thoroughly."""
        try:
            self._prepare(task, default)
            name = self._ship(library)
            # Four pairs of a hopeless candidate, which may be far slower, end in this too.
            seconds = self.run_seconds + quick.seconds + self._calls * 40 * quick.pairs
            return self._ask(msgspec.structs.replace(quick, candidate=name), Compared, seconds)
        except Trouble as e:
            if e.kind != "refused":  # the far end needs a new runner
                self._prepared = ""
            raise

    def bandwidth(self) -> float:
        """Bytes a second that the device reads."""
        return self._ask(Gauge(), Gauged, GAUGE_SECONDS, START_SECONDS).bytes_s

    def close(self) -> None:
        """Break the connection."""
        self.bridge.close()

    def _prepare(self, task: "Task", default: Path) -> None:
        if self._prepared == task.name:
            return
        self._prepared = ""
        if task.name not in self._shipped:
            self._shipped[task.name] = self._ship(default)
        question = Prepare(self._shipped[task.name], task.situations)
        calm = self._ask(question, Prepared, PREPARE_SECONDS, START_SECONDS)
        self._calls = 1e-6 * sum(calm.microseconds)
        self._prepared = task.name

    def _ship(self, library: Path) -> str:
        name = f"{next(self._count)}{library.suffix}"
        self._through(Ship(str(library), name), Said, SHIP_SECONDS)
        return name

    def _ask(
        self,
        question: Hello | Prepare | Compare | Gauge,
        answer: type[T],
        seconds: float,
        more: float = 0,
    ) -> T:
        """The far end's answer within `seconds`, after `more` in which it may start a process."""
        text = msgspec.json.encode(Asked(question, seconds)).decode()
        said = self._through(Ask(text), Said, seconds + more + self.grace_seconds)
        with suppress(msgspec.DecodeError):
            failure = msgspec.json.decode(said.text, type=Failure)
            raise Trouble(failure.kind, failure.message)
        return msgspec.json.decode(said.text, type=answer)

    def _through(self, question: Open | Ship | Ask, answer: type[T], seconds: float) -> T:
        try:
            return self.bridge.ask(question, answer, seconds)
        except Trouble as e:
            raise Lost(f"{self.address}: {e}") from e
