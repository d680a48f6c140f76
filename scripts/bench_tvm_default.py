"""Prefill and decode speed of a checkpoint under plain TVM, as JSON with keys like "pp32", "tg4".

What a user of TVM gets without us: Qwen3 on `relax.frontend.nn` with TVM's paged KV cache, float32
weights, compiled by `tvm.compile` with its default passes for this CPU. Nothing of ours is in
it but the readers of the checkpoint. Run by bench_rivals.py; it takes minutes for a small model.
"""

import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any, Final

if __name__ == "__main__":  # TVM starts its threads when it is loaded
    os.environ["TVM_NUM_THREADS"] = sys.argv[5]

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax, te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache, RopeMode, TIRPagedKVCache

from mlc_compile.checkpoint import Checkpoint, open_checkpoint
from mlc_compile.emit.cpu import tvm_target
from mlc_compile.model import load_config
from mlc_compile.model.config import Qwen3Config
from mlc_compile.target import find_target

PAGE: Final = 16  # tokens

Floats = npt.NDArray[np.float32]


def main() -> None:
    """Arguments: checkpoint, prompt lengths, tokens to decode, depth (0), threads."""
    name, prompts, *numbers = sys.argv[1:]
    generate, depth, _ = map(int, numbers)
    if depth:
        sys.exit("plain TVM would take hours to fill a cache")
    lengths = [int(n) for n in prompts.split(",")]
    model = PlainModel(open_checkpoint(Path(name)), context=max(lengths) + generate)
    figures: dict[str, float] = {}
    for length in lengths:
        model.clear()
        start = perf_counter()
        logits = model.append(list(range(1, length + 1)))
        figures[f"pp{length}"] = length / (perf_counter() - start)
    start = perf_counter()
    for _ in range(generate):
        logits = model.append([int(logits.argmax())])
    if generate:
        figures[f"tg{generate}"] = generate / (perf_counter() - start)
    json.dump({"figures": figures, "weights_bytes": model.nbytes}, sys.stdout)


class PlainModel:
    """A compiled model with its weights and one sequence in its cache."""

    def __init__(self, checkpoint: Checkpoint, context: int) -> None:
        config = load_config(checkpoint.config, "config.json")
        if config.rope.kind != "default":
            sys.exit(f"its rope is of kind {config.rope.kind}, which is not written here")
        target = tvm_target(find_target("cpu"))
        model = Qwen3(config)
        with target:
            mod, parameters = model.export_tvm(spec=model.spec())
            executable = tvm.compile(mod, target)
        self._vm = relax.VirtualMachine(executable, tvm.cpu())
        weights = [checkpoint.read(name) for name, _ in parameters]
        self.nbytes = sum(weight.nbytes for weight in weights)
        self._weights = [tvm.runtime.tensor(weight) for weight in weights]
        tokens = -(-context // PAGE) * PAGE
        shapes = [tvm.runtime.ShapeTuple([n]) for n in (1, tokens, tokens, PAGE, 0)]
        self._kv = self._vm["create_kv_cache"](*shapes)
        self.clear()

    def clear(self) -> None:
        """Forget all tokens."""
        _builtin("kv_state_clear")(self._kv)
        _builtin("kv_state_add_sequence")(self._kv, 0)

    def append(self, ids: list[int]) -> Floats:
        """Logits f32[vocab] after the last of `ids`."""
        embeds = self._vm["embed"](tvm.runtime.tensor(np.array([ids], np.int32)), self._weights)
        sequence, count = tvm.runtime.ShapeTuple([0]), tvm.runtime.ShapeTuple([len(ids)])
        _builtin("kv_state_begin_forward")(self._kv, sequence, count)
        function = "decode" if len(ids) == 1 else "prefill"
        logits, _ = self._vm[function](embeds, self._kv, self._weights)
        _builtin("kv_state_end_forward")(self._kv)
        found: Floats = logits.numpy().reshape(-1)
        return found


def _builtin(name: str) -> Any:
    return tvm.get_global_func(f"vm.builtin.{name}")


class Attention(nn.Module):
    """Grouped-query attention over TVM's cache, which rotates q and k itself."""

    def __init__(self, config: Qwen3Config) -> None:
        self.h_q, self.h_kv = config.num_attention_heads, config.num_key_value_heads
        self.d = config.head_dim
        queries, keys = self.h_q * self.d, self.h_kv * self.d
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(self.d, -1, config.rms_norm_eps, bias=False)
        self.k_norm = nn.RMSNorm(self.d, -1, config.rms_norm_eps, bias=False)

    def forward(self, x: Tensor, kv: PagedKVCache, layer: int) -> Tensor:
        b, n, _ = x.shape
        q = self.q_norm(op.reshape(self.q_proj(x), (b, n, self.h_q, self.d)))
        k = self.k_norm(op.reshape(self.k_proj(x), (b, n, self.h_kv, self.d)))
        v = op.reshape(self.v_proj(x), (b, n, self.h_kv, self.d))
        qkv = op.concat([q, k, v], dim=2)  # (b, n, h_q + 2 h_kv, d)
        out = kv.attention_with_fused_qkv(layer, qkv, self.h_q, self.d**-0.5)
        return self.o_proj(op.reshape(out, (b, n, self.h_q * self.d)))


class MLP(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, config: Qwen3Config) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(op.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Pre-norm residual block."""

    def __init__(self, config: Qwen3Config) -> None:
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(size, -1, eps, bias=False)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(size, -1, eps, bias=False)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, kv: PagedKVCache, layer: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), kv, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Backbone(nn.Module):
    """Everything but the head, under the checkpoint's names."""

    def __init__(self, config: Qwen3Config) -> None:
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])
        self.norm = nn.RMSNorm(config.hidden_size, -1, config.rms_norm_eps, bias=False)


