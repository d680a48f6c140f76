"""How far stored weights are from the checkpoint's, measured while blocks are encoded.

rms      sqrt(mean((w' - w)^2))
relative rms / sqrt(mean(w^2)), which does not depend on a tensor's scale
largest  max |w' - w|
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from mlc_compile.artifact import Struct
from mlc_compile.quant.scheme import Floats, Scheme, Stored

QUANTIZATION: Final = "quantization.json"  # in a weights directory


class TensorError(Struct, frozen=True):
    """Of one tensor of the checkpoint; numbers to six digits."""

    name: str
    scheme: str
    rms: float
    relative: float
    largest: float


class Errors(Struct, frozen=True):
    """`quantization.json` of a weights directory: every tensor, in the model's order."""

    tensors: tuple[TensorError, ...]


@dataclass(frozen=True, slots=True)
class BlockError:
    """Sums over the weights of one block, for `combine`."""

    name: str
    scheme: str
    weights: int
    squares: float  # of the weights
    squared_errors: float
    largest: float


def measure(name: str, scheme: Scheme, w: Floats, parts: Mapping[str, Stored]) -> BlockError:
    """Of `parts`, which `scheme` made of w[n, k]."""
    error = scheme.decode(parts)
    error -= w
    return BlockError(
        name=name,
        scheme=scheme.name,
        weights=w.size,
        squares=_squares(w),
        squared_errors=_squares(error),
        largest=float(max(error.max(), -error.min())),
    )


def combine(blocks: Iterable[BlockError]) -> Errors:
    """One entry per tensor; its blocks in a fixed order give the same digits on every run."""
    by_tensor: dict[str, list[BlockError]] = {}
    for block in blocks:
        by_tensor.setdefault(block.name, []).append(block)
    return Errors(tensors=tuple(_tensor(same) for same in by_tensor.values()))


def _tensor(blocks: list[BlockError]) -> TensorError:
    weights = sum(block.weights for block in blocks)
    squares = math.fsum(block.squares for block in blocks)
    errors = math.fsum(block.squared_errors for block in blocks)
    return TensorError(
        name=blocks[0].name,
        scheme=blocks[0].scheme,
        rms=_six_digits(math.sqrt(errors / weights)),
        relative=_six_digits(math.sqrt(errors / squares) if squares else 0.0),
        largest=_six_digits(max(block.largest for block in blocks)),
    )


def _squares(w: Floats) -> float:
    """In float64: the square of a float32 may be larger than any float32."""
    return float(np.einsum("ij,ij->", w, w, dtype=np.float64))


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")
