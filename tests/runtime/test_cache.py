"""The flat cache's tensors have the shapes, bytes and alignment that the library expects."""

import msgspec
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


def test_an_int8_cache_has_room_for_a_scale_of_each_key_and_value() -> None:
    int8 = msgspec.structs.replace(KV, dtype="int8")
    k, v, *_ = allocate(int8, context=33).arrays()
    assert k.shape == (3, 3, 2, 4 + 8, 16)  # behind the keys 16 float32 of theirs, 16 of values
    assert v.shape == (3, 3, 2, 16, 4)
    assert k.dtype == v.dtype == np.int8
    tokens = 3 * 16
    assert k.nbytes + v.nbytes == int8.nbytes(33) == 3 * 2 * tokens * (4 + 4 + 2 * 4)


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (1 << 20,)])
def test_every_array_begins_at_a_multiple_of_64_bytes(shape: tuple[int, ...]) -> None:
    array = aligned_zeros(shape, "float16")
    assert array.ctypes.data % 64 == 0
    assert array.shape == shape
    assert not np.any(array)
