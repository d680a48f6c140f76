"""A directory for work in progress that outlives its process by no more than a collection."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from mlc_compile.cache.ground import make_directory
from mlc_compile.cache.store import Store


@contextmanager
def held_directory(store: Store, name: str) -> Iterator[Path]:
    """A directory in the store's scratch for who holds the lock `name`; removed in the end.

    If we die before, `collect` removes it: it tells by the lock. OSError where the cache cannot
    be written.
    """
    make_directory(store.root, store.scratch)
    with tempfile.TemporaryDirectory(dir=store.scratch, prefix=f"{name}.") as directory:
        yield Path(directory)


@contextmanager
def room(store: Store, kind: str) -> Iterator[Path]:
    """The same for this process alone, under a lock that nobody else wants."""
    name = f"{kind}-{uuid4().hex}"
    with store.locked(name):
        try:
            with held_directory(store, name) as directory:
                yield directory
        finally:
            with suppress(OSError):
                (store.locks / name).unlink()
