"""A lock of the store's, taken if nobody works on what it stands for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlc_compile.cache.ground import make_directory
from mlc_compile.staging.lock import try_lock

if TYPE_CHECKING:
    from mlc_compile.cache.store import Store


@contextmanager
def unless_locked(store: "Store", name: str) -> Iterator[bool]:
    """Whether nobody works on what `name` locks, nobody being able to begin meanwhile.

    We are somebody too. OSError where the cache cannot be written.
    """
    path = store.locks / name
    make_directory(store.root, store.locks)
    with try_lock(path) as free:
        yield free
        if free:
            path.unlink(missing_ok=True)  # whoever waits for it sees that and makes another
