"""SwiGLU of a product on tiles, rounded to pairs, against float64.

gate and up are off by what bf16_products.py says, silu(gate) * up then by what int8_products.py
does and by 2**-12 (`silu_bf16`; where it clamps, 2**-120 gate up is left of nothing), and is
rounded to the nearest bfloat16 at last.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from mlc_compile.schedule.kernels import bf16_gemm, bf16_swiglu, quantize
from mlc_compile.schedule.kernels.weights import codec_of
from mlc_compile.target import find_target
from tests.schedule.kernels.int8_products import swiglu

from .bf16_products import (
    BEST,
    HALF,
    Unit,
    activations,
    blank,
    largest_workspace,
    paired,
    products,
    rounded,
    unpaired,
)
from .emulated_tiles import EmulatedTiles

ROWS = (1, 2, 15, 16, 17, 31, 32, 33, 47, 64, 100)
SPACE = bf16_swiglu.Tile.space(find_target("cpu-sapphirerapids"), 1024)
DEFAULT = bf16_swiglu.Tile()


@dataclass
class Gated:
    """`bf16_swiglu.gemm` of one matrix."""

    matrix: object
    unit: Unit
    tile: bf16_swiglu.Tile = DEFAULT

    def __post_init__(self):
        codec, self.n = self.matrix.codec, len(self.matrix.codes)
        self.run = self.unit.compile(bf16_swiglu.gemm(codec, self.n, self.unit.make(), self.tile))

    def __call__(self, x):
        """The pairs as the kernel leaves them."""
        *_, y = self.run(paired(x), *self.matrix.packed, blank(len(x), self.n // 2))
        return y

    def check(self, x):
        both, _ = products(x, self.matrix)
        gate, up = np.split(np.abs(both), 2, axis=-1)
        exact, bound = swiglu(*products(x, self.matrix))
        bound = bound + 2.0**-12 * np.abs(exact) + 2.0**-120 * gate * up
        bound = bound + HALF * (np.abs(exact) + bound)
        y = unpaired(self(x), self.n // 2)
        assert (np.abs(y - exact) <= bound).all()  # false for NaN, and so for what is not written


# ---- what it computes -------------------------------------------------------------------


def test_any_number_of_tokens(weights, unit):
    gated, random = Gated(weights(64, 64), unit), np.random.default_rng(1)
    for m in range(1, 34):
        gated.check(activations(m, 64, random))


SIZES = {
    "one word a row and one group": (64, 32, "float16"),
    "three groups of outputs, an odd group": (192, 96, "float32"),
    "five groups of outputs": (320, 160, "float16"),
    "many groups of k": (128, 1056, "float32"),
}
EMULATED = ("three groups of outputs, an odd group",)


@pytest.mark.parametrize(
    ("unit", "size"),
    dict.fromkeys([*((BEST, size) for size in SIZES), *(("emulated", size) for size in EMULATED)]),
    indirect=["unit"],
)
def test_any_outputs_and_groups(weights, unit, size):
    n, k, dtype = SIZES[size]
    gated, random = Gated(weights(n, k, dtype), unit), np.random.default_rng(2)
    for m in ROWS:
        gated.check(activations(m, k, random))


def test_a_long_prompt(weights, unit):
    Gated(weights(128, 128), unit).check(activations(512, 128, np.random.default_rng(3)))


@pytest.mark.parametrize("tile", list(SPACE.points()), ids=str)
def test_any_tile_gives_the_same_bits(weights, unit, tile):
    """Tiles decide what is unpacked together, not the order of any sum."""
    matrix, random = weights(448, 96), np.random.default_rng(4)
    default, other = (Gated(matrix, unit, t) for t in (DEFAULT, tile))
    for m in (1, 16, 17, 70):
        x = activations(m, 96, random)
        np.testing.assert_array_equal(other(x), default(x))


def test_it_is_what_the_kernels_that_it_replaces_give(compile_kernel, weights, unit):
    """To a last bit of bfloat16: other strips add in another order, and silu is as near as that."""
    matrix, n = weights(128, 96), 128
    product = bf16_gemm.gemm(matrix.codec, n, unit.make(), bf16_gemm.Tile(), residual=False)
    multiply = unit.compile(product)
    round_rows = compile_kernel(bf16_gemm.round_rows(quantize.FEEDS["swiglu"](n // 2, 0.0)))
    x = activations(33, 96, np.random.default_rng(5))
    *_, y = multiply(paired(x), *matrix.packed, np.full((1, 33, n), np.nan, np.float32))
    *_, apart = round_rows(y, blank(33, n // 2))
    together, apart = (unpaired(y, n // 2) for y in (Gated(matrix, unit)(x), apart))
    assert (np.abs(together - apart) <= 2.0**-7 * np.abs(apart)).all()


def test_a_gate_of_any_size_opens_or_shuts(int4_matrix, unit):
    """Sums of hundreds of thousands, where exp is clamped, and of zero."""
    random = np.random.default_rng(6)
    matrix = int4_matrix(random.integers(0, 16, (64, 96)), np.ones((64, 3), np.float16))
    gated = Gated(matrix, unit)
    for size in (0.0, 1e-3, 1.0, 1e4):
        gated.check(rounded(activations(19, 96, random) * np.float32(size)))


def test_a_gate_or_an_up_of_zero_gives_zero(int4_matrix, unit):
    codes = np.full((128, 64), 12)
    codes[3], codes[64 + 40] = 7, 7  # of gate and of up
    matrix = int4_matrix(codes, np.ones((128, 2), np.float16))
    y = unpaired(Gated(matrix, unit)(activations(18, 64, np.random.default_rng(7))), 64)
    assert (y[:, [3, 40]] == 0).all()
    assert (np.delete(y, [3, 40], axis=1) != 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reaches_its_row_alone(int4_matrix, unit, bad):
    matrix = int4_matrix(np.full((64, 64), 9), np.ones((64, 2), np.float16))
    x = activations(21, 64, np.random.default_rng(8))
    x[20, 50] = bad
    y = unpaired(Gated(matrix, unit)(x), 32)
    assert not np.isfinite(y[20]).any()
    assert np.isfinite(y[:20]).all()


@pytest.mark.parametrize("n", [32, 96, 80])
def test_halves_that_words_do_not_pair_are_refused(weights, n):
    with pytest.raises(AssertionError, match="words pair two strips"):
        bf16_swiglu.gemm(weights(n, 32).codec, n, EmulatedTiles(), DEFAULT)


# ---- what is unpacked --------------------------------------------------------------------


@pytest.mark.parametrize("k", [64, 1024])
def test_a_thread_unpacks_to_as_much_as_a_tile_says(k):
    codec = codec_of("q4f16_1", 512, k)
    for tile in SPACE.points():
        func = bf16_swiglu.gemm(codec, 512, EmulatedTiles(), tile)
        assert largest_workspace(func) == tile.panel_bytes(k)


def test_a_panel_is_half_of_the_cache_or_an_eighth_where_x_has_room_beside_it():
    """Of 2 MiB; 512 rows of x take half of it at k = 1024."""
    target = find_target("cpu-sapphirerapids")
    found = {k: bf16_swiglu.Tile.of(target, k).outputs for k in (512, 1024, 2048, 4096, 8192)}
    assert found == {512: 4, 1024: 2, 2048: 4, 4096: 2, 8192: 1}


def test_a_thread_configures_once_and_leaves_nothing_behind():
    unit = EmulatedTiles()
    bf16_swiglu.gemm(codec_of("q4f16_1", 128, 64), 128, unit, DEFAULT)
    first, *between, last = unit.log
    assert (first, last) == (("configure",), ("release",))
    strip = [
        *(("zero", c) for c in range(4)),
        *(("load", t) for t in (4, 5, 6, 7)),
        *(("multiply", 2 * i + b, 4 + i, 6 + b) for i in range(2) for b in range(2)),
        *(("store", c) for c in range(4)),
    ]
    assert between == [*strip, *strip]
