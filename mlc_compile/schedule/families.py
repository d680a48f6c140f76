"""The kernel families of CPUs: their workloads, spaces and parameters, one function for each."""

from collections.abc import Callable, Mapping
from typing import Final

from mlc_compile.artifact import Activations, FlatKV
from mlc_compile.layout import GROUP, ROWS
from mlc_compile.ops import NARROW, SOURCES, Attention, Grouping, Source
from mlc_compile.records import Workload
from mlc_compile.schedule.family import Family
from mlc_compile.schedule.kernels import (
    attention,
    bf16_gemm,
    bf16_swiglu,
    int8,
    int8_gemm,
    int8_gemm_pairs,
    matmul,
    peak,
    quantize,
)
from mlc_compile.schedule.kernels.dot import DotProduct, fastest_for
from mlc_compile.schedule.kernels.tiles import PRODUCTS as TILE_PRODUCTS
from mlc_compile.schedule.kernels.tiles import TileUnit
from mlc_compile.schedule.kernels.vector import LANES
from mlc_compile.schedule.kernels.weights import Codec, Dense, Int4
from mlc_compile.schedule.operand import (
    COARSE,
    DENSE,
    INPUT,
    KEYS,
    PACKED,
    PAIRS,
    RESULT,
    ROUNDED,
    VALUES,
    Operand,
    Values,
)
from mlc_compile.schedule.space import Space
from mlc_compile.target import Target

ACTS: Final = (Operand("codes"), Operand("positive"), Operand("offsets"))
PAGES: Final = (KEYS, VALUES, Operand("pages"), Operand("length"))
LAYER: Final = Operand("layer")

Operations = Callable[[int, int], int]


def int8_gemm_family(
    codec: Int4,
    n: int,
    dot: DotProduct,
    target: Target,
    *,
    residual: bool,
    grouping: Grouping = NARROW,
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
        workload=_of_rows("cpu.int8_gemm", codec, n, residual=residual, group=grouping.group),
        space=int8_gemm.Tile.space(target, codec, grouping.group),
        build=lambda tile: int8_gemm.gemm(
            codec, n, dot, tile, residual=residual, grouping=grouping
        ),
        operands=(*ACTS, PACKED, *[INPUT] * residual, RESULT),
        derived=derived,
        operations=_of_product(n, codec.k),
        arithmetic="int8",
    )


def int8_gemm_pairs_family(
    codec: Int4, n: int, target: Target, *, residual: bool
) -> Family[int8_gemm_pairs.Tile]:
    """`int8_gemm_pairs.gemm`, for any number of rows."""

    def derived(tile: int8_gemm_pairs.Tile) -> Mapping[str, float]:
        return {
            "sums": tile.pairs * (tile.columns + tile.turn),
            "panel_bytes": codec.k * (ROWS + 4) * tile.blocks / tile.parts,
            "tasks": codec.blocks / tile.blocks,
            "loads_per_product": 1 / tile.pairs + 1 / tile.columns,
        }

    return Family(
        workload=_of_rows("cpu.int8_gemm_pairs", codec, n, residual=residual),
        space=int8_gemm_pairs.Tile.space(target, codec),
        build=lambda tile: int8_gemm_pairs.gemm(codec, n, tile, residual=residual),
        operands=(*ACTS, PACKED, *[INPUT] * residual, RESULT),
        derived=derived,
        operations=_of_product(n, codec.k),
        arithmetic="int8",
    )


def bf16_gemm_family(
    codec: Int4, n: int, unit: TileUnit, target: Target, *, residual: bool
) -> Family[bf16_gemm.Tile]:
    """`bf16_gemm.gemm`, for any number of rows."""

    def derived(tile: bf16_gemm.Tile) -> Mapping[str, float]:
        return {
            "sums": tile.m * tile.blocks,
            "panel_bytes": tile.panel_bytes(codec.k),
            "loads_per_product": 1 / tile.m + 1 / tile.blocks,
        }

    return Family(
        workload=_of_rows("cpu.bf16_gemm", codec, n, residual=residual),
        space=bf16_gemm.Tile.space(target, codec, n),
        build=lambda tile: bf16_gemm.gemm(codec, n, unit, tile, residual=residual),
        operands=(PAIRS, PACKED, *[INPUT] * residual, RESULT),
        derived=derived,
        operations=_of_product(n, codec.k),
        arithmetic="bfloat16",
    )


