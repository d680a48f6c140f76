"""Partitions: all that makes a measurement worthless elsewhere, and nothing of this machine."""

import msgspec
import pytest

from mlc_compile.records import Partition, partition_of
from mlc_compile.records import partition as module
from mlc_compile.target import find_target, target_names

PRESETS = [name for name in target_names() if name != "cpu"]


def test_no_two_presets_share_records_unless_their_code_is_the_same():
    rows = {name: find_target(name) for name in PRESETS}
    plain = {name: row for name, row in rows.items() if not row.variants}
    of = {name: partition_of(row, 2) for name, row in plain.items()}
    for one, first in of.items():
        for other, second in of.items():
            if one < other and first == second:
                facts = [
                    (row.backend, row.triple, row.mcpu, row.device)
                    for row in (rows[one], rows[other])
                ]
                assert facts[0] == facts[1], (one, other)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_same_on_every_machine(name, tmp_path, monkeypatch):
    row = find_target(name)
    one = partition_of(row, 2)
    monkeypatch.setattr(module.archspec.cpu, "host", None)
    assert partition_of(row, 64, tmp_path) == one


def cache(sysfs, index, **facts):
    directory = sysfs / f"devices/system/cpu/cpu0/cache/index{index}"
    directory.mkdir(parents=True)
    for name, text in facts.items():
        (directory / name).write_text(f"{text}\n")


def test_this_machine_is_its_cores_and_caches(tmp_path):
    row = find_target("cpu")
    cache(tmp_path / "a", 0, level=1, type="Data", size="48K")
    cache(tmp_path / "a", 1, level=2, type="Unified", size="2048K")
    cache(tmp_path / "b", 0, level=1, type="Data", size="32K")
    cache(tmp_path / "half", 0, level=1)
    one = partition_of(row, 2, tmp_path / "a")
    assert one.caches == ("L1 Data 48K", "L2 Unified 2048K")
    assert partition_of(row, 2, tmp_path / "half").caches == ()
    others = [
        partition_of(row, 4, tmp_path / "a"),
        partition_of(row, 2, tmp_path / "b"),
        partition_of(row, 2, tmp_path / "none"),
    ]
    assert len({each.digest for each in (one, *others)}) == 4


def test_tuning_for_this_machine_is_not_tuning_for_its_preset():
    row = find_target("cpu")
    preset = msgspec.structs.replace(row, name="cpu-x86-64-v4")
    assert partition_of(row, 2).digest != partition_of(preset, 2).digest


def test_isa_features_and_tvm_separate(here):
    other_isa = partition_of(find_target("cpu-x86-64-v2"), 2)
    other_tvm = msgspec.structs.replace(here, tvm="0.28.0")
    other_ffi = msgspec.structs.replace(here, tvm_ffi="0.2.0")
    assert len({one.digest for one in (here, other_isa, other_tvm, other_ffi)}) == 4


@pytest.mark.parametrize("field", Partition.__struct_fields__)
def test_every_field_reaches_the_digest(here, field):
    other = another(getattr(here, field))
    assert msgspec.structs.replace(here, **{field: other}).digest != here.digest


def another(value):
    """Some other value of the same kind."""
    match value:
        case dict():
            return {**value, "more": "x"}
        case tuple():
            return (*value, "more")
        case int():
            return value + 1
        case str():
            return f"{value}x"


def test_a_title_is_for_people(here):
    assert here.title == "cpu x86-64-v3, x86_64-unknown-linux-gnu"
    assert partition_of(find_target("cuda-sm90"), 2).title.startswith("cuda sm_90, ")
