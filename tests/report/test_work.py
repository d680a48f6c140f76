"""Bytes and operations of a kernel are those of the formulas, worked out by hand."""

import msgspec

from mlc_compile.artifact import FlatKV
from mlc_compile.report.calls import Call, Read
from mlc_compile.report.work import Sizes, Workload, kernels_of

KV = FlatKV(layers=2, kv_heads=2, head_dim=8, page=32, dtype="float16")
TOKEN = 2 * 2 * 2 * 8  # bytes a token and layer: keys and values, float16, heads, head size
SIZES = Sizes(KV, {"q": (24, 16), "k": (8, 16), "norm": (16,), "embed": (100, 16)})
DECODE, PREFILL = Workload("decode", 1, 63), Workload("prefill", 4, 0)


def call(name, *, weights=(), read=0, written=0, rows=1, results=1, numbers=1, given=1):
    return Call(name, weights, read, written, rows, results, numbers, given, is_result=False)


def only(call_, workload):
    (kernel,) = kernels_of([call_], workload, SIZES, {"gemv": ("rule", "")})
    return kernel


def test_a_matmul_multiplies_each_row_by_each_weight():
    parts = (Read("qk", ("q", "k"), 300), Read("qk", ("q", "k"), 40), Read("norm", ("norm",), 64))
    kernel = only(call("gemv", weights=parts, read=64, written=128, rows=1, results=32), DECODE)
    assert kernel.operations == 2 * (24 + 8) * 16  # both parts of a weight are one matrix
    assert kernel.weight_bytes == 404
    assert kernel.weights == ("qk", "norm")
    assert kernel.intensity == round(1024 / (404 + 64 + 128), 4)


def test_attention_sees_what_is_in_the_cache():
    kernel = only(call("flat_step", read=10, written=20, results=48), DECODE)
    assert kernel.operations == 4 * 48 * 64
    assert kernel.cache_bytes == 64 * TOKEN + TOKEN  # what is there, and the new token
    kernel = only(call("flat_attend1", rows=4, results=4 * 48), PREFILL)
    assert kernel.operations == 4 * 48 * (1 + 2 + 3 + 4)
    assert kernel.cache_bytes == 4 * TOKEN
    for name in ("flat_append", "tile_append", "tile_project1"):
        assert only(call(name, rows=4, results=4 * 48), PREFILL).cache_bytes == 4 * TOKEN
    padded = 4 * (48 // 2 + 16)  # words of what is rounded at once
    tiles = only(call("tile_attend", rows=4, results=padded, given=4 * 48 // 2), PREFILL)
    assert (tiles.operations, tiles.cache_bytes) == (kernel.operations, kernel.cache_bytes)


def test_a_token_of_an_int8_cache_counts_with_its_scales():
    sizes = Sizes(msgspec.structs.replace(KV, dtype="int8"), SIZES.shapes)
    (kernel,) = kernels_of([call("flat_append", rows=4, results=4 * 48)], PREFILL, sizes, {})
    assert kernel.cache_bytes == 4 * 2 * (8 + 8 + 2 * 4)  # two heads: key, value, two float32


def test_a_lookup_reads_the_rows_that_it_gives():
    embed = (Read("embed", ("embed",), 1000),)
    kernel = only(call("take", weights=embed, read=16, written=256, rows=4, results=64), PREFILL)
    assert (kernel.weight_bytes, kernel.read_bytes) == (40, 16)
    kernel = only(call("last_position", read=256, written=64, results=16), PREFILL)
    assert (kernel.read_bytes, kernel.operations) == (64, 16)


def test_anything_else_does_an_operation_a_number():
    assert only(call("add", read=128, written=64, numbers=16), DECODE).operations == 16


def test_calls_of_one_kernel_add_up_and_keep_their_order():
    calls = [call("b", read=1), call("a", read=2), call("b", read=4)]
    kernels = kernels_of(calls, DECODE, SIZES, {"a": ("default", "as written")})
    assert [(k.name, k.calls, k.read_bytes) for k in kernels] == [("b", 2, 5), ("a", 1, 2)]
    assert [(k.origin, k.how) for k in kernels] == [("runtime", ""), ("default", "as written")]
