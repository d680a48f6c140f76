"""scripts/bench_reader.c: compiled without a warning, it reads all of its buffer."""

import subprocess
from pathlib import Path

import pytest

from mlc_compile.runtime.bandwidth import read_bandwidth

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
BUFFER = 64 << 20


@pytest.fixture
def reader(monkeypatch):
    """The module."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_reader

    return bench_reader


def test_it_compiles_without_a_warning_and_without_undefined_behavior(tmp_path):
    program = tmp_path / "reader"
    strict = [
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsanitize=undefined,address",
        "-pthread",
    ]
    source = SCRIPTS / "bench_reader.c"
    subprocess.run(["cc", "-O1", *strict, source, "-o", program], check=True)
    for threads in ("1", "3"):
        out = subprocess.check_output([program, threads, str(BUFFER), "1"], text=True)
        assert float(out) > 0


def test_it_reads_no_slower_than_a_quarter_of_what_bench_reads(reader, tmp_path):
    program = reader.build_reader("cc", tmp_path)
    # Both are bound by one memory; other work on the machine may hit either, hence the quarter.
    assert reader.read_speed(program, 1) > read_bandwidth(1, BUFFER) / 4


@pytest.mark.parametrize("words", [(), ("0", "4096", "1"), ("1", "0", "1"), ("1", "4096", "0")])
def test_misuse_fails(reader, tmp_path, words):
    program = reader.build_reader("cc", tmp_path)
    assert subprocess.run([program, *words], capture_output=True, check=False).returncode in {1, 2}


def test_a_compiler_that_fails_is_told(reader, tmp_path):
    with pytest.raises(reader.Failed, match="there is no compiler no-such-cc"):
        reader.build_reader("no-such-cc", tmp_path)
    with pytest.raises(reader.Failed, match=r"^false fails: it says nothing$"):
        reader.build_reader("false", tmp_path)
