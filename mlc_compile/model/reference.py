"""Qwen3 in numpy, float32, layer by layer: the oracle, and the proof that an artifact carries.

Weights come one at a time from a callback, and large ones in blocks of rows, so that a
model of any size runs in little memory.
"""

from collections.abc import Callable
from functools import reduce
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mlc_compile.model.config import Qwen3Config
from mlc_compile.model.weights import EMBEDDING, FINAL_NORM, HEAD, layer_name

Floats = NDArray[np.float32]

BLOCK: Final = 1 << 22  # weights that are float32 at once: 16 MiB

# How much BLAS multiplies at once. The order of its sums depends on the number of threads, but
# it leaves 2^18 multiplications, or a vector times 9216 numbers, to one; a proof has 8 rows.
ROWS: Final = 16
COLUMNS: Final = 512


class Weight(Protocol):
    """A float32 tensor that need not exist whole: an array, or rows decoded when asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[n, k], or [n] for a norm."""

    def __getitem__(self, rows: slice, /) -> Floats:
        """The rows `start:stop`."""


Weights = Callable[[str], Weight]
Rotation = tuple[Floats, Floats]  # cosine and sine


def forward(config: Qwen3Config, tied: bool, weights: Weights, ids: NDArray[np.int32]) -> Floats:
    """Logits f32[n, vocab] of token ids i32[n] at positions 0 to n-1.

    `weights` maps a checkpoint name to its tensor; each is asked for once, in the order of
    `weight_specs`, but that a tied head asks for the embedding again.
    """
    turns = _rotation(config, len(ids))
    x = _lookup(weights(EMBEDDING), ids)  # [n, hidden]
    for layer in range(config.num_hidden_layers):
        x = _layer(config, layer, weights, x, turns)
    x = _rms_norm(x, weights(FINAL_NORM), config.rms_norm_eps)
    return _linear(x, weights(EMBEDDING if tied else HEAD))


def _layer(c: Qwen3Config, layer: int, weights: Weights, x: Floats, turns: Rotation) -> Floats:
    def named(part: str) -> Weight:
        return weights(layer_name(layer, part))

    normed = _rms_norm(x, named("input_layernorm"), c.rms_norm_eps)
    q, k, v = (_linear(normed, named(f"self_attn.{p}_proj")) for p in "qkv")
    q = _rotate(_rms_norm(_heads(q, c), named("self_attn.q_norm"), c.rms_norm_eps), turns)
    k = _rotate(_rms_norm(_heads(k, c), named("self_attn.k_norm"), c.rms_norm_eps), turns)
    x = x + _linear(_attend(q, k, _heads(v, c)), named("self_attn.o_proj"))
    normed = _rms_norm(x, named("post_attention_layernorm"), c.rms_norm_eps)
    gate, up = (_linear(normed, named(f"mlp.{p}_proj")) for p in ("gate", "up"))
    return x + _linear(_silu(gate) * up, named("mlp.down_proj"))


def _lookup(table: Weight, ids: NDArray[np.int32]) -> Floats:
    return np.concatenate([table[i : i + 1] for i in ids.tolist()])


def _linear(x: Floats, w: Weight) -> Floats:
    """x [n, k] times the transpose of w [m, k]."""
    m, k = w.shape
    step = max(1, BLOCK // k)
    out = np.empty((len(x), m), np.float32)
    for start in range(0, m, step):
        out[:, start : start + step] = _product(x, w[start : start + step])
    return out


def _product(x: Floats, w: Floats) -> Floats:
    """The same of an array, by ROWS and COLUMNS: equal bytes with any number of threads."""
    whole = len(w) // ROWS * ROWS
    stacks = w[:whole].reshape(-1, ROWS, w.shape[1]), w[None, whole:]
    return np.concatenate([_piecewise(stack, x.T).reshape(-1, len(x)) for stack in stacks]).T


def _piecewise(stack: Floats, x: Floats) -> Floats:
    """Matrices [b, m, k] times x [k, n], a sum of products of COLUMNS each."""
    pieces = (slice(start, start + COLUMNS) for start in range(0, len(x), COLUMNS))
    total: Floats = reduce(np.add, (stack[..., piece] @ x[piece] for piece in pieces))
    return total


def _rms_norm(x: Floats, gamma: Weight, eps: float) -> Floats:
    """Over the last axis: a row of the hidden state, or a head."""
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    normed: Floats = x / np.sqrt(mean + np.float32(eps)) * gamma[:]
    return normed


def _heads(x: Floats, c: Qwen3Config) -> Floats:
    return x.reshape(len(x), -1, c.head_dim)  # [n, h, d]


def _rotation(c: Qwen3Config, n: int) -> Rotation:
    """For positions 0 to n - 1, each [n, 1, d / 2]."""
    positions = np.arange(n, dtype=np.float32)
    angles = np.outer(positions, c.rope.inverse_frequencies(c.head_dim))[:, None]
    scale = np.float32(c.rope.attention_factor)
    return np.cos(angles) * scale, np.sin(angles) * scale


def _rotate(x: Floats, turns: Rotation) -> Floats:
    """Turn the pairs (x[i], x[i + d/2])."""
    cos, sin = turns
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _attend(q: Floats, k: Floats, v: Floats) -> Floats:
    """Causal attention; each key head serves h_q / h_kv query heads in a row."""
    n, h_kv, d = k.shape
    queries = q.reshape(n, h_kv, -1, d).transpose(1, 2, 0, 3)  # [h_kv, group, n, d]
    keys = k.transpose(1, 2, 0)[:, None]  # [h_kv, 1, d, n]
    scores: Floats = queries @ keys / np.sqrt(np.float32(d))
    scores[..., np.triu(np.ones((n, n), np.bool_), 1)] = -np.inf
    exps: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed: Floats = exps @ v.transpose(1, 0, 2)[:, None]  # [h_kv, group, n, d]
    mixed /= exps.sum(axis=-1, keepdims=True)
    return mixed.transpose(2, 0, 1, 3).reshape(n, -1)


def _silu(x: Floats) -> Floats:
    # through tanh, since exp(-x) overflows for very negative x
    half: Floats = x * np.float32(0.5)
    bent: Floats = np.tanh(half)
    return half + half * bent
