"""Which tuning records a library asks for is learnt by compiling it, and decides who is rebuilt.

The compiler is stood in for: it asks for `stand_ins.ASKED`, one workload.
"""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlc_compile.artifact import Limits
from mlc_compile.cache import Store
from mlc_compile.cache.bundle import export_entries, import_entries
from mlc_compile.cache.check import check
from mlc_compile.driver import build as module
from mlc_compile.driver import decide as deciding
from mlc_compile.driver.build import build
from mlc_compile.driver.explain import explain
from mlc_compile.driver.job import DEFAULTS, Options
from mlc_compile.driver.keys import UNKNOWN
from mlc_compile.driver.questions import QUESTIONS
from mlc_compile.driver.reuse import Reuse
from mlc_compile.errors import DamageError
from mlc_compile.records import RecordStore
from mlc_compile.target import find_target
from tests.driver.stand_ins import ASKED, contents
from tests.driver.tuning import record, tune

HERE = find_target("cpu")
KERNEL = "records.cpu cpu.int8_gemm n=64"
MINE, OTHERS = record(), record(n=128)
EVERYTHING = ["weights", "library", "packed", "proof"]
BUDGET = Options(memory_budget=1 << 30)


@pytest.fixture
def records(tmp_path):
    return RecordStore(tmp_path / "cache")


@pytest.fixture
def made(nano, tmp_path, stub):
    """`made("out")`: build for this machine; the steps that ran, and the Build."""

    def run(out="out", *, cache="cache", options=DEFAULTS, store=Store, tuned=True, **asked):
        stub.clear()
        kept = store(tmp_path / cache)
        reuse = Reuse(kept, records=RecordStore(tmp_path / cache) if tuned else None, **asked)
        built = build(nano.path, (HERE,), "q4f16_1", tmp_path / out, options, reuse=reuse)
        return stub.copy(), built

    return run


@pytest.fixture
def explained(nano, tmp_path):
    """`explained()`: the library's step, or another's."""

    def run(step="library", options=DEFAULTS, cache="cache"):
        steps = explain(nano.path, (HERE,), "q4f16_1", options, Store(tmp_path / cache))
        return next(one for one in steps if one.step == step)

    return run


def looking(cache: Path) -> Store:
    """A store that is read from alone."""
    return Store(cache, only_looks=True)


def entries(cache: Path, level="questions") -> list[Path]:
    return [d for d in Store(cache).directories() if d.parent.name == level]


# ---- what counts -------------------------------------------------------------------------


def test_what_other_models_are_tuned_for_changes_nothing(made, records, explained):
    assert made()[0] == EVERYTHING
    tune(records, "cpu", OTHERS)
    ran, built = made()
    assert (ran, built.artifacts[0].unchanged) == ([], True)
    assert explained().outcome == "hit"


def test_with_records_of_all_models_there_a_first_build_has_its_own_alone(made, records, tmp_path):
    tune(records, "cpu", MINE, OTHERS)
    assert made()[0] == EVERYTHING
    (entry,) = [one.entry for one in Store(tmp_path / "cache").held() if is_library(one)]
    assert [name for name in entry.key.parts if name.startswith("records")] == [KERNEL]
    tune(records, "cpu", record(2, took=4.0, n=128))
    assert made()[0] == []
    tune(records, "cpu", record(2, took=4.0))
    assert made()[0] == ["library"]
    assert made()[0] == []


def is_library(held):
    return held.entry.key.level == "library"


def test_what_is_asked_is_one_entry_whatever_the_answers(made, records, tmp_path):
    made()
    tune(records, "cpu", MINE)
    made()
    (directory,) = entries(tmp_path / "cache")
    found = json.loads((directory / "files" / QUESTIONS).read_bytes())
    (asked,) = ASKED
    assert found == {"cpu": [{"family": asked.family, "facts": [["n", 64]]}]}
    assert len(entries(tmp_path / "cache", "library")) == 2


def test_libraries_with_other_answers_live_side_by_side(made, records):
    made(tuned=False)
    tune(records, "cpu", MINE)
    assert made()[0] == ["library"]
    for tuned in (False, True, False):
        assert made(tuned=tuned)[0] == []


def test_a_compiler_that_asks_more_by_other_answers_is_never_served_an_old_library(
    made, records, tmp_path, monkeypatch
):
    """Ours does not; what is served must not depend on it."""
    stand_in = module.compile_into

    def curious(scratch, job, clock):
        manifest, questions = stand_in(scratch, job, clock)
        answered = job.chosen(HERE).find(MINE.workload, MINE.space) is not None
        more = {"cpu": (*ASKED, OTHERS.workload)}
        return manifest, more if answered else questions

    monkeypatch.setattr(module, "compile_into", curious)
    made()
    (untuned,) = entries(tmp_path / "cache", "library")
    tune(records, "cpu", MINE)
    assert made()[0] == ["library"]
    shutil.rmtree(untuned)
    assert made(tuned=False)[0] == ["library"]  # which asks less, and more stays asked
    tune(records, "cpu", OTHERS)
    assert made()[0] == ["library"]
    assert made()[0] == []


