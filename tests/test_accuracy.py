"""Whole libraries against the numpy reference on the very values they multiply by.

`tests/golden` compares float32 builds with transformers; here every scheme is held to its
own dequantized weights, so that quantization itself is not counted as an error.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from mlc_compile.checkpoint import TensorCache, open_checkpoint
from mlc_compile.driver.build import build
from mlc_compile.driver.job import Options
from mlc_compile.driver.storage import Dequantized, storage_of
from mlc_compile.model import load_config
from mlc_compile.model.reference import forward
from mlc_compile.model.weights import weight_specs
from mlc_compile.quant import SCHEMES
from mlc_compile.runtime.engine import open_engine
from mlc_compile.target import find_target

# Takes every rounding but float32's out of a scheme, and makes 65 tokens two chunks.
NO_ROUNDING = Options(activations="float32", kv_dtype="float32", prefill_chunk=64)
# q0f16 is built as it ships: what a float16 cache rounds is all that it rounds.
OPTIONS = dict.fromkeys(SCHEMES, NO_ROUNDING) | {"q0f16": Options(prefill_chunk=64)}

# Both sides sum float32 products of equal values in another order; logits are about 20.
SUMS = 1e-3
# Keys and values lose 2**-11 of themselves: far more than sums do, far less than a bug.
BOUNDS = dict.fromkeys(SCHEMES, SUMS) | {"q0f16": 0.1}

LENGTHS = (1, 31, 32, 33, 63, 64, 65, 130)


def prompt(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 512, n).astype(np.int32)


@pytest.fixture(scope="module")
def reference(nano_checkpoint):
    """`reference(artifact, n)`: logits f32[n, vocab] of `prompt(n)` on the artifact's weights."""
    config = load_config(open_checkpoint(nano_checkpoint).config, "config.json")

    @cache
    def logits(weights: Path, quant: str, n: int) -> np.ndarray:
        stored = TensorCache(weights)
        plan = {s.name: storage_of(s, SCHEMES[quant]) for s in weight_specs(config, True)}
        return forward(config, True, lambda name: Dequantized(stored, plan[name]), prompt(n))

    return lambda artifact, n: logits(
        artifact.parent / "weights", artifact.parent.name.rpartition("-")[2], n
    )


@pytest.fixture(scope="module")
def built(nano_checkpoint, tmp_path_factory):
    """`built("q0f32")`: the artifact of a scheme with its OPTIONS, built in this process."""

    @cache
    def make(quant: str) -> Path:
        out = tmp_path_factory.mktemp(quant)
        build(nano_checkpoint, (find_target("cpu"),), quant, out, OPTIONS[quant])
        return out / f"{nano_checkpoint.name}-{quant}" / "cpu"

    return make


def scored(engine, n):
    engine.rewind()
    return np.concatenate(list(engine.score(prompt(n))))


@pytest.mark.parametrize("quant", SCHEMES)
def test_a_library_computes_the_reference(built, reference, quant):
    artifact = built(quant)
    engine = open_engine(artifact)
    for n in LENGTHS:
        assert np.abs(scored(engine, n) - reference(artifact, n)).max() < BOUNDS[quant], n


@pytest.mark.parametrize("quant", ["q4f16_1", "q0f32"])
def test_prefill_and_decode_give_the_reference_around_a_page_and_a_chunk(built, reference, quant):
    artifact = built(quant)
    engine = open_engine(artifact)
    ids, expected = prompt(130), reference(artifact, 130)
    for first in (1, 30, 31, 32, 33, 62, 63, 64, 65, 127, 128):
        engine.rewind()
        got = [
            engine.prefill(ids[:first]),
            *(engine.decode(int(i)) for i in ids[first : first + 3]),
        ]
        for at, row in enumerate(got[: 131 - first], first - 1):
            assert np.abs(row - expected[at]).max() < SUMS, (first, at)


def test_int8_activations_cost_little(nano_artifact, reference):
    artifact, engine = nano_artifact, open_engine(nano_artifact)
    expected = reference(artifact, 130)
    got = scored(engine, 130)
    error = got - expected
    # Each of a layer's four matmuls rounds its input to 1 part in 254 of its group's largest
    # value, at random: a few times 0.3% of the logits' spread after two layers.
    assert np.sqrt(np.mean(error**2)) < 0.02 * expected.std()
    assert (got.argmax(axis=-1) == expected.argmax(axis=-1)).mean() > 0.95


def test_a_float16_cache_costs_something(built, reference):
    artifact = built("q0f16")
    error = np.abs(scored(open_engine(artifact), 130) - reference(artifact, 130)).max()
    assert error > SUMS / 100
