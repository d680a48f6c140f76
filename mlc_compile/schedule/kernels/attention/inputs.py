"""What attention reads of this call."""

from dataclasses import dataclass

from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.norm import normalize
from mlc_compile.schedule.kernels.rope import rotate
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index


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
        a = self.a
        normalize((self.qkv, (0, i)), self.gamma_q, (q, to), a.d, a.eps, start=h * a.d)
        rotate(q, to, self.angles, i, a.d)

    def key(self, i: Index, h: Index) -> Buffer:
        """Key head `h` of token `i`, normalized and rotated: float32[1, d]."""
        a = self.a
        key = v.workspace((1, a.d))
        start = (a.h_q + h) * a.d
        normalize((self.qkv, (0, i)), self.gamma_k, (key, (0,)), a.d, a.eps, start=start)
        rotate(key, (0,), self.angles, i, a.d)
        return key

    def value(self, i: Index, h: Index, start: Index, lanes: int) -> Expr:
        """`lanes` components, from `start`, of value head `h` of token `i`."""
        a = self.a
        column = (a.h_q + a.h_kv + h) * a.d
        return v.load(self.qkv, 0, i, column + start, lanes=lanes)
