"""What a quantization scheme is: how a matrix is stored, and back.

A scheme fixes the stored values and nothing else; the arithmetic's dtype belongs to the
target. Rows are independent, so a matrix may be encoded and decoded in blocks of rows.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Stored = NDArray[Any]  # a stored part: uint32 words, or float16 or float32 values
NormDtype = Literal["float16", "float32"]
Shape = tuple[int, ...]


class Scheme(Protocol):
    """How w f32[n, k] becomes named parts. `about` is one line for people."""

    @property
    def name(self) -> str:
        """The key in `SCHEMES`, in the manifest and on the command line."""

    @property
    def about(self) -> str:
        """One line for people."""

    @property
    def norm_dtype(self) -> NormDtype:
        """How norms, and matrices that the scheme cannot hold, are stored."""

    @property
    def largest(self) -> float:
        """The largest magnitude of a weight that the scheme can hold."""

    def applies(self, n: int, k: int) -> str | None:
        """Why an [n, k] matrix cannot be held, or None where it can."""

    def parts(self, n: int, k: int) -> dict[str, tuple[Shape, str]]:
        """Suffix -> (shape, dtype) of each stored part, in parameter order."""

    def encode(self, w: Floats) -> dict[str, Stored]:
        """The parts of w f32[n, k], whose values must be finite and at most `largest`."""

    def decode(self, parts: Mapping[str, Stored]) -> Floats:
        """The values f32[n, k] that the parts stand for: what every kernel must multiply by."""
