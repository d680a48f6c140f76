"""What kernel tests share: int8 instructions, INT4 matrices, and attention in float64."""

from collections.abc import Callable
from dataclasses import dataclass
from platform import machine

import msgspec
import numpy as np
import pytest

from mlc_compile import target as targets
from mlc_compile.artifact import FlatKV
from mlc_compile.layout import GROUP, LAYOUTS, NIBBLES
from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels.dot import DOTS
from mlc_compile.schedule.kernels.weights import Codec, codec_of
from mlc_compile.target import EXTRA_FEATURES, Target, find_target, missing_features
from tests.schedule.kernels.emulator import Emulator

BASES = {  # feature of a dot product -> the preset that it is added to
    "avx512_vnni": "cpu-x86-64-v4",
    "avx512bw": "cpu-x86-64-v4",
    "avx_vnni": "cpu-x86-64-v3",
    "avx2": "cpu-x86-64-v3",
    "asimddp": "cpu-aarch64",
}


INT4 = {"float16": "q4f16_1", "float32": "q4f32_1"}  # type of the scales -> scheme


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
    """`dot_row`: each dot product of this architecture; skipped where the CPU lacks it.

    `wide_row`: those that take weights of all 8 bits.
    """
    here = [d for d in DOTS if find_target(BASES[d.feature]).arch == machine()]
    chosen = {"dot_row": here, "wide_row": [d for d in here if d.zero is not None]}
    for name, dots in chosen.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, [d.feature for d in dots], indirect=True)


EPS = np.finfo(np.float32).eps
LAYERS = 3  # of a cache


@dataclass(frozen=True)
class Shape:
    """Heads, head size and the cache's type and page; by default pages are as libraries ship."""

    h_q: int = 4
    h_kv: int = 2
    d: int = 32
    dtype: str = "float32"
    page: int = 32

    @property
    def op(self) -> Attention:
        """The attributes of the operator; kernels get angles, so its frequencies do not count."""
        return Attention(0, self.h_q, self.h_kv, self.d, 1e-6, 1.0, (1.0,) * (self.d // 2))

    @property
    def kv(self) -> FlatKV:
        """The cache."""
        return FlatKV(
            layers=LAYERS, kv_heads=self.h_kv, head_dim=self.d, page=self.page, dtype=self.dtype
        )

    def pages(self, count: int, random: np.random.Generator) -> tuple[np.ndarray, ...]:
        """`count` pages of keys, of values, each slot finite, and a table that permutes them."""
        k = random.standard_normal((LAYERS, count, self.h_kv, self.d, self.page))
        v = random.standard_normal((LAYERS, count, self.h_kv, self.page, self.d))
        table = random.permutation(count).astype(np.int32)
        return k.astype(self.dtype), v.astype(self.dtype), table

    def tokens(self, pages: np.ndarray) -> np.ndarray:
        """float64 [n, h_kv, d] in the order of tokens, from [page, slot, h_kv, d]."""
        return pages.reshape(-1, self.h_kv, self.d).astype(np.float64)


def attend_exactly(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, length: int, doubt: np.ndarray | float = 0
) -> tuple[np.ndarray, np.ndarray]:
    """float64 o[m, h_q, d] and how far float32 may be from it, for k and v [length + m, h_kv, d].

    A score is off by at most d eps sum|q k| / sqrt(d) =: e, and by `doubt`; so weights by a
    factor exp(2 e), and exp, the sums over n tokens and the running rescaling add a few eps.
    """
    (_, h_q, d), n = q.shape, length + q.shape[0]
    k, v = (a.repeat(h_q // a.shape[1], axis=1).swapaxes(0, 1) for a in (k, v))  # [h_q, n, d]
    q, across = q.astype(np.float64).swapaxes(0, 1), k.swapaxes(1, 2)
    scores = q @ across / np.sqrt(d)
    magnitude = np.abs(q) @ np.abs(across) / np.sqrt(d)
    doubt = doubt + (d + 4) * EPS * magnitude
    hidden = np.arange(n)[None] > np.arange(length, n)[:, None]
    scores[:, hidden], doubt[:, hidden] = -np.inf, 0
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    share = np.expm1(2 * doubt.max(axis=-1)) + (n + 40) * EPS  # [h, m]
    o, largest = weights @ v, weights @ np.abs(v)
    return o.swapaxes(0, 1), (share[..., None] * largest).swapaxes(0, 1) + 1e-30


@pytest.fixture(scope="session")
def shape() -> type[Shape]:
    """`shape(h_q=4, h_kv=2, d=32, dtype="float32", page=32)`: what attention is compiled for."""
    return Shape


@pytest.fixture(scope="session")
def exact_attention() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """`exact_attention(q, k, v, length)`: attention in float64, and float32's bound."""
    return attend_exactly


@pytest.fixture(scope="session")
def emulate(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """`emulate(func, row, cpu="max")(*arrays)`: an Arm kernel's results, computed here."""
    return Emulator(tmp_path_factory.mktemp("aarch64"))


@pytest.fixture
def dot_row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A target that this CPU can run; `find_target` knows it by its name."""
    return _runnable(request, monkeypatch)


@pytest.fixture
def wide_row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    """As `dot_row`."""
    return _runnable(request, monkeypatch)


def _runnable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
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
    scheme: str

    @property
    def codec(self) -> Codec:
        """How kernels read `packed`."""
        return codec_of(self.scheme, *self.codes.shape)


@pytest.fixture(scope="session")
def int4_matrix() -> Callable[..., Int4Matrix]:
    """`int4_matrix(codes[n, k], scales[n, k / 32])`: packed in rows16."""

    def make(codes: np.ndarray, scales: np.ndarray) -> Int4Matrix:
        shifts = np.arange(NIBBLES, dtype=np.uint32) * 4
        nibbles = codes.reshape(len(codes), -1, NIBBLES).astype(np.uint32)
        words = np.bitwise_or.reduce(nibbles << shifts, axis=-1)
        packed = LAYOUTS["rows16"].pack({"q_weight": words, "q_scale": scales})
        assert scales.shape == (len(codes), codes.shape[1] // GROUP)
        return Int4Matrix(
            packed=list(packed.values()),
            codes=codes.astype(np.int64),
            scales=scales.astype(float),
            scheme=INT4[scales.dtype.name],
        )

    return make


@pytest.fixture(scope="session")
def weights(int4_matrix: Callable[..., Int4Matrix]) -> Callable[..., Int4Matrix]:
    """`weights(n, k)`: random codes 0..15 and scales, one row of w all zero, unless it is alone."""

    def make(n: int, k: int, dtype: str = "float16") -> Int4Matrix:
        random = np.random.default_rng([n, k])
        codes = random.integers(0, 16, (n, k))
        scales = random.uniform(-0.1, 0.1, (n, k // GROUP)).astype(dtype)
        if n > 1:
            codes[n // 2], scales[n // 2] = 7, 0
        return int4_matrix(codes, scales)

    return make
