"""`cache explain`: for each step of a build, whether the cache has it, and if not, what differs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlc_compile.artifact import PACKED_WEIGHTS, Manifest, WeightsManifest
from mlc_compile.cache import Entry, Key, Level, Store
from mlc_compile.driver.build import finished
from mlc_compile.driver.decide import decide
from mlc_compile.driver.job import Job, Options
from mlc_compile.driver.reuse import KeyOf, Reuse, nearest
from mlc_compile.driver.subject import read_subject, require_weights
from mlc_compile.quant import find_scheme
from mlc_compile.target import Target


@dataclass(frozen=True, slots=True)
class Difference:
    """A component of a key: its value here, and in the nearest entry; None: it has none."""

    component: str
    wanted: str | None
    nearest: str | None


@dataclass(frozen=True, slots=True)
class Explained:
    """One step. `target` None: shared by all targets.

    A miss has the differences from the nearest entry, or `reason` where there is none.
    """

    step: Level
    target: str | None
    hit: bool
    differences: tuple[Difference, ...] = ()
    reason: str = ""


def explain(
    model: Path, targets: Sequence[Target], quant: str, options: Options, store: Store
) -> tuple[Explained, ...]:
    """What `build` with the same arguments would find; raises what it raises early."""
    find_scheme(quant)
    subject = read_subject(model)
    require_weights(subject)
    reuse = Reuse(store)
    try:
        jobs = [decide(subject, target, quant, options, reuse) for target in targets]
        explained, entry = _look(store, reuse, lambda keys: keys.weights(subject, quant), None)
        weights = reuse.manifest(entry, WeightsManifest)
        return (explained, *(one for job in jobs for one in _artifact(store, reuse, job, weights)))
    finally:
        reuse.close()


def _artifact(
    store: Store, reuse: Reuse, job: Job, weights: WeightsManifest | None
) -> Iterator[Explained]:
    name = job.target.name
    library, entry = _look(store, reuse, lambda keys: keys.library(job), name)
    yield library
    compiled = reuse.manifest(entry, Manifest)
    if compiled is None or weights is None:
        for step in ("packed", "proof"):
            yield Explained(step, name, hit=False, reason="it is made from a step that is a miss")
        return
    digests = weights.digest, compiled.plan_digest
    packed, entry = _look(store, reuse, lambda keys: keys.packed(*digests), name)
    yield packed
    if entry is None:
        yield Explained("proof", name, hit=False, reason="it is about a step that is a miss")
        return
    manifest = finished(compiled, weights, entry.file(PACKED_WEIGHTS))
    yield _look(store, reuse, lambda keys: keys.proof(manifest), name)[0]


def _look(
    store: Store, reuse: Reuse, key_of: KeyOf, target: str | None
) -> tuple[Explained, Entry | None]:
    key = reuse.key(key_of)
    entry = store.find(key)
    if entry is not None:
        return Explained(key.level, target, hit=True), entry
    other = nearest(store, key)
    if other is None:
        return Explained(key.level, target, hit=False, reason="there is no such entry yet"), None
    return Explained(key.level, target, hit=False, differences=_differences(key, other)), None


def _differences(key: Key, other: Key) -> tuple[Difference, ...]:
    names = key.differences(other)
    return tuple(Difference(name, key.parts.get(name), other.parts.get(name)) for name in names)
