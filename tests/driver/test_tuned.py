"""Tuning records in a job and in the key of its library: those that it asks for, by kernel."""

import dataclasses

import pytest
from msgspec.structs import replace

from mlc_compile.cache import Key, Stamps, Store
from mlc_compile.driver.build import build
from mlc_compile.driver.compile import prepare
from mlc_compile.driver.job import DEFAULTS, choose_records
from mlc_compile.driver.keys import UNKNOWN, Keys, answered, unanswered
from mlc_compile.driver.reuse import Reuse
from mlc_compile.driver.subject import read_subject
from mlc_compile.records import RecordStore
from mlc_compile.target import find_target
from tests.driver.tuning import record, tune

V3, V4, PAIR = "cpu-x86-64-v3", "cpu-x86-64-v4", "cpu-x86-64-v3+v4"
KERNEL = "cpu.int8_gemm n=64"
QUESTIONS = {name: (record().workload,) for name in (V3, V4)}


@pytest.fixture
def store(tmp_path):
    return RecordStore(tmp_path / "cache")


def test_a_job_has_what_was_tuned_for_each_of_its_libraries(store):
    assert choose_records(find_target(PAIR), store) == ()
    assert choose_records(find_target(PAIR), None) == ()
    tune(store, V4, record())
    plainer, better = choose_records(find_target(PAIR), store)
    assert plainer.records == ()
    assert better.find(record().workload, 1) == record()
    assert choose_records(find_target(V3), store) == ()


@pytest.fixture
def key(nano, store):
    """`key(target)`: the key of the library, which is known to ask for one kernel."""

    def make(target, records=store, questions=QUESTIONS):
        job = prepare(read_subject(nano.path), find_target(target), "q4f16_1", DEFAULTS, records)
        return Keys(Stamps()).library(dataclasses.replace(job, questions=questions))

    return make


def test_a_target_without_records_has_the_key_that_it_always_had(key, store):
    tune(store, V4, record())
    tune(store, V3, record(took=9.9))  # it did not beat the default by more than the noise
    assert key(V3) == key(V3, None)
    assert not [name for name in key(V3).parts if name.startswith("records")]


def test_a_record_reaches_the_key_of_its_library_alone(key, store):
    before = {name: key(name) for name in (V3, V4, PAIR)}
    tune(store, V4, record())
    assert key(V3) == before[V3]
    named = {name: f"records.{name} {KERNEL}" for name in (V3, V4)}
    assert key(V4).differences(before[V4]) == (named[V4],)
    assert key(PAIR).differences(before[PAIR]) == (named[V4],)
    tune(store, V3, record())
    assert key(PAIR).differences(before[PAIR]) == (named[V3], named[V4])


def test_only_what_is_chosen_changes_a_key(key, store):
    tune(store, V3, record())
    before = key(V3)
    tune(store, V3, record(), record(2, took=6.0))
    assert key(V3) == before
    tune(store, V3, record(3, took=4.0))
    assert key(V3).differences(before) == (f"records.{V3} {KERNEL}",)


def test_only_what_is_asked_for_changes_a_key(key, store):
    before = key(V3)
    tune(store, V3, record(n=128), record(n=256))
    assert key(V3) == before
    tune(store, V3, record())
    assert key(V3) != before


def test_records_of_another_space_count_too(key, store):
    """The report says that they are outdated."""
    before = key(V3)
    tune(store, V3, replace(record(), space=2))
    assert key(V3).differences(before) == (f"records.{V3} {KERNEL}",)


def test_where_the_questions_are_not_known_a_key_is_nobody_s(key, store):
    assert key(V3, questions=None) == key(V3)  # nothing could be answered
    tune(store, V3, record(n=128))
    assert key(V3, questions=None).parts["records"] == UNKNOWN


def test_the_key_of_the_questions_has_no_answers(key, store):
    before = key(V3)
    tune(store, V3, record())
    unknown, known = key(V3, questions=None), key(V3)
    assert unanswered(before) == unanswered(unknown) == unanswered(known)
    limits = Key(level="limits", parts=before.parts)
    assert unanswered(limits) != unanswered(before)


def test_answering_gives_the_key_that_a_job_has(key, store, nano):
    tune(store, V3, record())
    job = prepare(read_subject(nano.path), find_target(V3), "q4f16_1", DEFAULTS, store)
    told = dataclasses.replace(job, questions=QUESTIONS)
    assert answered(key(V3, questions=None), told) == key(V3)
    assert answered(key(V3), dataclasses.replace(told, questions={V3: ()})) == key(V3, None)


@pytest.fixture
def tuned_build(nano, tmp_path, stub, store):
    """`tuned_build()`: build for this machine; the steps that ran."""

    def run(**options):
        stub.clear()
        reuse = Reuse(Store(tmp_path / "cache"), records=store, **options)
        row = find_target("cpu")
        built = build(nano.path, (row,), "q4f16_1", tmp_path / "out", reuse=reuse)
        return stub.copy(), built

    return run


def test_a_new_best_record_makes_the_library_anew_and_nothing_else(tuned_build, store):
    assert tuned_build()[0] == ["weights", "library", "packed", "proof"]
    assert tuned_build()[0] == []
    tune(store, "cpu", record())
    assert tuned_build()[0] == ["library"]  # of the same bytes here: proof and weights serve
    tune(store, "cpu", record(2, took=8.0))
    assert tuned_build()[0] == []


def test_damage_among_the_records_is_in_the_build_s_notes(tuned_build, store):
    tune(store, "cpu", record(), record(2))
    path = store.path(store.all()[0].digest)
    path.write_bytes(path.read_bytes().replace(b'"tile":2', b'"tile":3'))
    (note,) = tuned_build()[1].notes
    assert note.startswith(f"1 line of the tuning records in {path} did not count")


def test_every_job_field_but_the_records_has_its_own_way_into_the_key(nano):
    """`records` that `questions` ask for stand there by digest; the rest is read off the class."""
    job = prepare(read_subject(nano.path), find_target(V3), "q4f16_1", DEFAULTS)
    parts = Keys(Stamps()).library(job).parts
    apart = {"subject", "linker", "records", "questions"}
    fields = {field.name for field in dataclasses.fields(job)} - apart
    assert fields <= {name.partition(".")[0] for name in parts}
