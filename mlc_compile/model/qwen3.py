"""Qwen3 (dense) on `relax.frontend.nn`: config in, IRModule of `mlc.*` and Relax operators out.

Unfused, in float32, with the checkpoint's names; knows neither quantization nor target.
Exported functions, named as MLC's and web-llm's; `score`, all rows of `prefill`, is ours:

    embed(ids i32[n])                     -> [n, hidden]
    prefill(embeds [1, n, hidden], kv)    -> (logits of the last position [1, 1, vocab], kv)
    decode(embeds [1, 1, hidden], kv)     -> (logits [1, 1, vocab], kv)
    score(embeds [1, n, hidden], kv)      -> (logits [1, n, vocab], kv)
"""

from tvm import IRModule, relax, te
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op
from tvm.relax.frontend.nn.core import Object, wrap_nested

from mlc_compile import ops
from mlc_compile.model.config import Qwen3Config

# b (= 1) sequences, n tokens, h hidden, d head size


class Linear(nn.Module):
    """y = x wᵀ, no bias."""

    def __init__(self, k: int, n: int) -> None:
        self.weight = nn.Parameter((n, k), ops.COMPUTE_DTYPE)

    def forward(self, x: Tensor) -> Tensor:
        return wrap_nested(ops.linear(x._expr, self.weight._expr), "linear")


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x²) + eps) · weight."""

    def __init__(self, size: int, eps: float) -> None:
        self.weight = nn.Parameter((size,), ops.COMPUTE_DTYPE)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return op.rms_norm(x, self.weight, axes=-1, epsilon=self.eps)


class Attention(nn.Module):
    """Grouped-query attention; q and k are normalized per head before RoPE."""

    def __init__(self, config: Qwen3Config, layer: int) -> None:
        h, d = config.hidden_size, config.head_dim
        self.q_proj = Linear(h, config.num_attention_heads * d)
        self.k_proj = Linear(h, config.num_key_value_heads * d)
        self.v_proj = Linear(h, config.num_key_value_heads * d)
        self.o_proj = Linear(config.num_attention_heads * d, h)
        self.q_norm = RMSNorm(d, config.rms_norm_eps)
        self.k_norm = RMSNorm(d, config.rms_norm_eps)
        self.attrs = ops.Attention(
            layer=layer,
            h_q=config.num_attention_heads,
            h_kv=config.num_key_value_heads,
            d=d,
            eps=config.rms_norm_eps,
            rope_scale=config.rope.attention_factor,
            inv_freq=tuple(float(f) for f in config.rope.inverse_frequencies(d)),
        )

    def forward(self, x: Tensor, kv: relax.Expr) -> tuple[Tensor, relax.Expr]:
        qkv = op.concat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=-1)
        gammas = self.q_norm.weight._expr, self.k_norm.weight._expr
        builder = relax.BlockBuilder.current()
        both = builder.emit(ops.attention(qkv._expr, *gammas, kv, self.attrs))
        out = wrap_nested(relax.TupleGetItem(both, 0), "attention")  # (b, n, heads * d)
        return self.o_proj(out), builder.emit(relax.TupleGetItem(both, 1))


class MLP(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, config: Qwen3Config) -> None:
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(op.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """Pre-norm residual block."""

    def __init__(self, config: Qwen3Config, layer: int) -> None:
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, kv: relax.Expr) -> tuple[Tensor, relax.Expr]:
        attended, kv = self.self_attn(self.input_layernorm(x), kv)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), kv


class Model(nn.Module):
    """The decoder stack."""

    def __init__(self, config: Qwen3Config) -> None:
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, ops.COMPUTE_DTYPE)
        self.layers = nn.ModuleList(
            [DecoderLayer(config, i) for i in range(config.num_hidden_layers)]
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Qwen3ForCausalLM(nn.Module):
    """The model with its head and its exported functions; without a head of its own if `tied`."""

    def __init__(self, config: Qwen3Config, tied: bool) -> None:
        self.config = config
        self.model = Model(config)
        self.lm_head = None if tied else Linear(config.hidden_size, config.vocab_size)

    def embed(self, ids: Tensor) -> Tensor:
        return self.model.embed_tokens(ids)

    def prefill(self, embeds: Tensor, kv: Object) -> tuple[Tensor, Object]:
        hidden, kv = self._decode_stack(embeds, kv)
        return self._head(_last_position(hidden)), kv

    def decode(self, embeds: Tensor, kv: Object) -> tuple[Tensor, Object]:
        hidden, kv = self._decode_stack(embeds, kv)
        return self._head(hidden), kv

    def score(self, embeds: Tensor, kv: Object) -> tuple[Tensor, Object]:
        hidden, kv = self._decode_stack(embeds, kv)
        return self._head(hidden), kv

    def _decode_stack(self, x: Tensor, kv: Object) -> tuple[Tensor, Object]:
        state = kv._expr
        for layer in self.model.layers:
            x, state = layer(x, state)
        return x, Object(_expr=state, _name="kv")

    def _head(self, x: Tensor) -> Tensor:
        x = self.model.norm(x)
        if self.lm_head is not None:
            return self.lm_head(x)
        return wrap_nested(ops.linear(x._expr, self.model.embed_tokens.weight._expr), "logits")

    def spec(self) -> nn.spec.ModuleSpec:
        embeds = nn.spec.Tensor([1, "n", self.config.hidden_size], ops.COMPUTE_DTYPE)
        one = nn.spec.Tensor([1, 1, self.config.hidden_size], ops.COMPUTE_DTYPE)
        kv = nn.spec.Object(object_type=Object)
        mode = {"param_mode": "packed", "effect_mode": "none"}
        methods = {
            "embed": {"ids": nn.spec.Tensor(["n"], "int32"), "$": mode},
            "prefill": {"embeds": embeds, "kv": kv, "$": mode},
            "decode": {"embeds": one, "kv": kv, "$": mode},
            "score": {"embeds": embeds, "kv": kv, "$": mode},
        }
        return nn.spec.ModuleSpec.from_raw(methods, self)


def export(config: Qwen3Config, *, tied: bool) -> tuple[IRModule, tuple[str, ...]]:
    """The module, whose functions end in a tuple of float32 weights, and the weights' names."""
    model = Qwen3ForCausalLM(config, tied)
    module, parameters = model.export_tvm(spec=model.spec())
    return module, tuple(name for name, _ in parameters)


def _last_position(x: Tensor) -> Tensor:
    """(b, n, h) -> (b, 1, h)."""

    def index(x: te.Tensor) -> te.Tensor:
        b, n, h = x.shape
        return te.compute((b, 1, h), lambda i, _, k: x[i, n - 1, k], name="last_position")

    return op.tensor_expr_op(index, "last_position", [x])
