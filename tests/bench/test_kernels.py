"""Profiles of the nano artifact: which kernels, how often, and sums that must hold."""

from pathlib import Path

import pytest

from mlc_compile.artifact import Manifest, read_manifest
from mlc_compile.bench import kernels, speed
from mlc_compile.bench.kernel_worker import Stopwatch
from mlc_compile.bench.kernels import (
    KernelBenchmark,
    KernelSample,
    Profile,
    ProfileSample,
    Samples,
    measure_kernels,
)
from mlc_compile.bench.speed import Plan
from mlc_compile.errors import ConfigError
from mlc_compile.progress import SILENT
from mlc_compile.runtime.load import choose_library
from mlc_compile.runtime.memory import bytes_per_token

PLAN = Plan(prompts=(24,), generate=4, depths=(0, 100), threads=(1,), repeats=3, warm_up=1)
BANDWIDTH = 1e9
LAYERS = 2
MATMULS = ("gem", "bf16_swiglu", "tile_project")  # in the names of what multiplies weights


@pytest.fixture(scope="module")
def benchmark(nano_artifact: Path) -> KernelBenchmark:
    patch = pytest.MonkeyPatch()
    patch.setattr(speed, "read_bandwidth", lambda _threads: BANDWIDTH)
    result = measure_kernels((nano_artifact,), PLAN, SILENT)
    patch.undo()
    return result


def profile(benchmark: KernelBenchmark, phase: str, depth: int = 0) -> Profile:
    (found,) = (p for p in benchmark.profiles if (p.phase, p.depth) == (phase, depth))
    return found


def test_every_phase_and_depth_has_a_profile(benchmark: KernelBenchmark) -> None:
    got = [(p.phase, p.tokens, p.depth, p.threads) for p in benchmark.profiles]
    assert got == [(p, n, d, 1) for d in (0, 100) for p, n in (("prefill", 24), ("decode", 4))]


def test_calls_are_those_of_one_token(benchmark: KernelBenchmark) -> None:
    calls: dict[str, float] = {}
    for kernel in profile(benchmark, "decode").kernels:
        family = kernel.name.rstrip("0123456789")
        calls[family] = calls.get(family, 0) + kernel.calls
    attends = {"int8_gemv": 4 * LAYERS + 1} if "int8_gemv" in calls else {"gemv": 4 * LAYERS + 1}
    assert attends.items() <= calls.items()
    assert calls["flat_step"] == LAYERS
    assert calls["take"] == 1
    assert not any(name.startswith("vm.") for name in calls)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_shares_and_rates_follow_from_seconds(benchmark: KernelBenchmark, phase: str) -> None:
    p = profile(benchmark, phase)
    assert p.seconds > 0
    assert [k.seconds for k in p.kernels] == sorted((k.seconds for k in p.kernels), reverse=True)
    whole = max(p.seconds, sum(k.seconds for k in p.kernels))
    assert p.outside_share == pytest.approx(1 - sum(k.share for k in p.kernels))
    assert p.outside_share >= 0
    assert p.nbytes == sum(k.nbytes for k in p.kernels)
    assert p.bandwidth_share == pytest.approx(p.nbytes / p.seconds / BANDWIDTH)
    for kernel in p.kernels:
        assert kernel.share == pytest.approx(kernel.seconds / whole)
        assert kernel.bytes_s == pytest.approx(kernel.nbytes / kernel.seconds)
        assert kernel.bandwidth_share == pytest.approx(kernel.bytes_s / BANDWIDTH)


@pytest.mark.parametrize("depth", [0, 100])
def test_a_token_moves_every_weight_and_its_cache(
    benchmark: KernelBenchmark, nano_artifact: Path, depth: int
) -> None:
    """What kernels are seen to read is what the manifest says they must, and activations."""
    needed = bytes_per_token(read_manifest(nano_artifact, Manifest), depth + 2)
    moved = profile(benchmark, "decode", depth).nbytes
    assert needed < moved < needed * 1.25


