"""y = x wᵀ for any number of rows of x: prefill's matmul, and verification of a few tokens.

Up to BATCH rows the time goes into reading w, and the kernel is `gemv`'s, with every weight
decoded once for all rows. Beyond, a block computes a tile of y from panels of x and w in
shared memory; what multiplies them is `Fma` or, where the device multiplies matrices of their
type, `Matrices`. The host chooses by m.
"""

from collections.abc import Sequence
from typing import Final, Literal, Protocol

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import gemv, simdgroup, wmma
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.fma import Fma
from mlc_compile.schedule.kernels.gpu.gemv_tile import Tile
from mlc_compile.schedule.kernels.gpu.panels import Shape, Write, w_panel, x_panel
from mlc_compile.schedule.kernels.gpu.slots import PLAIN, Epilogue
from mlc_compile.schedule.kernels.gpu.weights import Codec
from mlc_compile.schedule.kernels.vector import Buffer, Expr
from mlc_compile.target import Device

BATCH: Final = 8  # rows of x up to which reading w costs more than arithmetic
WIDE: Final = 4096  # rows of w from which a tile twice as wide still gives every SM a block

Compute = Literal["float16", "float32"]


class Inner(Protocol):
    """What multiplies panels and holds the sums of a block's tile."""

    @property
    def shape(self) -> Shape: ...
    @property
    def threads(self) -> int: ...
    def start(self) -> Buffer:
        """A thread's sums, zero."""

    def multiply(self, sums: Buffer, thread: Expr, x: Buffer, w: Buffer) -> None:
        """Add the product of two panels."""

    def finish(self, sums: Buffer, thread: Expr, per_output: int, write: Write) -> None:
        """Hand all sums to `write`; those of an output are shape.n / per_output columns apart."""


def gemm(
    codec: Codec,
    n: int,
    device: Device,
    *,
    x_dtype: str = v.F32,
    compute: Compute = "float32",
    residual: bool = False,
    swiglu: bool = False,
) -> tirx.PrimFunc:
    """x[1, m, k], parts of w[n, k], residual if any -> y[1, m, outputs], m symbolic.

    The outputs are as in `gemv`. With `compute` float16, on a device that has it, more than
    BATCH rows of x and the weights are rounded to float16 (x beyond 65504 to infinity); sums
    are float32 always.
    """
    m = v.size("m")
    with v.kernel() as builder:
        x = v.argument("x", (1, m, codec.k), x_dtype)
        parts = codec.arguments()
        epilogue = Epilogue.declare(n, m, residual=residual, swiglu=swiglu)
        product = gemv.Product(codec, PLAIN, x, [], parts, epilogue)
        with T.If(m <= BATCH):
            with T.Then():
                tile = Tile.of(
                    device,
                    codec,
                    epilogue.outputs,
                    batch=BATCH,
                    per_output=epilogue.per_output,
                )
                gemv.multiply(product, device, tile, BATCH)
            with T.Else():
                _multiply(product, _inner(device, n, compute))
    return builder.get()


def _inner(device: Device, n: int, compute: Compute) -> Inner:
    chosen: Compute = compute if device.f16 else "float32"
    if device.tensor_cores and chosen == "float16":
        return wmma.matrices(wide=n >= WIDE)
    if device.simdgroup_matrices:
        return simdgroup.matrices(chosen)
    return Fma.of(chosen)


def _multiply(p: gemv.Product, inner: Inner) -> None:
    """Launch a block for each tile of y, tiles that share rows of w side by side."""
    shape, m, outputs = inner.shape, p.x.shape[1], p.epilogue.outputs
    per_block = shape.n // p.epilogue.per_output
    blocks = g.blocks_of(m, shape.m), g.blocks_of(outputs, per_block)
    with g.launch(*blocks, threads=inner.threads) as (down, across, thread):
        top, left = down * shape.m, across * per_block

        def row_of(column: Expr) -> Expr:
            output = tirx.min(left + column % per_block, outputs - 1)
            return p.epilogue.row(output, column // per_block)

        def write(row: Expr, output: Expr, sums: Sequence[Expr]) -> None:
            with T.If(p.epilogue.inside(top + row, left + output)), T.Then():
                p.epilogue.write(sums, top + row, left + output)

        x = x_panel(p.x, shape, top, inner.threads, thread)
        w = w_panel(p.codec, p.parts, shape, row_of, inner.threads, thread)
        sums = inner.start()
        steps, panels = -(-p.codec.k // shape.step), (x, w)
        kept = [panel.fetch_first() for panel in panels]
        with T.serial(0, steps) as step:
            for panel, registers in zip(panels, kept, strict=True):
                panel.write(step, registers)
            for panel, registers in zip(panels, kept, strict=True):
                panel.fetch_next(tirx.min(step + 1, steps - 1), registers)
            g.barrier()
            inner.multiply(sums, thread, x.buffer, w.buffer)
            g.barrier()
        inner.finish(sums, thread, p.epilogue.per_output, write)