def bf16_swiglu_family(
    codec: Int4, n: int, unit: TileUnit, target: Target
) -> Family[bf16_swiglu.Tile]:
    """`bf16_swiglu.gemm`, for any number of rows."""

    def derived(tile: bf16_swiglu.Tile) -> Mapping[str, float]:
        return {"panel_bytes": tile.panel_bytes(codec.k)}

    scales = str(codec.scale_dtype)
    return Family(
        workload=Workload.of("cpu.bf16_swiglu", n=n, k=codec.k, scales=scales),
        space=bf16_swiglu.Tile.space(target, codec.k),
        build=lambda tile: bf16_swiglu.gemm(codec, n, unit, tile),
        operands=(PAIRS, PACKED, ROUNDED),
        derived=derived,
        operations=_of_product(n, codec.k),
        arithmetic="bfloat16",
    )


def int8_gemv_family(
    codec: Int4,
    n: int,
    source: Source,
    dot: DotProduct,
    target: Target,
    *,
    residual: bool,
    swiglu: bool,
) -> Family[int8.Sweep]:
    """`int8.gemv`, with what feeds it and what follows."""
    feed = quantize.FEEDS[source.kind](source.k, source.eps)
    joined = int8.joined_rows(swiglu)

    def derived(sweep: int8.Sweep) -> Mapping[str, float]:
        return {
            "streams": joined * sweep.streams,
            "blocks": codec.blocks / joined / sweep.streams,
            "asked_bytes": sweep.ahead * GROUP * ROWS * joined * sweep.streams,
            "body_dots": sweep.pairs * joined * sweep.streams,
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
        space=int8.Sweep.space(codec, target, swiglu=swiglu),
        build=lambda sweep: int8.gemv(codec, n, feed, dot, sweep, residual=residual, swiglu=swiglu),
        operands=(*[INPUT] * SOURCES[source.kind], PACKED, *[INPUT] * residual, RESULT),
        derived=derived,
        operations=_of_product(n, codec.k),
        arithmetic="int8",
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
        operations=_of_product(n, codec.k),
    )


def gemv_family(codec: Codec, n: int, *, eps: float | None, residual: bool) -> Family[matmul.Sweep]:
    """`matmul.gemv`."""
    return Family(
        workload=_product("cpu.gemv", codec, n, eps, residual),
        space=matmul.Sweep.space(),
        build=lambda sweep: matmul.gemv(codec, n, sweep, eps=eps, residual=residual),
        operands=_operands(codec, eps, residual),
        operations=_of_product(n, codec.k),
    )


def _of_rows(family: str, codec: Int4, n: int, *, residual: bool, **facts: int) -> Workload:
    scales = str(codec.scale_dtype)
    return Workload.of(family, n=n, k=codec.k, scales=scales, residual=int(residual), **facts)


def _product(family: str, codec: Codec, n: int, eps: float | None, residual: bool) -> Workload:
    return Workload.of(
        family,
        n=n,
        k=codec.k,
        weights=_stored(codec),
        norm=int(eps is not None),
        residual=int(residual),
    )


def _of_product(n: int, k: int) -> Operations:
    return lambda tokens, _before: 2 * tokens * n * k


