"""Random small models, and the example, compute the same with every optional pass and with none."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from mlc_compile.driver.build import build
from mlc_compile.driver.job import Options
from mlc_compile.passes.catalog import optional_passes
from mlc_compile.runtime.engine import open_engine
from mlc_compile.target import find_target

# Heads to key heads 1, 3 and 4; widths that no vector divides; the head tied and apart.
MODELS = {
    "gqa1-tied": {"hidden": 96, "inter": 160, "q": 3, "kv": 3, "d": 32, "tied": True},
    "gqa3": {"hidden": 72, "inter": 100, "q": 6, "kv": 2, "d": 24, "tied": False},
    "gqa4-odd": {"hidden": 160, "inter": 288, "q": 8, "kv": 2, "d": 40, "tied": False},
}
LAYERS, VOCAB = 2, 512
PROMPT = list(range(3, 40))

# A share of the largest logit. Both builds multiply equal values and add them up in other
# orders; int8 activations can round the other way where a sum lands between two codes.
TOLERANCE = {"q0f32": 1e-5, "q4f16_1": 2e-2}


@pytest.fixture
def checkpoint(nano_checkpoint, tmp_path):
    """`checkpoint(**sizes)`: a model of that shape with random weights and nano's tokenizer."""

    def make(hidden, inter, q, kv, d, tied):
        place = tmp_path / "model"
        shutil.copytree(nano_checkpoint, place)
        config = json.loads((place / "config.json").read_text())
        config |= {
            "hidden_size": hidden,
            "intermediate_size": inter,
            "num_attention_heads": q,
            "num_key_value_heads": kv,
            "head_dim": d,
            "num_hidden_layers": LAYERS,
            "tie_word_embeddings": tied,
            "layer_types": ["full_attention"] * LAYERS,
            "max_window_layers": LAYERS,
        }
        (place / "config.json").write_text(json.dumps(config))
        shapes = {"model.embed_tokens.weight": (VOCAB, hidden), "model.norm.weight": (hidden,)}
        for i in range(LAYERS):
            layer = f"model.layers.{i}"
            shapes |= {
                f"{layer}.input_layernorm.weight": (hidden,),
                f"{layer}.post_attention_layernorm.weight": (hidden,),
                f"{layer}.self_attn.q_proj.weight": (q * d, hidden),
                f"{layer}.self_attn.k_proj.weight": (kv * d, hidden),
                f"{layer}.self_attn.v_proj.weight": (kv * d, hidden),
                f"{layer}.self_attn.o_proj.weight": (hidden, q * d),
                f"{layer}.self_attn.q_norm.weight": (d,),
                f"{layer}.self_attn.k_norm.weight": (d,),
                f"{layer}.mlp.gate_proj.weight": (inter, hidden),
                f"{layer}.mlp.up_proj.weight": (inter, hidden),
                f"{layer}.mlp.down_proj.weight": (hidden, inter),
            }
        shapes |= {} if tied else {"lm_head.weight": (VOCAB, hidden)}
        random = np.random.default_rng(hidden)
        tensors = {
            name: random.normal(1.0 if len(shape) == 1 else 0.0, 0.1, shape).astype(np.float16)
            for name, shape in shapes.items()
        }
        save_file(tensors, place / "model.safetensors")
        return place

    return make


def logits(artifact):
    """f32[n, vocab] of the prompt."""
    return np.concatenate([np.array(rows) for rows in open_engine(artifact).score(PROMPT)])


def build_plain(model, place, scheme, **options):
    """Its logits with no optional pass; the report names each that was left out."""
    artifact = build_one(model, place / "plain", scheme, disabled=optional_passes(), **options)
    told = json.loads((artifact / "report.json").read_text())["events"]
    refused = [e["source"] for e in told if e["reason"] == "disabled by --disable-pass"]
    assert refused == list(optional_passes())
    return logits(artifact)


def build_one(model, place, scheme, **options):
    """The artifact; that its proof passed says that its logits are numpy's."""
    built = build(model, (find_target("cpu"),), scheme, place, Options(**options))
    assert built.artifacts[0].manifest.check.status == "pass"
    return built.artifacts[0].directory


@pytest.mark.parametrize(
    ("name", "scheme"),
    [("gqa1-tied", "q4f16_1"), ("gqa3", "q0f32"), ("gqa4-odd", "q4f16_1"), ("gqa4-odd", "q0f32")],
)
def test_the_passes_change_nothing_but_speed(checkpoint, tmp_path, name, scheme):
    model = checkpoint(**MODELS[name])
    optimized = logits(build_one(model, tmp_path / "optimized", scheme))
    plain = build_plain(model, tmp_path, scheme)
    assert optimized.shape == plain.shape == (len(PROMPT), VOCAB)
    assert np.abs(optimized - plain).max() < TOLERANCE[scheme] * np.abs(plain).max()


def test_nor_do_they_change_the_example(build_model, tiny_checkpoint, tmp_path):
    integers = {"activations": "int8"} if find_target("cpu").bf16_tiles else {}
    words = [word for name, value in integers.items() for word in (f"--{name}", value)]
    optimized = logits(build_model(tiny_checkpoint, "q4f16_1", *words))
    plain = build_plain(tiny_checkpoint, tmp_path, "q4f16_1", **integers)
    assert np.abs(optimized - plain).max() < TOLERANCE["q4f16_1"] * np.abs(plain).max()
    assert np.array_equal(optimized.argmax(1), plain.argmax(1))


@pytest.mark.skipif(not find_target("cpu").bf16_tiles, reason="this CPU has no tiles of bfloat16")
def test_nor_on_tiles_where_tokens_are_not_all_but_tied(build_model, tiny_checkpoint, tmp_path):
    """Sums in another order decide between two logits of which one rounding moves both."""
    optimized = logits(build_model(tiny_checkpoint, "q4f16_1"))
    plain = build_plain(tiny_checkpoint, tmp_path, "q4f16_1", activations="bfloat16")
    most = np.abs(plain).max()
    assert np.abs(optimized - plain).max() < TOLERANCE["q4f16_1"] * most
    second, first = np.sort(plain, axis=1)[:, -2:].T
    decided = first - second > 1e-3 * most
    assert decided.mean() > 0.85
    assert np.array_equal(optimized.argmax(1)[decided], plain.argmax(1)[decided])
