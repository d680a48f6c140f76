"""The record store: append, load, choose, merge, compact; a file for each partition.

Who writes holds the partition's lock, and what is written is on the disk when `append` returns.
A line that a kill left half-written ends before the next one begins. Readers hold no lock: a
line on its way in is not there yet.

Records decide what a build makes, so a store that cannot be read or written is an
EnvironmentError_, which whoever can go on without it catches.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Final

from mlc_compile.cache.ground import is_file, is_there, make_directory
from mlc_compile.errors import EnvironmentError_
from mlc_compile.records.chosen import Chosen, choose
from mlc_compile.records.line import About, Damaged, Measured, decode_lines, encode_line
from mlc_compile.records.partition import FORMAT, Partition
from mlc_compile.records.record import Record, Workload, canonical
from mlc_compile.staging import delete, replaced, sync
from mlc_compile.staging.lock import hold

SUFFIX: Final = ".jsonl"
NAME: Final = re.compile(rf"[0-9a-f]{{64}}{re.escape(SUFFIX)}")


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that `append` did not keep."""

    record: Record
    reason: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """A line that does not count, by its number from 1."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the file of a partition holds: distinct records in their order, and what is left out.

    `digest` is the partition's; `partition` is None where no sound line says it in words.
    `repeated` counts sound lines that say again what another said.
    """

    digest: str
    partition: Partition | None = None
    records: tuple[Record, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class RecordStore:
    """The records under `cache_dir`; a directory that is not there is a store without records.

    `notes` collects, in sentences for people, what a build left out of what it read.
    """

    cache_dir: Path
    notes: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        """Where all records lie that have this version's format."""
        return self.cache_dir / "records" / FORMAT

    def append(self, partition: Partition, records: Iterable[Record]) -> tuple[Refused, ...]:
        """Keep records, all of them on the disk on return; those refused, as never measured.

        EnvironmentError_ where the disk does not take all; the file is then as it was.
        """
        given = list(records)
        self._add(partition.digest, partition, [one for one in given if not one.fault])
        return tuple(Refused(one, one.fault) for one in given if one.fault)

    def load(self, partition: Partition) -> Loaded:
        """Everything known of a partition; EnvironmentError_ where it cannot be read."""
        return self._read(partition.digest)

    def chosen(self, partition: Partition) -> Chosen:
        """What a build for the partition uses, as it stands now; damage is noted."""
        loaded = self.load(partition)
        note = _note(self.path(loaded.digest), loaded.dropped)
        if note and note not in self.notes:
            self.notes.append(note)
        return choose(loaded.records)

    def best(self, partition: Partition, workload: Workload, space: int) -> Record | None:
        """The fastest record that beat its default; None where there is none."""
        return self.chosen(partition).find(workload, space)

    def digest(self, partition: Partition) -> str:
        """Of what is chosen, not of what else lies beside it; empty where nothing is."""
        return self.chosen(partition).digest

    def all(self) -> tuple[Loaded, ...]:
        """Every partition that has a file, by digest."""
        with self._told("read"):
            names = sorted(filter(NAME.fullmatch, _names(self.root)))
        return tuple(self._read(name.removesuffix(SUFFIX)) for name in names)

    def path(self, digest: str) -> Path:
        """The file of a partition."""
        return self.root / f"{digest}{SUFFIX}"

    def merge(self, other: "RecordStore") -> int:
        """Take in what `other` has and we do not; how many records were new."""
        return sum(self._add(one.digest, one.partition, one.records) for one in other.all())

    def compact(self) -> int:
        """Write files anew that have damaged lines or repetitions; how many of those went."""
        return sum(self._compact(one.digest) for one in self.all() if one.repeated or one.dropped)

    def files(self) -> dict[str, bytes]:
        """All that counts, as files by their path below `cache_dir`; equal for equal records.

        With those files a directory is such a store, from which `merge` takes.
        """
        base = self.root.relative_to(self.cache_dir).as_posix()
        whole = {one.digest: _whole(one) for one in self.all()}
        return {f"{base}/{name}{SUFFIX}": data for name, data in whole.items() if data}

    def _add(self, digest: str, partition: Partition | None, records: Sequence[Record]) -> int:
        """Append those that are new, and say what the partition is if no line does yet."""
        if not records:
            return 0
        with self._locked(digest):
            there = self._read(digest)
            known = {canonical(record) for record in there.records}
            new = {canonical(one): one for one in records if canonical(one) not in known}
            lines: list[Measured | About] = [Measured(digest, one) for one in new.values()]
            if lines and partition and there.partition is None:
                lines.insert(0, About(partition))
            if lines:
                _append(self.path(digest), b"".join(encode_line(line) for line in lines))
        return len(new)

    def _compact(self, digest: str) -> int:
        with self._locked(digest):
            there = self._read(digest)
            _replace(self.path(digest), _whole(there))
            return there.repeated + len(there.dropped)

    def _read(self, digest: str) -> Loaded:
        with self._told("read"):
            return _loaded(digest, _contents(self.path(digest)))

    @contextmanager
    def _locked(self, digest: str) -> Iterator[None]:
        """Hold the lock of a partition, for writing."""
        with self._told("written"):
            make_directory(self.root, self.root)
            with hold(self.path(digest).with_suffix(".lock")):
                yield

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            reason = (e.strerror or str(e)).lower()
            raise EnvironmentError_(
                f"the tuning records in {self.root} cannot be {what}: {reason}",
                hint="free some space or give the permission, or name another --cache-dir",
            ) from e


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _contents(path: Path) -> bytes:
    """Empty where there is no file; what is there and no file is one damaged line."""
    try:
        return path.read_bytes() if stat.S_ISREG(path.stat().st_mode) else b"no file"
    except (FileNotFoundError, NotADirectoryError):
        return b""


def _note(path: Path, dropped: Sequence[Dropped]) -> str:
    """A sentence about what was left out; empty for nothing."""
    if not dropped:
        return ""
    first, lines = dropped[0], "1 line" if len(dropped) == 1 else f"{len(dropped)} lines"
    return (
        f"{lines} of the tuning records in {path} did not count, the first is line {first.line} "
        f"({first.reason}): run `mlc-compile cache verify`"
    )


def _loaded(digest: str, data: bytes) -> Loaded:
    partition, records, dropped, repeated = None, dict[bytes, Record](), list[Dropped](), 0
    for number, line in decode_lines(data):
        reason = _fault(digest, line)
        if reason:
            dropped.append(Dropped(number, reason))
        elif isinstance(line, About):
            repeated += partition is not None
            partition = line.about
        elif isinstance(line, Measured):
            name = canonical(line.record)
            repeated += name in records
            records[name] = line.record
    return Loaded(digest, partition, tuple(records.values()), tuple(dropped), repeated)


def _whole(there: Loaded) -> bytes:
    """The one text of a partition's records, in an order of their own; empty without records."""
    if not there.records:
        return b""
    about = [] if there.partition is None else [encode_line(About(there.partition))]
    records = sorted(encode_line(Measured(there.digest, one)) for one in there.records)
    return b"".join((*about, *records))


def _fault(digest: str, line: Measured | About | Damaged) -> str:
    """Why a line of the file of partition `digest` does not count; empty where it does."""
    match line:
        case Damaged():
            return str(line)
        case About():
            return "" if line.about.digest == digest else ELSEWHERE
        case Measured():
            return line.record.fault if line.partition == digest else ELSEWHERE


def _append(path: Path, lines: bytes) -> None:
    """Add whole lines, all or none; what a killed writer left of a line becomes one of its own."""
    if not is_file(path):  # or nobody of us made it
        delete(path)
    is_new = not is_there(path)
    with path.open("a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        torn = size > 0 and file.read(1) != b"\n"
        try:
            _write(file, b"\n" + lines if torn else lines)
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise
    if is_new:
        sync(path.parent)


def _write(file: FileIO, data: bytes) -> None:
    """All of `data`: a disk that fills up takes a part first, and then says so."""
    while data:
        data = data[file.write(data) :]


def _replace(path: Path, data: bytes) -> None:
    """Put a file in the place of another once its bytes are on the disk; none for no bytes."""
    if not data:
        delete(path)
        return
    aside = path.with_suffix(".new")  # ours alone: we hold the lock
    delete(aside)
    if not is_file(path):
        delete(path)
    with replaced(path, aside) as file:
        file.write(data)


ELSEWHERE: Final = "it is of another target"
