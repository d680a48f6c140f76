"""MLC's INT4: w[n, k] = (q[n, k] - 7) * scale[n, k // 32],  0 <= q <= 14.

q[n, k] is nibble k % 8, lowest first, of q_weight[n, k // 8] (little-endian uint32), and
scale = max|w| / 7 over the group, rounded to its stored type before q is computed. A group
of zeros, or one so small that its scale rounds to zero, has scale 0 and q = 7 throughout.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlc_compile.layout import GROUP, NIBBLES, ZERO_POINT
from mlc_compile.quant.scheme import Floats, NormDtype, Shape, Stored


@dataclass(frozen=True, slots=True)
class Int4Group:
    """Two parts: `q_weight` uint32[n, k / 8] and `q_scale` [n, k / 32] in the norms' dtype."""

    name: str
    norm_dtype: NormDtype

    @property
    def about(self) -> str:
        """One line for people."""
        return f"INT4 weights in groups of {GROUP}, {self.norm_dtype} scales"

    @property
    def largest(self) -> float:
        """The largest magnitude of a weight that the scheme can hold."""
        limit = float(np.finfo(self.norm_dtype).max)
        # a float32 scale never overflows: it is a seventh of a float32
        return limit * ZERO_POINT if self.norm_dtype == "float16" else limit

    def applies(self, _n: int, k: int) -> str | None:
        """Rows must be whole groups."""
        return f"its {k} columns are not a multiple of {GROUP}" if k % GROUP else None

    def parts(self, n: int, k: int) -> dict[str, tuple[Shape, str]]:
        """`q_weight` and `q_scale`."""
        return {
            "q_weight": ((n, k // NIBBLES), "uint32"),
            "q_scale": ((n, k // GROUP), self.norm_dtype),
        }

    def encode(self, w: Floats) -> dict[str, Stored]:
        """Round to nearest, ties to even, in float32."""
        n, k = w.shape
        groups = w.reshape(n, k // GROUP, GROUP)
        peak = np.maximum(groups.max(axis=-1), -groups.min(axis=-1))
        stored = (peak / np.float32(ZERO_POINT)).astype(self.norm_dtype)
        scale = stored.astype(np.float32)
        scale[scale == 0] = 1  # any divisor does: such a group rounds to the zero point
        code = groups / scale[..., None]
        np.rint(code, out=code)
        code += ZERO_POINT
        np.clip(code, 0, 2 * ZERO_POINT, out=code)  # a scale rounded down may overshoot
        return {"q_weight": pack_nibbles(code.astype(np.uint8).reshape(n, k)), "q_scale": stored}

    def decode(self, parts: Mapping[str, Stored]) -> Floats:
        """(q - 7) * scale in float32."""
        code = unpack_nibbles(parts["q_weight"])
        n, k = code.shape
        w = code.astype(np.float32)
        w -= ZERO_POINT
        groups = w.reshape(n, k // GROUP, GROUP)
        groups *= parts["q_scale"].astype(np.float32)[..., None]
        return w


def pack_nibbles(code: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Codes below 16, [n, k], to words [n, k / 8]."""
    pairs: NDArray[np.uint16] = code.view("<u2")  # low byte: even column
    halves = ((pairs | pairs >> 4) & 0xFF).astype(np.uint8)
    words: NDArray[np.uint32] = halves.view("<u4")
    return words


def unpack_nibbles(words: Stored) -> NDArray[np.uint8]:
    """Words [n, k / 8] to codes [n, k]."""
    halves = np.ascontiguousarray(words).view(np.uint8)
    pairs: NDArray[np.uint16] = halves.astype("<u2")
    codes: NDArray[np.uint8] = ((pairs | pairs << 4) & 0x0F0F).view(np.uint8)
    return codes
