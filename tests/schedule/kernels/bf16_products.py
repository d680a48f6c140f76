"""What tests of bfloat16 share: who does tiles here, numbers in pairs, and exact products.

The numbers that are multiplied are known exactly, as what a kernel rounds to bfloat16. Their
products are exact in float32. In a group of 32 k two chains of 16 are summed and joined, then
groups are added: no number is in more than 16 + 1 + g additions, nor what the sums begin with.
The bound takes eps, twice the unit roundoff, for each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from platform import machine, system

import archspec.cpu.detect
import numpy as np
from tvm import tirx

from mlc_compile import ops
from mlc_compile.emit.spirv.walk import visit
from mlc_compile.layout import GROUP
from mlc_compile.schedule.kernels.tiles import Amx
from mlc_compile.target import BF16_TILE_FEATURES, missing_features

from .emulated_tiles import EmulatedTiles

EPS = np.finfo(np.float32).eps
HALF = 2.0**-8  # of a number, is half a unit of the 8 bits that bfloat16 has


@dataclass(frozen=True)
class Unit:
    """A way to do what tiles do."""

    make: Callable
    compile: Callable


UNITS = {"amx": Amx, "trapped": Amx, "emulated": EmulatedTiles}
HAS_TILES = not set(BF16_TILE_FEATURES).isdisjoint(archspec.cpu.detect.detected_info().features)
if not missing_features(BF16_TILE_FEATURES):
    BEST = "amx"
elif (system(), machine()) == ("Linux", "x86_64") and not HAS_TILES:
    BEST = "trapped"
else:  # tiles that this process is refused may trap or not
    BEST = "emulated"


def rounded(x):
    """The nearest bfloat16 of float32 numbers, ties away from zero."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)


def pairs(x):
    """x[.., k] of bfloat16 numbers as i32[.., k / 2]: k of a group below, k + 16 above."""
    *outer, k = x.shape
    upper = (x.view(np.uint32) >> 16).reshape(*outer, k // GROUP, 2, GROUP // 2)
    words = upper[..., 0, :] | upper[..., 1, :] << 16
    return words.reshape(*outer, k // 2).view(np.int32)


def paired(x):
    """x[m, k] in rows as products read them: i32[1, m, words]; what pads a row is NaN."""
    m, k = x.shape
    words = blank(m, k)
    words[0, :, : k // 2] = pairs(x)
    return words


def unpaired(words, k):
    """paired, undone; what pads a row must not have been written."""
    assert (words[..., k // 2 :] == -1).all()
    m = words.shape[1]
    used = np.ascontiguousarray(words[0, :, : k // 2]).view(np.uint32)
    groups = used.reshape(m, k // GROUP, GROUP // 2)
    both = np.stack([groups << 16, groups & np.uint32(0xFFFF0000)], axis=2)
    return both.reshape(m, k).view(np.float32)


def blank(m, k):
    """Pairs of m rows that a kernel must overwrite, but for what pads a row."""
    return np.full((1, m, ops.rounded_words(k)), -1, np.int32)


def activations(m, k, random):
    return rounded(random.standard_normal((m, k)).astype(np.float32))


def multiplied(matrix):
    """w as the kernel has it, float64 [n, k]: code - 7 times scale in float32, then rounded."""
    scales = np.repeat(matrix.scales, GROUP, axis=-1).astype(np.float32)
    return rounded((matrix.codes - 7).astype(np.float32) * scales).astype(np.float64)


def products(x, matrix, base=None):
    """x w^T, more `base` if any, exactly [m, n], and the bound of each number's error."""
    w, exactly = multiplied(matrix), x.astype(np.float64)
    exact, magnitude = exactly @ w.T, np.abs(exactly) @ np.abs(w).T
    if base is not None:
        exact, magnitude = exact + base, magnitude + np.abs(base)
    return exact, (GROUP // 2 + 2 + x.shape[1] // GROUP) * EPS * magnitude


def largest_workspace(func):
    """Bytes of the largest array that a kernel makes for itself."""
    sizes = []

    def note(node):
        if isinstance(node, tirx.AllocBuffer):
            shape = [int(size) for size in node.buffer.shape]
            sizes.append(int(np.prod(shape)) * np.dtype(str(node.buffer.dtype)).itemsize)

    visit(func.body, note)
    return max(sizes)
