"""What a fusion costs and what it saves, by the target's numbers and the operator's shape.

A fusion is not made if it would take longer than it saves, on the core that takes longest; if
the sums it holds at once would spill; or if what each core keeps for itself would not stay in
its cache. `Cost` holds the numbers of one decision, and `Cost.refusal` says in a sentence why
not. Times are estimates, good for comparing two ways of doing one thing: `Rates` are of a core
with vectors of 512 bits (AMD Zen 5, 2026-11, one thread; launches with two), and a target
with narrower ones takes that many times longer.

Two fusions are done once whatever the shape, write less and hold no more, so there is nothing
to weigh: a residual that is added to finished sums (FuseResidual), and a norm or SwiGLU that is
computed where the one reader quantizes it (FuseQuantizeSource). On a GPU nothing is weighed: a
norm or SwiGLU of one row saves a launch there, and costs a thread few operations.
"""

from dataclasses import dataclass
from typing import Final

from tvm import relax
from tvm.tirx import IntImm

from mlc_compile import ops
from mlc_compile.layout import GROUP, ROWS
from mlc_compile.target import Target

FEW: Final = 2  # rows, of several: what is decided must not be worse for any number
LANES: Final = 16  # float32 of the vectors that `Rates` are for


@dataclass(frozen=True, slots=True)
class Rates:
    """Nanoseconds a core takes for a vector of 16 values, or for what the name says."""

    launch: float = 2500  # of a loop over all cores
    call: float = 80  # of a kernel, without such a loop
    weigh: float = 0.13  # one more multiplication; 0.25 where weights come from memory
    norm: float = 1.5  # sum of squares, then factor and gamma
    scale: float = 0.6  # of these the second: factor and gamma, and writing the result
    swiglu: float = 4.5
    quantize: float = 2.7
    dot: float = 1.8  # 16 rows by 32 columns of INT4 by one row of int8
    tile: float = 12  # the same in the kernel for several rows, which computes a tile of them


CPU: Final = Rates()
SOURCES: Final = {"plain": 0, "rms_norm": CPU.norm, "swiglu": CPU.swiglu}  # by ops.Source.kind


@dataclass(frozen=True, slots=True)
class Cost:
    """One fusion where it is dearest: times in nanoseconds, on the core that takes longest.

    The `work` that is done again, the time that cores without a task wait, and what need not
    be done; vector registers that must be held, of those there are; bytes that each core keeps
    for itself, of its cache.
    """

    work: str
    repeated_ns: float = 0
    idle_ns: float = 0
    saved_ns: float = 0
    registers: int = 0
    register_limit: int = 0
    private_bytes: int = 0
    cache_bytes: int = 0

    @property
    def refusal(self) -> str | None:
        """Why the fusion is not made; None if it is."""
        if self.registers > self.register_limit:
            return (
                f"its sums would spill: they fill {self.registers} vector registers "
                f"of {self.register_limit}"
            )
        if self.repeated_ns + self.idle_ns > self.saved_ns:
            spent = _us(self.repeated_ns + self.idle_ns)
            return f"{self.work} would take {spent} to save {_us(self.saved_ns)}"
        if self.private_bytes > self.cache_bytes:
            return (
                f"each core would keep {self.private_bytes} bytes for itself, "
                f"more than its cache of {self.cache_bytes}"
            )
        return None


@dataclass(frozen=True, slots=True)
class Matmul:
    """x[rows, k] times w[n, k]; of a number of rows that is not known, FEW."""

    rows: int
    n: int
    k: int

    @classmethod
    def of(cls, call: relax.Call, k: int) -> "Matmul":
        """Of a matmul's call with x[1, m, k]."""
        m, w = ops.shape_of(call)[1], ops.Matrix.of(call)
        return cls(rows=int(m) if isinstance(m, IntImm) else FEW, n=w.n, k=k)

    @property
    def blocks(self) -> int:
        """Row blocks of w: the tasks of a CPU."""
        return -(-self.n // ROWS)


def norm_in_matmul(target: Target, matmul: Matmul) -> Cost:
    """RMSNorm inside the product that reads it, on a CPU.

    Each core prepares the one row, which they would wait for anyway. Of several rows
    gamma multiplies the weights, decoded or only read: a multiplication for each of them, to
    save writing x again, which for `FEW` rows is little. (Qwen3-0.6B in float32 with all norms
    fused: prefill of 16 tokens at 0.975 of the speed, of 128 at 0.99.)
    """
    if matmul.rows == 1:
        row = _vectors(target, matmul.k) * CPU.norm
        return Cost(
            f"a norm of {matmul.k} columns in each core",
            repeated_ns=row,
            saved_ns=row + CPU.call,
            private_bytes=4 * matmul.k,
            cache_bytes=target.l2_bytes,
        )
    weights = _vectors(target, matmul.n * matmul.k) / target.cores
    x = _vectors(target, matmul.rows * matmul.k) / max(1, min(matmul.rows, target.cores))
    return Cost(
        f"gamma times each of {matmul.n} x {matmul.k} weights",
        repeated_ns=weights * CPU.weigh,
        saved_ns=x * CPU.scale + CPU.call,
    )


def swiglu_in_gemv(target: Target, matmul: Matmul) -> Cost:
    """SwiGLU where the sums of gate and up are in a CPU's registers, of one row.

    A task takes two blocks of rows instead of one, so there are half as many. It saves each
    core the SwiGLU of all values on the way into its own quantization.
    """
    narrow = _narrow(target)
    block = matmul.k / GROUP * CPU.dot * narrow
    values = _vectors(target, matmul.n // 2) * CPU.swiglu
    pairs = matmul.blocks // 2
    return Cost(
        f"gate and up in one of {pairs} tasks for {target.cores} cores",
        idle_ns=_more_turns(pairs, target.cores) * block,
        saved_ns=values * (1 - 1 / target.cores) + CPU.call,
        # Both sums, a block's two chains of dot products, codes and activations.
        registers=(2 + 2 + 2) * narrow,
        register_limit=target.vector_registers,
    )


def quantize_in_gemv(target: Target, matmul: Matmul, source: ops.Source) -> Cost:
    """Quantization of the one row, from its source on, in each core before its first row block.

    Shared out, it would take a core its part of that and one more launch; and the product
    would go through the kernel for several rows, which computes a whole tile of them.
    """
    prepared = CPU.quantize + SOURCES[source.kind]
    row = _vectors(target, matmul.k) * prepared
    groups = -(-matmul.k // GROUP)
    tiles = matmul.blocks * groups * (CPU.tile - CPU.dot) * _narrow(target) / target.cores
    return Cost(
        f"quantizing {matmul.k} values in each of {target.cores} cores",
        repeated_ns=row * (1 - 1 / target.cores),
        saved_ns=CPU.launch + tiles,
        private_bytes=matmul.k + 8 * groups,
        cache_bytes=target.l2_bytes,
    )


def _vectors(target: Target, values: int) -> float:
    """Vectors of 16 values, each as often as it takes the target's registers to hold it."""
    return values / LANES * _narrow(target)


def _narrow(target: Target) -> int:
    """Registers of the target that hold what one of `Rates` does."""
    return max(1, LANES // target.f32_lanes)


def _more_turns(tasks: int, workers: int) -> int:
    """By how many tasks of half the size the longest worker has more, once they are paired."""
    return 2 * -(-tasks // workers) - -(-2 * tasks // workers)


def _us(ns: float) -> str:
    return f"{ns / 1000:.3g} us" if ns < 1e6 else f"{ns / 1000:.0f} us"
