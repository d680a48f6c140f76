"""INT8 activations in the whole pipeline: who decides, and how many kernels a token costs."""

import dataclasses
from collections import Counter

import pytest

from mlc_compile import ops
from mlc_compile.driver.job import Options, choose_activations, library_activations, single_row
from mlc_compile.errors import ConfigError, TargetError
from mlc_compile.passes.rewrite import bindings_of
from mlc_compile.pipeline import phases
from mlc_compile.quant import SCHEMES, has_codes
from mlc_compile.schedule.kernels.dot import DOTS
from mlc_compile.target import BF16_TILE_FEATURES, find_target

INT4 = [name for name, scheme in SCHEMES.items() if has_codes(scheme)]
FLOAT = [name for name, scheme in SCHEMES.items() if not has_codes(scheme)]
LAYERS = 2  # of the nano model

DEFAULTS = {
    "cpu-x86-64-v2": "float32",
    "cpu-x86-64-v3": "int8",
    "cpu-x86-64-v4": "int8",
    "cpu-sapphirerapids": "bfloat16",
    "cpu-aarch64": "float32",
    "cpu-aarch64-dotprod": "int8",
    "cpu-aarch64-i8mm": "int8",
}


@pytest.mark.parametrize("target", DEFAULTS)
@pytest.mark.parametrize("scheme", INT4)
def test_int4_is_multiplied_by_the_fastest_that_the_target_has(target, scheme):
    assert choose_activations(find_target(target), scheme, Options()) == DEFAULTS[target]


@pytest.mark.parametrize(
    ("target", "asked"),
    [
        ("cpu-x86-64-v3", "int8"),
        ("cpu-x86-64-v3", "float32"),
        ("cpu-sapphirerapids", "bfloat16"),
        ("cpu-sapphirerapids", "int8"),
        ("cpu-sapphirerapids", "float32"),
        ("cpu-x86-64-v3+v4+sapphirerapids", "bfloat16"),
    ],
)
def test_what_is_asked_for_is_done(target, asked):
    options = Options(activations=asked)
    assert choose_activations(find_target(target), "q4f16_1", options) == asked


def test_of_several_libraries_those_with_tiles_use_them():
    target = find_target("cpu-x86-64-v3+v4+sapphirerapids")
    chosen = choose_activations(target, "q4f16_1", Options())
    assert chosen == "bfloat16"
    made = [library_activations(row, chosen) for row in target.libraries]
    assert made == ["int8", "int8", "bfloat16"]
    assert {single_row(one) for one in made} == {"int8"}
    assert {library_activations(row, "int8") for row in target.libraries} == {"int8"}


@pytest.mark.parametrize("asked", [None, "int8"])
def test_of_several_libraries_one_without_the_dot_product_keeps_none_from_it(asked):
    target = find_target("cpu-x86-64-v2+v3")
    chosen = choose_activations(target, "q4f16_1", Options(activations=asked))
    assert [library_activations(row, chosen) for row in target.libraries] == ["float32", "int8"]
    assert {library_activations(row, "float32") for row in target.libraries} == {"float32"}


@pytest.mark.parametrize("scheme", FLOAT)
@pytest.mark.parametrize("asked", [None, "float32"])
def test_unquantized_weights_take_float_activations(scheme, asked):
    options = Options(activations=asked)
    assert choose_activations(find_target("cpu-x86-64-v4"), scheme, options) == "float32"


@pytest.mark.parametrize("asked", ["int8", "bfloat16"])
@pytest.mark.parametrize("scheme", FLOAT)
def test_integers_with_unquantized_weights_are_refused(scheme, asked):
    with pytest.raises(ConfigError, match=f"scheme {scheme} has no integers .* {asked}") as error:
        choose_activations(find_target("cpu-sapphirerapids"), scheme, Options(activations=asked))
    assert error.value.exit_code == 2
    assert "--activations float32" in error.value.hint


@pytest.mark.parametrize("target", [t for t, default in DEFAULTS.items() if default == "float32"])
def test_int8_without_an_instruction_for_it_is_refused_by_what_is_missing(target):
    with pytest.raises(TargetError, match=f"{target} has no int8 dot product") as error:
        choose_activations(find_target(target), "q4f16_1", Options(activations="int8"))
    assert error.value.exit_code == 4
    assert all(dot.feature in str(error.value) for dot in DOTS)


@pytest.mark.parametrize("target", ["cpu-x86-64-v4", "cpu-aarch64-i8mm", "cpu-x86-64-v3+v4"])
def test_bfloat16_without_tiles_is_refused_by_what_is_missing(target):
    with pytest.raises(TargetError, match="has no tiles of bfloat16") as error:
        choose_activations(find_target(target), "q4f16_1", Options(activations="bfloat16"))
    assert error.value.exit_code == 4
    assert all(feature in str(error.value) for feature in BF16_TILE_FEATURES)


