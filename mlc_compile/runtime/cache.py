"""The flat KV cache of one sequence, as the tensors that the library takes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_compile.artifact import ALIGNMENT, FlatKV

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class FlatCache:
    """Pages, block table and length; see `artifact.FlatKV` for shapes.

    The pages are zeros that the operating system provides at first touch, so a short
    conversation in a long context costs only the memory that it uses.
    """

    k_pages: Array
    v_pages: Array
    block_table: npt.NDArray[np.int32]  # i32[pages]: logical page -> physical page
    length: npt.NDArray[np.int32]  # i32[1]: tokens in the cache before the call

    def arrays(self) -> tuple[Array, ...]:
        """The cache in the order of the library's `kv` argument."""
        return self.k_pages, self.v_pages, self.block_table, self.length


def allocate(kv: FlatKV, context: int) -> FlatCache:
    """An empty cache for `context` tokens."""
    pages = kv.pages(context)
    table = aligned_zeros((pages,), "int32")
    table[:] = np.arange(pages)  # one sequence: page i lies at i
    return FlatCache(
        k_pages=aligned_zeros(kv.k_shape(pages), kv.dtype),
        v_pages=aligned_zeros(kv.v_shape(pages), kv.dtype),
        block_table=table,
        length=aligned_zeros((1,), "int32"),
    )


def aligned_zeros(shape: tuple[int, ...], dtype: str) -> Array:
    """Zeros that begin at a multiple of 64 bytes: DLPack takes nothing less."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + ALIGNMENT - 1, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)