def _of_attention(a: Attention) -> Operations:
    """Scores and sums over the positions that each token sees."""

    def count(tokens: int, before: int) -> int:
        return 4 * a.h_q * a.d * (tokens * before + tokens * (tokens + 1) // 2)

    return count


def _stored(codec: Codec) -> str:
    """What the weights are kept as; float16 scales, or float16 weights."""
    if isinstance(codec, Int4):
        return f"int4 {codec.scale_dtype}"
    assert isinstance(codec, Dense), "no other storage has a CPU kernel"
    return str(codec.dtype)


def _operands(codec: Codec, eps: float | None, residual: bool) -> tuple[Operand, ...]:
    weights = PACKED if isinstance(codec, Int4) else DENSE
    return (INPUT, *[INPUT] * (eps is not None), weights, *[INPUT] * residual, RESULT)


def peak_family(tile: peak.Sums, target: Target, arithmetic: Activations) -> Family[peak.Sums]:
    """`peak.peak`: of integers only where the target has a dot product."""
    dot = fastest_for(target) if arithmetic == "int8" else None
    values: Values = "normal" if dot is None else "codes"
    each = 1 if dot is None else dot.depth
    return Family(
        workload=Workload.of("cpu.peak", rows=tile.rows, blocks=tile.blocks, of=arithmetic),
        space=Space(tile, {}),
        build=lambda point: peak.peak(point, dot),
        operands=(Operand(values), Operand(values), RESULT),
        operations=lambda _tokens, _before: 2 * each * LANES * tile.products,
        arithmetic=arithmetic,
    )


def tile_peak_family(unit: TileUnit) -> Family[peak.Sums]:
    """`peak.tile_peak`."""
    tile = peak.OF_TILES
    return Family(
        workload=Workload.of("cpu.peak", rows=tile.rows, blocks=tile.blocks, of="bfloat16"),
        space=Space(tile, {}),
        build=lambda point: peak.tile_peak(point, unit),
        operands=(PAIRS, PAIRS, RESULT),
        operations=lambda _tokens, _before: 2 * TILE_PRODUCTS * tile.products,
        arithmetic="bfloat16",
    )


def attend_family(
    a: Attention, kv: FlatKV, target: Target, rows: int | None
) -> Family[attention.Tile]:
    """`attention.attend`, for one row or any number."""
    return Family(
        workload=_attention("cpu.flat_attend", a, kv, rows=rows or 0),
        space=attention.Tile.space(a, kv, target, rows),
        build=lambda tile: attention.attend(a, kv, target, rows, tile),
        operands=(INPUT, *PAGES, LAYER, RESULT),
        derived=_of_tile,
        operations=_of_attention(a),
    )


def tile_attend_family(
    a: Attention, kv: FlatKV, unit: TileUnit, *, rounded: bool
) -> Family[attention.Share]:
    """`attention.attend_tiles`, for any number of rows."""

    def derived(share: attention.Share) -> Mapping[str, float]:
        return {
            "panel_bytes": 4 * share.pages * kv.page * a.d,
            "queries": share.tokens * a.h_q // a.h_kv,
        }

    return Family(
        workload=_attention("cpu.tile_attend", a, kv, rounded=int(rounded)),
        space=attention.Share.space(),
        build=lambda share: attention.attend_tiles(a, kv, unit, share, rounded=rounded),
        operands=(PAIRS, *PAGES, LAYER, ROUNDED if rounded else COARSE),
        derived=derived,
        operations=_of_attention(a),
        arithmetic="bfloat16",
    )


def tile_project_family(
    a: Attention, kv: FlatKV, codec: Int4, unit: TileUnit, target: Target
) -> Family[attention.Heads]:
    """`attention.project`, for any number of rows."""

    def derived(share: attention.Heads) -> Mapping[str, float]:
        return {"panel_bytes": share.panel_bytes(a, codec.k)}

    scales = str(codec.scale_dtype)
    return Family(
        workload=_attention("cpu.tile_project", a, kv, k=codec.k, scales=scales),
        space=attention.Heads.space(a, target, codec.k),
        build=lambda share: attention.project(a, kv, codec, unit, share),
        operands=(PAIRS, PACKED, *[INPUT] * 3, *PAGES, LAYER, ROUNDED),
        derived=derived,
        operations=_of_product((a.h_q + 2 * a.h_kv) * a.d, codec.k),
        arithmetic="bfloat16",
    )


def step_family(a: Attention, kv: FlatKV, target: Target) -> Family[attention.Tile]:
    """`attention.step`: one token."""
    return Family(
        workload=_attention("cpu.flat_step", a, kv),
        space=attention.Tile.space_of_step(a, kv, target),
        build=lambda tile: attention.step(a, kv, target, tile),
        operands=(*[INPUT] * 4, *PAGES, LAYER, RESULT),
        derived=_of_tile,
        operations=_of_attention(a),
    )


def _of_tile(tile: attention.Tile) -> Mapping[str, float]:
    return {
        "members": tile.key_heads * tile.members,
        "scores": tile.key_heads * tile.members * tile.chunks * tile.chains,
        "sums": tile.key_heads * tile.members * tile.vectors,
        "loads_per_score": 1 / tile.members + 1 / tile.chunks,
        "loads_per_sum": 1 / tile.members + 1 / tile.vectors,
    }


def _attention(family: str, a: Attention, kv: FlatKV, **facts: int | str) -> Workload:
    return Workload.of(family, h_q=a.h_q, h_kv=a.h_kv, d=a.d, page=kv.page, cache=kv.dtype, **facts)
