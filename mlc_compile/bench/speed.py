"""Prefill and decode speed of an artifact, each number of threads in a process of its own.

TVM's threads are fixed once it is loaded, and the peak of resident memory is a process's, so
the measuring happens in `bench.worker`; this module asks for it and joins the answers.
"""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from mlc_compile import __version__
from mlc_compile.artifact import Manifest, Versions
from mlc_compile.bench.child import ask
from mlc_compile.bench.paired import Ratio, ratio
from mlc_compile.errors import ConfigError
from mlc_compile.progress import Progress
from mlc_compile.runtime.bandwidth import read_bandwidth
from mlc_compile.runtime.host import available_cores, cpu_name, last_level_cache, require_threads
from mlc_compile.runtime.load import Loadable, check_artifact
from mlc_compile.runtime.memory import bytes_per_token

PROMPTS: Final = (128, 512)
WORKER: Final = "mlc_compile.bench.worker"

Phase = Literal["prefill", "decode"]
Case = tuple[Phase, int, int, int]  # phase, tokens, depth, threads
T = TypeVar("T")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. All sizes are tokens."""

    prompts: tuple[int, ...] = ()  # prompt lengths; (): those of PROMPTS that fit the context
    generate: int = 64  # tokens decoded in one measurement; 0: none
    depths: tuple[int, ...] = (0,)  # tokens already in the cache, for prefill and decode
    threads: tuple[int, ...] = ()  # (): the fast cores that this process may use
    repeats: int = 3
    warm_up: int = 1  # measurements thrown away before the first that counts
    rounds: int = 1  # times that all artifacts are measured in turn


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker process measures."""

    directory: str
    threads: int
    plan: Plan


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The median of a plan's repeats; of several rounds the median of theirs."""

    artifact: str
    phase: Phase
    tokens: int
    depth: int
    threads: int
    tok_s: float
    spread: float  # (fastest - slowest) / median, of the repeats or, if several, the rounds
    peak_rss_bytes: int  # of the process so far: weights that were mapped and read included
    roofline_share: float | None = None  # decode: bytes it must read / what the machine could
    in_cache: bool = False  # decode: those bytes fit in the last-level cache
    tok_s_by_round: tuple[float, ...] = ()  # where there were several rounds
    vs_first: Ratio | None = None  # None: the first artifact was not measured so

    @property
    def case(self) -> Case:
        """What was measured, whoever did it."""
        return self.phase, self.tokens, self.depth, self.threads


