"""Deciding about a job, with the cache: limits that fit a memory budget take a lowering to find."""

from dataclasses import replace
from typing import Final

import msgspec

from mlc_compile.artifact import Limits, pretty_json
from mlc_compile.driver.compile import prepare
from mlc_compile.driver.job import Job, Options
from mlc_compile.driver.reuse import Reuse
from mlc_compile.driver.subject import Subject
from mlc_compile.records import RecordStore
from mlc_compile.target import Target

LIMITS: Final = "limits.json"  # the one file of such an entry


def decide(subject: Subject, target: Target, quant: str, options: Options, reuse: Reuse) -> Job:
    """`prepare`, where limits that the budget allowed before are not worked out again."""
    job = undecided(subject, target, quant, options, reuse.records)
    if options.memory_budget is None:
        return job
    with reuse.step(lambda keys: keys.limits(job, options), required=False) as step:
        known = within(job, reuse.read(step.entry, LIMITS))
        if known is not None:
            return known
        job = prepare(subject, target, quant, options, reuse.records)
        step.keep_bytes(LIMITS, pretty_json(job.limits))
        return job


def undecided(
    subject: Subject,
    target: Target,
    quant: str,
    options: Options,
    records: RecordStore | None = None,
) -> Job:
    """The job as it would be without a memory budget: what the key of its limits is made of."""
    return prepare(subject, target, quant, replace(options, memory_budget=None), records)


def within(job: Job, limits: bytes | None) -> Job | None:
    """`job` with the limits that `limits.json` says; None for None."""
    if limits is None:
        return None
    return replace(job, limits=msgspec.json.decode(limits, type=Limits))
