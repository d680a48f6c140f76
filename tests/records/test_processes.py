"""Several processes at one store, and some that die: what was appended is there."""

import signal
import subprocess
import sys
import time

import pytest

from mlc_compile.records import RecordStore

WRITERS = 4
EACH = 40

# A process that appends EACH records, one by one: `writer.py CACHE NUMBER`.
WRITER = f"""
import sys
from pathlib import Path
from mlc_compile.records import Record, RecordStore, Workload, partition_of
from mlc_compile.target import find_target

store, number = RecordStore(Path(sys.argv[1])), int(sys.argv[2])
here = partition_of(find_target("cpu-x86-64-v3"), cores=2)
print("ready", flush=True)
sys.stdin.readline()
for tile in range({EACH}):
    record = Record(workload=Workload.of("gemm", writer=number), space=1, choice={{"tile": tile}},
        microseconds=1.0 + tile, default_microseconds=100.0, noise=0.0, trials=1, seed=number)
    store.append(here, [record])
    print(tile, flush=True)
"""


@pytest.fixture
def writer(tmp_path):
    """`writer(number)`: such a process, which waits for a line on its stdin."""
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    started = []

    def start(number):
        command = [sys.executable, str(script), str(tmp_path / "cache"), str(number)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def begin(process):
    process.stdin.write("\n")
    process.stdin.flush()


def test_nothing_is_lost_between_four_who_append_and_one_who_compacts(writer, store, here):
    writers = [writer(number) for number in range(WRITERS)]
    for process in writers:
        begin(process)
    while any(process.poll() is None for process in writers):
        store._compact(here.digest)  # which `compact` leaves out where nothing is damaged
        time.sleep(0.01)
    assert [process.returncode for process in writers] == [0] * WRITERS
    loaded = store.load(here)
    found = sorted((one.seed, one.choice["tile"]) for one in loaded.records)
    assert found == [(number, tile) for number in range(WRITERS) for tile in range(EACH)]
    assert (loaded.dropped, loaded.partition) == ((), here)
    assert len(store.chosen(here).records) == WRITERS


@pytest.mark.parametrize("after", [0, 1, 7, 20, 33])
def test_a_writer_that_is_killed_costs_at_most_what_it_had_not_said(
    writer, store, here, record, after
):
    process = writer(0)
    begin(process)
    said = [int(process.stdout.readline()) for _ in range(after)]
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    said += [int(line) for line in rest.splitlines()]
    store.append(here, [record(99)])  # the lock died with its holder
    loaded = store.load(here)
    found = [one.choice["tile"] for one in loaded.records]
    assert found[: len(said)] == said
    assert len(found) - len(said) in {1, 2}  # ours, and one that was kept and not yet told
    assert found[-1] == 99
    assert len(loaded.dropped) <= 1  # the torn one


def test_killed_in_the_middle_of_a_line(store, here, record):
    """The write itself is cut after every possible number of bytes of the new line."""
    store.append(here, [record(1)])
    path = store.path(here.digest)
    before = path.read_bytes()
    store.append(here, [record(2)])
    line = path.read_bytes()[len(before) :]
    for size in range(len(line) - 1):
        path.write_bytes(before + line[:size])
        store.append(here, [record(3)])
        loaded = store.load(here)
        assert loaded.records == (record(1), record(3)), size
        assert len(loaded.dropped) == (size > 0), size


# ---- disks -------------------------------------------------------------------------------

APPEND = """
import sys
from pathlib import Path
from mlc_compile.errors import EnvironmentError_
from mlc_compile.records import Record, RecordStore, Workload, partition_of
from mlc_compile.target import find_target

store = RecordStore(Path(sys.argv[1]))
here = partition_of(find_target("cpu-x86-64-v3"), cores=2)
kept, records = len(store.load(here).records), [
    Record(workload=Workload.of("gemm", n=tile), space=1, choice={"tile": tile}, microseconds=1.0,
        default_microseconds=2.0, noise=0.0, trials=1, seed=0) for tile in range(100, 400)]
try:
    for record in records:
        store.append(here, [record])
        kept += 1
except EnvironmentError_ as e:
    print(e)
loaded = store.load(here)
print(kept, len(loaded.records), len(loaded.dropped))
"""


@pytest.fixture
def on_disk(tmp_path):
    """`on_disk("64k", store)`: where a copy of a store lies on a disk of that size, and what
    APPEND to it said.
    """
    disk, script = tmp_path / "disk", tmp_path / "append.py"
    disk.mkdir()
    script.write_text(APPEND)

    def inside(commands):
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", commands]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def run(size, store, read_only=False):
        mount = f"mount -t tmpfs -o size={size} none {disk}"
        mount += f" && cp -r {store.cache_dir} {disk}/cache"
        lock = f"mount -o remount,ro {disk}" if read_only else "true"
        ran = inside(f"({mount} && {lock}) || exit 99; {sys.executable} {script} {disk}/cache")
        assert ran.returncode == 0, ran.stderr
        return disk / "cache", ran.stdout.splitlines()

    try:
        usable = inside(f"mount -t tmpfs none {disk}").returncode == 0
    except FileNotFoundError:
        usable = False
    if not usable:
        pytest.skip("this system lets nobody mount a disk of their own (unshare)")
    return run


def test_a_full_disk_is_one_sentence_and_loses_nothing_that_was_kept(on_disk, store, here, record):
    store.append(here, [record(1)])
    cache, (told, counts) = on_disk("64k", store)
    root = RecordStore(cache).root
    assert told == f"the tuning records in {root} cannot be written: no space left on device"
    kept, found, damaged = map(int, counts.split())
    assert kept == found > 1
    assert damaged == 0


def test_a_read_only_disk_is_one_sentence_and_is_read_from(on_disk, store, here, record):
    store.append(here, [record(1)])
    _, (told, counts) = on_disk("1m", store, read_only=True)
    assert told.endswith("cannot be written: read-only file system")
    assert counts == "1 1 0"
