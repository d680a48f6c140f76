"""What each kernel moves and computes, worked out from the calls of a function.

Weights are read once a call; activations are read and written once; of the cache, attention
reads what is there and writes what is new. Operations count a multiply-add as two:

    matmul       2 m n k
    attention    4 h_q d (positions that each of the m tokens sees)
    the rest     one for each number of its largest tensor

A kernel is known by the name that its rule gave it, which is all that a library tells too.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from mlc_compile.artifact import FlatKV
from mlc_compile.report.calls import Call
from mlc_compile.report.schema import Kernel, Origin

Kind = Literal["rows", "append", "attend", "attend pairs", "step"]

# Kernels that are no plain function of whole tensors. `rows` touch only as many rows of what
# they are given as they give; the others touch the cache. Queries in pairs are words of two.
KINDS: Final[dict[str, Kind]] = {
    "take": "rows",
    "last_position": "rows",
    "flat_append": "append",
    "flat_attend": "attend",
    "tile_append": "append",
    "tile_project": "append",
    "tile_attend": "attend pairs",
    "flat_step": "step",
    "vm.builtin.attention_kv_cache_attention_with_fused_qkv": "step",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """One run of a function: `tokens` new ones, `before` in the cache already."""

    function: str
    tokens: int
    before: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the model: its cache, and the shape of each weight of the checkpoint."""

    kv: FlatKV
    shapes: Mapping[str, tuple[int, ...]]


def kernels_of(
    calls: Iterable[Call],
    workload: Workload,
    sizes: Sizes,
    origins: Mapping[str, tuple[Origin, str]],
) -> tuple[Kernel, ...]:
    """The kernels of a function, in the order of their first calls."""
    grouped: dict[str, list[Call]] = {}
    for call in calls:
        grouped.setdefault(call.name, []).append(call)
    return tuple(
        _kernel(same, workload, sizes, origins.get(name, ("runtime", "")))
        for name, same in grouped.items()
    )


def _kernel(
    calls: list[Call], workload: Workload, sizes: Sizes, origin: tuple[Origin, str]
) -> Kernel:
    work = [_work(call, workload, sizes) for call in calls]
    weights, cache, read, written, operations = (
        sum(amounts) for amounts in zip(*work, strict=True)
    )
    moved = weights + cache + read + written
    return Kernel(
        function=workload.function,
        name=calls[0].name,
        origin=origin[0],
        how=origin[1],
        calls=len(calls),
        weights=tuple(dict.fromkeys(w.family for call in calls for w in call.weights)),
        weight_bytes=weights,
        cache_bytes=cache,
        read_bytes=read,
        written_bytes=written,
        operations=operations,
        intensity=round(operations / moved, 4) if moved else 0.0,
    )


def _work(call: Call, workload: Workload, sizes: Sizes) -> tuple[int, int, int, int, int]:
    """(bytes of weights, cache, activations read and written; operations) of one call."""
    kind = KINDS.get(call.name.rstrip("0123456789"))
    if kind == "rows":
        weights = sum(
            _some_rows(w.nbytes, sizes.shapes, w.sources, call.rows) for w in call.weights
        )
        read = min(call.read_bytes, call.written_bytes)
        return weights, 0, read, call.written_bytes, call.results
    weights = sum(w.nbytes for w in call.weights)
    cache, attended = _cache(kind, call, workload, sizes.kv)
    products = 2 * call.rows * sum(_matrices(call, sizes.shapes))
    operations = attended or products or call.numbers
    return weights, cache, call.read_bytes, call.written_bytes, operations


def _cache(kind: Kind | None, call: Call, workload: Workload, kv: FlatKV) -> tuple[int, int]:
    """(bytes of one layer's pages, operations of attention)."""
    token = kv.nbytes(kv.page) // kv.page // kv.layers
    new, seen = workload.tokens, workload.before + workload.tokens
    if kind == "append":
        return new * token, 0
    if kind is None:
        return 0, 0
    positions = new * workload.before + new * (new + 1) // 2
    appended = new * token if kind == "step" else 0
    queries = 2 * call.given if kind == "attend pairs" else call.results
    return seen * token + appended, 4 * (queries // new) * positions


def _matrices(call: Call, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[int]:
    """Numbers of each matrix that the call reads, its parts taken together."""
    for sources in dict.fromkeys(w.sources for w in call.weights):
        found = [shapes[s] for s in sources if s in shapes]
        yield sum(shape[0] * shape[1] for shape in found if len(shape) == 2)


def _some_rows(
    nbytes: int, shapes: Mapping[str, tuple[int, ...]], sources: tuple[str, ...], rows: int
) -> int:
    total = sum(shapes[s][0] for s in sources if s in shapes)
    return nbytes * rows // total if total else nbytes
