"""Tuning records and the build cache through the real command: who is rebuilt, and by what."""

import shutil
from pathlib import Path

from mlc_compile.records import Record, RecordStore, Workload, partition_of
from mlc_compile.runtime.host import available_cores
from mlc_compile.target import find_target
from tests.driver.tuning import asked

FOREIGN = Workload.of("cpu.int8_gemm", n=9999, k=9999)


def tune(cache: Path, workload: Workload) -> None:
    """A record that beats a default which the rules do not choose: the report tells of it."""
    record = Record(
        workload=workload,
        space=1,
        choice={"m": 1},
        microseconds=1.0,
        default_microseconds=2.0,
        noise=0.01,
        trials=8,
        seed=0,
    )
    RecordStore(cache).append(partition_of(find_target("cpu"), available_cores()), [record])


def test_tuning_changes_the_library_that_asks_for_it_and_warm_builds_load_no_compiler(
    run, manage, first, loaded, nano_checkpoint, tmp_path
):
    cache, out = (shutil.copytree(one, tmp_path / one.name) for one in first)
    command = ["build", nano_checkpoint, "-o", out, "--cache-dir", cache]
    tune(cache, FOREIGN)
    assert loaded(*command, "--locked") == "0 []"
    workload = asked(cache, "cpu.int8_gemv")
    tune(cache, workload)
    told = run(cache, "cache", "explain", nano_checkpoint).out
    library = told[told.index("cpu: library: miss") :].splitlines()
    assert library[1].startswith(f"  records.cpu {workload.title}: ")
    assert library[1].endswith(", nearest entry absent")
    assert "records." not in library[2]
    assert run(cache, *command, "--locked").code == 6
    (built,) = run(cache, *command, "--json").json["artifacts"]
    assert built["cache"]["library"] == "built"
    assert built["kernels"]["built"] == 0  # the rules' own: what was tuned is not what they choose
    assert loaded(*command, "--locked") == "0 []"
    stats = manage(cache, "stats", "--json").json
    entries = {one["level"]: one["entries"] for one in stats["levels"]}
    assert (entries["questions"], entries["library"]) == (1, 2)
    assert manage(cache, "verify").code == 0