class WorkerResult(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's answer: measurements, and what loading cost."""

    load_s: float
    loaded_rss_bytes: int
    device: str = ""  # what computes, by its own name; "" is the CPU
    results: tuple[Measurement, ...]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from a started process to a loaded artifact, and its resident memory then."""

    artifact: str
    threads: int
    load_s: float
    rss_bytes: int
    device: str = ""  # what computes, by its own name; "" is the CPU


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was measured, and by what."""

    cpu: str
    cores: int
    bandwidth_bytes_s: dict[int, float]  # by number of threads
    mlc_compile: str = __version__


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, precisely enough to find it again."""

    artifact: str
    model: str
    quant: str
    target: str
    versions: Versions
    library_sha256: str


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """All of a benchmark; `results` in the order of the first round."""

    device: Device
    plan: Plan
    artifacts: tuple[Subject, ...]
    loads: tuple[Load, ...]
    results: tuple[Measurement, ...]


def measure(directories: tuple[Path, ...], plan: Plan, progress: Progress) -> Benchmark:
    """Measure each artifact with each number of threads, one after the other, `rounds` times.

    Raises what loading raises, and ConfigError for a plan that an artifact's context cannot
    hold, both before anything is measured.
    """
    campaign = prepare(directories, plan, progress)
    bandwidth = campaign.device.bandwidth_bytes_s
    answers: list[list[WorkerResult]] = [[] for _ in campaign.jobs]
    for turn in range(plan.rounds):
        numbers = range(len(campaign.jobs))
        for i in numbers if turn % 2 == 0 else reversed(numbers):  # what drifts favors none
            _manifest, job = campaign.jobs[i]
            answers[i].append(ask_worker(WORKER, job, WorkerResult, progress))
    results: list[Measurement] = []
    for (manifest, job), rounds in zip(campaign.jobs, answers, strict=True):
        results += _with_roofline(_joined(rounds), manifest, bandwidth[job.threads])
    return Benchmark(
        device=campaign.device,
        plan=campaign.plan,
        artifacts=campaign.artifacts,
        loads=tuple(map(_load, (job for _, job in campaign.jobs), answers)),
        results=tuple(_compared(results)),
    )


@dataclass(frozen=True, slots=True)
class Campaign:
    """A plan made definite: which process measures what."""

    device: Device
    plan: Plan  # its numbers of threads chosen
    artifacts: tuple[Subject, ...]
    jobs: tuple[tuple[Manifest, Job], ...]


def prepare(directories: tuple[Path, ...], plan: Plan, progress: Progress) -> Campaign:
    """Check artifacts and plan, then measure the memory; errors as for `measure`."""
    for count in plan.threads:
        require_threads(count)
    loadables = [check_artifact(directory) for directory in directories]
    plans = [fit_plan(plan, loadable.manifest) for loadable in loadables]
    threads = plan.threads or (available_cores(),)
    progress.step("memory bandwidth", len(threads))
    bandwidth = {n: _counted(read_bandwidth(n), progress) for n in threads}
    return Campaign(
        device=Device(cpu=cpu_name(), cores=available_cores(), bandwidth_bytes_s=bandwidth),
        plan=msgspec.structs.replace(plan, threads=threads),
        artifacts=tuple(map(_subject, loadables)),
        jobs=tuple(
            (loadable.manifest, Job(directory=str(loadable.directory), threads=n, plan=fitted))
            for loadable, fitted in zip(loadables, plans, strict=True)
            for n in threads
        ),
    )


def ask_worker(module: str, job: Job, answer: type[T], progress: Progress) -> T:
    """Have `module` do the job in a fresh process; errors as for `child.ask`."""
    progress.step(f"{job.directory}, threads: {job.threads}")
    return ask(module, answer, f"measuring {job.directory}", question=job)


def fit_plan(plan: Plan, manifest: Manifest) -> Plan:
    """The plan with its default prompts chosen, if the context can hold all of it."""
    if min(*plan.prompts, *plan.threads, plan.repeats, plan.rounds, 1) < 1:
        raise ConfigError(
            "prompt lengths, threads, repeats and rounds must be 1 or more",
            hint="see `bench --help`",
        )
    context, deepest = manifest.limits.context, max(plan.depths)
    prompts = plan.prompts or tuple(n for n in PROMPTS if n + deepest <= context)
    longest = deepest + max(*prompts, plan.generate, 0)
    if longest > context:
        raise ConfigError(
            f"the plan needs {longest} tokens, but the context holds {context}",
            hint="lower --depth, --prompt-tokens or --gen-tokens",
        )
    return msgspec.structs.replace(plan, prompts=prompts)


def _joined(rounds: list[WorkerResult]) -> Iterator[Measurement]:
    """One measurement of each workload from those of all rounds."""
    for same in zip(*(answer.results for answer in rounds), strict=True):
        speeds = tuple(one.tok_s for one in same)
        median = statistics.median(speeds)
        joined = msgspec.structs.replace(
            same[0],
            tok_s=median,
            spread=(max(speeds) - min(speeds)) / median,
            peak_rss_bytes=max(one.peak_rss_bytes for one in same),
            tok_s_by_round=speeds,
        )
        yield joined if len(same) > 1 else same[0]


def _compared(results: list[Measurement]) -> Iterator[Measurement]:
    """With the ratio to the first artifact, in each case that it was measured in too."""
    first: dict[Case, Measurement] = {}
    for result in results:
        if result.artifact == results[0].artifact:
            first.setdefault(result.case, result)
        base = first.get(result.case)
        yield (
            result if base is None else msgspec.structs.replace(result, vs_first=_vs(result, base))
        )


def _vs(result: Measurement, base: Measurement) -> Ratio:
    if result is base:
        return Ratio(median=1.0, interval=None)
    mine, other = (one.tok_s_by_round or (one.tok_s,) for one in (result, base))
    return ratio(mine, other)


def _with_roofline(
    results: Iterable[Measurement], manifest: Manifest, bandwidth: float
) -> Iterator[Measurement]:
    for result in results:
        # Prefill is bound by arithmetic, not by memory; and it was the CPU's memory we measured.
        if result.phase == "prefill" or not manifest.on_host:
            yield result
            continue
        middle = result.depth + result.tokens // 2  # the cache grows while it decodes
        nbytes = bytes_per_token(manifest, middle)
        yield msgspec.structs.replace(
            result,
            roofline_share=result.tok_s * nbytes / bandwidth,
            in_cache=nbytes <= last_level_cache(),
        )


def _load(job: Job, rounds: list[WorkerResult]) -> Load:
    return Load(
        artifact=job.directory,
        threads=job.threads,
        load_s=statistics.median(answer.load_s for answer in rounds),
        rss_bytes=max(answer.loaded_rss_bytes for answer in rounds),
        device=rounds[0].device,
    )


def _subject(loadable: Loadable) -> Subject:
    manifest = loadable.manifest
    digests = {file.path: file.sha256 for file in manifest.files}
    return Subject(
        artifact=str(loadable.directory),
        model=manifest.model,
        quant=manifest.quant,
        target=manifest.target,
        versions=manifest.versions,
        library_sha256=digests[loadable.library.path],
    )


def _counted(value: float, progress: Progress) -> float:
    progress.advance()
    return value
