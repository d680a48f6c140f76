"""Exact products of INT4 weights and int8 activations, and how far float32 may be from them.

A group's sum is an integer below 2**24, exact in float32, so only the multiplications by the
scales and the additions of g groups round: at most g + 3 roundings of what is summed, one
more with a residual. The bound takes eps, twice the unit roundoff, for each.

SwiGLU's u silu(g) moves by what u and g may be wrong by (silu rises by less than 1.1 a unit),
and rounds itself: exp within 2 ulp where not clamped, then a sum, a quotient and a product, so
8 eps of the result. Where exp is clamped (g < -87) there is |g u| e**-87 left, or, being
subnormal, nothing.
"""

from dataclasses import dataclass

import numpy as np

from mlc_compile.layout import GROUP

EPS = np.finfo(np.float32).eps


@dataclass(frozen=True)
class Acts:
    """Quantized rows as `gemm` takes them; codes are int8 [m, k], scales f32 [m, k / 32]."""

    codes: np.ndarray
    scales: np.ndarray

    @property
    def arrays(self):
        words = np.ascontiguousarray(self.codes.astype(np.int8)).view("<i4")
        sums = self.codes.reshape(len(self.codes), -1, GROUP).sum(axis=-1)
        return words[None], self.scales[None], (-7 * sums).astype(np.int32)[None]


def acts_of(m, k, random, low=-127, high=127):
    codes = random.integers(low, high + 1, (m, k))
    return Acts(codes, random.uniform(0.001, 2, (m, k // GROUP)).astype(np.float32))


def products(acts, matrix):
    """x w^T exactly [m, n], and the bound of each number's error."""
    m = len(acts.codes)
    n, g = matrix.scales.shape
    grouped = acts.codes.reshape(m, g, GROUP), (matrix.codes - 7).reshape(n, g, GROUP)
    terms = np.einsum("mgk,ngk->mng", *grouped) * (
        acts.scales.astype(float)[:, None] * matrix.scales[None]
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
