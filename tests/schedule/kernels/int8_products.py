"""Exact products of INT4 weights and int8 activations, and how far float32 may be from them.

`Gemm` compiles a kernel for many rows and checks what it gives.

A group's sum is an integer below 2**24, exact in float32, so only the multiplications by the
scales and the additions of g groups round: at most g + 3 roundings of what is summed, one
more with a residual. The bound takes eps, twice the unit roundoff, for each.

SwiGLU's u silu(g) moves by what u and g may be wrong by (silu rises by less than 1.1 a unit),
and rounds itself: exp within 2 ulp where not clamped, then a sum, a quotient and a product, so
8 eps of the result. Where exp is clamped (g < -87) there is |g u| e**-87 left, or, being
subnormal, nothing.
"""

from dataclasses import dataclass, replace

import numpy as np

from mlc_compile.layout import GROUP
from mlc_compile.ops import NARROW, Grouping
from mlc_compile.schedule.kernels import int8_gemm
from mlc_compile.schedule.kernels.dot import dot_for

EPS = np.finfo(np.float32).eps


@dataclass(frozen=True)
class Acts:
    """Quantized rows as `gemm` takes them; codes are int8 [m, k], scales f32 [m, k / group]."""

    codes: np.ndarray
    scales: np.ndarray
    grouping: Grouping = NARROW

    @property
    def arrays(self):
        words = np.ascontiguousarray(self.codes.astype(np.int8)).view("<i4")
        sums = self.codes.reshape(len(self.codes), -1, self.grouping.group).sum(axis=-1)
        offsets = (-self.grouping.zero * sums).astype(np.int32)
        return words[None], self.scales[None], offsets[None]


def acts_of(m, k, random, low=-127, high=127, grouping=NARROW):
    codes = random.integers(low, high + 1, (m, k))
    scales = random.uniform(0.001, 2, (m, k // grouping.group)).astype(np.float32)
    return Acts(codes, scales, grouping)


def requantized(matrix, group):
    """The same weights as integers -127..127 of int [n, k] and scales f32[n, k / group].

    As the kernel does: a group's scale in units of 2**-8 of the shared one, its product with a
    code rounded half up. The sums that follow are below 2**24 too.
    """
    n, k = matrix.codes.shape
    scales = matrix.scales.astype(np.float32).reshape(n, k // group, group // GROUP)
    top = np.abs(scales).max(axis=-1, keepdims=True)
    units = scales * (np.float32(127 / 8 * 256) / np.maximum(top, np.float32(2e-35)))
    ratios = np.rint(units).astype(int).repeat(GROUP, axis=-1).reshape(n, k)
    return ((matrix.codes - 7) * ratios + 128) // 256, top[..., 0] * np.float32(8 / 127)


def products(acts, matrix):
    """x w^T exactly [m, n], and the bound of each number's error."""
    weights, scales = matrix.codes - 7, matrix.scales
    if acts.grouping.group != GROUP:
        weights, scales = requantized(matrix, acts.grouping.group)
    (m, n), g = (len(acts.codes), len(weights)), scales.shape[1]
    grouped = acts.codes.reshape(m, g, -1), weights.reshape(n, g, -1)
    terms = np.einsum("mgk,ngk->mng", *grouped) * (
        acts.scales.astype(float)[:, None] * scales[None]
    )
    return terms.sum(axis=-1), (g + 3) * EPS * np.abs(terms).sum(axis=-1)


def swiglu(exact, bound):
    """The same of silu(gate) * up, the halves of `exact`."""
    (gate, up), (off_gate, off_up) = (np.split(a, 2, axis=-1) for a in (exact, bound))
    silu = gate * np.exp(-np.logaddexp(0, -gate))  # for any size of gate
    off_silu = 1.1 * off_gate
    off = np.abs(silu) * off_up + off_silu * (np.abs(up) + off_up)
    clamped = 2e-38 * (np.abs(gate) + 1) * np.abs(up)
    return silu * up, off + 8 * EPS * np.abs(silu * up) + clamped


def check(y, acts, matrix, base=None, *, gated=False):
    exact, bound = products(acts, matrix)
    if gated:
        exact, bound = swiglu(exact, bound)
    if base is not None:
        exact = exact + base
        bound = bound + EPS * (np.abs(exact) + np.abs(base))
    assert y.shape == (1, *exact.shape)
    assert (np.abs(y[0] - exact) <= bound).all()  # also false for NaN: what was left unwritten


class Gemm:
    """`int8_gemm.gemm` of one matrix for one target."""

    def __init__(self, compile_kernel, matrix, row, grouping=NARROW, *, residual=False, **tile):
        self.matrix, self.n, self.residual = matrix, len(matrix.codes), residual
        cut = replace(int8_gemm.Tile.of(row, matrix.codec), **tile)
        func = int8_gemm.gemm(
            matrix.codec, self.n, dot_for(row), cut, residual=residual, grouping=grouping
        )
        self.kernel = compile_kernel(func, row.name)

    def run(self, acts, *base):
        y = np.full((1, len(acts.codes), self.n), np.nan, np.float32)
        *_, y = self.kernel(*acts.arrays, *self.matrix.packed, *base, y)
        return y

    def check(self, acts, random):
        shape = 1, len(acts.codes), self.n
        base = [random.standard_normal(shape).astype(np.float32)] * self.residual
        check(self.run(acts, *base), acts, self.matrix, *(b[0] for b in base))
