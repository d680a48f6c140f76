"""How a build uses the cache: each step is found there, or made once and left there.

    with reuse.step(lambda keys: keys.library(job)) as step:
        if not step.restore(scratch):
            make(scratch)
            step.keep(scratch, files)

While a step is in hand its key is locked: a parallel build of the same waits, then finds it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from mlc_compile.artifact import MANIFEST, File, M, read_manifest
from mlc_compile.cache import Entry, Key, Level, Stamps, Store
from mlc_compile.driver.keys import RECORDS, Keys, Listings
from mlc_compile.emit.keeper import KernelSource
from mlc_compile.errors import DamageError, MlcError, listing
from mlc_compile.progress import SILENT, Progress
from mlc_compile.records import RecordStore

Outcome = Literal["cached", "built", "not run"]  # the last of a proof alone
KeyOf = Callable[[Keys], Key]
T = TypeVar("T")

OBJECT: Final = "kernel.o"  # the one file of a kernel's entry
SAID: Final[dict[Level, str]] = {
    "weights": "the converted weights",
    "limits": "what fits the memory budget",
    "questions": "what it asks of the tuning records",
    "library": "the library",
    "packed": "the packed weights",
    "proof": "the proof",
    "kernel": "a kernel",
}


@dataclass(slots=True)
class Step:
    """One step in hand: what the cache has for it."""

    reuse: "Reuse"
    key: Key | None = None
    entry: Entry | None = None
    inputs: Sequence[Path] = ()
    outcome: Outcome = "built"

    def restore(self, directory: Path) -> bool:
        """Put the step's files into `directory`; False if they have to be made."""
        store = self.reuse.store
        if store is None or self.entry is None:
            return False
        if store.restore(self.entry, directory):
            self.outcome = "cached"
            return True
        self._is_a_miss()
        return False

    def manifest(self, kind: type[M]) -> M | None:
        """The manifest among the step's files; None if they have to be made."""
        found = self.reuse.manifest(self.entry, kind)
        if found is None:
            self._is_a_miss()
        return found

    def keep(self, directory: Path, files: tuple[File, ...]) -> None:
        """Leave what was made in the cache, unless an input changed while it was made."""
        if self.reuse.store and self.key and self._may_be_kept(self.reuse.store, self.key):
            self.reuse.store.add(self.key, directory, files)

    def keep_bytes(self, name: str, data: bytes) -> None:
        """The same for one small file."""
        if self.reuse.store and self.key and self._may_be_kept(self.reuse.store, self.key):
            self.reuse.store.add_bytes(self.key, name, data)

    def _is_a_miss(self) -> None:
        self.entry = None
        self.reuse.require(self)

    def _may_be_kept(self, store: Store, key: Key) -> bool:
        changed = self.reuse.stamps.changed(self.inputs)
        if changed is not None:
            store.notes.append(
                f"{changed} changed during the build, which did not cache {SAID[key.level]}: "
                "build again"
            )
        return changed is None


