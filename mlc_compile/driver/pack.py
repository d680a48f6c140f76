"""Carry out a weight plan: neutral tensors become `weights.bin`, or shards that a page fetches."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from mlc_compile.artifact import PACKED_WEIGHTS, TENSOR_CACHE, Part, PlannedTensor, WeightPlan
from mlc_compile.checkpoint import TensorCache
from mlc_compile.checkpoint.tensor_cache import Shard, Stored, TensorCacheWriter, plan_shards
from mlc_compile.layout import LAYOUTS, Parts
from mlc_compile.progress import Progress
from mlc_compile.quant import part_name


def pack_weights(plan: WeightPlan, cache: TensorCache, directory: Path, progress: Progress) -> None:
    """Write `packed_files` into `directory`; memory stays a few copies of the largest tensor."""
    progress.step("packing weights", plan.nbytes)
    write = _write_shards if plan.sharded else _write_one
    write(plan, cache, directory, progress)


def packed_files(plan: WeightPlan) -> tuple[str, ...]:
    """What the weights are written to."""
    if not plan.sharded:
        return (PACKED_WEIGHTS,)
    return (*(shard.dataPath for shard in _shards(plan)), TENSOR_CACHE)


def _write_one(plan: WeightPlan, cache: TensorCache, directory: Path, progress: Progress) -> None:
    with (directory / PACKED_WEIGHTS).open("wb") as out:
        out.truncate(plan.nbytes)
        for part, array in _packed(plan, cache):
            out.seek(part.offset)
            out.write(array.data)
            progress.advance(part.nbytes)


def _write_shards(
    plan: WeightPlan, cache: TensorCache, directory: Path, progress: Progress
) -> None:
    writer = TensorCacheWriter(directory, _shards(plan))
    for part, array in _packed(plan, cache):
        writer.write(part.name, 0, array)
        progress.advance(part.nbytes)
    with ThreadPoolExecutor() as pool:
        writer.finish(cache.parameters, pool)


def _shards(plan: WeightPlan) -> tuple[Shard, ...]:
    parts = (part for tensor in plan.tensors for part in tensor.parts)
    return plan_shards((part.name, part.shape, part.dtype) for part in parts)


def _packed(plan: WeightPlan, cache: TensorCache) -> Iterator[tuple[Part, Stored]]:
    for tensor in plan.tensors:
        packed = LAYOUTS[tensor.layout].pack(_joined(tensor, cache))
        for part, array in zip(tensor.parts, packed.values(), strict=True):
            assert (array.shape, str(array.dtype)) == (part.shape, part.dtype), part.name
            yield part, array


def _joined(tensor: PlannedTensor, cache: TensorCache) -> Parts:
    """Suffix -> the rows of all sources, in order."""
    stem = part_name(tensor.sources[0], "")
    suffixes = [name.removeprefix(stem) for name in cache.names if name.startswith(stem)]
    return {
        suffix: np.concatenate([cache.read(part_name(s, suffix)) for s in tensor.sources])
        for suffix in suffixes
    }
