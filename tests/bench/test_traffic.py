"""Bytes and multiply-adds of a kernel call, from the tensors it is given."""

import dataclasses
from dataclasses import dataclass

import msgspec
import pytest

from mlc_compile.artifact import FlatKV, Part
from mlc_compile.bench.traffic import AddressBook, Traffic

KV = FlatKV(layers=2, kv_heads=2, head_dim=8, page=16, dtype="float16")
PAGE_BYTES = 2 * 8 * 16 * 2  # keys or values of one page of one layer


@dataclass(frozen=True)
class Tensor:
    """A tensor at an address."""

    shape: tuple[int, ...]
    address: int = 0
    dtype: str = "float32"

    def data_ptr(self) -> int:
        return self.address


def part(name: str, *shape: int, dtype: str, width: int) -> Part:
    count = 1
    for extent in shape:
        count *= extent
    return Part(name=name, dtype=dtype, shape=shape, offset=0, nbytes=count * width)


INT4 = part("model.layers.3.mlp.down_proj.packed", 4, 1, 144, dtype="int32", width=4)
DENSE = part("lm_head.weight", 4, 64, 16, dtype="float16", width=2)
NORM = part("model.norm.weight", 64, dtype="float32", width=4)
PARTS = {11: INT4, 13: DENSE, 14: NORM}
PAGES = {21: (2, 9, 2, 8, 16), 22: (2, 9, 2, 16, 8)}

BOOK = AddressBook(parts=PARTS, pages=frozenset(PAGES), kv=KV)


def at(address: int) -> Tensor:
    if address in PAGES:
        return Tensor(PAGES[address], address, "float16")
    return Tensor(PARTS[address].shape, address, PARTS[address].dtype)


def test_a_matmul_reads_its_weights_and_what_it_multiplies_and_writes_the_result() -> None:
    x, y = Tensor((1, 5, 64)), Tensor((1, 5, 64))
    assert BOOK.traffic("int8_gemm7", [x, at(11), y], before=3) == Traffic(
        nbytes=INT4.nbytes + 2 * 5 * 64 * 4,
        multiply_adds=5 * 64 * 64,  # 4 blocks of 16 rows, a pair of groups of 32
        weights=frozenset({"mlp.down_proj"}),
        integers=True,
    )


def test_unquantized_matrices_multiply_and_norms_do_not() -> None:
    x, y = Tensor((1, 1, 64)), Tensor((1, 1, 64))
    got = BOOK.traffic("gemv", [x, at(14), at(13), y], before=0)
    assert got.multiply_adds == 64 * 64
    assert got.nbytes == NORM.nbytes + DENSE.nbytes + 2 * 64 * 4
    assert got.weights == {"norm", "lm_head"}
    assert not got.integers


@pytest.mark.parametrize(
    ("before", "rows", "pages"), [(0, 1, 1), (15, 1, 1), (16, 1, 2), (8, 30, 3)]
)
def test_attention_reads_the_pages_that_hold_tokens(before: int, rows: int, pages: int) -> None:
    q = Tensor((1, rows, 4, 8))
    got = BOOK.traffic("flat_attend", [q, at(21), at(22), Tensor((1, rows, 32))], before)
    assert got.nbytes == 2 * pages * PAGE_BYTES + 2 * rows * 32 * 4
    assert got.multiply_adds == 0


@pytest.mark.parametrize(("kernel", "words"), [("flat_append2", 8), ("tile_append", 4)])
def test_appending_touches_only_the_new_tokens(kernel: str, words: int) -> None:
    qkv, q = Tensor((1, 3, 64)), Tensor((1, 3, 4, words))
    got = BOOK.traffic(kernel, [qkv, at(14), at(21), at(22), q], before=100)
    assert got.nbytes == 2 * 3 * PAGE_BYTES // 16 + NORM.nbytes + 3 * 64 * 4 + 3 * 4 * words * 4
    assert got.multiply_adds == 0


def test_appending_what_is_multiplied_at_once_reads_all_weights_too() -> None:
    pairs, q = Tensor((1, 3, 48), dtype="int32"), Tensor((1, 3, 4, 4), dtype="int32")
    got = BOOK.traffic("tile_project1", [pairs, at(11), at(14), at(21), at(22), q], before=100)
    read = INT4.nbytes + NORM.nbytes + 3 * 48 * 4
    assert got.nbytes == read + 2 * 3 * PAGE_BYTES // 16 + 3 * 16 * 4
    assert got.multiply_adds == 3 * 64 * 64
    assert got.integers


def test_a_page_of_an_int8_cache_is_read_with_its_scales() -> None:
    int8 = dataclasses.replace(BOOK, kv=msgspec.structs.replace(KV, dtype="int8"))
    q, o = Tensor((1, 1, 4, 8)), Tensor((1, 1, 32))
    got = int8.traffic("flat_attend", [q, at(21), at(22), o], before=20)
    token = 2 * (8 + 8 + 2 * 4)  # of a layer: two heads of 8 codes and a scale, twice
    assert got.nbytes == 2 * 16 * token + 2 * 32 * 4
    got = int8.traffic("flat_append", [q, at(21), at(22), q], before=20)
    assert got.nbytes == token + 2 * 32 * 4


def test_a_lookup_reads_its_rows_of_the_table_and_multiplies_nothing() -> None:
    ids, y = Tensor((3,), dtype="int32"), Tensor((3, 64))
    got = BOOK.traffic("take", [ids, at(11), y], before=0)
    assert got.nbytes == 3 * INT4.nbytes // 64 + 3 * 4 + 3 * 64 * 4
    assert got.multiply_adds == 0


def test_the_last_position_is_one_row() -> None:
    got = BOOK.traffic("last_position", [Tensor((1, 9, 64)), Tensor((1, 1, 64))], before=0)
    assert got.nbytes == 2 * 64 * 4
