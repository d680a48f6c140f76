"""`convert`: a checkpoint becomes quantized, target-neutral weights with the proof of their values.

Blocks of rows are read, quantized and written by several threads, each to its known place;
then the reference logits are computed from what was written. Memory stays a few blocks per
thread, whatever the model's size.
"""

import errno
import hashlib
import math
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from mlc_compile import __version__
from mlc_compile.artifact import (
    TENSOR_CACHE,
    File,
    WeightsManifest,
    list_files,
    pretty_json,
    write_manifest,
)
from mlc_compile.checkpoint import Checkpoint
from mlc_compile.checkpoint.directory import GENERATION_CONFIG
from mlc_compile.checkpoint.tensor_cache import (
    SHARD_PREFIX,
    Shard,
    TensorCacheWriter,
    plan_shards,
)
from mlc_compile.driver.limits import limits_for
from mlc_compile.driver.proof import write_proof
from mlc_compile.driver.storage import Storage, storage_of
from mlc_compile.driver.subject import Subject, read_subject, require_weights
from mlc_compile.driver.texts import write_texts
from mlc_compile.errors import CheckpointError, ConfigError
from mlc_compile.model.weights import EMBEDDING, HEAD, weight_specs
from mlc_compile.progress import SILENT, Progress
from mlc_compile.quant import find_scheme, part_name
from mlc_compile.quant.error import QUANTIZATION, BlockError, combine, measure
from mlc_compile.quant.scheme import Floats, Scheme
from mlc_compile.runtime.host import available_cores
from mlc_compile.staging import staged

BLOCK: Final = 1 << 20  # weights quantized at once; a thread holds about five float32 copies
MOST_THREADS: Final = 16  # beyond this the disk is the limit


