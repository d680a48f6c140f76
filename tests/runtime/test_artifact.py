"""A built artifact gives equal logits however its tokens are fed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlc_compile.artifact import Manifest, read_manifest
from mlc_compile.bench.verify import allowed_share
from mlc_compile.runtime.engine import Engine, open_engine
from mlc_compile.target import host_target

# Prefill and decode are different kernels, so their float32 sums differ in order; the cache
# is float16, where a sum that rounds the other way moves a value by 5e-4. Logits reach 15.
CLOSE = {"rtol": 0, "atol": 5e-3}


@pytest.fixture(scope="module")
def artifact(build_nano: Callable[..., Path]) -> Path:
    """Of one arithmetic for prompts: with tiles they would be multiplied in bfloat16."""
    options = ["--activations", "int8"] if host_target().bf16_tiles else []
    return build_nano("q4f16_1", *options)


@pytest.fixture(scope="module")
def engine(artifact: Path) -> Engine:
    return open_engine(artifact)


@pytest.fixture(scope="module")
def ids(engine: Engine) -> list[int]:
    random = np.random.default_rng(11)
    return [int(i) for i in random.integers(0, engine.vocab_size, 150)]


@pytest.fixture(scope="module")
def whole(engine: Engine, ids: list[int]) -> np.ndarray:
    """Logits after each token, scored in one call."""
    engine.rewind()
    return np.concatenate(list(engine.score(ids)))


@pytest.mark.parametrize("n", [1, 7, 63, 64, 65, 128, 129, 150])
def test_prefill_gives_the_last_row_of_score(
    engine: Engine, ids: list[int], whole: np.ndarray, n: int
) -> None:
    engine.rewind()
    np.testing.assert_allclose(engine.prefill(ids[:n]), whole[n - 1], **CLOSE)


def test_decoding_token_by_token_equals_the_whole(
    build_nano: Callable[..., Path], ids: list[int]
) -> None:
    """In float32: int8 rounds a prompt, by wider groups, otherwise than a token."""
    engine = open_engine(build_nano("q4f16_1", "--activations", "float32"))
    whole = np.concatenate(list(engine.score(ids)))
    engine.rewind()
    decoded = np.stack([engine.decode(token) for token in ids])
    np.testing.assert_allclose(decoded, whole, **CLOSE)


def test_decoding_in_int8_is_off_by_its_rounding_at_most(
    artifact: Path, engine: Engine, ids: list[int], whole: np.ndarray
) -> None:
    engine.rewind()
    decoded = np.stack([engine.decode(token) for token in ids])
    share = allowed_share(read_manifest(artifact, Manifest))
    assert np.abs(decoded - whole).max() <= share / 10 * np.abs(whole).max()


@pytest.mark.parametrize("cut", [1, 30, 64, 100])
def test_a_prompt_in_two_parts_equals_the_whole(
    engine: Engine, ids: list[int], whole: np.ndarray, cut: int
) -> None:
    engine.rewind()
    engine.prefill(ids[:cut])
    np.testing.assert_allclose(engine.prefill(ids[cut:]), whole[-1], **CLOSE)


def test_what_was_rewound_leaves_no_trace(
    engine: Engine, ids: list[int], whole: np.ndarray
) -> None:
    engine.rewind()
    engine.prefill(ids[::-1])
    engine.rewind()
    engine.prefill(ids[:40])
    engine.prefill([0] * 50)
    engine.rewind(40)
    np.testing.assert_allclose(engine.prefill(ids[40:]), whole[-1], **CLOSE)


def test_the_context_can_be_filled_to_its_last_token(engine: Engine) -> None:
    engine.rewind()
    engine.prefill([1] * (engine.limits.context - 1))
    assert np.isfinite(engine.decode(2)).all()
    assert engine.room == 0