# ---- explain and --locked ----------------------------------------------------------------


def test_explain_names_the_kernel_that_has_a_new_record(made, records, explained):
    made()
    tune(records, "cpu", MINE, OTHERS)
    (difference,) = explained().differences
    assert (difference.component, difference.nearest) == (KERNEL, None)
    made()
    assert explained().outcome == "hit"
    old, _ = difference.wanted, tune(records, "cpu", record(2, took=4.0))
    (difference,) = explained().differences
    assert (difference.component, difference.nearest) == (KERNEL, old)


def test_explain_says_where_it_cannot_know_which_records_count(made, records, explained, tmp_path):
    tune(records, "cpu", MINE)
    made()
    shutil.rmtree(entries(tmp_path / "cache")[0])
    (difference,) = explained().differences
    assert (difference.component, difference.wanted) == ("records", UNKNOWN)


def test_locked_says_that_nobody_knows_which_records_count(made, records, tmp_path, stub):
    tune(records, "cpu", MINE)
    made()
    shutil.rmtree(entries(tmp_path / "cache")[0])
    with pytest.raises(DamageError, match="the cache does not know which tuning records count"):
        made(frozen=True)
    assert stub == []


def test_explain_tells_of_damaged_records(made, records, nano, tmp_path):
    tune(records, "cpu", MINE)
    made()
    (held,) = records.all()
    path = records.path(held.digest)
    path.write_bytes(path.read_bytes()[:-9])
    store = Store(tmp_path / "cache")
    explain(nano.path, (HERE,), "q4f16_1", DEFAULTS, store)
    (note,) = store.notes
    assert path.name in note


def test_locked_names_the_kernel_too(made, records, stub):
    made()
    tune(records, "cpu", OTHERS)
    assert made(frozen=True)[1].artifacts[0].unchanged
    tune(records, "cpu", MINE)
    with pytest.raises(DamageError, match=f"the library would have to be made: {KERNEL} differ"):
        made(frozen=True)
    assert stub == []


# ---- trouble -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["entry.json", f"files/{QUESTIONS}"])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_damaged_questions_are_told_and_learnt_again(made, records, tmp_path, name, place):
    tune(records, "cpu", MINE)
    made()
    expected = contents(tmp_path / "out")
    (directory,) = entries(tmp_path / "cache")
    path = directory / name
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    ran, built = made()
    assert contents(tmp_path / "out") == expected
    if built.notes or name != "entry.json":  # or it was white space of its JSON
        (note,) = built.notes
        assert note.startswith("a questions entry of the cache was damaged")
        assert ran == ["library"]
    ran, built = made()
    assert (ran, built.notes, built.artifacts[0].unchanged) == ([], (), True)
    assert all(fault is None for _, fault in check(Store(tmp_path / "cache")))


FOREIGN = {
    "empty": b"",
    "no table": b"[]",
    "deep": b"[" * 100_000,
    "no workloads": b'{"cpu": 3}',
    "half a workload": b'{"cpu": [{"family": "cpu.int8_gemm"}]}',
    "of no library": b"{}",
    "of another library": b'{"cuda": []}',
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_no_build_of_ours_wrote_is_damage_though_it_is_sealed(
    made, records, explained, tmp_path, case
):
    made(tuned=False)
    (untuned,) = entries(tmp_path / "cache", "library")
    tune(records, "cpu", MINE)
    forge(tmp_path / "cache", "questions", FOREIGN[case])
    (difference,) = explained().differences
    assert (difference.component, difference.wanted) == ("records", UNKNOWN)
    ran, built = made()
    (note,) = built.notes
    assert note.startswith(f"a questions entry of the cache was damaged ({QUESTIONS}")
    assert ran == ["library"], "not the one of before that was tuned"
    assert untuned in entries(tmp_path / "cache", "library")
    assert made()[0] == []


def forge(cache: Path, level: str, data: bytes) -> None:
    """Another content of the one such entry, under a seal that fits."""
    store = Store(cache)
    (held,) = (one for one in store.held() if one.entry.key.level == level)
    store.add_bytes(held.entry.key, held.entry.files[0].path, data)


@pytest.mark.parametrize(("level", "again"), [("limits", []), ("proof", ["proof"])])
def test_nor_is_any_other_small_file_believed(made, fitted, tmp_path, level, again):
    made(options=BUDGET)
    forge(tmp_path / "cache", level, b'"nonsense"')
    ran, built = made(options=BUDGET)
    (note,) = built.notes
    assert note.startswith(f"a {level} entry of the cache was damaged")
    assert (ran, len(fitted)) == (again, 2 if level == "limits" else 1)
    assert made(options=BUDGET)[1].artifacts[0].unchanged


def test_damage_that_nobody_may_remove_is_told_once(made, records, tmp_path):
    made()
    tune(records, "cpu", MINE)
    forge(tmp_path / "cache", "questions", b"{}")
    assert len(made(store=looking)[1].notes) == 1


def test_questions_that_are_gone_are_learnt_again(made, records, tmp_path):
    tune(records, "cpu", MINE)
    made()
    shutil.rmtree(entries(tmp_path / "cache")[0])
    ran, built = made()
    assert (ran, built.notes) == (["library"], ())
    assert made()[0] == []


def test_without_records_nobody_misses_them(made, tmp_path):
    made()
    shutil.rmtree(entries(tmp_path / "cache")[0])
    assert made(frozen=True)[1].artifacts[0].unchanged


def test_a_library_that_is_gone_is_made_under_the_key_that_it_had(made, records, tmp_path):
    tune(records, "cpu", MINE)
    made()
    (before,) = entries(tmp_path / "cache", "library")
    shutil.rmtree(before)
    assert made()[0] == ["library"]
    assert entries(tmp_path / "cache", "library") == [before]


def test_a_cache_that_is_only_looked_at_serves(made, records, tmp_path):
    tune(records, "cpu", MINE)
    made()
    assert made(store=looking)[0] == []
    assert made("elsewhere", store=looking)[0] == []
    tune(records, "cpu", record(2, took=4.0))
    assert made(store=looking)[0] == ["library"]
    assert made(store=looking)[0] == ["library"]


@pytest.mark.parametrize("known", [False, True])
def test_builds_at_once_make_the_library_once(made, records, stub, nano, tmp_path, known):
    """Whether it is known what it asks, or the first of them learns it."""
    if known:
        made(tuned=False)
    tune(records, "cpu", MINE, OTHERS)
    stub.clear()

    def run(out):
        reuse = Reuse(Store(tmp_path / "cache"), records=RecordStore(tmp_path / "cache"))
        return build(nano.path, (HERE,), "q4f16_1", tmp_path / out, reuse=reuse)

    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(run, "abcd"))
    assert stub.count("library") == 1
    assert [one.artifacts[0].steps["library"] for one in built].count("built") == 1
    assert all(one.artifacts[0].manifest == built[0].artifacts[0].manifest for one in built)
    assert [one.notes for one in built] == [()] * 4
    assert made()[0] == []


