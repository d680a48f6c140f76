"""Benchmarks of the nano artifact: their shape, their arithmetic, their refusals."""

import shutil
from pathlib import Path

import msgspec
import pytest

from mlc_compile.artifact import Manifest, read_manifest
from mlc_compile.bench import speed
from mlc_compile.bench.paired import Ratio
from mlc_compile.bench.speed import (
    Benchmark,
    Job,
    Measurement,
    Plan,
    WorkerResult,
    ask_worker,
    measure,
)
from mlc_compile.errors import ConfigError
from mlc_compile.progress import SILENT
from mlc_compile.runtime.memory import bytes_per_token

QUICK = Plan(prompts=(3, 9), generate=4, depths=(0, 7), threads=(1, 2), repeats=2, warm_up=0)


@pytest.fixture(scope="module")
def benchmark(nano_artifact: Path) -> Benchmark:
    patch = pytest.MonkeyPatch()
    patch.setattr(speed, "read_bandwidth", lambda threads: threads * 1e9)
    with patch.context():
        result = measure((nano_artifact,), QUICK, SILENT)
    patch.undo()
    return result


def test_every_combination_is_measured(benchmark: Benchmark) -> None:
    got = {(r.phase, r.tokens, r.depth, r.threads) for r in benchmark.results}
    phases = {("prefill", 3), ("prefill", 9), ("decode", 4)}
    assert got == {(p, n, d, t) for p, n in phases for d in (0, 7) for t in (1, 2)}


def test_each_number_of_threads_has_its_own_process(benchmark: Benchmark) -> None:
    assert [load.threads for load in benchmark.loads] == [1, 2]
    assert all(load.load_s > 0 and load.rss_bytes > 10 << 20 for load in benchmark.loads)


def test_results_have_speed_spread_and_memory(benchmark: Benchmark) -> None:
    for result in benchmark.results:
        assert result.tok_s > 0
        assert result.spread >= 0
        assert result.peak_rss_bytes >= benchmark.loads[0].rss_bytes // 2


def test_only_decode_has_a_share_of_the_roofline(benchmark: Benchmark, nano_artifact: Path) -> None:
    manifest = read_manifest(nano_artifact, Manifest)
    for r in benchmark.results:
        if r.phase == "prefill":
            assert r.roofline_share is None
        else:
            needed = bytes_per_token(manifest, r.depth + 2) * r.tok_s
            assert r.roofline_share == pytest.approx(needed / (r.threads * 1e9))


def test_default_prompts_fit_the_context(nano_artifact: Path) -> None:
    manifest = read_manifest(nano_artifact, Manifest)
    small = msgspec.structs.replace(
        manifest, limits=msgspec.structs.replace(manifest.limits, context=200)
    )
    assert speed.fit_plan(Plan(), small).prompts == (128,)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(prompts=(10**6,)),
        Plan(generate=10**6),
        Plan(prompts=(8,), depths=(10**6,)),
    ],
    ids=["prompt", "generate", "depth"],
)
def test_a_plan_beyond_the_context_is_refused(nano_artifact: Path, plan: Plan) -> None:
    with pytest.raises(ConfigError, match=r"the plan needs 1000\d+ tokens, but the context"):
        measure((nano_artifact,), plan, SILENT)


def test_no_measurement_is_refused(nano_artifact: Path) -> None:
    with pytest.raises(ConfigError, match="must be 1 or more"):
        measure((nano_artifact,), Plan(prompts=(0,)), SILENT)
    with pytest.raises(ConfigError, match="must be 1 or more"):
        measure((nano_artifact,), Plan(threads=(0,)), SILENT)


def test_a_worker_that_fails_passes_its_error_on(tmp_path: Path) -> None:
    job = Job(directory=str(tmp_path / "gone"), threads=1, plan=QUICK)
    with pytest.raises(ConfigError, match="is not a directory") as e:
        ask_worker(speed.WORKER, job, WorkerResult, SILENT)
    assert "mlc-compile build" in e.value.hint


@pytest.mark.parametrize(("cache", "fits"), [(1, False), (1 << 40, True)])
def test_decoding_from_the_cache_is_noted(
    nano_artifact: Path, monkeypatch: pytest.MonkeyPatch, cache: int, fits: bool
) -> None:
    monkeypatch.setattr(speed, "last_level_cache", lambda: cache)
    row = Measurement(
        artifact="a",
        phase="decode",
        tokens=4,
        depth=0,
        threads=1,
        tok_s=10,
        spread=0,
        peak_rss_bytes=1,
    )
    manifest = read_manifest(nano_artifact, Manifest)
    (told,) = speed._with_roofline((row,), manifest, 1e9)
    assert told.in_cache == fits
    assert told.roofline_share is not None


def test_more_threads_than_cpus_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--threads 9999, but this machine"):
        measure((tmp_path / "gone",), Plan(threads=(1, 9999)), SILENT)


def answer(*speeds: float) -> WorkerResult:
    rows = tuple(
        Measurement(
            artifact="a",
            phase="decode",
            tokens=n + 1,
            depth=0,
            threads=1,
            tok_s=speed,
            spread=0.5,
            peak_rss_bytes=int(speed),
        )
        for n, speed in enumerate(speeds)
    )
    return WorkerResult(load_s=speeds[0], loaded_rss_bytes=1, results=rows)


def test_rounds_take_turns_and_are_joined(
    nano_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    speeds = iter([10.0, 20.0, 44.0, 22.0, 12.0, 25.2])

    def ask(_module: str, job: Job, *_: object) -> WorkerResult:
        asked.append(job.threads)
        got = answer(next(speeds))
        row = msgspec.structs.replace(got.results[0], artifact=str(job.threads))
        return msgspec.structs.replace(got, results=(row,))

    monkeypatch.setattr(speed, "read_bandwidth", lambda threads: threads * 1e9)
    monkeypatch.setattr(speed, "ask_worker", ask)
    plan = msgspec.structs.replace(QUICK, rounds=3)
    first, second = measure((nano_artifact,), plan, SILENT).results
    assert asked == [1, 2, 2, 1, 1, 2], "every other round goes backward"
    assert first.tok_s_by_round == (10.0, 22.0, 12.0)
    assert first.tok_s == 12.0
    assert first.spread == pytest.approx(1.0)
    assert first.peak_rss_bytes == 22
    assert second.tok_s_by_round == (20.0, 44.0, 25.2)
    assert first.vs_first is not None
    assert first.vs_first.median == 1.0
    assert second.vs_first is not None
    assert second.vs_first.median == pytest.approx(2.0)


def test_only_what_the_first_artifact_was_measured_in_is_compared(
    nano_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(nano_artifact, other)
    speeds = {str(nano_artifact): (10.0,), str(other): (20.0, 30.0)}  # one context is shorter

    def ask(_module: str, job: Job, *_: object) -> WorkerResult:
        got = answer(*speeds[job.directory])
        rows = (msgspec.structs.replace(r, artifact=job.directory) for r in got.results)
        return msgspec.structs.replace(got, results=tuple(rows))

    monkeypatch.setattr(speed, "read_bandwidth", lambda _threads: 1e9)
    monkeypatch.setattr(speed, "ask_worker", ask)
    plan = msgspec.structs.replace(QUICK, threads=(1,))
    mine, twice, alone = measure((nano_artifact, other), plan, SILENT).results
    assert [r.vs_first and r.vs_first.median for r in (mine, twice, alone)] == [1.0, 2.0, None]
    one, again = measure((nano_artifact, nano_artifact), plan, SILENT).results
    assert (one.vs_first, again.vs_first) == (Ratio(median=1.0, interval=None),) * 2
