"""What a kernel call moves and computes, worked out from the tensors that it is given.

A kernel's name and its arguments are all that a library tells. Weights and cache pages are
known by their addresses; every other tensor is an activation, read or written once; the
last tensor is the result, and its rows are the tokens of the call.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import numpy as np

from mlc_compile.artifact import FlatKV, Manifest, Part
from mlc_compile.layout import GROUP, ROWS
from mlc_compile.runtime.load import plan_parts

# Kernels that touch, of all that they are given, only as many rows as their result has.
ROWS_ONLY: Final = frozenset({"take", "flat_append", "tile_append", "last_position"})
# Kernels that touch only so many tokens of the cache, whatever else they read.
NEW_TOKENS: Final = frozenset({"flat_append", "tile_append", "tile_project"})

_LAYER: Final = re.compile(r"^model\.layers\.\d+\.")


@runtime_checkable
class Tensor(Protocol):
    """What is read of a TVM tensor."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> object: ...
    def data_ptr(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one call: bytes read and written, multiply-adds, and whose weights they are."""

    nbytes: int
    multiply_adds: int
    weights: frozenset[str]  # names without the layer's number
    integers: bool  # whether the weights are integer codes


@dataclass(frozen=True, slots=True)
class AddressBook:
    """Which addresses are weights and which are pages of the cache."""

    parts: dict[int, Part]
    pages: frozenset[int]
    kv: FlatKV

    @classmethod
    def of(
        cls, manifest: Manifest, weights: Iterable[Tensor], pages: Iterable[Tensor]
    ) -> "AddressBook":
        """`weights` in the plan's order, as `CompiledModel` has them."""
        parts = zip(weights, plan_parts(manifest.plan), strict=True)
        return cls(
            parts={tensor.data_ptr(): part for tensor, part in parts},
            pages=frozenset(tensor.data_ptr() for tensor in pages),
            kv=manifest.kv,
        )

    def traffic(self, kernel: str, tensors: Sequence[Tensor], before: int) -> Traffic:
        """Of a call of `kernel` with `before` tokens in the cache."""
        rows = _rows(tensors[-1])
        partial = rule_of(kernel) in ROWS_ONLY
        parts = [self.parts[t.data_ptr()] for t in tensors if t.data_ptr() in self.parts]
        pages = sum(t.data_ptr() in self.pages for t in tensors)
        others = [t for t in tensors if not self._knows(t)]
        most = rows if partial else None
        new = rows if rule_of(kernel) in NEW_TOKENS else None
        return Traffic(
            nbytes=sum(_weight_bytes(part, most) for part in parts)
            + pages * self._page_bytes(new, before + rows)
            + sum(_activation_bytes(t, most) for t in others),
            multiply_adds=0 if partial else rows * sum(map(_numbers, parts)),
            weights=frozenset(_family(part) for part in parts),
            integers=any(_is_integers(part) for part in parts),
        )

    def _knows(self, tensor: Tensor) -> bool:
        return tensor.data_ptr() in self.parts or tensor.data_ptr() in self.pages

    def _page_bytes(self, rows: int | None, tokens: int) -> int:
        """Of one layer's keys or values: those of `rows` tokens, or whole pages of `tokens`."""
        arrays = 2 * self.kv.layers
        if rows is not None:
            return self.kv.nbytes(self.kv.page) // arrays * rows // self.kv.page
        return self.kv.nbytes(tokens) // arrays


def rule_of(kernel: str) -> str:
    """`int8_gemm12` -> `int8_gemm`: what its rule calls it, without the number of its kind."""
    return kernel.rstrip("0123456789")


def _weight_bytes(part: Part, rows: int | None) -> int:
    is_vector = len(part.shape) == 1  # a norm's, which every row needs
    if rows is None or is_vector:
        return part.nbytes
    return part.nbytes * rows // (part.shape[0] * ROWS)


def _activation_bytes(tensor: Tensor, rows: int | None) -> int:
    nbytes = math.prod(tensor.shape) * np.dtype(str(tensor.dtype)).itemsize
    return nbytes if rows is None else nbytes * min(rows, _rows(tensor)) // _rows(tensor)


def _numbers(part: Part) -> int:
    """Numbers of a matrix, padding included, which each row of activations is multiplied by."""
    if len(part.shape) == 1:
        return 0
    if _is_integers(part):
        blocks, pairs, _ = part.shape
        return blocks * ROWS * pairs * 2 * GROUP
    return math.prod(part.shape)


def _is_integers(part: Part) -> bool:
    return part.dtype == "int32"


def _family(part: Part) -> str:
    """`model.layers.3.mlp.down_proj.packed` -> `mlp.down_proj`: all layers' are one."""
    return _LAYER.sub("", part.name).removeprefix("model.").rpartition(".")[0]


def _rows(result: Tensor) -> int:
    """m of [1, m, ..] or [m, k]."""
    return int(result.shape[1] if len(result.shape) > 2 else result.shape[0])
