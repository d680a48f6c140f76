"""Measure one artifact with one number of threads: a `Job` on stdin, a `WorkerResult` on stdout.

Run by `bench.speed` as `python -m mlc_compile.bench.worker`.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter

import msgspec
import numpy as np

from mlc_compile.bench.speed import Job, Measurement, Phase, WorkerResult
from mlc_compile.runtime.engine import Engine, open_engine
from mlc_compile.runtime.host import peak_rss


def main() -> None:
    """Answer the job on stdin."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    start = perf_counter()
    engine = open_engine(Path(job.directory), job.threads)
    load_s, rss = perf_counter() - start, peak_rss()
    results = tuple(measure(engine, job))
    answer = WorkerResult(load_s=load_s, loaded_rss_bytes=rss, results=results)
    sys.stdout.buffer.write(msgspec.json.encode(answer))


def measure(engine: Engine, job: Job) -> Iterator[Measurement]:
    """Every phase of the plan at every depth, shallow first: the peak of memory only grows."""
    random = np.random.default_rng(0)  # which tokens they are does not change the speed
    words = [int(i) for i in random.integers(0, engine.vocab_size, engine.limits.context)]
    for depth in sorted(job.plan.depths):
        engine.rewind()
        if depth:
            engine.prefill(words[:depth])
        for tokens in job.plan.prompts:
            yield _measured(engine, job, "prefill", partial(engine.prefill, words[:tokens]), tokens)
        if job.plan.generate:
            decode = partial(_decode, engine, job.plan.generate)
            yield _measured(engine, job, "decode", decode, job.plan.generate)


def _measured(
    engine: Engine, job: Job, phase: Phase, work: Callable[[], object], tokens: int
) -> Measurement:
    """Time `work`, which appends `tokens` tokens to the cache, from the same depth each time."""
    depth, speeds = engine.length, []
    for _ in range(job.plan.warm_up + job.plan.repeats):
        start = perf_counter()
        work()
        speeds.append(tokens / (perf_counter() - start))
        engine.rewind(depth)
    counted = speeds[job.plan.warm_up :]
    median = statistics.median(counted)
    return Measurement(
        artifact=job.directory,
        phase=phase,
        tokens=tokens,
        depth=depth,
        threads=job.threads,
        tok_s=median,
        spread=(max(counted) - min(counted)) / median,
        peak_rss_bytes=peak_rss(),
    )


def _decode(engine: Engine, tokens: int) -> None:
    """Decode greedily: choosing the token is part of what a user waits for."""
    token = 0
    for _ in range(tokens):
        token = int(engine.decode(token).argmax())


if __name__ == "__main__":
    main()
