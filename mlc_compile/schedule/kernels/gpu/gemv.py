"""y = w x for one row of x, or a few: bound by reading w, so that is all the kernel waits for.

A team of `lanes` threads computes `rows` outputs: neighbors read neighboring 16-byte units of
a row of w, all of a stage before x is staged, so that the latencies pass together. x lies in
shared memory, padded by a vector a unit (neighbors are a unit apart: their loads then fall in
different banks), and each value of it that is loaded serves all rows of the team. At 4.5 bits
and 3.1 instructions a weight (see `weights`) an A100 needs 57 % of its issue slots to keep up
with its memory (2.0 TB/s), an H100 63 % (3.35 TB/s).
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.gemv_tile import Tile, slot
from mlc_compile.schedule.kernels.gpu.slots import PLAIN, Epilogue, Source
from mlc_compile.schedule.kernels.gpu.weights import EXPONENT, Codec, Held
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.target import Device

BATCH_BLOCKS: Final = 2  # side by side on a multiprocessor, for several rows of x


@dataclass(frozen=True, slots=True)
class Product:
    """The arguments of a kernel: x[1, m, k] with what its source adds, and parts of w."""

    codec: Codec
    source: Source
    x: Buffer
    extra: list[Buffer]
    parts: list[Buffer]
    epilogue: Epilogue


def gemv(
    codec: Codec,
    n: int,
    device: Device,
    *,
    x_dtype: str = v.F32,
    source: Source = PLAIN,
    residual: bool = False,
    swiglu: bool = False,
    tile: Tile | None = None,
) -> tirx.PrimFunc:
    """x[1, 1, k], inputs of `source`, parts of w[n, k], residual if any -> y[1, 1, outputs].

    The outputs are the n rows of w, or with `swiglu` n / 2: silu of a row times the row that
    is n / 2 below.
    """
    with v.kernel() as builder:
        x = v.argument("x", (1, 1, codec.k), x_dtype)
        extra = source.arguments(codec.k)
        parts = codec.arguments()
        epilogue = Epilogue.declare(n, 1, residual=residual, swiglu=swiglu)
        product = Product(codec, source, x, extra, parts, epilogue)
        per_output = epilogue.per_output
        tile = tile or Tile.of(device, codec, epilogue.outputs, per_output=per_output)
        multiply(product, device, tile)
    return builder.get()


def multiply(p: Product, device: Device, tile: Tile, batch: int = 1) -> None:
    """Launch y = w x for the rows of x, of which there are at most `batch`."""
    per_block = tile.teams * tile.rows
    blocks = g.blocks_of(p.epilogue.outputs, per_block)
    # The sums of several rows fill registers, which must not be spilled to fit more blocks.
    kept = g.resident(BATCH_BLOCKS) if batch > 1 else nullcontext()
    with g.each_block(blocks, device, threads=tile.threads) as (block, thread), kept:
        _Team.of(p, tile, batch, thread, block * per_block).run(device)


@dataclass(frozen=True, slots=True)
class _Team:
    """The kernel as one thread sees it."""

    p: Product
    tile: Tile
    batch: int
    thread: Expr
    start: Expr  # the block's first output
    weight_rows: list[Expr]  # of w, those of an output side by side
    sums: Buffer  # of each row of x, for each of weight_rows
    square: Buffer  # what this thread staged of x, squared and summed
    staged: Buffer  # of x; in the end sums to be joined; last of all EXPONENT's float

    @classmethod
    def of(cls, p: Product, tile: Tile, batch: int, thread: Expr, start: Expr) -> "_Team":
        """Thread `thread` of a block. Beyond the outputs it repeats the last one."""
        first, last = start + thread // tile.lanes * tile.rows, p.epilogue.outputs - 1
        rows = [
            T.bind(p.epilogue.row(tirx.min(first + r, last), part))
            for r in range(tile.rows)
            for part in range(p.epilogue.per_output)
        ]
        sums, square = g.registers(batch * len(rows)), g.registers(1)
        _clear(sums, batch * len(rows))
        _clear(square, 1)
        joined = tile.threads * p.epilogue.per_output  # sums of an output of every team
        room = max(batch * tile.pitch(p.codec), joined)
        staged = g.shared(room + 1)
        with T.If(thread == 0), T.Then():
            exponent = tirx.reinterpret(v.F32, tirx.const(EXPONENT, "uint32"))
            v.put(exponent, staged, room)
        return cls(p, tile, batch, thread, start, rows, sums, square, staged)

    @property
    def lane(self) -> Expr:
        """The thread's place along k."""
        return self.thread % self.tile.lanes

    @property
    def room(self) -> int:
        """Floats of `staged` for x or sums."""
        return int(self.staged.shape[0]) - 1

    @property
    def pitch(self) -> int:
        """Floats from one row of staged x to the next."""
        return self.tile.pitch(self.p.codec)

    def run(self, device: Device) -> None:
        """From x and w to y."""
        codec, tile = self.p.codec, self.tile
        stages = -(-(codec.k // codec.span) // (tile.lanes * tile.depth))
        with T.serial(0, stages) as stage:
            held = [self._fetch(stage, j) for j in range(tile.depth)]
            if stages > 1:
                g.barrier()
            self._stage(stage)
            g.barrier()
            exponent = T.bind(tirx.reinterpret("uint32", self.staged[self.room]))
            for j, units in enumerate(held):
                self._accumulate(units, j, exponent)
        factor = self._factor(device)
        if 1 < tile.lanes <= device.subgroup:
            self._finish_by_shuffles(factor)
        else:
            self._finish_by_memory(factor)

    def _fetch(self, stage: Expr, j: int) -> list[Held]:
        """Unit j of the stage of every row. Beyond k it is the last unit; x is zero there."""
        codec, tile = self.p.codec, self.tile
        unit = (stage * tile.depth + j) * tile.lanes + self.lane
        unit = T.bind(tirx.min(unit, codec.k // codec.span - 1))
        return [codec.fetch(self.p.parts, row, unit) for row in self.weight_rows]

    def _stage(self, stage: Expr) -> None:
        """Share this stage of x: by the source, in float32, shrunk as the codec asks."""
        codec, tile = self.p.codec, self.tile
        width = g.lanes_for(codec.span)
        elements = tile.depth * tile.lanes * codec.span
        with g.each_vector(elements, self.thread, tile.threads, width) as at:
            place = T.bind(at // codec.span * slot(codec) + at % codec.span)
            k = T.bind(stage * elements + at)
            for b in range(self.batch):
                value = g.registers(width)
                _clear(value, width)
                with T.If(self._within(k, b)), T.Then():
                    self._load(k, b, value, width)
                staged = v.load(value, 0, lanes=width)
                g.store_as(staged, self.staged, b * self.pitch + place, lanes=width)

    def _within(self, k: Expr, b: int) -> Expr:
        inside = k < self.p.codec.k
        return tirx.And(inside, b < self.p.x.shape[1]) if self.batch > 1 else inside

    def _load(self, k: Expr, b: int, value: Buffer, width: int) -> None:
        shrinks = self.p.codec.shrinks
        raw = g.floats(T.bind(v.load(self.p.x, 0, b, k, lanes=width)), width)
        for i, element in enumerate(raw):
            v.put(element, value, i)
            if self.p.source.normalized:
                v.put(self.square[0] + value[i] * value[i], self.square, 0)
        for i, element in enumerate(self.p.source.weigh(value, self.p.extra, k, width)):
            shrink = shrinks[i % len(shrinks)]
            v.put(element if shrink == 1.0 else element * v.const(shrink), value, i)

    def _accumulate(self, held: list[Held], j: int, exponent: Expr) -> None:
        """Add unit j of the stage to the sums.

        One row of x: a sum over the unit is scaled. Several: each weight is, decoded once for
        all, which spares the registers of such sums.
        """
        codec, batch = self.p.codec, self.batch
        place = T.bind((j * self.tile.lanes + self.lane) * slot(codec))
        scales = [codec.scale(h) for h in held]
        apart = batch == 1 and scales[0] is not None
        sums = g.registers(len(held)) if apart else self.sums
        if apart:
            _clear(sums, len(held))
        width = g.lanes_for(codec.span)
        streams = [codec.values(h, exponent) for h in held]
        for kk in range(0, codec.span, width):
            weights = [list(islice(stream, width)) for stream in streams]
            if batch > 1:
                weights = [_scaled(ws, scale) for ws, scale in zip(weights, scales, strict=True)]
            for b in range(batch):
                x = T.bind(v.load(self.staged, b * self.pitch + place + kk, lanes=width))
                for row, ws in enumerate(weights):
                    at = b * len(held) + row
                    for w, xi in zip(ws, g.floats(x, width), strict=True):
                        v.put(sums[at] + w * xi, sums, at)
        if apart:
            for at, scale in enumerate(scales):
                v.put(self.sums[at] + sums[at] * scale, self.sums, at)

    def _factor(self, device: Device) -> Expr | None:
        """What the source's sum of squares multiplies all outputs by."""
        if not self.p.source.normalized:
            return None
        g.barrier()
        threads = self.tile.threads
        total = g.block_total(self.square[0], self.thread, threads, self.staged, device)
        v.put(self.p.source.factor(total, self.p.codec.k), self.square, 0)
        return self.square[0]

    def _outputs(self) -> Iterator[tuple[int, int, list[Expr]]]:
        """(row of x, output of the team, its sums)"""
        per = self.p.epilogue.per_output
        for b in range(self.batch):
            for r in range(self.tile.rows):
                first = (b * self.tile.rows + r) * per
                yield b, r, [self.sums[first + i] for i in range(per)]

    def _finish_by_shuffles(self, factor: Expr | None) -> None:
        team = self.thread // self.tile.lanes
        for b, r, sums in self._outputs():
            totals = [g.shuffle_sum(s, self.tile.lanes) for s in sums]
            with T.If(self.lane == 0), T.Then():
                self._write(totals, factor, b, self.start + team * self.tile.rows + r)

    def _finish_by_memory(self, factor: Expr | None) -> None:
        """As many outputs at a time as shared memory holds sums of: a thread joins a team's.

        Threads start at different places of their rows, so that they meet in no bank.
        """
        tile, thread = self.tile, self.thread
        per = self.p.epilogue.per_output
        room = self.room // (tile.threads * per)
        outputs, many = list(self._outputs()), min(room, tile.lanes)
        for group in (outputs[i : i + many] for i in range(0, len(outputs), many)):
            g.barrier()
            for place, (_, _, sums) in enumerate(group):
                for i, s in enumerate(sums):
                    v.put(s, self.staged, (place * per + i) * tile.threads + thread)
            g.barrier()
            with T.If(thread < len(group) * tile.teams), T.Then():
                place, team = thread // tile.teams, thread % tile.teams
                totals = g.registers(per)
                _clear(totals, per)
                for i in range(per):
                    row = (place * per + i) * tile.threads + team * tile.lanes
                    with T.serial(0, tile.lanes) as lane:
                        at = row + (lane + thread) % tile.lanes
                        v.put(totals[i] + self.staged[at], totals, i)
                b, r, _ = group[0]
                index = b * tile.rows + r + place
                output = self.start + team * tile.rows + index % tile.rows
                self._write([totals[i] for i in range(per)], factor, index // tile.rows, output)

    def _write(self, sums: list[Expr], factor: Expr | None, b: Index, output: Expr) -> None:
        scaled = sums if factor is None else [s * factor for s in sums]
        with T.If(self.p.epilogue.inside(b if self.batch > 1 else 0, output)), T.Then():
            self.p.epilogue.write(scaled, b, output)


def _clear(buffer: Buffer, count: int) -> None:
    for i in range(count):
        v.put(v.const(0.0), buffer, i)


def _scaled(weights: list[Expr], scale: Expr | None) -> list[Expr]:
    """Weights in registers, scaled if they must be."""
    return [T.bind(w if scale is None else w * scale) for w in weights]