@dataclass(frozen=True, slots=True)
class Source:
    """What is converted: a sound checkpoint, and how each of its tensors will be stored."""

    subject: Subject
    checkpoint: Checkpoint
    plan: tuple[Storage, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was unusual, each in a sentence for people."""
        has_copy = self.subject.config.tie_word_embeddings and HEAD in self.checkpoint.tensors
        has_generation = (self.subject.directory / GENERATION_CONFIG).is_file()
        notes = (
            (self.checkpoint.prefix_added, "tensor names lacked the prefix 'model.', it was added"),
            (has_copy, f"{HEAD} equals {EMBEDDING} and was not stored again"),
            (not has_generation, f"no {GENERATION_CONFIG}: decoding is greedy by default"),
        )
        return tuple(note for holds, note in notes if holds)


def convert(
    model: Path,
    quant: str,
    out: Path,
    progress: Progress = SILENT,
    *,
    threads: int | None = None,
) -> WeightsManifest:
    """Quantize the checkpoint in `model` under scheme `quant` into the weights directory `out`.

    Nothing is left at `out` if this fails or is interrupted, and an earlier result stays.
    Raises ConfigError (no such scheme, weights beyond its range), CheckpointError, and
    OSError (ENOSPC) where the disk is too small. `threads` defaults to the cores we may use.
    """
    find_scheme(quant)
    progress.step("reading the checkpoint")
    return convert_subject(read_subject(model), quant, out, progress, threads=threads)


def convert_subject(
    subject: Subject, quant: str, out: Path, progress: Progress, *, threads: int | None = None
) -> WeightsManifest:
    """The same for a model that was read already."""
    with staged(out) as scratch:
        return convert_into(scratch, subject, quant, progress, threads=threads)


def convert_into(
    scratch: Path, subject: Subject, quant: str, progress: Progress, *, threads: int | None = None
) -> WeightsManifest:
    """The same into an existing, empty directory."""
    source = _source(subject, find_scheme(quant))
    config = subject.config
    with _pool(threads) as pool:
        _write_tensors(source, scratch, pool, progress)
        write_proof(config, source.plan, scratch, progress)
        progress.step("writing the manifest")
        tokenizer, limits = subject.tokenizer, limits_for(config)
        write_texts(subject.directory, config, tokenizer, quant, scratch, limits)
        manifest = _manifest(source, quant, list_files(scratch))
        write_manifest(scratch, manifest)
    return manifest


def _source(subject: Subject, scheme: Scheme) -> Source:
    checkpoint = require_weights(subject)
    specs = weight_specs(subject.config, subject.config.tie_word_embeddings)
    return Source(subject, checkpoint, tuple(storage_of(spec, scheme) for spec in specs))


@contextmanager
def _pool(threads: int | None) -> Iterator[Executor]:
    """Threads that an error or interrupt stops after the block in hand."""
    pool = ThreadPoolExecutor(threads or min(available_cores(), MOST_THREADS))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _write_tensors(source: Source, scratch: Path, pool: Executor, progress: Progress) -> None:
    shards = plan_shards(
        (part_name(s.spec.name, suffix), shape, dtype)
        for s in source.plan
        for suffix, shape, dtype in s.parts()
    )
    _check_space(scratch, shards)
    parameters = sum(math.prod(s.spec.shape) for s in source.plan)
    progress.step(f"quantizing {len(source.plan)} tensors", parameters)
    writer = TensorCacheWriter(scratch, shards)

    def write(block: tuple[Storage, int, int]) -> BlockError:
        return _write_block(source.checkpoint, writer, *block)

    # In order, so that of several faults the first one is reported, on every run.
    errors = []
    for done in pool.map(write, [block for s in source.plan for block in _row_blocks(s)]):
        progress.advance(done.weights)
        errors.append(done)
    (scratch / QUANTIZATION).write_bytes(pretty_json(combine(errors)))
    progress.step("hashing the shards")
    writer.finish(parameters, pool)


def _check_space(scratch: Path, shards: tuple[Shard, ...]) -> None:
    needed = sum(shard.nbytes for shard in shards)
    free = shutil.disk_usage(scratch).free
    if needed > free:
        told = f"the weights need {needed >> 20} MiB, but {free >> 20} MiB are free"
        raise OSError(errno.ENOSPC, told, str(scratch))  # `staged` names the output instead


def _row_blocks(storage: Storage) -> Iterator[tuple[Storage, int, int]]:
    step = max(1, BLOCK // storage.columns)
    for start in range(0, storage.rows, step):
        yield storage, start, min(start + step, storage.rows)


def _write_block(
    checkpoint: Checkpoint, writer: TensorCacheWriter, storage: Storage, start: int, stop: int
) -> BlockError:
    """Read, check, quantize and write rows `start` to `stop`; how far they are from the weights."""
    name, vector = storage.spec.name, storage.is_vector
    values = checkpoint.read(name)[None] if vector else checkpoint.read_rows(name, start, stop)
    _check_values(checkpoint, storage, values, start)
    parts = storage.scheme.encode(values)
    for suffix, part in parts.items():
        writer.write(part_name(name, suffix), start, part[0] if vector else part)
    return measure(name, storage.scheme, values, parts)


def _check_values(checkpoint: Checkpoint, storage: Storage, values: Floats, start: int) -> None:
    limit = storage.scheme.largest
    if -limit <= values.min() and values.max() <= limit:  # false if any is NaN
        return
    row, column = (int(i) for i in np.argwhere(~(np.abs(values) <= limit))[0])
    value = float(values[row, column])
    index = [start + row, column][-len(storage.spec.shape) :]
    told = f"{checkpoint.directory}: {storage.spec.name} at {index} is {value}"
    if math.isfinite(value):
        raise ConfigError(
            f"{told}, beyond what {storage.scheme.norm_dtype} can hold",
            hint="use a scheme with float32 values: q4f32_1 or q0f32",
        )
    raise CheckpointError(f"{told}; weights must be finite", hint="download the weights again")


def _manifest(source: Source, quant: str, files: tuple[File, ...]) -> WeightsManifest:
    return WeightsManifest(
        model=source.subject.name,
        quant=quant,
        mlc_compile=__version__,
        tied=source.subject.config.tie_word_embeddings,
        kept=tuple(f"{s.spec.name}: {s.kept}" for s in source.plan if s.kept),
        notes=source.notes,
        digest=_tensor_digest(files),
        files=files,
    )


def _tensor_digest(files: tuple[File, ...]) -> str:
    """sha256 over the tensors' index and bytes: equal weights, equal digests."""
    digest = hashlib.sha256()
    for file in files:
        if file.path == TENSOR_CACHE or file.path.startswith(SHARD_PREFIX):
            digest.update(f"{file.path} {file.sha256}\n".encode())
    return digest.hexdigest()
