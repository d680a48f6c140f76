"""Which tensors a Qwen3 checkpoint holds: names, shapes and roles, in the order of use."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mlc_compile.model.config import Qwen3Config

Role = Literal["embedding", "linear", "head", "norm"]

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One tensor of the checkpoint. A matrix is [outputs, inputs], an embedding [vocab, hidden]."""

    name: str
    shape: tuple[int, ...]
    role: Role


def weight_specs(config: Qwen3Config, tied: bool) -> tuple[WeightSpec, ...]:
    """All tensors as the forward pass meets them: embedding first, head last (absent if tied)."""
    return tuple(_specs(config, tied))


def layer_name(layer: int, part: str) -> str:
    """`model.layers.<layer>.<part>.weight`."""
    return f"model.layers.{layer}.{part}.weight"


def _specs(c: Qwen3Config, tied: bool) -> Iterator[WeightSpec]:
    yield WeightSpec(EMBEDDING, (c.vocab_size, c.hidden_size), "embedding")
    for layer in range(c.num_hidden_layers):
        for part, shape in _layer_shapes(c):
            role: Role = "norm" if len(shape) == 1 else "linear"
            yield WeightSpec(layer_name(layer, part), shape, role)
    yield WeightSpec(FINAL_NORM, (c.hidden_size,), "norm")
    if not tied:
        yield WeightSpec(HEAD, (c.vocab_size, c.hidden_size), "head")


def _layer_shapes(c: Qwen3Config) -> tuple[tuple[str, tuple[int, ...]], ...]:
    queries = c.num_attention_heads * c.head_dim  # not hidden_size: Qwen3 widens
    keys = c.num_key_value_heads * c.head_dim
    return (
        ("input_layernorm", (c.hidden_size,)),
        ("self_attn.q_proj", (queries, c.hidden_size)),
        ("self_attn.k_proj", (keys, c.hidden_size)),
        ("self_attn.v_proj", (keys, c.hidden_size)),
        ("self_attn.q_norm", (c.head_dim,)),
        ("self_attn.k_norm", (c.head_dim,)),
        ("self_attn.o_proj", (c.hidden_size, queries)),
        ("post_attention_layernorm", (c.hidden_size,)),
        ("mlp.gate_proj", (c.intermediate_size, c.hidden_size)),
        ("mlp.up_proj", (c.intermediate_size, c.hidden_size)),
        ("mlp.down_proj", (c.hidden_size, c.intermediate_size)),
    )
