"""What a library tells of itself, and its manifest too: limits, and whose runtime it is for."""

from typing import Any, Final

import msgspec

from mlc_compile import __version__
from mlc_compile.artifact import Limits, Versions
from mlc_compile.emit.wasm.abi import WEB_LLM
from mlc_compile.target import KVKind, Target
from mlc_compile.tvm_version import PINS

# What MLC's runtimes call the kind of a cache; they know none that is plain tensors.
KV_STATE_KINDS: Final[dict[KVKind, str]] = {"flat": "flat", "tvm_paged": "kv_cache"}


def versions_for(target: Target) -> Versions:
    """What makes a library for `target`, and what loads it."""
    return Versions(
        mlc_compile=__version__,
        tvm=PINS["apache-tvm"],
        tvm_ffi=PINS["apache-tvm-ffi"],
        web_llm=WEB_LLM if target.page_runs else "",
    )


def facts_of(quant: str, limits: Limits, row: Target) -> tuple[tuple[str, Any], ...]:
    """For `_metadata`: (key, value) pairs, with MLC's keys where MLC has one."""
    return (
        ("model_type", "qwen3"),
        ("quantization", quant),
        ("context_window_size", limits.context),
        ("prefill_chunk_size", limits.prefill_chunk),
        ("kv_state_kind", KV_STATE_KINDS[row.kv]),
        ("versions", msgspec.to_builtins(versions_for(row))),
    )
