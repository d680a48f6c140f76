"""INT4 in MLC's words: the equation, nibble order, and groups that could divide by zero."""

import numpy as np
import pytest

from mlc_compile.quant import SCHEMES
from mlc_compile.quant.int4 import pack_nibbles, unpack_nibbles

SCHEME_NAMES = ("q4f16_1", "q4f32_1")


def random_weights(n, k, seed=0):
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32) * 0.02


def by_hand(w, scale_dtype):
    """MLC's definition, one weight at a time."""
    n, k = w.shape
    words = np.zeros((n, k // 8), np.uint32)
    scales = np.zeros((n, k // 32), scale_dtype)
    for i in range(n):
        for j in range(k):
            group = w[i, j // 32 * 32 : j // 32 * 32 + 32]
            scale = (np.abs(group).max() / np.float32(7)).astype(scale_dtype)
            scales[i, j // 32] = scale
            code = 7
            if scale > 0:
                code = int(np.clip(np.rint(w[i, j] / np.float32(scale)) + 7, 0, 14))
            words[i, j // 8] |= np.uint32(code) << np.uint32(4 * (j % 8))
    return words, scales


@pytest.mark.parametrize("name", SCHEME_NAMES)
def test_words_and_scales_are_mlc_s(name):
    w = random_weights(5, 96)
    w[1, 32:64] = 0
    scheme = SCHEMES[name]
    words, scales = by_hand(w, scheme.norm_dtype)
    parts = scheme.encode(w)
    np.testing.assert_array_equal(parts["q_weight"], words)
    np.testing.assert_array_equal(parts["q_scale"], scales)


def test_the_first_column_is_the_lowest_nibble():
    word = pack_nibbles(np.arange(8, dtype=np.uint8)[None])
    assert word.tolist() == [[0x76543210]]
    assert unpack_nibbles(word).tolist() == [list(range(8))]


@pytest.mark.parametrize("name", SCHEME_NAMES)
def test_no_weight_moves_by_more_than_half_a_step(name):
    w = random_weights(64, 256)
    parts = SCHEMES[name].encode(w)
    step = np.repeat(parts["q_scale"].astype(np.float32), 32, axis=1)
    # half a step of rounding; a float16 scale is off by 2**-11, which 7 codes amplify
    bound = step * (0.5 + 7 * 2**-11)
    assert (np.abs(SCHEMES[name].decode(parts) - w) <= bound).all()


@pytest.mark.parametrize("name", SCHEME_NAMES)
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -1e-40, 1e-12], ids=str)
def test_zero_and_tiny_groups_give_finite_scales(name, value):
    parts = SCHEMES[name].encode(np.full((1, 32), value, np.float32))
    assert np.isfinite(parts["q_scale"]).all()
    if parts["q_scale"][0, 0] == 0:
        assert parts["q_weight"].tolist() == [[0x77777777] * 4]
    assert abs(SCHEMES[name].decode(parts)[0, 0] - value) <= abs(value)


@pytest.mark.parametrize("name", SCHEME_NAMES)
def test_codes_stay_within_0_to_14_even_where_the_scale_was_rounded_down(name):
    # subnormal float16 scales are coarse: max|w| / scale may pass 7.5
    w = random_weights(256, 32) * np.logspace(-6, 2, 256, dtype=np.float32)[:, None]
    assert unpack_nibbles(SCHEMES[name].encode(w)["q_weight"]).max() == 14


@pytest.mark.parametrize("name", SCHEME_NAMES)
def test_the_largest_weight_survives(name):
    scheme = SCHEMES[name]
    w = np.full((1, 32), scheme.largest, np.float32)
    np.testing.assert_allclose(scheme.decode(scheme.encode(w)), w, rtol=1e-6)


@pytest.mark.parametrize(("k", "reason"), [(100, "100 columns"), (16, "16 columns"), (64, None)])
def test_rows_must_be_whole_groups(k, reason):
    told = SCHEMES["q4f16_1"].applies(8, k)
    assert (told is None) if reason is None else reason in told
