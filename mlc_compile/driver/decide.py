"""Deciding about a job, with the cache: limits that fit a memory budget take a lowering to find."""

from dataclasses import replace
from typing import Final

from mlc_compile.artifact import Limits, pretty_json
from mlc_compile.driver.compile import prepare, within_budget
from mlc_compile.driver.job import Job, Options
from mlc_compile.driver.keys import Keys
from mlc_compile.driver.questions import KeyFor, asking, informed
from mlc_compile.driver.reuse import Reuse
from mlc_compile.driver.subject import Subject
from mlc_compile.records import RecordStore
from mlc_compile.target import Target

LIMITS: Final = "limits.json"  # the one file of such an entry


def decide(subject: Subject, target: Target, quant: str, options: Options, reuse: Reuse) -> Job:
    """`prepare`, where limits that the budget allowed before are not worked out again.

    Which tuning records count is settled where the cache knows it.
    """
    job = undecided(subject, target, quant, options, reuse.records)
    if options.memory_budget is not None:
        job = _limited(job, options, reuse)
    return informed(reuse, job, Keys.library)


def _limited(job: Job, options: Options, reuse: Reuse) -> Job:
    with asking(reuse, job, of_limits(options), required=False) as step:
        known = within(job, reuse.decoded(step.entry, LIMITS, Limits))
        if known is not None:
            return known
        limited = within_budget(job, options)
        assert limited.questions is not None
        step.learn(limited.questions)
        step.keep_bytes(LIMITS, pretty_json(limited.limits))
        return limited


def of_limits(options: Options) -> KeyFor:
    """The key of the limits that fit a memory budget."""
    return lambda keys, job: keys.limits(job, options)


def undecided(
    subject: Subject,
    target: Target,
    quant: str,
    options: Options,
    records: RecordStore | None = None,
) -> Job:
    """The job as it would be without a memory budget: what the key of its limits is made of."""
    return prepare(subject, target, quant, replace(options, memory_budget=None), records)


def within(job: Job, limits: Limits | None) -> Job | None:
    """`job` with these limits; None for None."""
    return None if limits is None else replace(job, limits=limits)