class Qwen3(nn.Module):
    """The model with what is called of it."""

    def __init__(self, config: Qwen3Config) -> None:
        self.config = config
        self.model = Backbone(config)
        tied = config.tie_word_embeddings
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.to("float32")

    def embed(self, ids: Tensor) -> Tensor:
        return self.model.embed_tokens(ids)

    def prefill(self, embeds: Tensor, kv: PagedKVCache) -> tuple[Tensor, PagedKVCache]:
        return self._logits(_last_position(self._layers(embeds, kv))), kv

    def decode(self, embeds: Tensor, kv: PagedKVCache) -> tuple[Tensor, PagedKVCache]:
        return self._logits(self._layers(embeds, kv)), kv

    def _layers(self, x: Tensor, kv: PagedKVCache) -> Tensor:
        for number, layer in enumerate(self.model.layers):
            x = layer(x, kv, number)
        return self.model.norm(x)

    def _logits(self, x: Tensor) -> Tensor:
        if self.lm_head is not None:
            return self.lm_head(x)
        return op.matmul(x, op.permute_dims(self.model.embed_tokens.weight))

    def create_kv_cache(
        self,
        sequences: tirx.Var,
        tokens: tirx.Var,
        chunk: tirx.Var,
        page: tirx.Var,
        sliding_window: tirx.Var,
    ) -> PagedKVCache:
        c = self.config
        return TIRPagedKVCache(
            attn_kind="mha",
            max_batch_size=sequences,
            max_total_seq_len=tokens,
            prefill_chunk_size=chunk,
            page_size=page,
            support_sliding_window=sliding_window,
            layer_partition=relax.ShapeExpr([0, c.num_hidden_layers]),
            num_hidden_layers=c.num_hidden_layers,
            num_attention_heads=c.num_attention_heads,
            num_key_value_heads=c.num_key_value_heads,
            qk_head_dim=c.head_dim,
            v_head_dim=c.head_dim,
            mla_original_qk_head_dim=0,
            mla_original_v_head_dim=0,
            rope_mode=RopeMode.NORMAL,
            rope_scale=1,
            rope_theta=int(c.rope.theta),
            rope_scaling={},
            rope_ext_factors=relax.prim_value(0),
            rotary_dim=c.head_dim,
            enable_disaggregation=False,
            dtype="float32",
            target=tvm.target.Target.current(),
        )

    def spec(self) -> nn.spec.ModuleSpec:
        hidden = self.config.hidden_size
        kv = nn.spec.Object(object_type=PagedKVCache)
        mode = {"param_mode": "packed", "effect_mode": "none"}
        several = nn.spec.Tensor([1, "n", hidden], "float32")
        one = nn.spec.Tensor([1, 1, hidden], "float32")
        sizes = ("sequences", "tokens", "chunk", "page", "sliding_window")
        methods = {
            "embed": {"ids": nn.spec.Tensor([1, "n"], "int32"), "$": mode},
            "prefill": {"embeds": several, "kv": kv, "$": mode},
            "decode": {"embeds": one, "kv": kv, "$": mode},
            "create_kv_cache": {
                **dict.fromkeys(sizes, int),
                "$": {"param_mode": "none", "effect_mode": "none"},
            },
        }
        return nn.spec.ModuleSpec.from_raw(methods, self)


def _last_position(x: Tensor) -> Tensor:
    """(b, n, h) -> (b, 1, h)."""

    def index(x: te.Tensor) -> te.Tensor:
        b, n, h = x.shape
        return te.compute((b, 1, h), lambda i, _, k: x[i, n - 1, k], name="last_position")

    return op.tensor_expr_op(index, "last_position", [x])


if __name__ == "__main__":
    main()
