"""Merging is a union: idempotent, commutative, associative; compacting and copying lose nothing."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mlc_compile.records import RecordStore, choose

PAIRS = st.lists(
    st.tuples(st.sampled_from(["one", "other"]), st.integers(1, 4), st.sampled_from([64, 128])),
    max_size=6,
)
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def build(here, record, tmp_path_factory):
    """`build(pairs)`: a new store that holds those records, by partition."""
    base = tmp_path_factory.mktemp("laws")

    def make(pairs=()):
        store = RecordStore(base / str(next(NUMBERS)))
        for tvm, tile, n in pairs:
            store.append(replace(here, tvm=tvm), [record(tile, n=n)])
        return store

    return make


def law(count):
    """A claim about `count` stores, tried on many."""
    return lambda test: settings(max_examples=25, deadline=None)(
        given(st.tuples(*[PAIRS] * count))(test)
    )


def merged(build, *all_pairs):
    store = build()
    for pairs in all_pairs:
        store.merge(build(pairs))
    return store.files()


@law(1)
def test_what_is_merged_into_nothing_is_what_it_was(build, stores):
    assert merged(build, stores[0]) == build(stores[0]).files()


@law(2)
def test_merging_twice_is_merging_once(build, stores):
    one, other = map(build, stores)
    new = one.merge(other)
    assert new <= len(set(stores[1]))
    assert one.merge(other) == one.merge(one) == 0
    assert one.compact() == 0


@law(2)
def test_merging_commutes_and_is_the_union(build, stores):
    one, other = stores
    assert merged(build, one, other) == merged(build, other, one) == build([*one, *other]).files()


@law(3)
def test_merging_is_associative(build, stores):
    a, b, c = stores
    left = build(a)
    left.merge(build(b))
    left.merge(build(c))
    right, inner = build(a), build(b)
    inner.merge(build(c))
    right.merge(inner)
    assert left.files() == right.files()


@law(2)
def test_compacting_removes_repetitions_alone_and_chooses_the_same(build, here, stores):
    store = build(stores[0])
    doubled = build()
    for name, data in store.files().items():
        place = doubled.cache_dir / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data + data)
    before = doubled.files(), [choose(one.records) for one in doubled.all()]
    repeated = sum(one.repeated for one in doubled.all())
    assert doubled.compact() == repeated
    assert (doubled.files(), [choose(one.records) for one in doubled.all()]) == before
    assert doubled.compact() == 0
    assert all(one.repeated == 0 for one in doubled.all())


@law(1)
def test_a_directory_with_its_files_is_the_store(build, stores):
    store, copy = build(stores[0]), build()
    for name, data in store.files().items():
        place = copy.cache_dir / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    assert copy.files() == store.files()
    assert build().merge(copy) == len(set(stores[0]))


def test_a_damaged_head_does_not_keep_records_from_merging(build, here, record):
    store, other = build(), build([("one", 1, 64), ("one", 2, 64)])
    (held,) = other.all()
    path = other.path(held.digest)
    path.write_bytes(path.read_bytes()[5:])
    assert other.all()[0].partition is None
    assert store.merge(other) == 2
    assert len(store.all()[0].records) == 2