@dataclass(slots=True)
class Reuse:
    """The cache of one build. Without a store everything is made, and nothing kept.

    `frozen`: a step that is not in the cache is an error (`--locked`). `records` decide about
    kernels, with a store or without.
    """

    store: Store | None = None
    frozen: bool = False
    progress: Progress = SILENT
    stamps: Stamps = field(default_factory=Stamps)
    records: RecordStore | None = None
    _listings: Listings = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Stamps live with the store; one that is not there yet is not made to find nothing."""
        if self.store is not None:
            if self.frozen and not self.store.root.is_dir():
                self.store = self.store.looking()
            self.stamps = Stamps(self.store.root)

    @property
    def notes(self) -> tuple[str, ...]:
        """What went wrong with the cache and the tuning records, each said once."""
        told = (note for one in (self.store, self.records) if one for note in one.notes)
        return tuple(dict.fromkeys(told))  # what cannot be removed is met again

    def watch(self, model: Path) -> None:
        """Look at what a build reads, before it does: what changes meanwhile is not kept."""
        Keys(self.stamps, self._listings).watch(model)

    @contextmanager
    def step(self, key_of: KeyOf, *, required: bool = True) -> Iterator[Step]:
        """Take a step in hand; DamageError if it is `required` in the cache and not there."""
        if self.store is None:
            yield Step(self)
            return
        key, inputs = self._settled(key_of)
        with self.store.locked(key.digest, self.progress):
            step = Step(self, key, self.store.find(key), inputs)
            if required:
                self.require(step)
            yield step

    def key(self, key_of: KeyOf) -> Key:
        """The key of a step; there must be a store."""
        return self._settled(key_of)[0]

    def look_up(self, key_of: KeyOf) -> Entry | None:
        """The entry as it stands, without waiting for anybody who makes it."""
        return None if self.store is None else self.store.find(self.key(key_of))

    def read(self, entry: Entry | None, path: str) -> bytes | None:
        """A small file of an entry; None if it is damaged, or there is no entry."""
        if self.store is None or entry is None:
            return None
        return self.store.read(entry, path)

    def decoded(self, entry: Entry | None, path: str, kind: type[T]) -> T | None:
        """The same for one of JSON; what is no `kind` was never ours, and is damage too."""
        data = self.read(entry, path)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, RecursionError) as e:
            self.refuse(entry, f"{path}: {e}")
            return None

    def refuse(self, entry: Entry | None, why: str) -> None:
        """Have the cache remove an entry that says what no build of ours said."""
        if self.store is not None and entry is not None:
            self.store.discard(entry.key, why, refused=entry)

    def manifest(self, entry: Entry | None, kind: type[M]) -> M | None:
        """The manifest in an entry; None likewise."""
        if self.store is None or entry is None or self.store.read(entry, MANIFEST) is None:
            return None
        try:
            return read_manifest(self.store.files(entry), kind)
        except (MlcError, OSError):  # collected since: only a step in hand is locked
            return None

    @contextmanager
    def output(self, directory: Path) -> Iterator[None]:
        """Hold what lies at `directory`: of parallel builds one replaces it, then the other."""
        if self.store is None:
            yield
            return
        name = sha256(str(directory.resolve()).encode(errors="surrogateescape")).hexdigest()
        with self.store.locked(f"out-{name}", self.progress):
            yield

    def is_intact(self, directory: Path, files: tuple[File, ...]) -> bool:
        """Whether `directory` holds `files` with their digests."""
        return all(self.stamps.matches(directory / f.path, f.sha256) for f in files)

    def trust(self, directory: Path, files: tuple[File, ...], seen: Path | None = None) -> None:
        """Remember the digests of files that this build wrote, as they look in `seen`."""
        self.stamps.remember(directory, files, seen)

    def require(self, step: Step) -> None:
        """Raise DamageError if steps must be cached and this is not: its entry does not serve,
        or what differs.
        """
        if not self.frozen or self.store is None or step.key is None or step.entry is not None:
            return
        why = self.store.fault(step.key) or told(step.key, nearest(self.store, step.key))
        raise DamageError(
            f"--locked, but {SAID[step.key.level]} would have to be made: {why}",
            hint="build without --locked, or import the cache that has it",
        )

    def close(self) -> None:
        """Leave the stamps to the next build."""
        if self.store is not None and not self.store.only_looks:
            with self.store.writing():
                self.stamps.save()

    def _settled(self, key_of: KeyOf) -> tuple[Key, Sequence[Path]]:
        """The key and its inputs; if it is not found, from digests that are not remembered."""
        assert self.store is not None
        keys = Keys(self.stamps, self._listings)
        key = key_of(keys)
        if self.store.has(key):
            return key, keys.inputs
        self.stamps.distrust(keys.inputs)
        keys = Keys(self.stamps, self._listings)
        return key_of(keys), keys.inputs


@dataclass(slots=True)
class Kernels:
    """An `emit.keeper.Keeper`: takes compiled kernels from the cache, and counts."""

    reuse: Reuse
    cached: int = 0
    built: int = 0

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many came from where; empty if none was asked for."""
        counts: dict[Outcome, int] = {"cached": self.cached, "built": self.built}
        return counts if any(counts.values()) else {}

    def take(self, kernel: KernelSource, make: Callable[[], bytes]) -> bytes:
        """The object of one kernel."""
        with self.reuse.step(lambda keys: keys.kernel(kernel), required=False) as step:
            known = self.reuse.read(step.entry, OBJECT)
            if known is not None:
                self.cached += 1
                return known
            self.built += 1
            made = make()
            step.keep_bytes(OBJECT, made)
            return made


def nearest(store: Store, key: Key) -> Key | None:
    """The key of the entry that differs in the fewest components; of equals the last used."""
    keys = [held.entry.key for held in store.held() if held.entry.key.level == key.level]
    return min(reversed(keys), key=lambda other: len(differing(key, other)), default=None)


def differing(key: Key, other: Key) -> tuple[str, ...]:
    """The components in which they differ; one for all tuning records while none may count."""
    names = key.differences(other)
    if RECORDS not in key.parts:
        return names
    return tuple(name for name in names if not name.startswith(f"{RECORDS}."))


def told(key: Key, other: Key | None) -> str:
    """`limits.context and quant differ from the nearest entry`: why `other` does not serve."""
    if other is None:
        return "the cache has nothing of the kind"
    names = differing(key, other)
    if not names:
        return "its entry was not there a moment ago"
    if names == (RECORDS,):
        return "the cache does not know which tuning records count"
    return f"{listing(names)} {'differs' if len(names) == 1 else 'differ'} from the nearest entry"
