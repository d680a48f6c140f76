"""`report.json`: inputs, decisions, memory and weights of one compiled library."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from mlc_compile.artifact import Limits, Manifest, PlannedTensor, Struct
from mlc_compile.emit.backend import Emitted
from mlc_compile.emit.cuda.resources import Resources
from mlc_compile.emit.vulkan.shaders import ShaderFacts
from mlc_compile.passes.events import Event
from mlc_compile.passes.plan_memory import FunctionMemory
from mlc_compile.report.compilation import Compilation
from mlc_compile.report.schema import Curve, FunctionGraph, Kernel, Traffic

NOTHING: Final = Emitted()


class Memory(Struct, frozen=True):
    """Bytes. What a function holds is for the longest call it takes."""

    weights: int  # of weights.bin
    kv_cache: int  # of a cache for the whole context
    activations: int  # planned intermediate storage of the function that needs the most
    functions: tuple[FunctionMemory, ...]  # by name, each with its steps and who is alive


class StoredWeight(Struct, frozen=True):
    """One weight of the plan: which tensors of the checkpoint are joined, and how packed."""

    name: str
    sources: tuple[str, ...]
    layout: str
    nbytes: int  # of all its parts
    shape: tuple[int, ...]  # the tensors' rows joined, as the checkpoint has them
    bits: float  # a weight: its code, its share of a scale, and padding


class Report(Struct, frozen=True):
    """The schema of `report.json`."""

    model: str
    quant: str  # the scheme
    target: str
    limits: Limits
    memory: Memory
    weights: tuple[StoredWeight, ...]  # in the order of weights.bin
    events: tuple[Event, ...]  # what passes decided, in the order it happened
    graphs: tuple[FunctionGraph, ...]  # of the best library, as is all that follows
    traffic: tuple[Traffic, ...]
    kernels: tuple[Kernel, ...]
    tuning: tuple[Curve, ...] = ()  # none where nothing was tuned
    resources: tuple[Resources, ...] = ()  # of a GPU's kernels, where their compiler tells
    shaders: tuple[ShaderFacts, ...] = ()  # of a GPU's kernels, where we write them as SPIR-V


def summarize(
    manifest: Manifest,
    functions: Iterable[FunctionMemory],
    events: Iterable[Event],
    compilation: Compilation,
    emitted: Emitted = NOTHING,
) -> Report:
    """The report of a library; `functions` is what PlanMemory planned."""
    return Report(
        model=manifest.model,
        quant=manifest.quant,
        target=manifest.target,
        limits=manifest.limits,
        memory=Memory(
            weights=manifest.plan.nbytes,
            kv_cache=manifest.kv.nbytes(manifest.limits.context),
            activations=manifest.activation_bytes,
            functions=tuple(functions),
        ),
        weights=tuple(_stored(t, compilation.shapes) for t in manifest.plan.tensors),
        events=tuple(events),
        graphs=compilation.graphs,
        traffic=compilation.traffic,
        kernels=compilation.kernels,
        tuning=compilation.tuning,
        resources=emitted.resources,
        shaders=emitted.shaders,
    )


def _stored(tensor: PlannedTensor, shapes: Mapping[str, tuple[int, ...]]) -> StoredWeight:
    nbytes = sum(part.nbytes for part in tensor.parts)
    rows = sum(shapes[source][0] for source in tensor.sources)
    shape = (rows, *shapes[tensor.sources[0]][1:])
    return StoredWeight(
        name=tensor.name,
        sources=tensor.sources,
        layout=tensor.layout,
        nbytes=nbytes,
        shape=shape,
        bits=round(8 * nbytes / math.prod(shape), 3),
    )
