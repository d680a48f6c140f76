"""`cache explain`: for each step of a build, whether the cache has it, and if not, what differs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlc_compile.artifact import Limits, Manifest, WeightsManifest
from mlc_compile.cache import Entry, Key, Level, Store
from mlc_compile.driver.build import finished
from mlc_compile.driver.decide import LIMITS, of_limits, undecided, within
from mlc_compile.driver.job import Job, Options
from mlc_compile.driver.keys import Keys
from mlc_compile.driver.prove import not_run
from mlc_compile.driver.questions import KeyFor, informed
from mlc_compile.driver.reuse import KeyOf, Reuse, differing, nearest
from mlc_compile.driver.subject import read_subject, require_weights
from mlc_compile.quant import find_scheme
from mlc_compile.records import RecordStore
from mlc_compile.target import Target


@dataclass(frozen=True, slots=True)
class Difference:
    """A component of a key: its value here, and in the nearest entry; None: it has none."""

    component: str
    wanted: str | None
    nearest: str | None


Outcome = Literal["hit", "miss", "not run"]  # the last of a proof that this machine cannot replay


@dataclass(frozen=True, slots=True)
class Explained:
    """One step. `target` None: shared by all targets.

    A miss has the differences from the nearest entry, or `reason` where there is none.
    """

    step: Level
    target: str | None
    outcome: Outcome
    differences: tuple[Difference, ...] = ()
    reason: str = ""


def explain(
    model: Path, targets: Sequence[Target], quant: str, options: Options, store: Store
) -> tuple[Explained, ...]:
    """What `build` with the same arguments would find; raises what it raises early.

    It only looks: nothing is lowered to fit a memory budget, and the cache stays as it is. What
    went wrong with the cache and the tuning records is in the notes of `store`.
    """
    find_scheme(quant)
    subject = read_subject(model)
    require_weights(subject)
    look = _Look(store.looking())
    records = RecordStore(store.cache_dir, store.notes)
    jobs = [undecided(subject, target, quant, options, records) for target in targets]
    explained, entry = look(lambda keys: keys.weights(subject, quant), None)
    weights = look.reuse.manifest(entry, WeightsManifest)
    return (explained, *(one for job in jobs for one in _artifact(look, job, options, weights)))


class _Look:
    """Looks a step up and explains it."""

    def __init__(self, store: Store) -> None:
        self.store, self.reuse = store, Reuse(store)

    def __call__(self, key_of: KeyOf, target: str | None) -> tuple[Explained, Entry | None]:
        key = self.reuse.key(key_of)
        entry = self.store.find(key)
        if entry is not None:
            return Explained(key.level, target, "hit"), entry
        other = nearest(self.store, key)
        if other is None:
            return Explained(key.level, target, "miss", reason="there is no such entry yet"), None
        return Explained(key.level, target, "miss", _differences(key, other)), None

    def asking(self, job: Job, key_for: KeyFor) -> tuple[Explained, Entry | None]:
        """The same for a step that asks for tuning records."""
        job = informed(self.reuse, job, key_for)
        return self(lambda keys: key_for(keys, job), job.target.name)


def _artifact(
    look: _Look, job: Job, options: Options, weights: WeightsManifest | None
) -> Iterator[Explained]:
    name, decided = job.target.name, job
    if options.memory_budget is not None:
        limits, entry = look.asking(job, of_limits(options))
        yield limits
        found = within(job, look.reuse.decoded(entry, LIMITS, Limits))
        if found is None:
            yield from _unknown(("library", "packed", "proof"), name)
            return
        decided = found
    library, entry = look.asking(decided, Keys.library)
    yield library
    compiled = look.reuse.manifest(entry, Manifest)
    if compiled is None or weights is None:
        yield from _unknown(("packed", "proof"), name)
        return
    digests = weights.digest, compiled.plan_digest
    packed, entry = look(lambda keys: keys.packed(*digests), name)
    yield packed
    if entry is None:
        yield from _unknown(("proof",), name)
        return
    manifest = finished(compiled, weights, entry.files)
    check = not_run(manifest)
    if check is not None:
        yield Explained("proof", name, "not run", reason=check.reason)
        return
    yield look(lambda keys: keys.proof(manifest), name)[0]


def _unknown(steps: Sequence[Level], target: str) -> Iterator[Explained]:
    for step in steps:
        yield Explained(step, target, "miss", reason="it depends on a step that is a miss")


def _differences(key: Key, other: Key) -> tuple[Difference, ...]:
    names = differing(key, other)
    return tuple(Difference(name, key.parts.get(name), other.parts.get(name)) for name in names)
