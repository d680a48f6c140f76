"""What tests of GPU matmuls share: a matrix under a scheme, and how far sums may be off.

float32 sums of k products, in any order, are within (k + 2) eps sum |x| |w| of the exact ones
(Higham, 2002, section 3.1; 2 more for the scale and the last rounding). With float16 panels
each factor is rounded to 11 bits before, by 2**-11 of itself, or below 2**-14 by 2**-25.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mlc_compile.quant import SCHEMES
from mlc_compile.schedule.kernels.gpu.weights import Codec, codec_of
from tests.schedule.kernels.gpu.emission import simulate
from tests.schedule.kernels.gpu.place import ulps_of_exp

EPS = float(np.finfo(np.float32).eps)
ROUNDED = 2.0**-10 + 2.0**-22  # of a product of two factors in float16
SUBNORMAL = 2.0**-25
SILU_SLOPE = 1.1  # the most that silu rises
JOINS = ("metal", "webgpu")  # sums by shuffles, and by shared memory
LARGE = "cuda-sm80"  # interprets what is made for any row: it has tensor cores and shuffles

# Where `gemm` differs: tensor cores, simdgroup matrices, plain arithmetic; panels of either type.
GEMMS = (
    ("cuda-sm80", "float16"),
    ("metal", "float16"),
    ("metal", "float32"),
    ("vulkan", "float16"),
    ("webgpu", "float32"),
)


@dataclass(frozen=True)
class Near:
    """float64 values and how far float32 may be from them."""

    exact: np.ndarray
    error: np.ndarray

    def scaled(self, factor: np.ndarray, share: float) -> "Near":
        """Times a factor that is off by `share` of itself."""
        error = (self.error + share * np.abs(self.exact)) * np.abs(factor)
        return Near(self.exact * factor, error + EPS * np.abs(self.exact * factor))

    def plus(self, other: np.ndarray) -> "Near":
        """Plus an exact tensor."""
        total = self.exact + other
        return Near(total, self.error + EPS * np.abs(total))

    def swiglu(self) -> "Near":
        """silu of the first half times the second; sum, quotient and product beside exp: 6 eps."""
        (gate, up), (d_gate, d_up) = (np.split(a, 2, axis=-1) for a in (self.exact, self.error))
        silu = gate / (1 + np.exp(-gate))
        d_silu = SILU_SLOPE * d_gate + (6 + ulps_of_exp(gate)) * EPS * np.abs(silu)
        error = d_silu * (np.abs(up) + d_up) + np.abs(silu) * d_up
        return Near(silu * up, error + EPS * np.abs(silu * up))

    def check(self, y: np.ndarray) -> None:
        """Also false for NaN: an element left unwritten."""
        assert y.shape == self.exact.shape
        assert (np.abs(y - self.exact) <= self.error).all()


@dataclass(frozen=True)
class Case:
    """Random w[n, k] under a scheme, and x."""

    scheme: str
    n: int
    k: int

    @cached_property
    def random(self) -> np.random.Generator:
        return np.random.default_rng([self.n, self.k])

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        """As the library gets it; one row is zero, so are its scales."""
        w = self.random.standard_normal((self.n, self.k)).astype(np.float32)
        w[self.n // 2] = 0
        return {s: np.ascontiguousarray(p) for s, p in SCHEMES[self.scheme].encode(w).items()}

    @cached_property
    def w(self) -> np.ndarray:
        """The exact values, float64 [n, k]."""
        return SCHEMES[self.scheme].decode(self.parts).astype(np.float64)

    @property
    def codec(self) -> Codec:
        return codec_of(self.scheme, self.n, self.k)

    def normal(self, *shape: int, dtype: str = "float32") -> np.ndarray:
        return self.random.standard_normal(shape).astype(dtype)

    def product(self, x: np.ndarray, *, half: bool = False) -> Near:
        """x wᵀ, by float32 sums of factors in float32, or in float16 if `half`."""
        x = x.astype(np.float64)
        size = np.abs(x) @ np.abs(self.w).T
        error = (self.k + 2) * EPS * size
        if half:
            tiny = np.abs(x).sum(-1, keepdims=True) + np.abs(self.w).sum(-1)
            error = error + ROUNDED * size + SUBNORMAL * tiny
        return Near(x @ self.w.T, error)

    def run(
        self, func: object, x: np.ndarray, *inputs: np.ndarray, after: tuple = ()
    ) -> np.ndarray:
        """y of a kernel: `inputs` come before the weights, `after` behind; y is NaN before."""
        rows = after[0].shape[-1] if after else None
        outputs = rows or int(func.params[-1].ty.shape[-1])
        y = np.full((1, x.shape[1], outputs), np.nan, np.float32)
        simulate(func, LARGE, x, *inputs, *self.parts.values(), *after, y)
        return y
