"""The product that makes queries, keys and values, on tiles, and at once all that `append` does.

A thread takes a share of the heads. The sums of some rows of x for a head stay in the L1 cache
until they are normalized, rotated and stored where they belong: queries in pairs, keys and values
in their pages. The product in float32 is never written.
"""

from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.artifact import FlatKV
from mlc_compile.layout import GROUP, ROWS
from mlc_compile.ops import Attention, rounded_words
from mlc_compile.schedule.kernels import tiles
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.attention.append import round_query, slot_of
from mlc_compile.schedule.kernels.attention.cache import Cache, Row
from mlc_compile.schedule.kernels.attention.inputs import Head, turn
from mlc_compile.schedule.kernels.bf16_panels import Strips, most_for
from mlc_compile.schedule.kernels.tiles import Block, TileUnit
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.schedule.kernels.weights import Int4
from mlc_compile.schedule.space import Space
from mlc_compile.target import Target

WIDTH: Final = GROUP // ROWS  # row blocks of a strip: d comes in groups


@dataclass(frozen=True, slots=True)
class Heads:
    """`m` tiles of x at a time, and heads whose w is unpacked at once, at most."""

    m: int = 2
    heads: int = 1

    @classmethod
    def of(cls, a: Attention, target: Target, k: int) -> "Heads":
        """Panels as large as `most_for` says."""
        return cls(heads=most_for(target, KNOBS["heads"], cls().panel_bytes(a, k), k))

    @classmethod
    def space(cls, a: Attention, target: Target, k: int) -> "Space[Heads]":
        """Any will do."""
        return Space(cls.of(a, target, k), KNOBS)

    def panel_bytes(self, a: Attention, k: int) -> int:
        """What a thread unpacks to."""
        return 2 * k * a.d * self.heads


KNOBS: Final = {"m": (1, 2), "heads": (1, 2, 4)}


def project(a: Attention, kv: FlatKV, codec: Int4, unit: TileUnit, share: Heads) -> tirx.PrimFunc:
    """pairs i32[1, m, words(k)], parts of w, gammas[d], angles[m, d], cache, layer -> q.

    w is [(h_q + 2 h_kv) d, k], q is i32[1, m, h_q, d/2]. Where tiles overlap, for m that is no
    multiple of 16, the same is stored twice.
    """
    assert a.d % GROUP == 0
    m, strips_each = v.size("m"), a.d // GROUP
    with v.kernel() as builder:
        x = v.argument("pairs", (1, m, rounded_words(codec.k)), "int32")
        parts = codec.arguments()
        store = _Store(
            a=a,
            gamma_q=v.argument("gamma_q", (a.d,)),
            gamma_k=v.argument("gamma_k", (a.d,)),
            angles=v.argument("angles", (m, a.d)),
            cache=Cache.declare(kv),
            layer=v.scalar("layer"),
            q=v.argument("q", (1, m, a.h_q, a.d // 2), "int32"),
        )
        block, height = Block(unit, share.m, WIDTH), tiles.rows_of(m)
        with v.share_of(a.h_q + 2 * a.h_kv) as (start, end):
            strips = Strips.make(
                codec, parts, WIDTH, share.heads * strips_each, lambda strip, i: strip * WIDTH + i
            )
            sums = v.workspace((share.m * tiles.ROWS, a.d))
            block.configure(height)
            with (
                strips.panels(start * strips_each, end * strips_each) as (first, count),
                T.serial(0, tiles.steps(m, share.m)) as step,
                T.serial(0, count // strips_each) as head,
            ):
                rows = [tiles.first_row(step * share.m + i, m) for i in range(share.m)]
                with T.serial(0, strips_each) as strip:
                    block.begin()
                    strips.multiply(block, x, rows, first, head * strips_each + strip)
                    corners = [
                        (i * tiles.ROWS, strip * GROUP + b * ROWS)
                        for i in range(share.m)
                        for b in range(WIDTH)
                    ]
                    block.end([(sums, corner) for corner in corners])
                number = v.kept(first // strips_each + head)
                for i, row in enumerate(rows):
                    with T.serial(0, height) as r:
                        store.head((sums, (i * tiles.ROWS + r,), 0), row + r, number)
            unit.release()
    return builder.get()


@dataclass(frozen=True, slots=True)
class _Store:
    """Where heads go, and what they need on the way."""

    a: Attention
    gamma_q: Buffer
    gamma_k: Buffer
    angles: Buffer
    cache: Cache
    layer: Index
    q: Buffer

    def head(self, head: Head, token: Expr, number: Expr) -> None:
        """Store head `number` of queries, keys and values together."""
        a = self.a
        with T.If(number < a.h_q):
            with T.Then():
                turned = self._turned(head, self.gamma_q, token)
                round_query(turned, self.q, token, number)
            with T.Else(), T.If(number < a.h_q + a.h_kv):
                with T.Then():
                    turned = self._turned(head, self.gamma_k, token)
                    at, slot = slot_of(self.cache, token, number - a.h_q, self.layer)
                    self.cache.put_key(self._row((turned, (0,), 0)), at, slot)
                with T.Else():
                    h = number - (a.h_q + a.h_kv)
                    at, slot = slot_of(self.cache, token, h, self.layer)
                    self.cache.put_value(self._row(head), at, slot)

    def _turned(self, head: Head, gamma: Buffer, token: Expr) -> Buffer:
        turned = v.workspace((1, self.a.d))
        turn(self.a, head, gamma, (self.angles, token), (turned, (0,)))
        return turned

    def _row(self, head: Head) -> Row:
        source, at, start = head
        lanes = v.lanes_for(self.a.d)
        return lambda column: v.load(source, *at, start + column, lanes=lanes)
