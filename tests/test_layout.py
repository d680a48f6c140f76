"""Packings lose nothing, and put every code and scale where their documentation says."""

import numpy as np
import pytest

from mlc_compile.artifact import ALIGNMENT
from mlc_compile.layout import LAYOUTS, place, ranges_for
from mlc_compile.quant import SCHEMES

ROWS16, WIDE = LAYOUTS["rows16"], LAYOUTS["wide"]
SCALE_WORDS = {"float16": 8, "float32": 16}  # of the 16 rows' scales of a group


def shapes_of(parts):
    return {suffix: (a.shape, str(a.dtype)) for suffix, a in parts.items()}


def int4_parts(n, k, dtype="float16"):
    random = np.random.default_rng([n, k])
    return {
        "q_weight": random.integers(0, 2**32, (n, k // 8), np.uint32),
        "q_scale": random.standard_normal((n, k // 32)).astype(dtype),
    }


def check_round_trip(parts):
    neutral = shapes_of(parts)
    packed = ROWS16.pack(parts)
    assert shapes_of(packed) == ROWS16.shapes(neutral)
    assert all(a.flags.c_contiguous for a in packed.values())
    unpacked = ROWS16.unpack(packed, neutral)
    assert shapes_of(unpacked) == neutral
    for suffix, array in parts.items():
        np.testing.assert_array_equal(unpacked[suffix], array, suffix)


@pytest.mark.parametrize("dtype", SCALE_WORDS)
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 33, 257])
@pytest.mark.parametrize("k", [32, 64, 96, 416])
def test_unpacking_gives_back_the_codes_and_scales(n, k, dtype):
    check_round_trip(int4_parts(n, k, dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("n", [1, 16, 33])
@pytest.mark.parametrize("k", [1, 7, 64])
def test_unpacking_gives_back_unquantized_rows_of_any_width(n, k, dtype):
    w = np.random.default_rng([n, k]).standard_normal((n, k)).astype(dtype)
    check_round_trip({"weight": w})


def words_of(packed, dtype):
    """The stream of codes i32[blocks, pairs, 2, 4, 16] and of scales [blocks, pairs, 2, 16]."""
    stream = packed["packed"]
    assert stream.shape[2] == 2 * (64 + SCALE_WORDS[dtype])
    codes, scales = np.split(stream, [128], axis=-1)
    scales = np.ascontiguousarray(scales).view(dtype)
    return codes.reshape(*codes.shape[:2], 2, 4, 16), scales.reshape(*codes.shape[:2], 2, 16)


@pytest.mark.parametrize(
    ("row", "column"), [(0, 0), (5, 17), (15, 31), (16, 32), (39, 95), (21, 50)]
)
def test_a_code_lies_at_the_documented_byte(row, column):
    codes = np.zeros((40, 96), np.uint8)
    codes[row, column] = 13
    nibbles = codes.reshape(40, 12, 8).astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))
    parts = {
        "q_weight": np.bitwise_or.reduce(nibbles, axis=-1),
        "q_scale": np.zeros((40, 3), np.float16),
    }
    packed = ROWS16.pack(parts)
    words, _ = words_of(packed, "float16")
    raw = words.view(np.uint8).reshape(*words.shape, 4)
    group, inside = divmod(column, 32)
    half, inside = divmod(inside, 16)
    step, byte = divmod(inside, 4)
    at = (row // 16, group // 2, group % 2, step, row % 16, byte)
    assert raw[at] == 13 << (4 * half)
    assert np.count_nonzero(packed["packed"].view(np.uint8)) == 1  # and nowhere else


@pytest.mark.parametrize("dtype", SCALE_WORDS)
def test_the_scales_of_a_pair_follow_its_codes_a_row_a_lane(dtype):
    parts = int4_parts(40, 96, dtype)
    _, scales = words_of(ROWS16.pack(parts), dtype)
    for row, group in ((0, 0), (15, 1), (35, 2), (39, 2)):
        got = scales[row // 16, group // 2, group % 2, row % 16]
        assert got == parts["q_scale"][row, group]


def test_masking_a_word_gives_four_columns_in_a_row():
    w = np.linspace(-7, 7, 16 * 32, dtype=np.float32).reshape(16, 32)
    parts = SCHEMES["q4f32_1"].encode(w)
    codes = SCHEMES["q4f32_1"].decode({**parts, "q_scale": np.ones((16, 1), np.float32)}) + 7
    words = words_of(ROWS16.pack(parts), "float32")[0][0, 0, 0]
    low = (words & 0x0F0F0F0F).view(np.uint8).reshape(4, 16, 4)
    high = ((words >> 4) & 0x0F0F0F0F).view(np.uint8).reshape(4, 16, 4)
    for step in range(4):
        np.testing.assert_array_equal(low[step], codes[:, 4 * step : 4 * step + 4])
        np.testing.assert_array_equal(high[step], codes[:, 16 + 4 * step : 20 + 4 * step])


def test_padded_rows_and_an_odd_last_group_multiply_to_nothing():
    _, scales = words_of(ROWS16.pack(int4_parts(17, 96)), "float16")
    assert not scales[1, :, :, 1:].any()
    assert not scales[:, 1, 1].any()
    w = ROWS16.pack({"weight": np.ones((17, 5), np.float32)})["weight"]
    assert not w[1, :, 1:].any()


@pytest.mark.parametrize(("dtype", "lines"), [("float16", 9), ("float32", 10)])
def test_a_pair_of_groups_is_whole_cache_lines(dtype, lines):
    packed = ROWS16.pack(int4_parts(16, 64, dtype))["packed"]
    assert packed.nbytes == lines * 64


def test_unquantized_values_lie_a_row_a_lane():
    w = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    packed = ROWS16.pack({"weight": w})["weight"]
    assert packed[1, 63, 15] == w[31, 63]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_wide_vectors_are_exact_in_float32(dtype):
    gamma = np.random.default_rng(0).standard_normal(24).astype(dtype)
    neutral = {"weight": ((24,), dtype)}
    packed = WIDE.pack({"weight": gamma})
    assert shapes_of(packed) == WIDE.shapes(neutral) == {"weight": ((24,), "float32")}
    unpacked = WIDE.unpack(packed, neutral)["weight"]
    assert unpacked.dtype == dtype
    np.testing.assert_array_equal(unpacked, gamma)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_s_parts_can_be_packed(name):
    w = np.random.default_rng(1).standard_normal((24, 64)).astype(np.float32)
    parts = SCHEMES[name].encode(w)
    assert shapes_of(parts) == SCHEMES[name].parts(24, 64)
    check_round_trip(parts)


def test_the_order_of_parts_does_not_matter():
    parts = int4_parts(17, 96)
    there, back = (ROWS16.pack(dict(sorted(parts.items(), reverse=r))) for r in (False, True))
    np.testing.assert_array_equal(there["packed"], back["packed"])


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


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("n", [9, 10, 37])
def test_ranges_of_rows_are_joined_again(n, count):
    layout, parts = LAYOUTS[f"plain{count}"], int4_parts(n, 64)
    packed = layout.pack(parts)
    assert shapes_of(packed) == layout.shapes(shapes_of(parts))
    assert list(packed) == [*(f"q_weight_{i}" for i in range(count)), "q_scale"]
    assert sum(len(packed[f"q_weight_{i}"]) for i in range(count)) == n
    for suffix, array in layout.unpack(packed, shapes_of(parts)).items():
        np.testing.assert_array_equal(array, parts[suffix])


@pytest.mark.parametrize(
    ("rows", "most", "count"),
    [
        pytest.param(100, None, 1, id="no limit"),
        pytest.param(100, 1000, 1, id="it fits"),
        pytest.param(100, 999, 2, id="a byte too much"),
        pytest.param(101, 500, 3, id="a half is rounded up, and too much"),
        pytest.param(151936, 152 * 1000, 1, id="more ranges than kernels take buffers"),
    ],
)
def test_rows_are_cut_as_often_as_they_must(rows, most, count):
    assert ranges_for(rows, 10, most) == count
