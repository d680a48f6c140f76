"""The kernel families of CPUs: their workloads, spaces and parameters, one function for each."""

from collections.abc import Mapping
from typing import Final

from mlc_compile.artifact import FlatKV
from mlc_compile.layout import GROUP, ROWS
from mlc_compile.ops import SOURCES, Attention, Source
from mlc_compile.records import Workload
from mlc_compile.schedule.family import Family
from mlc_compile.schedule.kernels import attention, int8, int8_gemm, matmul, quantize
from mlc_compile.schedule.kernels.dot import DotProduct
from mlc_compile.schedule.kernels.weights import Codec, Dense, Int4
from mlc_compile.schedule.operand import DENSE, INPUT, PACKED, RESULT, STATE, Operand
from mlc_compile.target import Target

ACTS: Final = (Operand("codes"), Operand("positive"), Operand("offsets"))
PAGES: Final = (STATE, STATE, Operand("pages"), Operand("length"))
LAYER: Final = Operand("layer")


def int8_gemm_family(
    codec: Int4, n: int, dot: DotProduct, target: Target, *, residual: bool
) -> Family[int8_gemm.Tile]:
    """`int8_gemm.gemm`, for any number of rows."""

    def derived(tile: int8_gemm.Tile) -> Mapping[str, float]:
        return {
            "sums": tile.m * tile.blocks,
            "panel_bytes": codec.k * ROWS * tile.blocks / tile.parts,
            "tasks": codec.blocks / tile.blocks,
            "loads_per_dot": 1 / tile.m + 1 / tile.blocks,
        }

    return Family(
        workload=Workload.of(
            "cpu.int8_gemm", n=n, k=codec.k, scales=str(codec.scale_dtype), residual=int(residual)
        ),
        space=int8_gemm.Tile.space(target, codec),
        build=lambda tile: int8_gemm.gemm(codec, n, dot, tile, residual=residual),
        operands=(*ACTS, PACKED, *[INPUT] * residual, RESULT),
        derived=derived,
    )


def int8_gemv_family(
    codec: Int4, n: int, source: Source, dot: DotProduct, *, residual: bool, swiglu: bool
) -> Family[int8.Sweep]:
    """`int8.gemv`, with what feeds it and what follows."""
    feed = quantize.FEEDS[source.kind](source.k, source.eps)
    joined = 2 if swiglu else 1

    def derived(sweep: int8.Sweep) -> Mapping[str, float]:
        return {
            "streams": joined * sweep.blocks,
            "tasks": codec.blocks / joined / sweep.blocks,
            "asked_bytes": sweep.ahead * GROUP * ROWS * joined * sweep.blocks,
            "body_dots": sweep.pairs * joined * sweep.blocks,
        }

    return Family(
        workload=Workload.of(
            "cpu.int8_gemv",
            n=n,
            k=codec.k,
            scales=str(codec.scale_dtype),
            source=source.kind,
            residual=int(residual),
            swiglu=int(swiglu),
        ),
        space=int8.Sweep.space(codec, swiglu=swiglu),
        build=lambda sweep: int8.gemv(codec, n, feed, dot, sweep, residual=residual, swiglu=swiglu),
        operands=(*[INPUT] * SOURCES[source.kind], PACKED, *[INPUT] * residual, RESULT),
        derived=derived,
    )


def gemm_family(
    codec: Codec, n: int, target: Target, *, eps: float | None, residual: bool
) -> Family[matmul.Tile]:
    """`matmul.gemm`, for any number of rows."""

    def derived(tile: matmul.Tile) -> Mapping[str, float]:
        return {
            "sums": tile.m * tile.blocks,
            "panel_bytes": 4 * tile.k * ROWS * tile.blocks,
            "tasks": codec.blocks / tile.blocks,
            "loads_per_sum": 1 / tile.m + 1 / tile.blocks,
        }

    return Family(
        workload=_product("cpu.gemm", codec, n, eps, residual),
        space=matmul.Tile.space(target, codec),
        build=lambda tile: matmul.gemm(codec, n, tile, eps=eps, residual=residual),
        operands=_operands(codec, eps, residual),
        derived=derived,
    )


def gemv_family(codec: Codec, n: int, *, eps: float | None, residual: bool) -> Family[matmul.Sweep]:
    """`matmul.gemv`."""
    return Family(
        workload=_product("cpu.gemv", codec, n, eps, residual),
        space=matmul.Sweep.space(),
        build=lambda sweep: matmul.gemv(codec, n, sweep, eps=eps, residual=residual),
        operands=_operands(codec, eps, residual),
    )


def _product(family: str, codec: Codec, n: int, eps: float | None, residual: bool) -> Workload:
    return Workload.of(
        family,
        n=n,
        k=codec.k,
        weights=_stored(codec),
        norm=int(eps is not None),
        residual=int(residual),
    )


def _stored(codec: Codec) -> str:
    """What the weights are kept as; float16 scales, or float16 weights."""
    if isinstance(codec, Int4):
        return f"int4 {codec.scale_dtype}"
    assert isinstance(codec, Dense), "no other storage has a CPU kernel"
    return str(codec.dtype)


def _operands(codec: Codec, eps: float | None, residual: bool) -> tuple[Operand, ...]:
    weights = PACKED if isinstance(codec, Int4) else DENSE
    return (INPUT, *[INPUT] * (eps is not None), weights, *[INPUT] * residual, RESULT)


def attend_family(
    a: Attention, kv: FlatKV, target: Target, rows: int | None
) -> Family[attention.Tile]:
    """`attention.attend`, for one row or any number."""
    return Family(
        workload=_attention("cpu.flat_attend", a, kv, rows=rows or 0),
        space=attention.Tile.space(a, target, rows),
        build=lambda tile: attention.attend(a, kv, target, rows, tile),
        operands=(INPUT, *PAGES, LAYER, RESULT),
        derived=lambda tile: {"members": tile.members, "sums": tile.members * tile.vectors},
    )


def step_family(a: Attention, kv: FlatKV, target: Target) -> Family[attention.Tile]:
    """`attention.step`: one token."""
    return Family(
        workload=_attention("cpu.flat_step", a, kv),
        space=attention.Tile.space(a, target, 1),
        build=lambda tile: attention.step(a, kv, target, tile),
        operands=(*[INPUT] * 4, *PAGES, LAYER, RESULT),
        derived=lambda tile: {"members": tile.members, "sums": tile.members * tile.vectors},
    )


def _attention(family: str, a: Attention, kv: FlatKV, **facts: int) -> Workload:
    return Workload.of(
        family, h_q=a.h_q, h_kv=a.h_kv, d=a.d, page=kv.page, cache=str(kv.dtype), **facts
    )
