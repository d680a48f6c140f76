"""What attention reads of this call."""

from dataclasses import dataclass

from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.norm import normalize
from mlc_compile.schedule.kernels.rope import rotate
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index

Head = tuple[Buffer, tuple[Index, ...], Index]  # a buffer, a row of it, and where the head begins


@dataclass(frozen=True, slots=True)
class Inputs:
    """qkv[1, m, ..], the norms' gammas[d], angles[m, d]."""

    a: Attention
    qkv: Buffer
    gamma_q: Buffer
    gamma_k: Buffer
    angles: Buffer

    @classmethod
    def declare(cls, a: Attention, m: Index) -> "Inputs":
        """The next parameters of the kernel."""
        return cls(
            a=a,
            qkv=v.argument("qkv", (1, m, (a.h_q + 2 * a.h_kv) * a.d)),
            gamma_q=v.argument("gamma_q", (a.d,)),
            gamma_k=v.argument("gamma_k", (a.d,)),
            angles=v.argument("angles", (m, a.d)),
        )

    def query(self, i: Index, h: Index, q: Buffer, to: tuple[Index, ...]) -> None:
        """Normalize and rotate query head `h` of token `i` into `q[to]`."""
        turn(self.a, self._head(i, h), self.gamma_q, (self.angles, i), (q, to))

    def key(self, i: Index, h: Index) -> Buffer:
        """Key head `h` of token `i`, normalized and rotated: float32[1, d]."""
        key = v.workspace((1, self.a.d))
        head = self._head(i, self.a.h_q + h)
        turn(self.a, head, self.gamma_k, (self.angles, i), (key, (0,)))
        return key

    def value(self, i: Index, h: Index, start: Index, lanes: int) -> Expr:
        """`lanes` components, from `start`, of value head `h` of token `i`."""
        qkv, at, column = self._head(i, self.a.h_q + self.a.h_kv + h)
        return v.load(qkv, *at, column + start, lanes=lanes)

    def _head(self, i: Index, h: Index) -> Head:
        """Number `h` of queries, keys and values together."""
        return self.qkv, (0, i), h * self.a.d


def turn(
    a: Attention,
    head: Head,
    gamma: Buffer,
    angles: tuple[Buffer, Index],
    to: tuple[Buffer, tuple[Index, ...]],
) -> None:
    """Normalize a head, and rotate it by a row of `angles`."""
    source, at, start = head
    normalize((source, at), gamma, to, a.d, a.eps, start=start)
    rotate(*to, *angles, a.d)
