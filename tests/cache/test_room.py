"""A directory for work in progress: one's own, gone in the end, and collected after a kill."""

import os
import sys

import pytest

from mlc_compile.cache import Store
from mlc_compile.cache.room import room
from tests.killing import Victim

HOLD = """
import sys
from pathlib import Path
from mlc_compile.cache import Store
from mlc_compile.cache.room import room
with room(Store(Path(sys.argv[1])), "tune") as place:
    (place / "candidate.so").write_text("code")
    print(place, flush=True)
    sys.stdin.read()
"""


def left(store):
    return [*store.scratch.iterdir(), *store.locks.iterdir()]


def test_it_is_empty_one_s_own_and_gone_in_the_end(store):
    with room(store, "tune") as one, room(store, "tune") as other:
        assert one != other
        assert list(one.iterdir()) == []
        (one / "file").write_text("")
    assert left(store) == []


def test_it_goes_after_an_exception_too(store):
    with pytest.raises(KeyboardInterrupt), room(store, "tune"):
        raise KeyboardInterrupt
    assert left(store) == []


def test_a_collection_leaves_it_to_who_works_in_it(store):
    with room(store, "tune") as place:
        (place / "file").write_text("")
        Store(store.cache_dir).collect(0)
        assert (place / "file").exists()


def test_a_collection_removes_what_a_killed_process_left(store):
    with Victim([sys.executable, "-c", HOLD, store.cache_dir], stdin=-1) as victim:
        place = victim.line().decode().strip()
        store.collect(store.limit)
        assert os.listdir(place) == ["candidate.so"]
        victim.kill()
    store.collect(store.limit)
    assert left(store) == []


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "cache").write_text("no directory")
    with pytest.raises(OSError, match="cache"), room(Store(tmp_path / "cache"), "tune"):
        pass
