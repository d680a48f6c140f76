"""`report.json`: inputs, decisions, memory and weights of one compiled library."""

from collections.abc import Iterable, Mapping

from mlc_compile.artifact import Limits, Manifest, PlannedTensor, Struct
from mlc_compile.passes.events import Event


class Memory(Struct, frozen=True):
    """Bytes."""

    weights: int  # of weights.bin
    kv_cache: int  # of a cache for the whole context
    activations: int  # planned intermediate storage of the function that needs the most
    functions: dict[str, int]  # planned intermediate storage, by function


class StoredWeight(Struct, frozen=True):
    """One weight of the plan: which tensors of the checkpoint are joined, and how packed."""

    name: str
    sources: tuple[str, ...]
    layout: str
    nbytes: int  # of all its parts


class Report(Struct, frozen=True):
    """The schema of `report.json`."""

    model: str
    quant: str  # the scheme
    target: str
    limits: Limits
    memory: Memory
    weights: tuple[StoredWeight, ...]  # in the order of weights.bin
    events: tuple[Event, ...]  # what passes decided, in the order it happened


def summarize(manifest: Manifest, functions: Mapping[str, int], events: Iterable[Event]) -> Report:
    """The report of a library; `functions` is planned storage per function."""
    return Report(
        model=manifest.model,
        quant=manifest.quant,
        target=manifest.target,
        limits=manifest.limits,
        memory=Memory(
            weights=manifest.plan.nbytes,
            kv_cache=manifest.kv.nbytes(manifest.limits.context),
            activations=manifest.activation_bytes,
            functions=dict(functions),
        ),
        weights=tuple(_stored(tensor) for tensor in manifest.plan.tensors),
        events=tuple(events),
    )


def _stored(tensor: PlannedTensor) -> StoredWeight:
    return StoredWeight(
        name=tensor.name,
        sources=tensor.sources,
        layout=tensor.layout,
        nbytes=sum(part.nbytes for part in tensor.parts),
    )
