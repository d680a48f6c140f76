"""INT4 weights times int8 activations against exact integer sums; see int8_products.py."""

import msgspec
import numpy as np
import pytest
import tvm

from mlc_compile import ops
from mlc_compile.emit.cpu import code_generation, tvm_target
from mlc_compile.layout import GROUP
from mlc_compile.schedule.kernels import int8, int8_gemm, quantize
from mlc_compile.schedule.kernels.dot import dot_for
from mlc_compile.target import find_target
from tests.schedule.kernels.int8_products import Acts, Gemm, acts_of, check

NORM_EPS = 1e-6

with_or_without = pytest.mark.parametrize("residual", [False, True])

# Each source, with a residual or without: the one ends before the other begins.
FEEDS = [("plain", False), ("rms_norm", True), ("swiglu", False)]


class Gemv:
    """`gemv` of one matrix and one source; what the quantization gives is taken as it is."""

    def __init__(
        self,
        compile_kernel,
        matrix,
        row,
        kind="plain",
        sweep=None,
        *,
        residual=False,
        gated=False,
    ):
        self.matrix, self.kind, self.residual, self.gated = matrix, kind, residual, gated
        n, self.k = matrix.codes.shape
        self.outputs = n // 2 if gated else n
        feed, dot = quantize.FEEDS[kind](self.k, NORM_EPS), dot_for(row)
        func = int8.gemv(matrix.codec, n, feed, dot, sweep, residual=residual, swiglu=gated)
        self.run = compile_kernel(func, row.name)
        self.quantize = compile_kernel(quantize.quantize(feed), row.name)

    def inputs(self, random):
        x = random.standard_normal((1, 1, 2 * self.k if self.kind == "swiglu" else self.k))
        gammas = [random.standard_normal(self.k)] * (self.kind == "rms_norm")
        return [a.astype(np.float32) for a in (x, *gammas)]

    def acts(self, inputs):
        outs = (self.k // 4, np.int32), (self.k // GROUP, np.float32), (self.k // GROUP, np.int32)
        blank = [np.zeros((1, 1, width), dtype) for width, dtype in outs]
        *_, codes, scales, _ = self.quantize(*inputs, *blank)
        return Acts(codes.view(np.int8)[0].astype(np.int64), scales[0])

    def __call__(self, inputs, base=()):
        y = np.full((1, 1, self.outputs), np.nan, np.float32)
        *_, y = self.run(*inputs, *self.matrix.packed, *base, y)
        return y

    def check(self, inputs, random):
        base = [random.standard_normal((1, 1, self.outputs)).astype(np.float32)] * self.residual
        y = self(inputs, base)
        check(y, self.acts(inputs), self.matrix, *(b[0] for b in base), gated=self.gated)


# ---- gemv -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "residual"), FEEDS)
def test_gemv_is_exact_with_every_instruction(compile_kernel, weights, dot_row, kind, residual):
    gemv = Gemv(compile_kernel, weights(48, 96), dot_row, kind, residual=residual)
    random = np.random.default_rng(1)
    gemv.check(gemv.inputs(random), random)


@pytest.mark.parametrize(
    ("n", "k", "dtype", "residual"),
    [
        (1, 32, "float16", True),
        (15, 64, "float32", False),
        (16, 32, "float32", True),
        (33, 160, "float16", True),
        (112, 1024, "float16", False),
        (112, 1024, "float32", True),
    ],
)
def test_gemv_takes_any_rows_and_groups(compile_kernel, weights, n, k, dtype, residual):
    matrix = weights(n, k, dtype)
    gemv = Gemv(compile_kernel, matrix, find_target("cpu"), residual=residual)
    random = np.random.default_rng(2)
    gemv.check(gemv.inputs(random), random)


def test_every_source_is_fed_to_gemv():
    assert [kind for kind, _ in FEEDS] == list(ops.SOURCES)


def test_gemv_of_equal_activations_and_of_an_outlier(compile_kernel, weights, dot_row):
    gemv = Gemv(compile_kernel, weights(33, 96), dot_row)
    random = np.random.default_rng(3)
    for size in (0.0, 1e-40, 1.0, -1.0, 1e20):
        gemv.check([np.full((1, 1, 96), size, np.float32)], random)
    assert (gemv([np.zeros((1, 1, 96), np.float32)]) == 0).all()
    (x,) = gemv.inputs(random)
    x[0, 0, 50] = 1e30
    gemv.check([x], random)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reaches_every_row_of_gemv(compile_kernel, weights, bad):
    matrix = weights(32, 96)
    gemv = Gemv(compile_kernel, matrix, find_target("cpu"))
    (x,) = gemv.inputs(np.random.default_rng(5))
    x[0, 0, 50] = bad
    assert not np.isfinite(gemv([x])).any()


@pytest.mark.parametrize(("kind", "residual"), FEEDS)
def test_swiglu_of_gemv_is_exact_with_every_instruction(
    compile_kernel, weights, dot_row, kind, residual
):
    matrix = weights(96, 96)
    gemv = Gemv(compile_kernel, matrix, dot_row, kind, residual=residual, gated=True)
    random = np.random.default_rng(14)
    gemv.check(gemv.inputs(random), random)


@pytest.mark.parametrize(
    ("n", "k", "dtype"), [(32, 32, "float16"), (64, 160, "float32"), (224, 1024, "float16")]
)
def test_swiglu_takes_any_blocks_and_groups(compile_kernel, weights, n, k, dtype):
    gemv = Gemv(compile_kernel, weights(n, k, dtype), find_target("cpu"), gated=True)
    random = np.random.default_rng(15)
    gemv.check(gemv.inputs(random), random)


def test_a_gate_of_any_size_opens_or_shuts(compile_kernel, weights):
    """Sums of a few thousands, where exp is clamped, and of zero."""
    gemv = Gemv(compile_kernel, weights(64, 96), find_target("cpu"), gated=True)
    random = np.random.default_rng(16)
    for size in (0.0, 1e-3, 1e3, 1e6):
        (x,) = gemv.inputs(random)
        gemv.check([np.float32(size) * x], random)


@pytest.mark.parametrize("n", [16, 48, 40])
def test_halves_that_are_no_whole_blocks_have_no_swiglu(weights, n):
    with pytest.raises(AssertionError, match="two halves of whole blocks"):
        Gemv(None, weights(n, 32), find_target("cpu"), gated=True)


READING = [
    # dtype, k, the target's streams and ask_bytes, then the sweep
    pytest.param("float16", 1024, 1, 0, int8.Sweep(pairs=4), id="the CPU asks by itself"),
    pytest.param("float32", 1024, 1, 0, int8.Sweep(pairs=4), id="by itself, other scales"),
    pytest.param("float16", 1024, 1, 9216, int8.Sweep(pairs=2, ahead=16), id="16 of 576 bytes"),
    pytest.param("float32", 1024, 1, 9216, int8.Sweep(pairs=2, ahead=8), id="14 of 640 bytes"),
    pytest.param("float16", 96, 1, 9216, int8.Sweep(ahead=16), id="an odd number of pairs"),
    pytest.param("float16", 64, 1, 1 << 30, int8.Sweep(ahead=128), id="no further than choices"),
    pytest.param("float16", 1024, 4, 0, int8.Sweep(streams=4, pairs=4), id="streams alone"),
    pytest.param(
        "float16", 1024, 8, 9216, int8.Sweep(streams=8, ahead=2, cache=1), id="of all streams"
    ),
    pytest.param(
        "float16",
        1024,
        64,
        9216,
        int8.Sweep(streams=8, ahead=2, cache=1),
        id="no more streams than choices",
    ),
]


def _reading(streams, ask_bytes):
    row = find_target("cpu-x86-64-v4")
    return msgspec.structs.replace(row, streams=streams, ask_bytes=ask_bytes)


@pytest.mark.parametrize(("dtype", "k", "streams", "ask_bytes", "sweep"), READING)
def test_weights_are_read_as_the_target_says(weights, dtype, k, streams, ask_bytes, sweep):
    """Asked for as far ahead, or a little less: as many pairs as there is a choice of."""
    codec, target = weights(128, k, dtype).codec, _reading(streams, ask_bytes)
    assert int8.Sweep.of(codec, target) == sweep
    space = int8.Sweep.space(codec, target)
    assert space.default == sweep
    assert set(space.points()) == set(int8.Sweep.space(codec, _reading(1, 0)).points())


@pytest.mark.parametrize(("row", "pairs"), [("cpu-aarch64-dotprod", 1), ("cpu-x86-64-v4", 4)])
def test_a_body_is_as_long_as_registers_reach(weights, row, pairs):
    assert int8.Sweep.of(weights(128, 1024).codec, find_target(row)) == int8.Sweep(pairs=pairs)


def test_there_are_no_more_streams_than_blocks(weights):
    for n, streams in ((128, 8), (64, 4), (48, 2), (16, 1)):
        assert int8.Sweep.of(weights(n, 1024).codec, _reading(8, 0)).streams == streams


def test_gate_and_up_are_two_streams(weights):
    codec, target = weights(256, 1024).codec, _reading(8, 9216)
    sweep = int8.Sweep.of(codec, target, swiglu=True)
    assert sweep == int8.Sweep(streams=4, ahead=2, cache=1)
    assert int8.Sweep.space(codec, target, swiglu=True).default == sweep
    assert int8.Sweep.of(codec, _reading(1, 9216), swiglu=True) == int8.Sweep(ahead=8)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("cache", [1, 2])
def test_asking_beyond_the_weights_changes_nothing(compile_kernel, weights, gated, cache):
    matrix, row = weights(32, 64), find_target("cpu")
    far, near = int8.Sweep(ahead=128, cache=cache), int8.Sweep()
    gemvs = [Gemv(compile_kernel, matrix, row, gated=gated, sweep=sweep) for sweep in (far, near)]
    inputs = gemvs[0].inputs(np.random.default_rng(17))
    np.testing.assert_array_equal(*(gemv(inputs) for gemv in gemvs))


@pytest.mark.parametrize(("cache", "instruction"), [(1, "prefetcht0"), (2, "prefetcht1")])
def test_weights_are_asked_into_the_cache_that_is_said(weights, cache, instruction):
    """Of every pair of groups 9 lines, in each of 2 streams and in what is left over."""
    target, matrix = find_target("cpu-x86-64-v4"), weights(320, 1024)
    sweep = int8.Sweep(streams=2, ahead=4, cache=cache)
    feed = quantize.FEEDS["plain"](1024, NORM_EPS)
    func = int8.gemv(matrix.codec, 320, feed, dot_for(target), sweep)
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with code_generation():
        text = tvm.compile(module, target=tvm_target(target)).mod.inspect_source("asm")
    asked = [line.split()[0] for line in text.splitlines() if "prefetch" in line]
    assert asked == [instruction] * 9 * (2 + 1)


@pytest.mark.parametrize(
    ("streams", "n", "gated"),
    [
        *[(2, 17, False), (2, 345, False), (2, 352, True)],
        *[(4, 17, False), (4, 320, False), (4, 345, False)],
        *[(8, 345, False), (8, 352, True)],
    ],
)
def test_streams_take_each_row_once_and_to_the_same_bits(
    compile_kernel, weights, streams, n, gated
):
    """Fewer blocks than streams, whole streams, and with blocks left over of each share."""
    matrix, row = weights(n, 160), find_target("cpu")
    abreast, alone = int8.Sweep(streams=streams, ahead=2, cache=1), int8.Sweep()
    gemvs = [
        Gemv(compile_kernel, matrix, row, residual=True, gated=gated, sweep=sweep)
        for sweep in (abreast, alone)
    ]
    random = np.random.default_rng(18)
    inputs = gemvs[0].inputs(random)
    base = [random.standard_normal((1, 1, gemvs[0].outputs)).astype(np.float32)]
    np.testing.assert_array_equal(*(gemv(inputs, base) for gemv in gemvs))
    gemvs[0].check(inputs, random)


# ---- gemm -------------------------------------------------------------------------------


@with_or_without
def test_gemm_is_exact_with_every_instruction(compile_kernel, weights, dot_row, residual):
    gemm = Gemm(compile_kernel, weights(64, 96), dot_row, residual=residual)
    random = np.random.default_rng(6)
    for m in (1, 2, 11, 12, 33):
        gemm.check(acts_of(m, 96, random), random)


@with_or_without
def test_gemm_takes_any_number_of_tokens(compile_kernel, weights, residual):
    gemm = Gemm(compile_kernel, weights(32, 64), find_target("cpu"), residual=residual)
    random = np.random.default_rng(7)
    for m in range(1, 34):
        gemm.check(acts_of(m, 64, random), random)


@pytest.mark.parametrize(
    ("n", "k", "dtype", "residual"),
    [
        (1, 32, "float32", True),
        (15, 64, "float16", False),
        (17, 96, "float16", True),
        (33, 160, "float32", False),
        (48, 32, "float32", True),
        (112, 512, "float16", False),
        (112, 512, "float16", True),
    ],
)
def test_gemm_takes_any_rows_and_groups(compile_kernel, weights, n, k, dtype, residual):
    gemm = Gemm(compile_kernel, weights(n, k, dtype), find_target("cpu"), residual=residual)
    random = np.random.default_rng(8)
    for m in (1, 3, 13, 26):
        gemm.check(acts_of(m, k, random), random)


def test_gemm_of_extremes(compile_kernel, int4_matrix, dot_row):
    codes = np.zeros((32, 128), int)
    codes[::2] = 15
    gemm = Gemm(compile_kernel, int4_matrix(codes, np.ones((32, 4), np.float16)), dot_row)
    random = np.random.default_rng(9)
    for act in (-127, 127):
        gemm.check(acts_of(5, 128, random, act, act), random)


def test_rows_without_activations_are_zero_or_the_residual(compile_kernel, weights):
    matrix = weights(48, 64)
    acts = acts_of(7, 64, np.random.default_rng(10))
    acts.scales[3] = 0
    acts.codes[3] = 0
    for residual in (False, True):
        gemm = Gemm(compile_kernel, matrix, find_target("cpu"), residual=residual)
        base = [np.random.default_rng(11).standard_normal((1, 7, 48)).astype(np.float32)] * residual
        y = gemm.run(acts, *base)
        np.testing.assert_array_equal(y[0, 3], base[0][0, 3] if base else np.zeros(48))


def test_a_zero_weight_row_gives_zero(compile_kernel, weights):
    matrix = weights(33, 96)
    gemm = Gemm(compile_kernel, matrix, find_target("cpu"))
    y = gemm.run(acts_of(9, 96, np.random.default_rng(12)))
    assert (y[0, :, 16] == 0).all()


def test_gemm_and_gemv_agree_on_one_row(compile_kernel, weights, dot_row):
    matrix = weights(48, 1024)
    gemv, gemm = (kind(compile_kernel, matrix, dot_row) for kind in (Gemv, Gemm))
    inputs = gemv.inputs(np.random.default_rng(13))
    np.testing.assert_array_equal(gemv(inputs), gemm.run(gemv.acts(inputs)))


@pytest.mark.parametrize(
    "preset", ["cpu-x86-64-v3", "cpu-x86-64-v4", "cpu-sapphirerapids", "cpu-aarch64-dotprod"]
)
@pytest.mark.parametrize("n", [48, 64])
def test_a_tile_fits_the_registers(weights, preset, n):
    target = find_target(preset)
    tile = int8_gemm.Tile.of(target, weights(n, 64).codec)
    sums = 2 * tile.m * tile.blocks * (16 // min(16, target.f32_lanes))  # integers and floats
    assert tile.m >= 1
    assert (n // 16) % tile.blocks == 0
    assert target.vector_registers / 2 <= sums <= target.vector_registers * 3 / 4
