"""What every scheme in the registry promises."""

import numpy as np
import pytest

from mlc_compile.errors import ConfigError
from mlc_compile.quant import SCHEMES, find_scheme, part_name, scheme_for

W = np.random.default_rng(1).standard_normal((12, 64)).astype(np.float32)

every_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)


def test_the_registry_s_keys_are_the_schemes_names():
    assert {name: s.name for name, s in SCHEMES.items()} == {name: name for name in SCHEMES}


@every_scheme
def test_parts_are_as_announced(scheme):
    encoded = scheme.encode(W)
    assert {s: (a.shape, a.dtype.name) for s, a in encoded.items()} == scheme.parts(*W.shape)


@every_scheme
def test_rows_may_be_encoded_in_blocks(scheme):
    whole = scheme.encode(W)
    blocks = [scheme.encode(W[i : i + 5]) for i in range(0, 12, 5)]
    for suffix, part in whole.items():
        np.testing.assert_array_equal(np.concatenate([b[suffix] for b in blocks]), part)


@every_scheme
def test_decoded_values_are_float32_and_encode_to_the_same_values(scheme):
    once = scheme.decode(scheme.encode(W))
    assert once.dtype == np.float32
    # exact for floats; a scale that is recomputed from rounded values may move by one unit
    np.testing.assert_allclose(scheme.decode(scheme.encode(once)), once, rtol=2**-10)


@pytest.mark.parametrize(("name", "bound"), [("q0f32", 0.0), ("q0f16", 2**-11)])
def test_unquantized_schemes_only_round(name, bound):
    scheme = SCHEMES[name]
    np.testing.assert_allclose(scheme.decode(scheme.encode(W)), W, rtol=bound, atol=2**-25)


def test_an_unknown_scheme_gets_near_matches():
    with pytest.raises(ConfigError, match="no quantization scheme 'q4f16'") as error:
        find_scheme("q4f16")
    assert error.value.exit_code == 2
    assert "'q4f16_1'" in error.value.hint


def test_a_matrix_that_cannot_be_quantized_is_kept_in_the_norms_type():
    kept, reason = scheme_for(SCHEMES["q4f32_1"], 8, 40)
    assert kept is SCHEMES["q0f32"]
    assert "40 columns" in reason
    assert scheme_for(SCHEMES["q4f16_1"], 8, 64) == (SCHEMES["q4f16_1"], None)


def test_stored_names_replace_the_last_component():
    assert part_name("model.norm.weight", "weight") == "model.norm.weight"
    assert part_name("lm_head.weight", "q_scale") == "lm_head.q_scale"
