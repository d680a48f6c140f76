"""How tiled matmuls stage their inputs: panels of x and of decoded w in shared memory.

A panel is [rows, step] elements of one step along k, each row padded so that neighboring rows
begin in different banks; flat, since TVM cuts off columns that nobody reads. What the next
step needs is fetched into registers before the barrier and written after the next one, so
that it is on its way while the present panels are multiplied.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.weights import Codec, Held
from mlc_compile.schedule.kernels.vector import Buffer, Expr

Kept = list[list[Buffer]]  # registers: of each turn, what a fetch gives
Write = Callable[[Expr, Expr, Sequence[Expr]], None]  # (row, output, its sums) within a tile


@dataclass(frozen=True, slots=True)
class Shape:
    """A block's tile: m rows of x and n of w, `step` elements along k, in `dtype`."""

    m: int
    n: int
    step: int
    pad: int
    dtype: str

    @property
    def pitch(self) -> int:
        """Elements from one row of a panel to the next."""
        return self.step + self.pad

    @property
    def shared_bytes(self) -> int:
        """Of one panel of x and one of w."""
        return (self.m + self.n) * self.pitch * (2 if self.dtype == "float16" else 4)


@dataclass(frozen=True, slots=True)
class Panel:
    """Pieces of `width` elements, [rows, pieces] a step, shared out over the block's threads.

    `fetch(row, step, piece)` gives what a piece needs in registers, `decode` its float32s.
    """

    buffer: Buffer
    pitch: int
    rows: int
    pieces: int
    width: int
    threads: int
    thread: Expr
    fetch: Callable[[Expr, Expr, Expr], Held]
    decode: Callable[[Held, Expr, Expr], list[Expr]]

    def fetch_first(self) -> Kept:
        """Declare the registers between steps, and load this thread's pieces of step 0."""
        kept = []
        for row, piece in self._places():
            held = self.fetch(row, v.int32(0), piece)
            kept.append([_registers_for(value) for value in held])
            _keep(held, kept[-1])
        return kept

    def fetch_next(self, step: Expr, kept: Kept) -> None:
        """Load the pieces of a step."""
        for (row, piece), registers in zip(self._places(), kept, strict=True):
            _keep(self.fetch(row, step, piece), registers)

    def write(self, step: Expr, kept: Kept) -> None:
        """Write the pieces of a step that were loaded to shared memory."""
        lanes = g.lanes_for(self.width)
        for turn, (row, piece) in enumerate(self._places()):
            with T.If(self._mine(turn)), T.Then():
                held = [T.bind(_whole(registers)) for registers in kept[turn]]
                values = self.decode(held, step, piece)
                for i in range(0, self.width, lanes):
                    vector = g.registers(lanes)
                    for lane, value in enumerate(values[i : i + lanes]):
                        v.put(value, vector, lane)
                    at = row * self.pitch + piece * self.width + i
                    g.store_as(v.load(vector, 0, lanes=lanes), self.buffer, at, lanes=lanes)

    def _places(self) -> list[tuple[Expr, Expr]]:
        """(row, piece) of each of this thread's turns."""
        turns = -(-self.rows * self.pieces // self.threads)
        tasks = [turn * self.threads + self.thread for turn in range(turns)]
        return [(tirx.min(t // self.pieces, self.rows - 1), t % self.pieces) for t in tasks]

    def _mine(self, turn: int) -> Expr:
        """Whether the thread has something to do in its turn: the last may be short."""
        if (turn + 1) * self.threads <= self.rows * self.pieces:
            return tirx.const(True, "bool")
        return turn * self.threads + self.thread < self.rows * self.pieces


def x_panel(x: Buffer, shape: Shape, start: Expr, threads: int, thread: Expr) -> Panel:
    """Rows of x[1, m, k] from `start`. Beyond m it is the last row again, beyond k zero."""
    _, m, k = x.shape
    k = int(k)
    width = g.lanes_for(k)

    def place(step: Expr, piece: Expr) -> Expr:
        return step * shape.step + piece * width

    def fetch(row: Expr, step: Expr, piece: Expr) -> Held:
        at = place(step, piece)
        inside = at if k % shape.step == 0 else tirx.min(at, k - width)
        return [T.bind(v.load(x, 0, tirx.min(start + row, m - 1), inside, lanes=width))]

    def decode(held: Held, step: Expr, piece: Expr) -> list[Expr]:
        values = g.floats(held[0], width)
        if k % shape.step == 0:
            return values
        return [tirx.Select(place(step, piece) < k, e, v.const(0.0)) for e in values]

    buffer = g.shared(shape.m * shape.pitch, dtype=shape.dtype)
    pieces = shape.step // width
    return Panel(buffer, shape.pitch, shape.m, pieces, width, threads, thread, fetch, decode)


def w_panel(
    codec: Codec,
    parts: list[Buffer],
    shape: Shape,
    row_of: Callable[[Expr], Expr],
    threads: int,
    thread: Expr,
) -> Panel:
    """Decoded rows of w; `row_of` names them. Beyond k they repeat: x is zero there."""
    pieces = shape.step // codec.piece
    last = codec.k // codec.piece - 1

    def fetch(row: Expr, step: Expr, piece: Expr) -> Held:
        at = step * pieces + piece
        inside = at if codec.k % shape.step == 0 else tirx.min(at, last)
        return codec.fetch_piece(parts, row_of(row), inside)

    buffer = g.shared(shape.n * shape.pitch, dtype=shape.dtype)
    return Panel(
        buffer,
        shape.pitch,
        shape.n,
        pieces,
        codec.piece,
        threads,
        thread,
        fetch,
        lambda held, _step, _piece: codec.decode(held),
    )


def _registers_for(value: Expr) -> Buffer:
    dtype = value.ty.dtype
    return g.registers(int(dtype.lanes), dtype=str(dtype.with_lanes(1)))


def _keep(held: Held, registers: list[Buffer]) -> None:
    for value, buffer in zip(held, registers, strict=True):
        v.store(value, buffer, 0, lanes=int(buffer.shape[0]))


def _whole(registers: Buffer) -> Expr:
    return v.load(registers, 0, lanes=int(registers.shape[0]))
