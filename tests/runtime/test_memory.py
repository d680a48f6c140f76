"""Arithmetic of memory, on numbers small enough for the head."""

from pathlib import Path

import msgspec

from mlc_compile.artifact import Manifest, read_manifest
from mlc_compile.runtime.memory import bytes_by_role, bytes_per_token, memory_of, role_of


def toy(directory: Path) -> Manifest:
    return read_manifest(directory, Manifest)


def test_roles_share_the_plan(toy_artifact: Path) -> None:
    assert bytes_by_role(toy(toy_artifact).plan) == {"embedding": 1280, "head": 1280}


def test_kv_is_counted_in_whole_pages(toy_artifact: Path) -> None:
    memory = memory_of(toy(toy_artifact))
    assert memory.kv == 2 * 4 * 2 * 32  # k and v, float32, head_dim 2, 24 tokens in 2 pages of 16
    assert memory.total == 2560 + memory.kv


def test_an_embedding_apart_from_the_head_is_not_read(toy_artifact: Path) -> None:
    assert bytes_per_token(toy(toy_artifact), depth=0) == 1280


def test_a_tied_embedding_is_read_as_the_head(toy_artifact: Path) -> None:
    manifest = toy(toy_artifact)
    plan = msgspec.structs.replace(manifest.plan, tensors=manifest.plan.tensors[:1])
    tied = msgspec.structs.replace(manifest, plan=plan)
    assert bytes_per_token(tied, depth=0) == 1280
    assert bytes_per_token(tied, depth=16) == 1280 + 2 * 4 * 2 * 16


def test_each_weight_of_a_layer_has_its_role(toy_artifact: Path) -> None:
    first = toy(toy_artifact).plan.tensors[0]
    roles = {
        "model.layers.0.self_attn.q_proj.weight": "attention",
        "model.layers.0.self_attn.q_norm.weight": "norm",
        "model.layers.0.mlp.gate_proj.weight": "mlp",
        "model.norm.weight": "norm",
        "lm_head.weight": "head",
        "unheard.of": "other",
    }
    for name, role in roles.items():
        assert role_of(msgspec.structs.replace(first, sources=(name,))) == role
