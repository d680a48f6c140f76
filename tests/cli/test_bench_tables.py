"""The tables of `bench`: what fits 80 columns, and how figures are written."""

import io

import msgspec
import pytest
from rich.console import Console

from mlc_compile.artifact import Versions
from mlc_compile.bench.kernels import KernelTime, Profile
from mlc_compile.bench.paired import Ratio
from mlc_compile.bench.speed import Benchmark, Device, Load, Measurement, Plan, Subject
from mlc_compile.cli.bench import _profile_table, as_table

PATH = "dist/qwen3-0.6b-q4f16_1/cpu"


def measurement(**fields: object) -> Measurement:
    known = {
        "artifact": PATH,
        "phase": "decode",
        "tokens": 64,
        "depth": 0,
        "threads": 2,
        "tok_s": 999.94,
        "spread": 0.012,
        "peak_rss_bytes": 512 << 20,
        "roofline_share": 0.81,
    }
    return Measurement(**(known | fields))


def benchmark(*results: Measurement, artifacts: tuple[str, ...] = (PATH,)) -> Benchmark:
    versions = Versions(mlc_compile="0", tvm="0", tvm_ffi="0")
    subjects = tuple(
        Subject(artifact=a, model="m", quant="q", target="t", versions=versions, library_sha256="0")
        for a in artifacts
    )
    return Benchmark(
        device=Device(cpu="A CPU", cores=2, bandwidth_bytes_s={1: 12.34e9, 2: 20e9}),
        plan=Plan(threads=(1, 2)),
        artifacts=subjects,
        loads=(),
        results=results,
    )


def profile(**fields: object) -> Profile:
    kernel = KernelTime(
        name="int8_gemm12",
        weights=("mlp.gate_proj+up_proj", "post_attention_layernorm"),
        calls=28,
        seconds=2e-3,
        share=0.5,
        nbytes=10**6,
        bytes_s=5e10,
        bandwidth_share=1.4,
        arithmetic="int8",
        ops_s=1e12,
    )
    known = {
        "artifact": PATH,
        "phase": "decode",
        "tokens": 64,
        "depth": 0,
        "threads": 1,
        "seconds": 3.5e-3,
        "watched_seconds": 4e-3,
        "outside_share": 0.5,
        "nbytes": 10**6,
        "bandwidth_share": 0.3,
        "kernels": (kernel,),
    }
    return Profile(**(known | fields))


def drawn(table: object, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, soft_wrap=True, color_system=None)
    console.print(table)
    return console.file.getvalue()


def test_a_single_artifact_is_named_above_and_every_column_fits() -> None:
    text = drawn(as_table(benchmark(measurement()), compare=False))
    assert text.splitlines()[0].strip() == PATH
    assert text.count(PATH) == 1
    assert "512 MiB" in text
    assert "81%" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_measured_bandwidth_is_told() -> None:
    text = drawn(as_table(benchmark(measurement()), compare=False))
    assert "reads 12.3 GB/s with 1 thread, 20.0 GB/s with 2 threads" in text


@pytest.mark.parametrize(
    ("speed", "shown"), [(999.94, " 999.9 "), (1000.4, " 1000 "), (6945.6, " 6946 ")]
)
def test_from_a_thousand_up_speeds_have_no_decimals(speed: float, shown: str) -> None:
    assert shown in drawn(as_table(benchmark(measurement(tok_s=speed)), compare=False))


@pytest.mark.parametrize(
    ("share", "in_cache", "shown"),
    [(1.3, True, "in cache"), (1.3, False, "130%"), (0.4, True, "40%")],
)
def test_more_than_the_memory_gives_comes_from_the_cache(
    share: float, in_cache: bool, shown: str
) -> None:
    row = measurement(roofline_share=share, in_cache=in_cache)
    assert shown in drawn(as_table(benchmark(row), compare=False))


def test_several_artifacts_on_80_columns_keep_their_speeds() -> None:
    other = "dist/qwen3-0.6b-q4f16_1/cpu-x86-64-v3"
    found = Ratio(median=1 / 3, interval=(0.3314, 0.3408))
    rows = measurement(), measurement(artifact=other, tok_s=333.3, vs_first=found)
    text = drawn(as_table(benchmark(*rows, artifacts=(PATH, other)), compare=True))
    assert max(map(len, text.splitlines())) <= 80
    assert all(word in text for word in ("999.9", "333.3", "0.333x (0.331-0.341)", "of bandwidth"))
    assert "…" not in text


def test_a_device_that_is_not_the_cpu_is_named_once() -> None:
    loads = [
        Load(artifact=PATH, threads=n, load_s=0.1, rss_bytes=1, device="A GPU") for n in (1, 2)
    ]
    on_gpu = msgspec.structs.replace(benchmark(measurement()), loads=tuple(loads))
    assert drawn(as_table(on_gpu, compare=False)).count("computes on A GPU") == 1
    assert "computes on" not in drawn(as_table(benchmark(measurement()), compare=False))


def test_rounds_are_told_where_there_are_several() -> None:
    rounds = msgspec.structs.replace(benchmark(measurement()), plan=Plan(threads=(1,), rounds=6))
    assert "median of 3 after 1, then of 6 rounds" in drawn(as_table(rounds, compare=True))
    assert "rounds" not in drawn(as_table(benchmark(measurement()), compare=True))


def test_kernels_fit_80_columns_and_the_header_says_what_watching_costs() -> None:
    text = drawn(_profile_table(profile()))
    assert "3.500 ms (4.000 ms while each kernel is timed)" in text
    assert "noisy" not in text
    table = [line for line in text.splitlines() if line.startswith(("int8", "outside", "all"))]
    assert max(map(len, table)) <= 80
    assert table[0].split()[:4] == ["int8_gemm12", "28", "2.000", "ms"]
    assert table[1].split() == ["outside", "kernels", "1.500", "ms", "50.0%"]
    assert "3.500 ms  100.0%" in table[2]


@pytest.mark.parametrize(("weights", "shown"), [(("mlp.down_proj",), "140%"), ((), "in cache")])
def test_weights_are_too_many_to_come_from_the_cache(weights: tuple[str, ...], shown: str) -> None:
    one = msgspec.structs.replace(profile().kernels[0], weights=weights)
    assert shown in drawn(_profile_table(profile(kernels=(one,))))


def test_kernels_that_add_up_to_more_than_the_whole_leave_nothing_outside() -> None:
    text = drawn(_profile_table(profile(seconds=1.5e-3, outside_share=0.0)), 200)
    outside = next(line for line in text.splitlines() if line.startswith("outside"))
    assert outside.split() == ["outside", "kernels", "0.000", "ms", "0.0%"]


@pytest.mark.parametrize(
    "times",
    [
        {"seconds": 2e-3 / 1.11},  # kernels take 2 ms
        {"seconds": 4e-3 * 1.11},
    ],
)
def test_times_that_contradict_each_other_are_called_noisy(times: dict[str, float]) -> None:
    assert profile(**times).noisy
    assert "noisy" in drawn(_profile_table(profile(**times)), 200)
    assert not profile(watched_seconds=9e-3).noisy, "watching may cost much"
