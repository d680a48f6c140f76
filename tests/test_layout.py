"""Packings lose nothing, and put every code where their documentation says."""

import numpy as np
import pytest

from mlc_compile.artifact import ALIGNMENT
from mlc_compile.layout import LAYOUTS, place
from mlc_compile.quant import SCHEMES

ROWS16, WIDE = LAYOUTS["rows16"], LAYOUTS["wide"]


def parts_of(n, k, seed=0):
    """Every kind of part of a w[n, k]."""
    random = np.random.default_rng([seed, n, k])
    return {
        "q_weight": random.integers(0, 2**32, (n, k // 8), np.uint32),
        "q_scale": random.standard_normal((n, k // 32)).astype(np.float16),
        "weight": random.standard_normal((n, k)).astype(np.float32),
    }


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 31, 32, 33, 160, 257])
@pytest.mark.parametrize("k", [32, 64, 96, 416])
def test_unpacking_gives_back_what_was_packed(n, k):
    parts = parts_of(n, k)
    packed = ROWS16.pack(parts)
    unpacked = ROWS16.unpack(packed, n)
    for suffix, array in parts.items():
        np.testing.assert_array_equal(unpacked[suffix], array, suffix)
        assert unpacked[suffix].dtype == array.dtype
    expected = ROWS16.shapes({s: (a.shape, str(a.dtype)) for s, a in parts.items()})
    assert {s: (a.shape, str(a.dtype)) for s, a in packed.items()} == expected
    assert all(a.flags.c_contiguous for a in packed.values())


@pytest.mark.parametrize("k", [1, 7, 33])
def test_unquantized_rows_may_have_any_width(k):
    w = parts_of(19, 64)["weight"][:, :k].copy()
    np.testing.assert_array_equal(ROWS16.unpack(ROWS16.pack({"weight": w}), 19)["weight"], w)


@pytest.mark.parametrize(
    ("row", "column"), [(0, 0), (5, 17), (15, 31), (16, 32), (39, 95), (21, 50)]
)
def test_a_code_lies_at_the_documented_byte(row, column):
    codes = np.zeros((40, 96), np.uint8)
    codes[row, column] = 13
    nibbles = codes.reshape(40, 12, 8).astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))
    words = np.bitwise_or.reduce(nibbles, axis=-1)
    packed = ROWS16.pack({"q_weight": words})["q_weight"]
    group, inside = divmod(column, 32)
    half, inside = divmod(inside, 16)
    step, byte = divmod(inside, 4)
    raw = packed.view(np.uint8).reshape(*packed.shape, 4)
    at = (row // 16, group, step, row % 16, byte)
    assert raw[at] == 13 << (4 * half)
    raw[at] = 0
    assert not raw.any()  # and nowhere else


def test_masking_a_word_gives_four_columns_in_a_row():
    words = SCHEMES["q4f32_1"].encode(np.linspace(-7, 7, 16 * 32, dtype=np.float32).reshape(16, 32))
    codes = SCHEMES["q4f32_1"].decode({**words, "q_scale": np.ones((16, 1), np.float32)}) + 7
    packed = ROWS16.pack(words)["q_weight"]
    low = (packed & 0x0F0F0F0F).view(np.uint8).reshape(4, 16, 4)
    high = ((packed >> 4) & 0x0F0F0F0F).view(np.uint8).reshape(4, 16, 4)
    for step in range(4):
        np.testing.assert_array_equal(low[step], codes[:, 4 * step : 4 * step + 4])
        np.testing.assert_array_equal(high[step], codes[:, 16 + 4 * step : 20 + 4 * step])


def test_scales_and_floats_lie_a_row_a_lane():
    parts = parts_of(40, 64)
    packed = ROWS16.pack(parts)
    assert packed["q_scale"][2, 1, 3] == parts["q_scale"][35, 1]
    assert packed["weight"][1, 63, 15] == parts["weight"][31, 63]


def test_padded_rows_multiply_to_nothing():
    packed = ROWS16.pack(parts_of(17, 32))
    assert not packed["q_scale"][1, :, 1:].any()
    assert not packed["weight"][1, :, 1:].any()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_wide_vectors_are_exact_in_float32(dtype):
    gamma = np.random.default_rng(0).standard_normal(24).astype(dtype)
    packed = WIDE.pack({"weight": gamma})["weight"]
    assert (packed.dtype, packed.shape) == (np.float32, (24,))
    np.testing.assert_array_equal(WIDE.unpack({"weight": packed}, 24)["weight"], gamma)
    assert WIDE.shapes({"weight": ((24,), dtype)}) == {"weight": ((24,), "float32")}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_registered_under_its_name(name):
    assert LAYOUTS[name].name == name


@pytest.mark.parametrize("offset", [0, 1, 64, 100])
def test_parts_are_placed_aligned_and_do_not_overlap(offset):
    shapes = {"a": ((3,), "float16"), "b": ((5, 7), "int32"), "c": ((1,), "float32")}
    parts, end = place("model.w", shapes, offset)
    assert [p.name for p in parts] == ["model.w.a", "model.w.b", "model.w.c"]
    assert [p.nbytes for p in parts] == [6, 140, 4]
    start = offset
    for part in parts:
        assert part.offset % ALIGNMENT == 0
        assert 0 <= part.offset - start < ALIGNMENT
        start = part.offset + part.nbytes
    assert end == start
