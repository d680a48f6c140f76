"""No quantization: w[n, k] = weight[n, k], rounded to the stored float type."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlc_compile.quant.scheme import Floats, NormDtype, Shape, Stored


@dataclass(frozen=True, slots=True)
class Plain:
    """One part, `weight`, of the dtype that norms have too."""

    name: str
    norm_dtype: NormDtype

    @property
    def about(self) -> str:
        """One line for people."""
        return f"unquantized {self.norm_dtype} weights"

    @property
    def largest(self) -> float:
        """The largest magnitude of a weight that the scheme can hold."""
        return float(np.finfo(self.norm_dtype).max)

    def applies(self, _n: int, _k: int) -> str | None:
        """Any matrix can be held."""
        return None

    def parts(self, n: int, k: int) -> dict[str, tuple[Shape, str]]:
        """`weight`: [n, k]."""
        return {"weight": ((n, k), self.norm_dtype)}

    def encode(self, w: Floats) -> dict[str, Stored]:
        """Round to nearest, ties to even."""
        return {"weight": w.astype(self.norm_dtype)}

    def decode(self, parts: Mapping[str, Stored]) -> Floats:
        """Widening is exact."""
        return parts["weight"].astype(np.float32)
