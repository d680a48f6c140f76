"""`mlc-chat-config.json`: what MLC's runtimes, web-llm among them, read beside the weights."""

from collections.abc import Mapping
from typing import Final

from mlc_compile.artifact import Limits
from mlc_compile.model.config import Qwen3Config

VERSION: Final = "0.1.0"  # of MLC's schema

# MLC's defaults, for what generation_config.json does not say.
SAMPLING: Final = {
    "temperature": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "top_p": 1.0,
}

# What MLC cannot take from the checkpoint: it has no Jinja, so it needs ChatML spelled out.
CHATML: Final = {
    "name": "chatml",
    "system_template": "<|im_start|>system\n{system_message}<|im_end|>\n",
    "system_message": "You are a helpful assistant.",
    "system_prefix_token_ids": None,
    "add_role_after_system_message": True,
    "roles": {"user": "<|im_start|>user", "assistant": "<|im_start|>assistant"},
    "role_templates": {
        "user": "{user_message}",
        "assistant": "{assistant_message}",
        "tool": "{tool_message}",
    },
    "messages": [],
    "seps": ["<|im_end|>\n"],
    "role_content_sep": "\n",
    "role_empty_sep": "\n",
    "stop_str": ["<|endoftext|>", "<|im_end|>"],
    "function_string": "",
    "use_function_calling": False,
}

TOKENIZER_INFO: Final = {
    "token_postproc_method": "byte_level",
    "prepend_space_in_encode": False,
    "strip_space_in_decode": False,
}


def chat_config(
    config: Qwen3Config,
    raw: Mapping[str, object],
    generation: Mapping[str, object],
    quant: str,
    tokenizer: tuple[str, ...],
    limits: Limits,
) -> dict[str, object]:
    """The file's content; `raw` is the decoded config.json, `generation` generation_config.json."""
    sizes = {
        "context_window_size": limits.context,
        "prefill_chunk_size": limits.prefill_chunk,
        "tensor_parallel_shards": 1,
    }
    stop = _token_ids(generation.get("eos_token_id")) or list(config.eos_token_id)
    return {
        "version": VERSION,
        "model_type": raw["model_type"],
        "quantization": quant,
        "model_config": {**_model_config(config), **sizes, "max_batch_size": 1},
        "vocab_size": config.vocab_size,
        **sizes,
        "sliding_window_size": -1,
        "attention_sink_size": -1,
        "pipeline_parallel_stages": 1,
        **{key: _or_default(generation.get(key), default) for key, default in SAMPLING.items()},
        "tokenizer_files": list(tokenizer),
        "tokenizer_info": TOKENIZER_INFO,
        "conv_template": {**CHATML, "stop_token_ids": stop},
        "pad_token_id": generation.get("pad_token_id", raw.get("pad_token_id")),
        "bos_token_id": config.bos_token_id,
        "eos_token_id": stop,
    }


def generation_config(config: Qwen3Config) -> dict[str, object]:
    """A generation_config.json for a checkpoint that has none: its stop tokens, greedy decoding."""
    return {
        "bos_token_id": config.bos_token_id,
        "do_sample": False,
        "eos_token_id": list(config.eos_token_id),
    }


def _model_config(c: Qwen3Config) -> dict[str, object]:
    return {
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "attention_bias": False,
        "num_attention_heads": c.num_attention_heads,
        "num_hidden_layers": c.num_hidden_layers,
        "num_key_value_heads": c.num_key_value_heads,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope.theta,
        "vocab_size": c.vocab_size,
        "tie_word_embeddings": c.tie_word_embeddings,
        "head_dim": c.head_dim,
    }


def _token_ids(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int)]


def _or_default(value: object, default: float) -> object:
    return default if value is None else value
