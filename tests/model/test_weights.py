"""The list of tensors is that of real checkpoints."""

import dataclasses

import pytest

from mlc_compile.checkpoint import open_checkpoint
from mlc_compile.model import load_config
from mlc_compile.model.weights import EMBEDDING, HEAD, weight_specs


@pytest.fixture
def config(nano_checkpoint):
    return load_config(open_checkpoint(nano_checkpoint).config, "config.json")


def test_names_and_shapes_are_the_checkpoint_s(nano_checkpoint, config):
    checkpoint = open_checkpoint(nano_checkpoint)
    specs = weight_specs(config, tied=True)
    assert {s.name: s.shape for s in specs} == {n: checkpoint.shape(n) for n in checkpoint.names}


def test_the_embedding_is_first_and_an_untied_head_last(config):
    specs = weight_specs(config, tied=False)
    assert (specs[0].name, specs[0].role) == (EMBEDDING, "embedding")
    assert (specs[-1].name, specs[-1].role) == (HEAD, "head")
    assert specs[:-1] == weight_specs(config, tied=True)


def test_heads_may_be_wider_than_the_hidden_state(config):
    wide = dataclasses.replace(config, head_dim=128)
    shapes = {s.name.split(".", 3)[-1]: s.shape for s in weight_specs(wide, tied=True)}
    assert shapes["self_attn.q_proj.weight"] == (4 * 128, 64)
    assert shapes["self_attn.o_proj.weight"] == (64, 4 * 128)


def test_norms_are_exactly_the_vectors(config):
    assert all((s.role == "norm") == (len(s.shape) == 1) for s in weight_specs(config, tied=True))
