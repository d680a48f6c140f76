"""The cache parameters of a kernel: how keys and values lie in pages and become float32.

P pages of `page` tokens; an int8 cache has scales beside its codes (see artifact.FlatKV):

    k_pages  [layers, P, h_kv, d, page]   transposed: a score of `page` tokens is one
                                          multiply-add of a vector a component of q
    v_pages  [layers, P, h_kv, page, d]
    scales   [layers, P, h_kv, ..]        k_pages as float32: past the d rows, `page` scales
                                          of keys, then of values
    table    i32[P], length i32[1]        logical -> physical page; tokens already there

A score is a sum over codes of the key times the key's scale, and an output is a sum of
weights times the value's scale over codes of the value: a scale costs one multiplication a
token and query, not one a component.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.artifact import FlatKV
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.quantize import LEAST, magnitude_bits, nearest
from mlc_compile.schedule.kernels.vector import LANES, Buffer, Expr, Index

FLOAT_BYTES: Final = 4

Row = Callable[[Index], Expr]  # column -> the float32 vector of a row that begins there
Kind = Literal["key", "value"]
FIRST: Final[dict[Kind, int]] = {"key": 0, "value": 1}  # in pages' widths past the keys


@dataclass(frozen=True, slots=True)
class Place:
    """A page of a layer and key head; `page` is a physical one."""

    layer: Index
    page: Index
    head: Index
    scales: Buffer | None  # of all pages; None: numbers are stored, not codes


@dataclass(frozen=True, slots=True)
class Cache:
    """The only one who knows the storage; others see float32."""

    kv: FlatKV
    k: Buffer
    v: Buffer
    table: Buffer
    length: Buffer

    @classmethod
    def declare(cls, kv: FlatKV) -> "Cache":
        """The next parameters of the kernel."""
        pages = v.size("pages")
        return cls(
            kv=kv,
            k=v.argument("k_pages", kv.k_shape(pages), kv.dtype),
            v=v.argument("v_pages", kv.v_shape(pages), kv.dtype),
            table=v.argument("table", (pages,), "int32"),
            length=v.argument("length", (1,), "int32"),
        )

    def place(self, layer: Index, number: Index, head: Index) -> Place:
        """Page `number` of the sequence, until the block ends in which it is asked for."""
        scales = self._as_float32() if self.kv.scaled else None
        return Place(layer, self.table[number], head, scales)

    def keys(self, at: Place, j: Index, chunk: Index) -> Expr:
        """Component `j` of LANES keys, those from token chunk · LANES of the page."""
        return v.to_f32(v.load(self.k, at.layer, at.page, at.head, j, chunk * LANES))

    def key_scales(self, at: Place, chunk: Index) -> Expr | None:
        """What the scores with those keys are to be multiplied by; None is 1."""
        return self._scales(at, "key", chunk)

    def values(self, at: Place, token: Index, column: Index, lanes: int) -> Expr:
        """`lanes` components, from `column`, of a token's value."""
        index = at.layer, at.page, at.head, token, column
        return v.to_f32(v.load(self.v, *index, lanes=lanes), lanes)

    def value_scales(self, at: Place, chunk: Index) -> Expr | None:
        """What the weights of LANES values are to be multiplied by; None is 1."""
        return self._scales(at, "value", chunk)

    def put_key(self, key: Row, at: Place, slot: Index) -> None:
        """Store a key, whose components lie a page's width apart."""
        store = self._storing(key, at, "key", slot)
        lanes = self._lanes
        with T.serial(0, self.kv.head_dim // lanes) as j:
            held = v.local(1, lanes, self.kv.dtype)
            v.store(store(key(j * lanes)), held, 0, 0, lanes=lanes)
            for lane in range(lanes):
                index = at.layer, at.page, at.head, j * lanes + lane, slot
                v.put(held[0, lane], self.k, *index)

    def put_value(self, value: Row, at: Place, slot: Index) -> None:
        """Store a value."""
        store = self._storing(value, at, "value", slot)
        lanes = self._lanes
        with T.serial(0, self.kv.head_dim // lanes) as j:
            index = at.layer, at.page, at.head, slot, j * lanes
            v.store(store(value(j * lanes)), self.v, *index, lanes=lanes)

    def ask_keys(self, at: Place, share: Index, shares: int) -> None:
        """Ask for the `share`-th of equal parts of a page of keys, ahead of their use."""
        self._ask(self.k, at, share, shares)

    def ask_values(self, at: Place, share: Index, shares: int) -> None:
        """The same of values."""
        self._ask(self.v, at, share, shares)

    def _ask(self, pages: Buffer, at: Place, share: Index, shares: int) -> None:
        # Elements, from a page's first. Scales are the hardware's to guess: they come next.
        each = -(-self.kv.page * self.kv.head_dim // shares)
        for start in range(0, each, v.LINE_BYTES // np.dtype(self.kv.dtype).itemsize):
            v.prefetch(pages, at.layer, at.page, at.head, 0, share * each + start)

    @property
    def _lanes(self) -> int:
        return v.lanes_for(self.kv.head_dim)

    def _as_float32(self) -> Buffer:
        """The bytes of the keys' pages as floats: [layers, P, h_kv, those of a page]."""
        *outer, rows, width = self.k.shape
        floats = int(rows) * int(width) // FLOAT_BYTES
        return T.decl_buffer((*outer, floats), v.F32, data=self.k.data)

    def _scales(self, at: Place, kind: Kind, chunk: Index) -> Expr | None:
        if at.scales is None:
            return None
        return v.load(at.scales, *self._scale(at, kind, chunk * LANES))

    def _scale(self, at: Place, kind: Kind, slot: Index) -> tuple[Index, ...]:
        """Where in `scales` that of a token is."""
        keys = self.kv.head_dim * self.kv.page // FLOAT_BYTES
        return at.layer, at.page, at.head, keys + FIRST[kind] * self.kv.page + slot

    def _storing(self, row: Row, at: Place, kind: Kind, slot: Index) -> Callable[[Expr], Expr]:
        """How a vector of the row is stored; of codes, the row's scale is stored here."""
        lanes = self._lanes
        if self.kv.dtype == v.F32:
            return lambda x: x
        if at.scales is None:
            return lambda x: tirx.Cast(f"{self.kv.dtype}x{lanes}", x)
        top = _largest(row, self.kv.head_dim, lanes)
        v.put(top / v.const(127.0), at.scales, *self._scale(at, kind, slot))
        factor = v.local(1, 1)
        v.put(v.const(127.0) / tirx.max(top, v.const(LEAST)), factor, 0, 0)
        return lambda x: tirx.Cast(
            f"{self.kv.dtype}x{lanes}", nearest(x * v.splat(factor[0, 0], lanes), lanes)
        )


def _largest(row: Row, d: int, lanes: int) -> Expr:
    """The largest magnitude of a row, in a register."""
    peak = v.local(1, lanes, "int32")
    v.store(v.splat_i32(0, lanes), peak, 0, 0, lanes=lanes)
    with T.serial(0, d // lanes) as j:
        bits = magnitude_bits(row(j * lanes), lanes)
        v.store(tirx.max(v.load(peak, 0, 0, lanes=lanes), bits), peak, 0, 0, lanes=lanes)
    top = v.local(1, 1)
    v.put(tirx.reinterpret(v.F32, v.largest(peak, 0, lanes)), top, 0, 0)
    return top[0, 0]
