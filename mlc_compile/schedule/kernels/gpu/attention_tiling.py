"""How prefill attention is cut into tiles, sized by what a device lets a block have.

Beside it what all kernels with a running softmax say alike.
"""

from dataclasses import dataclass
from math import e, log2
from typing import Final

import numpy as np

from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.target import Device

LOG2_E: Final = log2(e)  # softmax goes in powers of two: what devices compute
MASKED: Final = -1e30  # the score of a key that is not there or must not be seen

# (rows, keys, threads) of a block, largest first.
SHAPES: Final = (
    (64, 32, 256),
    (32, 32, 256),
    (32, 16, 128),
    (16, 16, 128),
    (16, 8, 128),
    (8, 8, 64),
    (4, 8, 32),
)
COLUMNS: Final = 16  # threads side by side along keys, and along an output's row


@dataclass(frozen=True, slots=True)
class Tiling:
    """A block's `rows` queries meet `keys` at a time, by `threads` threads; sizes from SHAPES."""

    d: int
    dtype: str
    rows: int
    keys: int
    threads: int

    @property
    def lanes(self) -> int:
        return g.lanes_for(self.d)

    @property
    def stride(self) -> int:
        """Elements of a key in shared memory: padded, so that banks differ."""
        return self.d + self.lanes

    @property
    def shares(self) -> int:
        """Threads that soften a row together."""
        return min(self.threads // self.rows, self.keys)

    @property
    def score_columns(self) -> int:
        return min(COLUMNS, self.keys)

    @property
    def score_rows(self) -> int:
        """Threads along rows while scores are computed."""
        return self.threads // self.score_columns

    @property
    def out_columns(self) -> int:
        """Threads along an output's row: each has an equal number of its vectors."""
        vectors = self.d // self.lanes
        return next(n for n in (COLUMNS, 8, 4, 2, 1) if vectors % n == 0)

    @property
    def out_rows(self) -> int:
        """Threads along rows while values are added up."""
        return self.threads // self.out_columns

    @property
    def shared_bytes(self) -> int:
        """What a block needs."""
        elements = self.rows * self.d + self.keys * self.stride
        floats = self.rows * (self.keys + 1) + self.rows * (1 + self.shares)
        return elements * np.dtype(self.dtype).itemsize + 4 * floats

    @classmethod
    def of(cls, a: Attention, dtype: str, device: Device) -> "Tiling":
        """The largest that the device takes; one takes the smallest for any head up to 256."""
        tilings = (cls(a.d, dtype, *shape) for shape in SHAPES)
        return next(
            t
            for t in tilings
            if t.threads <= device.threads and t.shared_bytes <= device.shared_bytes
        )
