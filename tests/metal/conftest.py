"""`type_errors` and `run_kernel` of `model`, where zig is installed."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from . import model


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory to compile in."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("needs zig: pip install 'mlc_compile[cross]'")
    return tmp_path_factory.mktemp("metal")


@pytest.fixture(scope="session")
def type_errors(room: Path) -> Callable[[str], str]:
    """`type_errors(text)`: what clang has against MSL text; "" is well typed."""
    return lambda text: model.type_errors(text, room)


@pytest.fixture(scope="session")
def run_kernel(room: Path) -> Callable[..., None]:
    """`run_kernel(kernel, {"x": x, "y": y}, m=3)`: launch it here; writes into the arrays."""

    def run(kernel: model.Kernel, arrays: dict[str, np.ndarray], **sizes: int) -> None:
        model.run_kernel(kernel, room, arrays, sizes)

    return run