@pytest.fixture
def kernels(nano_after):
    """`kernels("decode", "cpu-x86-64-v3", "q4f16_1")`: kernel, without its number -> calls."""

    def count(function, target, scheme, **choices):
        values = bindings_of(nano_after("kernels", target, scheme, **choices)[function]).values()
        return Counter(
            str(value.args[0].name_hint).rstrip("0123456789")
            for value in values
            if any(ops.is_call(value, f"relax.call_tir{kind}") for kind in ("", "_inplace"))
        )

    return count


@pytest.mark.parametrize(
    "target",
    [
        "cpu-x86-64-v3",
        "cpu-x86-64-v4",
        "cpu-sapphirerapids",
        "cpu-aarch64-dotprod",
        "cpu-aarch64-i8mm",
    ],
)
@pytest.mark.parametrize("scheme", INT4)
def test_a_decoded_token_costs_five_launches_a_layer(kernels, target, scheme):
    got = kernels("decode", target, scheme)
    assert got == {
        # qkv with the norm before it, o with the residual, gate and up with the norm before
        # them and SwiGLU after, down with the residual; and the head with the last norm.
        "int8_gemv": 4 * LAYERS + 1,
        "flat_step": LAYERS,
        "rope_angles": 1,
    }


@pytest.mark.parametrize("target", ["cpu-x86-64-v2", "cpu-x86-64-v3"])
@pytest.mark.parametrize("scheme", FLOAT)
def test_a_token_in_float_costs_six_launches_a_layer(kernels, target, scheme):
    assert kernels("decode", target, scheme) == {
        # qkv and gate and up with the norm before them, o and down with the residual; the head.
        "gemv": 4 * LAYERS + 1,
        "flat_step": LAYERS,
        "swiglu": LAYERS,
        "rope_angles": 1,
    }


@pytest.mark.parametrize("disabled", [(), ("FuseSwiGLUEpilogue",)])
def test_swiglu_ends_gate_and_up_or_begins_down(nano_after, disabled):
    mod = nano_after("activations", "cpu-x86-64-v3", "q4f16_1", disabled=disabled)
    gemvs = [v for v in bindings_of(mod["decode"]).values() if ops.is_call(v, "mlc.int8_gemv")]
    ends = [bool(call.attrs["swiglu"]) for call in gemvs]
    begins = [call.attrs["source"] == "swiglu" for call in gemvs]
    assert (sum(ends), sum(begins)) == ((0, LAYERS) if disabled else (LAYERS, 0))


@pytest.mark.parametrize(
    ("target", "asked", "gemm"),
    [
        ("cpu-x86-64-v3", None, "int8_gemm"),
        ("cpu-sapphirerapids", "int8", "int8_gemm"),
        ("cpu-aarch64-dotprod", None, "int8_gemm"),
        ("cpu-aarch64-i8mm", None, "int8_gemm_pairs"),
    ],
)
def test_a_prefilled_chunk_costs_ten_launches_a_layer(kernels, target, asked, gemm):
    assert kernels("prefill", target, "q4f16_1", activations=asked) == {
        "quantize_act": 4 * LAYERS,  # the norms and SwiGLU are in them
        gemm: 4 * LAYERS,  # and the residuals in these
        "flat_append": LAYERS,
        "flat_attend": LAYERS,
        "rope_angles": 1,
        "last_position": 1,
        "int8_gemv": 1,  # the head, for one token
    }


@pytest.mark.parametrize("scheme", INT4)
@pytest.mark.parametrize("asked", [None, "bfloat16"])
def test_on_tiles_it_costs_seven_and_one_row_is_not_on_tiles(kernels, scheme, asked):
    assert kernels("prefill", "cpu-sapphirerapids", scheme, activations=asked) == {
        "round_act": 2 * LAYERS,  # with the norms; what o and down read is rounded already
        "tile_project": LAYERS,  # qkv
        "tile_attend": LAYERS,
        "bf16_swiglu": LAYERS,  # gate and up
        "bf16_gemm": 2 * LAYERS,  # o and down, with the residuals
        "rope_angles": 1,
        "last_position": 1,
        "int8_gemv": 1,  # the head, for one token
    }


def test_a_library_without_tiles_is_as_without_the_choice(nano_plan):
    _, plan = nano_plan("cpu-x86-64-v4", "q4f16_1")
    chosen = dataclasses.replace(plan, activations="bfloat16")
    one, other = ([p.info.name for x in phases(y) for p in x.passes] for y in (plan, chosen))
    assert one == other
