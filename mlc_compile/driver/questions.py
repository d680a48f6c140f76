"""Steps that look into the tuning records: only the records that they ask for are in their keys.

    questions   everything but the records     ->  the workloads of which a record is looked for
    library     the same, and today's answers  ->  what `compile` makes

What is asked is seen while a step is made, as a C compiler tells which headers it read, and is
kept beside it. The next build reads the questions, answers them from the records as they are by
then, and so has the key of the step without lowering a model. Entries with other answers live
side by side. Where the questions are not known, nothing is found: the step is made, and tells
them.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from mlc_compile.artifact import pretty_json
from mlc_compile.cache import Entry, Key
from mlc_compile.driver.job import Job, Questions
from mlc_compile.driver.keys import Keys, answered, unanswered
from mlc_compile.driver.reuse import Reuse, Step
from mlc_compile.records import Workload
from mlc_compile.records.record import canonical

QUESTIONS: Final = "questions.json"  # the one file of such an entry
KeyFor = Callable[[Keys, Job], Key]


def informed(reuse: Reuse, job: Job, key_for: KeyFor) -> Job:
    """`job` with the questions of its step, if they are known and there are records to answer."""
    if not job.records:
        return replace(job, questions=None)
    entry = reuse.look_up(lambda keys: unanswered(key_for(keys, job)))
    return replace(job, questions=_read(reuse, entry, job))


@dataclass(slots=True, kw_only=True)
class Asking(Step):
    """Such a step in hand; `known` is that of its questions, which is locked as well.

    `job` has the questions as far as they are known.
    """

    job: Job
    known: Step
    locks: ExitStack

    def learn(self, questions: Questions) -> None:
        """Settle the key by what was asked to make the step, before it is kept.

        What was known stays asked: of two answers too many a key is still right.
        """
        before = self.job.questions or {}
        union = {name: _joined(before.get(name, ()), new) for name, new in questions.items()}
        self.job = replace(self.job, questions=union)
        store, key = self.reuse.store, self.key
        if store is None or key is None or self.known.key is None:
            return
        if union != before and self.reuse.stamps.changed(self.inputs) is None:
            store.add_bytes(self.known.key, QUESTIONS, pretty_json(union))
        self.key = answered(key, self.job)
        if self.key != key:
            self.locks.enter_context(store.locked(self.key.digest, self.reuse.progress))


@contextmanager
def asking(reuse: Reuse, job: Job, key_for: KeyFor, *, required: bool = True) -> Iterator[Asking]:
    """Take such a step in hand, as `Reuse.step` does; who makes it calls `learn`, then `keep`."""
    with reuse.step(lambda keys: unanswered(key_for(keys, job)), required=False) as known:
        job = replace(job, questions=_read(reuse, known.entry, job))
        with (
            reuse.step(lambda keys: key_for(keys, job), required=required) as step,
            ExitStack() as locks,
        ):
            yield Asking(
                reuse, step.key, step.entry, step.inputs, job=job, known=known, locks=locks
            )


def _read(reuse: Reuse, entry: Entry | None, job: Job) -> Questions | None:
    """What is kept, if it is about the libraries of `job`."""
    found = reuse.decoded(entry, QUESTIONS, dict[str, tuple[Workload, ...]])
    if found is not None and found.keys() != {row.name for row in job.target.libraries}:
        reuse.refuse(entry, f"{QUESTIONS} is about other libraries")
        return None
    return found


def _joined(one: tuple[Workload, ...], other: tuple[Workload, ...]) -> tuple[Workload, ...]:
    return tuple(sorted({*one, *other}, key=canonical))
