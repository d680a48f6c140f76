"""Measure one artifact with one number of threads: a `Job` on stdin, a `WorkerResult` on stdout.

Run by `bench.speed` as `python -m mlc_compile.bench.worker`.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import msgspec
import numpy as np

from mlc_compile.artifact import Manifest, read_manifest
from mlc_compile.bench.child import serve
from mlc_compile.bench.speed import Job, Measurement, Phase, Plan, WorkerResult
from mlc_compile.runtime.device import device_name
from mlc_compile.runtime.engine import Engine, open_engine
from mlc_compile.runtime.host import peak_rss
from mlc_compile.runtime.sampler import GREEDY, Sampler


def answer() -> WorkerResult:
    """Do the job on stdin."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    start = perf_counter()
    engine = open_engine(Path(job.directory), job.threads)
    load_s, rss = perf_counter() - start, peak_rss()
    return WorkerResult(
        load_s=load_s,
        loaded_rss_bytes=rss,
        device=device_name(read_manifest(Path(job.directory), Manifest)),
        results=tuple(measure(engine, job)),
    )


def measure(engine: Engine, job: Job) -> Iterator[Measurement]:
    """Every workload of the plan, timed."""
    return (_measured(engine, job, workload) for workload in workloads(engine, job.plan))


@dataclass(frozen=True, slots=True)
class Workload:
    """Something to time: `run` appends `tokens` tokens to the engine's cache."""

    phase: Phase
    tokens: int
    run: Callable[[], object]


def workloads(engine: Engine, plan: Plan) -> Iterator[Workload]:
    """Every phase of the plan at every depth, shallow first: the peak of memory only grows.

    Each is to be run, and the engine put back, before the next is asked for.
    """
    random = np.random.default_rng(0)  # which tokens they are does not change the speed
    words = [int(i) for i in random.integers(0, engine.vocab_size, engine.limits.context)]
    for depth in sorted(plan.depths):
        engine.rewind()
        if depth:
            engine.prefill(words[:depth])
        for tokens in plan.prompts:
            yield Workload("prefill", tokens, partial(engine.prefill, words[:tokens]))
        if plan.generate:
            yield Workload("decode", plan.generate, partial(_decode, engine, plan.generate))


def _measured(engine: Engine, job: Job, workload: Workload) -> Measurement:
    """Time a workload from the same depth each time."""
    depth, speeds = engine.length, []
    for _ in range(job.plan.warm_up + job.plan.repeats):
        start = perf_counter()
        workload.run()
        speeds.append(workload.tokens / (perf_counter() - start))
        engine.rewind(depth)
    counted = speeds[job.plan.warm_up :]
    median = statistics.median(counted)
    return Measurement(
        artifact=job.directory,
        phase=workload.phase,
        tokens=workload.tokens,
        depth=depth,
        threads=job.threads,
        tok_s=median,
        spread=(max(counted) - min(counted)) / median,
        peak_rss_bytes=peak_rss(),
    )


def _decode(engine: Engine, tokens: int) -> None:
    """Decode greedily: choosing the token is part of what a user waits for."""
    token, sampler = 0, Sampler(GREEDY)
    for _ in range(tokens):
        token = engine.next_token(token, sampler)


if __name__ == "__main__":
    serve(answer)
