"""Carry out a weight plan: neutral tensors become `weights.bin`, one planned tensor at a time."""

from pathlib import Path

import numpy as np

from mlc_compile.artifact import PACKED_WEIGHTS, PlannedTensor, WeightPlan
from mlc_compile.checkpoint import TensorCache
from mlc_compile.layout import LAYOUTS, Parts
from mlc_compile.progress import Progress
from mlc_compile.quant import part_name


def pack_weights(plan: WeightPlan, cache: TensorCache, directory: Path, progress: Progress) -> None:
    """Write `weights.bin` into `directory`; memory stays a few copies of the largest tensor."""
    progress.step("packing weights", plan.nbytes)
    with (directory / PACKED_WEIGHTS).open("wb") as out:
        out.truncate(plan.nbytes)
        for tensor in plan.tensors:
            packed = LAYOUTS[tensor.layout].pack(_joined(tensor, cache))
            for part, array in zip(tensor.parts, packed.values(), strict=True):
                assert (array.shape, str(array.dtype)) == (part.shape, part.dtype), part.name
                out.seek(part.offset)
                out.write(array.data)
                progress.advance(part.nbytes)


def _joined(tensor: PlannedTensor, cache: TensorCache) -> Parts:
    """Suffix -> the rows of all sources, in order."""
    stem = part_name(tensor.sources[0], "")
    suffixes = [name.removeprefix(stem) for name in cache.names if name.startswith(stem)]
    return {
        suffix: np.concatenate([cache.read(part_name(s, suffix)) for s in tensor.sources])
        for suffix in suffixes
    }
