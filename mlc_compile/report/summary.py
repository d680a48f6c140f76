"""`report.json`: inputs, decisions, memory and weights of one compiled library.

Schema (all sizes in bytes):

    model, quant, target     names
    limits                   {context, prefill_chunk} in tokens
    memory                   {weights, kv_cache, activations, functions: {name: bytes}}
    weights                  [{name, sources, layout, nbytes}]
    events                   [{source, subject, outcome, reason}], in the order they happened
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from mlc_compile.artifact import Manifest
from mlc_compile.passes.events import Event


def summarize(
    manifest: Manifest, functions: Mapping[str, int], events: Iterable[Event]
) -> dict[str, Any]:
    """The report of a library; `functions` is planned storage per function."""
    return {
        "model": manifest.model,
        "quant": manifest.quant,
        "target": manifest.target,
        "limits": msgspec.to_builtins(manifest.limits),
        "memory": {
            "weights": manifest.plan.nbytes,
            "kv_cache": manifest.kv.nbytes(manifest.limits.context),
            "activations": manifest.activation_bytes,
            "functions": dict(functions),
        },
        "weights": [
            {
                "name": tensor.name,
                "sources": tensor.sources,
                "layout": tensor.layout,
                "nbytes": sum(part.nbytes for part in tensor.parts),
            }
            for tensor in manifest.plan.tensors
        ],
        "events": [msgspec.to_builtins(event) for event in events],
    }
