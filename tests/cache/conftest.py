"""A store of small entries."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mlc_compile.artifact import list_files
from mlc_compile.cache import Key, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Key]:
    """`put(store, "a", {"f.bin": b"..."})`: an entry whose key has one component, "part"."""

    def make(store: Store, part: str, files: dict[str, bytes], level: str = "library") -> Key:
        made = tmp_path / "made" / level / part
        for name, data in files.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_bytes(data)
        key = Key(level=level, parts={"part": part})
        with store.locked(key.digest):
            store.add(key, made, list_files(made))
        return key

    return make
