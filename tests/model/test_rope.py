"""Rotary frequencies, YaRN's among them, against transformers."""

import numpy as np
import pytest

from mlc_compile.model.rope import Rope, read_rope

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def test_plain_frequencies_fall_geometrically():
    f = Rope(theta=10000.0, original_context=2048).inverse_frequencies(8)
    np.testing.assert_allclose(f, [1, 0.1, 0.01, 0.001], rtol=1e-6)


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones():
    rope = Rope(theta=1e6, original_context=32768, kind="yarn", factor=4.0)
    plain = Rope(theta=1e6, original_context=32768).inverse_frequencies(128)
    stretched = rope.inverse_frequencies(128)
    np.testing.assert_array_equal(stretched[:8], plain[:8])
    np.testing.assert_allclose(stretched[-8:], plain[-8:] / 4, rtol=1e-6)


CASES = {
    "the usual": {},
    "its own attention factor": {"attention_factor": 1.5},
    "other turns": {"beta_fast": 16.0, "beta_slow": 2.0, "factor": 2.5},
    "a short native context": {"original_max_position_embeddings": 128},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
@pytest.mark.parametrize("head_dim", [32, 128])
def test_yarn_is_transformers(changes, head_dim):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    table = {"rope_theta": 1e6, **YARN, **changes}
    theirs = transformers.Qwen3Config(
        head_dim=head_dim, max_position_embeddings=40960, rope_parameters=dict(table)
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS["yarn"](theirs, "cpu")
    rope = read_rope({"rope_parameters": table}, 40960, "config.json")
    assert rope.attention_factor == pytest.approx(factor, rel=1e-12)
    np.testing.assert_allclose(rope.inverse_frequencies(head_dim), frequencies.numpy(), rtol=1e-6)


def test_older_yarn_is_read_like_newer():
    older = {"rope_theta": 1e6, "rope_scaling": {**YARN, "type": "yarn"}}
    newer = {"rope_parameters": {"rope_theta": 1e6, **YARN}}
    assert read_rope(older, 40960, "c") == read_rope(newer, 40960, "c")
