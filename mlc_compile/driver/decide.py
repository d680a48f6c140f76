"""Deciding about a job, with the cache: limits that fit a memory budget take a lowering to find."""

from dataclasses import replace
from typing import Final

import msgspec

from mlc_compile.artifact import Limits, pretty_json
from mlc_compile.driver.compile import prepare
from mlc_compile.driver.job import Job, Options
from mlc_compile.driver.reuse import Reuse
from mlc_compile.driver.subject import Subject
from mlc_compile.target import Target

LIMITS: Final = "limits.json"  # the one file of such an entry


def decide(subject: Subject, target: Target, quant: str, options: Options, reuse: Reuse) -> Job:
    """`prepare`, where limits that the budget allowed before are not worked out again."""
    if options.memory_budget is None:
        return prepare(subject, target, quant, options)
    job = prepare(subject, target, quant, replace(options, memory_budget=None))
    with reuse.step(lambda keys: keys.limits(job, options), required=False) as step:
        known = reuse.read(step.entry, LIMITS)
        if known is not None:
            return replace(job, limits=msgspec.json.decode(known, type=Limits))
        job = prepare(subject, target, quant, options)
        step.keep_bytes(LIMITS, pretty_json(job.limits))
        return job
