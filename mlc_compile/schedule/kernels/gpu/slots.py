"""What GPU matmuls may do on the way in and out: a source before x is used, an epilogue after.

RMSNorm's row factor commutes with the product, so the norm needs no pass of its own: x is
multiplied by gamma where it is loaded, its squares are summed there, and the factor
multiplies what comes out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index


@dataclass(frozen=True, slots=True)
class Source:
    """What is multiplied: x itself, or with `eps` its RMSNorm by an argument gamma f32[k]."""

    eps: float | None = None

    @property
    def normalized(self) -> bool:
        """Whether `factor` must be applied to the sums."""
        return self.eps is not None

    def arguments(self, k: int) -> list[Buffer]:
        """Declare the parameters that follow x."""
        return [v.argument("gamma", (k,))] if self.normalized else []

    def weigh(self, x: Buffer, extra: list[Buffer], k: Index, width: int) -> list[Expr]:
        """The `width` values of x, in registers, from k on as the product takes them."""
        if not self.normalized:
            return [x[i] for i in range(width)]
        gamma = g.floats(T.bind(v.load(extra[0], k, lanes=width)), width)
        return [x[i] * weight for i, weight in enumerate(gamma)]

    def factor(self, squares: Expr, k: int) -> Expr:
        """1 / sqrt(mean of squares + eps), from the sum of squares of a row."""
        assert self.eps is not None
        return v.const(1.0) / tirx.sqrt(squares * v.const(1.0 / k) + v.const(self.eps))


PLAIN: Final = Source()


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Where sums go: y[1, m, outputs], with silu(gate) * up or a residual added on the way."""

    outputs: int
    swiglu: bool
    residual: Buffer | None
    y: Buffer

    @classmethod
    def declare(cls, n: int, m: Expr | int, *, residual: bool, swiglu: bool) -> "Epilogue":
        """Declare the parameters that follow the weights: residual if any, and y."""
        assert not (swiglu and n % 2), "swiglu takes two halves"
        outputs = n // 2 if swiglu else n
        base = v.argument("residual", (1, m, outputs)) if residual else None
        return cls(outputs, swiglu, base, v.argument("y", (1, m, outputs)))

    @property
    def per_output(self) -> int:
        """Rows of w whose sums make an output."""
        return 2 if self.swiglu else 1

    def row(self, output: Expr, part: Index) -> Expr:
        """Row number `part` of those."""
        return output + part * self.outputs

    def inside(self, row: Index, output: Expr) -> Expr:
        """Whether y has such an element; row 0 always is."""
        fits = output < self.outputs
        return fits if isinstance(row, int) and row == 0 else tirx.And(fits, row < self.y.shape[1])

    def write(self, sums: Sequence[Expr], row: Index, output: Expr) -> None:
        """Make y[0, row, output] of its sums."""
        value = g.silu(sums[0]) * sums[1] if self.swiglu else sums[0]
        if self.residual is not None:
            value = value + self.residual[0, row, output]
        v.put(value, self.y, 0, row, output)
