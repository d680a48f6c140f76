"""Damage: a line that is not as it was written costs that line and no other."""

import hashlib
import json

import pytest
from msgspec.structs import replace

from mlc_compile.records import RecordStore
from mlc_compile.records.line import START
from mlc_compile.records.store import ELSEWHERE

RECORDS = 3
NO_DIGEST = "it does not have its digest"


@pytest.fixture
def whole(store, here, record):
    """The bytes of a small store: what it is about, then three records."""
    store.append(here, [record(tile) for tile in range(1, RECORDS + 1)])
    data = store.path(here.digest).read_bytes()
    assert data.count(b"\n") == RECORDS + 1
    return data


@pytest.fixture
def spoilt(store, here):
    """`spoilt(data)`: what the store holds when its file says `data`."""

    def load(data):
        store.path(here.digest).write_bytes(data)
        return store.load(here)

    return load


def line_of(data: bytes, at: int) -> int:
    return data[:at].count(b"\n") + 1


@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80])
def test_a_flipped_bit_anywhere_costs_its_own_line(whole, spoilt, here, record, mask):
    for at, byte in enumerate(whole):
        loaded = spoilt(whole[:at] + bytes([byte ^ mask]) + whole[at + 1 :])
        lost = line_of(whole, at)
        kept = tuple(record(tile) for tile in range(1, RECORDS + 1) if tile + 1 != lost)
        assert loaded.records == kept, at
        assert loaded.partition == (None if lost == 1 else here), at
        assert {one.line for one in loaded.dropped} <= {lost, lost + 1}, at
        assert loaded.dropped, at


def test_a_file_cut_anywhere_keeps_every_whole_line(whole, spoilt, record):
    ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole)):
        loaded = spoilt(whole[:size])
        told = sum(size >= end for end in ends)  # without its newline a line is whole too
        assert len(loaded.records) == max(0, told - 1), size
        torn = size > 0 and size not in ends and size - 1 not in ends
        assert len(loaded.dropped) == torn, size


def test_the_next_append_after_a_cut_anywhere_is_a_line_of_its_own(
    whole, spoilt, store, here, record
):
    ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole)):
        spoilt(whole[:size])
        store.append(here, [record(9)])
        loaded = store.load(here)
        told = sum(size >= end for end in ends)
        assert len(loaded.records) == max(0, told - 1) + 1, size
        assert loaded.records[-1] == record(9), size
        assert loaded.partition == here, size
        assert store.path(here.digest).read_bytes().endswith(b"\n")


def test_damage_is_told_with_its_line_and_removed_by_compacting(whole, spoilt, store, here, record):
    lines = whole.splitlines(keepends=True)
    broken = lines[2].replace(b'"tile":2', b'"tile":7')
    loaded = spoilt(b"".join([lines[0], lines[1], broken, b"rubbish\n", lines[3], b"\n"]))
    assert loaded.records == (record(1), record(3))
    assert [(one.line, one.reason) for one in loaded.dropped] == [(3, NO_DIGEST), (4, NO_DIGEST)]
    assert store.compact() == 2
    assert store.load(here).dropped == ()
    left = sorted(store.load(here).records, key=lambda one: one.choice["tile"])
    assert left == [record(1), record(3)]


def test_a_build_is_told_once_what_did_not_count(whole, spoilt, store, here):
    spoilt(whole.replace(b'"tile":2', b'"tile":7'))
    for _ in range(2):
        store.chosen(here)
    path = store.path(here.digest)
    assert store.notes == [
        f"1 line of the tuning records in {path} did not count, the first is line 3 "
        f"({NO_DIGEST}): run `mlc-compile cache verify`"
    ]


def test_two_lines_glued_together_both_count(whole, spoilt, record):
    lines = whole.splitlines()
    loaded = spoilt(b"\n".join([lines[0], lines[1] + lines[2], lines[3]]))
    assert loaded.records == (record(1), record(2), record(3))
    torn = spoilt(b"\n".join([lines[0], lines[1][:50] + lines[2], lines[3]]))
    assert torn.records == (record(2), record(3))
    assert [one.line for one in torn.dropped] == [2]


def test_a_trace_that_looks_like_a_line_is_none(store, here, record):
    nasty = record(choice=[START.decode(), {"seal": "x"}])
    store.append(here, [nasty, record(2)])
    assert store.load(here).records == (nasty, record(2))


def sealed(here, record: object, **more: object) -> bytes:
    """A line with a right digest, made by somebody else."""
    body = json.dumps({"partition": here.digest, "record": record, **more})[1:].encode()
    return START + hashlib.sha256(body).hexdigest().encode() + b'",' + body + b"\n"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        pytest.param({"microseconds": 0}, "must be a time above 0", id="zero"),
        pytest.param({"microseconds": -1.5}, "must be a time above 0", id="negative"),
        pytest.param({"default_microseconds": 1e16}, "must be a time above 0", id="TVM's failure"),
        pytest.param({"microseconds": None}, "it is no record", id="what NaN becomes"),
        pytest.param({"noise": -1}, "noise must be", id="noise"),
        pytest.param({"unknown": 1}, "it is no record", id="a field we do not know"),
        pytest.param({"workload": {"family": "x", "facts": [["b", 1], ["a", 1]]}}, "it is no"),
    ],
)
def test_a_sealed_line_that_says_the_impossible_is_dropped(
    whole, spoilt, here, record, changed, reason
):
    said = json.loads(whole.splitlines()[1])["record"]
    loaded = spoilt(whole + sealed(here, {**said, **changed}))
    assert len(loaded.records) == RECORDS
    (dropped,) = loaded.dropped
    assert dropped.line == RECORDS + 2
    assert reason in dropped.reason


def test_so_are_numbers_that_json_does_not_have_and_nests_without_end(whole, spoilt, here):
    said = json.loads(whole.splitlines()[1])["record"]
    loaded = spoilt(whole + sealed(here, {**said, "microseconds": float("nan")}))
    assert "it is no record" in loaded.dropped[0].reason
    body = b'"partition":"' + b"[" * 100_000
    line = START + hashlib.sha256(body).hexdigest().encode() + b'",' + body
    assert len(spoilt(whole + line).dropped) == 1


def test_a_partition_that_lies_about_its_name_is_dropped(whole, spoilt, tmp_path, here, record):
    other = RecordStore(tmp_path / "other")
    foreign = replace(here, tvm="other")
    other.append(foreign, [record(8)])
    loaded = spoilt(other.path(foreign.digest).read_bytes() + whole)
    assert loaded.partition == here
    assert [one.reason for one in loaded.dropped] == [ELSEWHERE] * 2
    assert len(loaded.records) == RECORDS
