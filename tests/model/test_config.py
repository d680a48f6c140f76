"""config.json is read strictly: either we do what it says, or we say what we cannot do."""

import json

import pytest

from mlc_compile.errors import CheckpointError
from mlc_compile.model import load_config


@pytest.fixture
def raw(nano_checkpoint):
    return json.loads((nano_checkpoint / "config.json").read_text())


def changed(raw, changes):
    merged = {**raw, **changes}
    return {key: value for key, value in merged.items() if value is not ...}


def test_a_real_config_is_read(raw):
    config = load_config(raw, "config.json")
    assert (config.hidden_size, config.head_dim, config.num_key_value_heads) == (64, 32, 2)
    assert config.rope.theta == 1e6
    assert config.eos_token_id == (509,)
    assert config.tie_word_embeddings


def test_the_newer_spelling_means_the_same(raw):
    newer = changed(
        raw,
        {
            "rope_theta": ...,
            "rope_scaling": ...,
            "torch_dtype": ...,
            "dtype": "bfloat16",
            "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
            "layer_types": ["full_attention"] * 2,
            "_name_or_path": "x",
        },
    )
    assert load_config(newer, "config.json") == load_config(raw, "config.json")


def test_several_stop_tokens_are_kept(raw):
    config = load_config(changed(raw, {"eos_token_id": [509, 507]}), "config.json")
    assert config.eos_token_id == (509, 507)


def test_rope_theta_in_both_places_may_agree(raw):
    both = changed(raw, {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}})
    assert load_config(both, "config.json").rope.theta == 1e6


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

REFUSED = {
    "another architecture": ({"model_type": "llama"}, "architecture 'llama' is not supported"),
    "no architecture": ({"model_type": ...}, "model_type is missing"),
    "another head": (
        {"architectures": ["Qwen3ForSequenceClassification"]},
        "architecture 'Qwen3ForSequenceClassification' is not supported",
    ),
    "GPTQ": (
        {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
        r"already quantized \(gptq, 4 bits, group 128\)",
    ),
    "compressed-tensors": (
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 64}}},
            }
        },
        r"already quantized \(compressed-tensors, 4 bits, group 64\)",
    ),
    "FP8": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        r"already quantized \(fp8, group \[128, 128\]\)",
    ),
    "an unknown key": ({"num_experts": 8}, "does not understand: num_experts"),
    "many unknown keys": ({f"k{i}": 0 for i in range(7)}, "k0, k1, k2, k3, k4 and 2 more"),
    "a missing size": ({"head_dim": ...}, "missing required field `head_dim`"),
    "a wrong type": ({"hidden_size": "64"}, "Expected `int`, got `str` - at `.*hidden_size`"),
    "a negative size": ({"num_hidden_layers": -1}, "`int` >= 1 - at `.*num_hidden_layers`"),
    "absurdly many layers": ({"num_hidden_layers": 10**15}, "`int` <= 1024"),
    "a rope_theta that turns nothing": ({"rope_theta": 1.0}, "`float` > 1.*rope_theta"),
    "a broken group": ({"num_key_value_heads": 3}, r"num_attention_heads \(4\) must be a multiple"),
    "an odd head": ({"head_dim": 31}, "head_dim must be even"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
    "biases": ({"attention_bias": True}, "attention_bias is true"),
    "a sliding window": ({"use_sliding_window": True}, "use_sliding_window is true"),
    "sliding layers": (
        {"layer_types": ["full_attention", "sliding_attention"]},
        "layer_types must all be 'full_attention'",
    ),
    "too few layer types": ({"layer_types": ["full_attention"]}, r"num_hidden_layers \(2\)"),
    "a stop token too large": ({"eos_token_id": [9, 512]}, r"below vocab_size \(512\)"),
    "two faults at once": (
        {"head_dim": 31, "hidden_act": "gelu"},
        "head_dim must be even .*; hidden_act must be",
    ),
    "no rope_theta": ({"rope_theta": ...}, "rope_theta is missing"),
    "two rope_thetas": (
        {"rope_parameters": {"rope_theta": 1e4}},
        r"two values for rope_theta: 1000000 and 10000.0 \(in rope_parameters\)",
    ),
    "another rope": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type 'linear'"),
    "YaRN without a factor": (
        {"rope_scaling": {"rope_type": "yarn"}},
        "needs a factor of at least 1, got None",
    ),
    "an unknown rope parameter": (
        {"rope_scaling": {**YARN, "mscale": 1.0}},
        "rope has unknown parameters: mscale",
    ),
    "a part of the head": ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "must be 1, got 0.5"),
    "a size beyond any machine": ({"hidden_size": 10**40}, r"Expected `int` .*hidden_size"),
    "an eps beyond float32": ({"rms_norm_eps": 1e40}, r"Expected `float` .*rms_norm_eps"),
    "a stretch beyond any context": ({"rope_scaling": {**YARN, "factor": 1e300}}, "factor"),
    "a rope that is no table": ({"rope_scaling": "yarn"}, "rope_scaling must be an object"),
}


@pytest.mark.parametrize(("changes", "told"), REFUSED.values(), ids=REFUSED)
def test_what_we_cannot_do_is_refused_by_name(raw, changes, told):
    with pytest.raises(CheckpointError, match=told) as error:
        load_config(changed(raw, changes), "dir/config.json")
    assert error.value.exit_code == 3
    assert str(error.value).startswith("dir/config.json")
    assert error.value.hint


def test_yarn_lengthens_the_context(raw):
    config = load_config(changed(raw, {"rope_scaling": YARN | {"factor": 8.0}}), "config.json")
    assert config.max_context == 1024
    assert load_config(raw, "config.json").max_context == 512
