"""Random small models, and the example, compute the same with every optional pass and with none."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from mlc_compile.passes.catalog import optional_passes
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

LOGITS = """
import sys
from pathlib import Path
import numpy as np
from mlc_compile.runtime.engine import open_engine
prompt = [int(i) for i in sys.argv[2].split(",")]
rows = np.concatenate(list(open_engine(Path(sys.argv[1])).score(prompt)))
np.save(sys.argv[3], rows)
"""


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


def logits(artifact, out):
    command = [sys.executable, "-c", LOGITS, artifact, ",".join(map(str, PROMPT)), out]
    subprocess.run(command, check=True)
    return np.load(out)


def build_both(cli, model, place, scheme, *more):
    """f32[n, vocab] of the prompt, with every optional pass and with none."""
    disabled = [word for name in optional_passes() for word in ("--disable-pass", name)]
    for name, options in {"optimized": [], "plain": disabled}.items():
        ran = cli("build", model, "-o", place / name, "--quant", scheme, "-q", *more, *options)
        assert ran.code == 0, ran.err  # the proof passed: it is numpy's
        yield logits(ran.out.strip(), place / f"{name}.npy")


@pytest.mark.parametrize(
    ("name", "scheme"),
    [("gqa1-tied", "q4f16_1"), ("gqa3", "q0f32"), ("gqa4-odd", "q4f16_1"), ("gqa4-odd", "q0f32")],
)
def test_the_passes_change_nothing_but_speed(cli, checkpoint, tmp_path, name, scheme):
    optimized, plain = build_both(cli, checkpoint(**MODELS[name]), tmp_path, scheme)
    assert optimized.shape == plain.shape == (len(PROMPT), VOCAB)
    assert np.abs(optimized - plain).max() < TOLERANCE[scheme] * np.abs(plain).max()


def test_nor_do_they_change_the_example(cli, tmp_path):
    integers = () if find_target("cpu").int8_dot is None else ("--activations", "int8")
    optimized, plain = build_both(cli, "demo", tmp_path, "q4f16_1", *integers)
    assert np.abs(optimized - plain).max() < TOLERANCE["q4f16_1"] * np.abs(plain).max()
    assert np.array_equal(optimized.argmax(1), plain.argmax(1))


@pytest.mark.skipif(not find_target("cpu").bf16_tiles, reason="this CPU has no tiles of bfloat16")
def test_nor_on_tiles_where_tokens_are_not_all_but_tied(cli, tmp_path):
    """Sums in another order decide between two logits of which one rounding moves both."""
    optimized, plain = build_both(cli, "demo", tmp_path, "q4f16_1", "--activations", "bfloat16")
    most = np.abs(plain).max()
    assert np.abs(optimized - plain).max() < TOLERANCE["q4f16_1"] * most
    second, first = np.sort(plain, axis=1)[:, -2:].T
    decided = first - second > 1e-3 * most
    assert decided.mean() > 0.85
    assert np.array_equal(optimized.argmax(1)[decided], plain.argmax(1)[decided])