def test_builds_at_once_may_have_other_answers(made, records, stub, nano, tmp_path):
    tune(records, "cpu", MINE)

    def run(out):
        tuned = RecordStore(tmp_path / "cache") if out in "ac" else None
        reuse = Reuse(Store(tmp_path / "cache"), records=tuned)
        return build(nano.path, (HERE,), "q4f16_1", tmp_path / out, reuse=reuse)

    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(run, "abcd"))
    assert stub.count("library") == 2
    assert [one.notes for one in built] == [()] * 4
    assert len(entries(tmp_path / "cache", "library")) == 2
    assert len(entries(tmp_path / "cache")) == 1


def test_a_bundle_without_the_library_says_what_it_lacks(made, records, explained, tmp_path):
    tune(records, "cpu", MINE)
    made()
    shutil.rmtree(entries(tmp_path / "cache", "library")[0])
    carry(records, tmp_path)
    assert explained(cache="elsewhere").reason == "there is no such entry yet"
    with pytest.raises(DamageError, match="the cache has nothing of the kind"):
        made("there", cache="elsewhere", frozen=True)
    assert made("there", cache="elsewhere")[0] == ["library"]


def test_a_bundle_carries_them(made, records, tmp_path):
    tune(records, "cpu", MINE, OTHERS)
    made()
    carry(records, tmp_path)
    assert made("there", cache="elsewhere", frozen=True)[0] == []
    assert contents(tmp_path / "there") == contents(tmp_path / "out")


def carry(records, tmp_path):
    """Export the cache, and import it elsewhere."""
    export_entries(Store(tmp_path / "cache"), tmp_path / "bundle", records.files())
    elsewhere = RecordStore(tmp_path / "elsewhere")
    import_entries(
        Store(tmp_path / "elsewhere"),
        tmp_path / "bundle",
        lambda directory: elsewhere.merge(RecordStore(directory)),
    )


# ---- limits that fit a budget ------------------------------------------------------------


@pytest.fixture
def fitted(monkeypatch):
    """How often limits were worked out: asking for ASKED, as lowering would."""
    times = []

    def within_budget(job, _options):
        times.append(job)
        limits = Limits(context=128, prefill_chunk=64)
        return deciding.replace(job, limits=limits, questions={"cpu": ASKED})

    monkeypatch.setattr(deciding, "within_budget", within_budget)
    return times


def test_limits_are_worked_out_again_for_records_that_they_ask_for_alone(
    made, records, fitted, explained
):
    assert made(options=BUDGET)[0] == EVERYTHING
    tune(records, "cpu", OTHERS)
    assert explained("limits", BUDGET).outcome == "hit"
    assert made(options=BUDGET)[0] == []
    assert len(fitted) == 1
    tune(records, "cpu", MINE)
    (difference,) = explained("limits", BUDGET).differences
    assert difference.component == KERNEL
    assert made(options=BUDGET)[0] == ["library"]
    assert made(options=BUDGET)[0] == []
    assert len(fitted) == 2
