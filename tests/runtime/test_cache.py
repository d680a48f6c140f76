"""The flat cache's tensors have the shapes, bytes and alignment that the library expects."""

import numpy as np
import pytest

from mlc_compile.artifact import FlatKV
from mlc_compile.runtime.cache import aligned_zeros, allocate

KV = FlatKV(layers=3, kv_heads=2, head_dim=4, page=16, dtype="float16")


def test_arrays_have_the_layout_of_flat_kv() -> None:
    k, v, table, length = allocate(KV, context=33).arrays()
    assert k.shape == (3, 3, 2, 4, 16)  # transposed: tokens last
    assert v.shape == (3, 3, 2, 16, 4)
    assert k.nbytes + v.nbytes == KV.nbytes(33)
    assert table.tolist() == [0, 1, 2]
    assert length.tolist() == [0]
    assert {a.dtype.name for a in (table, length)} == {"int32"}


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (1 << 20,)])
def test_every_array_begins_at_a_multiple_of_64_bytes(shape: tuple[int, ...]) -> None:
    array = aligned_zeros(shape, "float16")
    assert array.ctypes.data % 64 == 0
    assert array.shape == shape
    assert not np.any(array)
