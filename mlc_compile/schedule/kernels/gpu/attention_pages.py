"""TVM's paged KV cache as kernels see it, and what moves data in and out of its pages.

A layer's pages are one tensor [pages, 2, h_kv, page, d], keys before values. Sequence s owns
`page_values[page_indptr[s] .. page_indptr[s + 1]]`, in order; `last_page[s]` tokens of its last
page are used. The runtime packs the small arrays in one buffer, so they begin at an offset; pages
do not, or vectors of them could not be loaded.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import log2, pi
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.target import Device

THREADS: Final = 256
SIDES: Final = 2  # keys and values
TURN: Final = 2**32  # parts of a turn
EXACT: Final = 2**12  # parts of 1 that leave i step exact, for i < 2**10


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of a layer, of `size` tokens each, and which of them a sequence owns."""

    data: Buffer
    indptr: Buffer
    values: Buffer
    last_page: Buffer
    size: int

    @classmethod
    def declare(cls, a: Attention, dtype: str, size: int, sequences: Index) -> "Pages":
        """The next four parameters of the kernel."""
        return cls(
            data=_pages(a, dtype, size),
            indptr=g.view("page_indptr", (sequences + 1,), "int32"),
            values=g.view("page_values", (v.size("owned"),), "int32"),
            last_page=g.view("last_page", (sequences,), "int32"),
            size=size,
        )

    @property
    def owned(self) -> Expr:
        """Pages of all sequences together: a shape, so the host knows it."""
        return self.values.shape[0]

    def length(self, sequence: Index) -> Expr:
        """Tokens of a sequence."""
        owned = self.indptr[sequence + 1] - self.indptr[sequence]
        tokens = (owned - 1) * self.size + self.last_page[sequence]
        return tirx.Select(owned > 0, tokens, v.int32(0))

    def page_of(self, sequence: Index, token: Expr) -> Expr:
        """Which page holds a token."""
        return self.values[self.indptr[sequence] + token // self.size]


def rotate(a: Attention, dtype: str, device: Device) -> tirx.PrimFunc:
    """qkv[m, h_q + 2 h_kv, d], positions i32[m] -> q, k, v [m, heads, d]; q and k turned by RoPE.

    A thread turns some pairs (x[i], x[i + d/2]) of one head, by position · inv_freq[i]; where
    `turn` is 0 it copies them.
    """
    m, heads, half = v.size("m"), a.h_q + 2 * a.h_kv, a.d // 2
    lanes = g.lanes_for(half)
    with v.kernel() as builder:
        qkv = v.argument("qkv", (m, heads, a.d), dtype)
        positions = g.view("positions", (m,), "int32")
        outs = [
            v.argument(name, (m, count, a.d), dtype)
            for name, count in (("q", a.h_q), ("k", a.h_kv), ("v", a.h_kv))
        ]
        turn = v.scalar("turn")
        vectors = half // lanes
        with g.each_item(m * heads * vectors, device, threads=_threads(device)) as item:
            row, head = T.bind(item // (heads * vectors)), T.bind(item // vectors % heads)
            at = item % vectors * lanes
            sides = [g.load_f32(qkv, row, head, at + s * half, lanes=lanes) for s in range(2)]
            turned = g.registers(2, lanes)
            for lane in range(lanes):
                pair = [g.elements(side, lanes)[lane] for side in sides]
                phase = _phase(positions[row], _inverse_frequency(a, at + lane))
                cos, sin = _cos_sin(phase)
                turns = tirx.all(turn > 0, head < a.h_q + a.h_kv)
                first = tirx.Select(turns, pair[0] * cos - pair[1] * sin, pair[0])
                second = tirx.Select(turns, pair[1] * cos + pair[0] * sin, pair[1])
                v.put(first, turned, 0, lane)
                v.put(second, turned, 1, lane)
            ends = (0, a.h_q, a.h_q + a.h_kv, heads)
            for out, (start, end) in zip(outs, pairwise(ends), strict=True):
                with T.If(tirx.all(head >= start, head < end)), T.Then():
                    for s in range(2):
                        vector = v.load(turned, s, 0, lanes=lanes)
                        g.store_as(vector, out, row, head - start, at + s * half, lanes=lanes)
    return builder.get()


def append(a: Attention, dtype: str, page: int, device: Device) -> tirx.PrimFunc:
    """k, v [m, h_kv, d] into the pages, at slots i32[m]: page number · page + place, or -1."""
    m, lanes = v.size("m"), g.lanes_for(a.d)
    with v.kernel() as builder:
        pages = _pages(a, dtype, page)
        sources = [v.argument(name, (m, a.h_kv, a.d), dtype) for name in ("k", "v")]
        slots = g.view("slots", (m,), "int32")
        vectors = a.d // lanes
        with g.each_item(m * a.h_kv * vectors, device, threads=_threads(device)) as item:
            row, head = item // (a.h_kv * vectors), item // vectors % a.h_kv
            at, slot = item % vectors * lanes, T.bind(slots[row])
            with T.If(slot >= 0), T.Then():
                for side, source in enumerate(sources):
                    to = (slot // page, side, head, slot % page, at)
                    vector = T.bind(v.load(source, row, head, at, lanes=lanes))
                    v.store(vector, pages, *to, lanes=lanes)
    return builder.get()


def copy_page(a: Attention, dtype: str, page: int, device: Device) -> tirx.PrimFunc:
    """The first `count` tokens of page `source` into page `sink`."""
    lanes = g.lanes_for(a.d)
    with v.kernel() as builder:
        pages = _pages(a, dtype, page)
        source, sink, count = (v.scalar(name) for name in ("source", "sink", "count"))
        vectors = a.d // lanes
        items = count * (SIDES * a.h_kv * vectors)
        with g.each_item(items, device, threads=_threads(device)) as item:
            at, slot = item % vectors * lanes, item // vectors % count
            head, side = item // (vectors * count) % a.h_kv, item // (vectors * count * a.h_kv)
            vector = T.bind(v.load(pages, source, side, head, slot, at, lanes=lanes))
            v.store(vector, pages, sink, side, head, slot, at, lanes=lanes)
    return builder.get()


def compact(a: Attention, dtype: str, page: int, device: Device) -> tirx.PrimFunc:
    """Copy tokens from slot `moves[0, i]` to `moves[1, i]`, in order within a sequence.

    Sequence s has the moves i from indptr[s] to indptr[s + 1]. A later move may read what an
    earlier one wrote, so a thread makes all moves of its columns.
    """
    lanes = g.lanes_for(a.d)
    with v.kernel() as builder:
        pages = _pages(a, dtype, page)
        batch = tirx.Var("batch", "int32")
        indptr = g.view("indptr", (batch + 1,), "int32")
        moves = g.view("moves", (2, v.size("moved")), "int32")
        T.arg("batch", batch)
        vectors = a.d // lanes
        items = batch * (SIDES * a.h_kv * vectors)
        with g.each_item(items, device, threads=_threads(device)) as item:
            at, head = item % vectors * lanes, item // vectors % a.h_kv
            side, sequence = item // (vectors * a.h_kv) % SIDES, item // (vectors * a.h_kv * SIDES)
            with T.serial(indptr[sequence], indptr[sequence + 1]) as i:
                places = [T.bind(moves[end, i]) for end in range(2)]
                at_ends = [(s // page, side, head, s % page, at) for s in places]
                vector = T.bind(v.load(pages, *at_ends[0], lanes=lanes))
                v.store(vector, pages, *at_ends[1], lanes=lanes)
    return builder.get()


def read_back(a: Attention, layers: int, dtype: str, page: int, device: Device) -> tirx.PrimFunc:
    """k, v [layers, m, h_kv, d] of layer `layer` from slots i32[m]: for debugging."""
    m, lanes = v.size("m"), g.lanes_for(a.d)
    with v.kernel() as builder:
        pages = _pages(a, dtype, page)
        slots = g.view("slots", (m,), "int32")
        sinks = [v.argument(name, (layers, m, a.h_kv, a.d), dtype) for name in ("k", "v")]
        layer = v.scalar("layer")
        vectors = a.d // lanes
        with g.each_item(m * a.h_kv * vectors, device, threads=_threads(device)) as item:
            row, head = item // (a.h_kv * vectors), item // vectors % a.h_kv
            at, slot = item % vectors * lanes, T.bind(slots[row])
            for side, sink in enumerate(sinks):
                source = (slot // page, side, head, slot % page, at)
                vector = T.bind(v.load(pages, *source, lanes=lanes))
                v.store(vector, sink, layer, row, head, at, lanes=lanes)
    return builder.get()


def _pages(a: Attention, dtype: str, page: int) -> Buffer:
    return v.argument("pages", (v.size("count"), SIDES, a.h_kv, page, a.d), dtype)


def _threads(device: Device) -> int:
    return min(THREADS, device.threads)


def _inverse_frequency(a: Attention, i: Expr) -> Expr:
    """inv_freq[i], which is 2**(i step).

    Of i step, whose rounding would be an error 20 times as large, one half has few bits and is
    exact, and the other is small.
    """
    step = log2(a.inv_freq[1]) if len(a.inv_freq) > 1 else 0.0
    coarse = round(step * EXACT) / EXACT
    number = v.cast_f32(i)
    return tirx.exp2(number * v.const(coarse)) * tirx.exp2(number * v.const(step - coarse))


def _phase(position: Expr, frequency: Expr) -> Expr:
    """position · frequency in parts of a turn, of which there are 2**32: a uint32.

    Whole turns overflow, so nothing is rounded but the frequency, which is at most 1, and no
    compiler can make it worse: those of shading languages rearrange sums of floats.
    """
    step = tirx.Cast("uint32", frequency * v.const(TURN / (2 * pi)) + v.const(0.5))
    return T.bind(tirx.Cast("uint32", position) * step)


def _cos_sin(phase: Expr) -> tuple[Expr, Expr]:
    """cos and sin of so many parts of a turn, within 1e-6; shading languages' own are not.

    The phase is some quarters of a turn and r, |r| <= pi/4; polynomials of Cephes (sinf.c,
    S. Moshier).
    """
    half, quarters = TURN // 8, tirx.const(30, "uint32")
    nearest = T.bind(phase + tirx.const(half, "uint32"))
    quarter = T.bind(tirx.Cast("int32", tirx.shift_right(nearest, quarters)))
    rest = tirx.Cast("int32", nearest & tirx.const(2 * half - 1, "uint32")) - half
    r = T.bind(v.cast_f32(rest) * v.const(2 * pi / TURN))
    z = T.bind(r * r)
    sin = (v.const(-1.9515295891e-4) * z + v.const(8.3321608736e-3)) * z
    sin = T.bind((sin - v.const(1.6666654611e-1)) * z * r + r)
    cos = (v.const(2.443315711809948e-5) * z - v.const(1.388731625493765e-3)) * z
    cos = T.bind((cos + v.const(4.166664568298827e-2)) * z * z - v.const(0.5) * z + v.const(1.0))
    odd = (quarter & v.int32(1)) == 1
    near, far = tirx.Select(odd, sin, cos), tirx.Select(odd, cos, sin)
    zero = v.const(0.0)
    cosine = tirx.Select(tirx.any(quarter == 1, quarter == 2), zero - near, near)
    return T.bind(cosine), T.bind(tirx.Select(quarter >= 2, zero - far, far))