def test_operations_are_those_of_the_matrices(
    benchmark: KernelBenchmark, nano_artifact: Path
) -> None:
    """Two for each weight of the layers and each token, and the head for the last token."""
    plan = read_manifest(nano_artifact, Manifest).plan
    pairs = {t.name: t.parts[0].shape[:2] for t in plan.tensors if t.parts[0].dtype == "int32"}
    numbers = {name: 16 * blocks * 64 * pairs for name, (blocks, pairs) in pairs.items()}
    head = numbers.pop("model.embed_tokens")
    layers = sum(numbers.values())
    kernels_of = profile(benchmark, "prefill").kernels
    done = sum(k.ops_s * k.seconds for k in kernels_of if k.ops_s is not None)
    assert done == pytest.approx(2 * (24 * layers + head))


def test_matmuls_say_what_they_multiply_in(benchmark: KernelBenchmark, nano_artifact: Path) -> None:
    manifest = read_manifest(nano_artifact, Manifest)
    prompts = choose_library(manifest).prompts
    for p in benchmark.profiles:
        of_a_prompt = {prompts} - {None} if p.phase == "prefill" else set()
        matmuls = [k for k in p.kernels if any(part in k.name for part in MATMULS)]
        assert {k.arithmetic for k in matmuls} == {manifest.activations} | of_a_prompt
        assert all(k.weights for k in matmuls)
        assert {k.arithmetic for k in p.kernels if k not in matmuls} == {None}


def test_a_plan_beyond_the_context_is_refused(nano_artifact: Path) -> None:
    with pytest.raises(ConfigError, match="the plan needs"):
        measure_kernels((nano_artifact,), Plan(prompts=(10**6,)), SILENT)


def test_the_watching_is_taken_off_by_the_shortest_call() -> None:
    ticks = iter([0.0, 5.0, 10.0, 10.5, 20.0, 23.0])
    watch = Stopwatch(clock=lambda: next(ticks))
    for name in ("matmul", "vm.builtin.null_value", "matmul"):
        watch(None, name, True, None)
        watch(None, name, False, None)
    assert watch.seconds("matmul") == 5.0 + 3.0 - 2 * 0.5
    assert watch.seconds("vm.builtin.null_value") == 0


def test_a_kernel_too_short_to_be_timed_has_no_rates(
    nano_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlc_compile.cli.bench import as_tables

    short = KernelSample(
        name="take", weights=(), integers=False, calls=1, seconds=0.0, nbytes=8, multiply_adds=4
    )
    sample = ProfileSample(
        phase="decode", tokens=1, depth=0, seconds=1e-3, watched_seconds=2e-3, kernels=(short,)
    )
    monkeypatch.setattr(speed, "read_bandwidth", lambda _threads: BANDWIDTH)
    monkeypatch.setattr(kernels, "ask_worker", lambda *_: Samples((sample,)))
    measured = measure_kernels((nano_artifact,), PLAN, SILENT)
    (kernel,) = measured.profiles[0].kernels
    assert (kernel.bytes_s, kernel.bandwidth_share, kernel.ops_s) == (None, None, None)
    as_tables(measured)  # shows them as nothing


@pytest.mark.parametrize(("plain", "outside"), [(4e-3, 0.25), (2e-3, 0.0)])
def test_shares_are_of_the_unwatched_time_and_never_add_up_to_more(
    nano_artifact: Path, monkeypatch: pytest.MonkeyPatch, plain: float, outside: float
) -> None:
    """Medians of noisy runs may add up to more than the median of the whole."""
    fields = {"weights": (), "integers": False, "calls": 1, "nbytes": 8, "multiply_adds": 0}
    pair = tuple(KernelSample(name=n, seconds=1.5e-3, **fields) for n in ("take", "add"))
    sample = ProfileSample(
        phase="decode", tokens=1, depth=0, seconds=plain, watched_seconds=9e-3, kernels=pair
    )
    monkeypatch.setattr(speed, "read_bandwidth", lambda _threads: BANDWIDTH)
    monkeypatch.setattr(kernels, "ask_worker", lambda *_: Samples((sample,)))
    (p,) = measure_kernels((nano_artifact,), PLAN, SILENT).profiles
    assert p.outside_share == outside
    assert sum(k.share for k in p.kernels) + p.outside_share == pytest.approx(1)
