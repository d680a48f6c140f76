"""Tuning that dies at any moment leaves sound records, no process and nothing that `gc` does not
remove; the next run goes on, and builds with what is left are the same everywhere.

`MLC_COMPILE_RANDOM_KILLS=50` kills at so many random moments as well.
"""

import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from mlc_compile.cache import Store
from mlc_compile.cache.check import check
from mlc_compile.records import RecordStore
from tests.driver.stand_ins import contents
from tests.killing import RANDOM_KILLS, Victim

pytestmark = pytest.mark.slow
LOG = logging.getLogger(__name__)

# A small search beside a kernel that is only timed; nearly always some choice is faster.
TRIALS = 8  # the least that a round has
ASKED = ("--task", "int8_gem*n=256*", "--trials", TRIALS, "--json", "--target", "cpu")
EVENTS = {
    "the processes are starting": ("tasks", 1),
    "the first candidate was timed": ("trial", 1),
    "candidates are built and timed": ("trial", 7),
    "a round is over": ("round", 1),
}
PAUSE = 2.0  # seconds at most between what is said and a kill


class Tuning:
    """Runs of one cache, each killed, and all that they have said they kept."""

    def __init__(self, base: Path, checkpoint: Path) -> None:
        self.cache, self.temporary = base / "cache", base / "tmp"
        self.temporary.mkdir(parents=True)
        self.command = [sys.executable, "-m", "mlc_compile", "tune", checkpoint, *ASKED]
        self.kept: list[object] = []  # choices
        self.kills = 0

    @property
    def env(self) -> dict[str, str]:
        return {"MLC_COMPILE_CACHE": str(self.cache), "TMPDIR": str(self.temporary)}

    def killed(self, until: Callable[[Victim], list[bytes]]) -> None:
        """A run that is killed once `until`, which gives the lines it has read, returns."""
        with Victim(self.command, env=self.env) as victim:
            said = until(victim)
            self.kills += victim.process.poll() is None
            victim.kill()
            said += victim.lines()
            assert victim.left() == []
        self.note(said)
        self.check()

    def note(self, said: list[bytes]) -> None:
        events = [json.loads(line) for line in said]
        self.kept += [event["choice"] for event in events if event["event"] == "record"]

    def check(self) -> None:
        """Sound, whole and clean."""
        loaded = RecordStore(self.cache).all()
        assert [one.dropped for one in loaded if one.dropped] == []
        stored = [record.choice for one in loaded for record in one.records]
        assert [choice for choice in self.kept if choice not in stored] == []
        assert list(self.temporary.iterdir()) == []
        store = Store(self.cache)
        store.collect(store.limit)
        assert store.notes == []
        assert not store.scratch.is_dir() or list(store.scratch.iterdir()) == []
        assert not store.locks.is_dir() or list(store.locks.iterdir()) == []
        assert [fault for _, fault in check(store) if fault is not None] == []


def event(name: str, count: int) -> Callable[[Victim], list[bytes]]:
    """Until it has said that so often."""

    def until(victim: Victim) -> list[bytes]:
        said: list[bytes] = []
        while [json.loads(line)["event"] for line in said].count(name) < count:
            line = victim.line()
            assert line, "the run ended before"
            said.append(line)
        return said

    return until


def moment(lines: int, seconds: float) -> Callable[[Victim], list[bytes]]:
    """So many seconds after it has said so much, or until it ends."""

    def until(victim: Victim) -> list[bytes]:
        said = [*filter(None, (victim.line() for _ in range(lines)))]
        with suppress(subprocess.TimeoutExpired):
            victim.process.wait(seconds)
        return said

    return until


@pytest.fixture(scope="module")
def tuning(nano_checkpoint, tmp_path_factory):
    """What is left of runs that were killed at every event, and at the random moments."""
    made = Tuning(tmp_path_factory.mktemp("killed"), nano_checkpoint)
    for name, count in EVENTS.values():
        made.killed(event(name, count))
    draw = random.Random(0)
    for _ in range(RANDOM_KILLS):
        made.killed(moment(draw.randint(0, TRIALS + len(EVENTS)), draw.uniform(0, PAUSE)))
    return made


def test_each_left_the_records_sound_no_process_and_no_file(tuning):
    """The fixture has looked after every kill."""
    assert tuning.kills >= len(EVENTS)
    LOG.info("%d kills, %d records said to be kept", tuning.kills, len(tuning.kept))


def test_the_next_run_goes_on(tuning, cli):
    before = samples(tuning)
    ran = cli(*tuning.command[3:], env={**os.environ, **tuning.env})
    assert ran.code == 0, ran.err
    tuning.note(ran.out.encode().splitlines())
    tuning.check()
    assert samples(tuning)[: len(before)] == before
    ran = cli("cache", "verify", "--json", env={**os.environ, **tuning.env})
    assert ran.code == 0, ran.err
    assert ran.json["damaged_records"] == []


def samples(tuning):
    """What the cost model learns from, of all runs, a line each."""
    (path,) = (tuning.cache / "samples").rglob("*.jsonl")
    return path.read_bytes().splitlines()


def test_two_builds_with_what_is_left_are_the_same(tuning, cli, nano_checkpoint, tmp_path):
    bundle = tmp_path / "bundle"
    ran = cli("cache", "export", bundle, env={**os.environ, **tuning.env})
    assert ran.code == 0, ran.err
    for name in ("one", "two"):
        env = {**os.environ, "MLC_COMPILE_CACHE": str(tmp_path / f"{name}-cache")}
        assert cli("cache", "import", bundle, env=env).code == 0
        ran = cli("build", nano_checkpoint, "-o", tmp_path / name, "--json", env=env)
        assert ran.code == 0, ran.err
        assert ran.json["notes"] == []
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
