"""How many tokens a library takes: what was asked for, or defaults that the model allows."""

from typing import Final

from mlc_compile.artifact import Limits
from mlc_compile.errors import ConfigError
from mlc_compile.model.config import Qwen3Config

CONTEXT: Final = 4096  # tokens, where the model allows as many
PREFILL_CHUNK: Final = 512


def limits_for(
    config: Qwen3Config, context: int | None = None, prefill_chunk: int | None = None
) -> Limits:
    """The limits asked for; ConfigError if the model, or the context, cannot hold them."""
    context = context or min(CONTEXT, config.max_context)
    chunk = prefill_chunk or min(PREFILL_CHUNK, context)
    if context > config.max_context:
        raise ConfigError(
            f"context {context} is beyond the model's {config.max_context} tokens",
            hint="lower --context, or enable YaRN in config.json (rope_scaling)",
        )
    if chunk > context:
        raise ConfigError(
            f"prefill chunk {chunk} is larger than the context of {context} tokens",
            hint="lower --prefill-chunk",
        )
    return Limits(context=context, prefill_chunk=chunk)
