"""A target for each int8 instruction, and INT4 matrices with what they stand for."""

from collections.abc import Callable
from dataclasses import dataclass
from platform import machine

import msgspec
import numpy as np
import pytest

from mlc_compile import target as targets
from mlc_compile.layout import GROUP, LAYOUTS
from mlc_compile.schedule.kernels.dot import DOTS
from mlc_compile.schedule.kernels.weights import Codec, codec_of
from mlc_compile.target import EXTRA_FEATURES, Target, find_target, missing_features

BASES = {  # feature of a dot product -> the preset that it is added to
    "avx512_vnni": "cpu-x86-64-v4",
    "avx512bw": "cpu-x86-64-v4",
    "avx_vnni": "cpu-x86-64-v3",
    "avx2": "cpu-x86-64-v3",
    "asimddp": "cpu-aarch64",
}


def row_with(feature: str) -> Target:
    """A target whose best dot product is the one that `feature` brings."""
    base = find_target(BASES[feature])
    if feature in base.requires:
        return base
    return msgspec.structs.replace(
        base,
        name=f"{base.name}-{feature}",
        mattr=(*base.mattr, EXTRA_FEATURES[feature]),
        requires=(*base.requires, feature),
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`dot_row`: each dot product of this architecture; skipped where the CPU lacks it."""
    if "dot_row" in metafunc.fixturenames:
        here = [d.feature for d in DOTS if find_target(BASES[d.feature]).arch == machine()]
        metafunc.parametrize("dot_row", here, indirect=True)


@pytest.fixture
def dot_row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A target that this CPU can run; `find_target` knows it by its name."""
    row = row_with(request.param)
    missing = missing_features(row.requires)
    if missing:
        pytest.skip(f"this CPU lacks {', '.join(missing)}")
    rows = {**targets._rows(), row.name: row}
    monkeypatch.setattr(targets, "_rows", lambda: rows)
    return row


@dataclass(frozen=True)
class Int4Matrix:
    """w[n, k] as the library gets it, and its integers: w = (codes - 7) scales."""

    packed: list[np.ndarray]
    codes: np.ndarray  # int64 [n, k]
    scales: np.ndarray  # float64 [n, k / 32]

    @property
    def codec(self) -> Codec:
        """How kernels read `packed`."""
        (packed,) = self.packed
        return codec_of(packed.shape, str(packed.dtype), self.codes.shape[1])


@pytest.fixture(scope="session")
def int4_matrix() -> Callable[..., Int4Matrix]:
    """`int4_matrix(codes[n, k], scales[n, k / 32])`: packed in rows16."""

    def make(codes: np.ndarray, scales: np.ndarray) -> Int4Matrix:
        shifts = np.arange(8, dtype=np.uint32) * 4
        nibbles = codes.reshape(len(codes), -1, 8).astype(np.uint32)
        words = np.bitwise_or.reduce(nibbles << shifts, axis=-1)
        packed = LAYOUTS["rows16"].pack({"q_weight": words, "q_scale": scales})
        assert scales.shape == (len(codes), codes.shape[1] // GROUP)
        return Int4Matrix(list(packed.values()), codes.astype(np.int64), scales.astype(float))

    return make
