"""Whether a checkpoint's tensors are the model's: the tie, names and shapes."""

import numpy as np

from mlc_compile.checkpoint import Checkpoint
from mlc_compile.errors import CheckpointError, listing
from mlc_compile.model.weights import EMBEDDING, HEAD, WeightSpec

BLOCK: int = 1 << 20  # weights compared at once


def decide_tie(checkpoint: Checkpoint) -> bool:
    """True if the head is the embedding, by the tensors present.

    config.json may leave the question open. Where it answers, a head that is missing, or
    one that differs from the embedding it is said to be, is a contradiction.
    """
    stated = checkpoint.config.get("tie_word_embeddings")
    if HEAD not in checkpoint.tensors:
        if stated is False:
            raise CheckpointError(
                f"{checkpoint.directory}: tie_word_embeddings is false, but {HEAD} is missing",
                hint="set it to true if the model ties them, else download the missing weights",
            )
        return True
    if not stated:
        return False
    if not _same(checkpoint, EMBEDDING, HEAD):
        raise CheckpointError(
            f"{checkpoint.directory}: tie_word_embeddings is true, but {HEAD} differs from "
            f"{EMBEDDING}",
            hint="set it to false in config.json if the model was trained with a head of its own",
        )
    return True


def check_tensors(checkpoint: Checkpoint, specs: tuple[WeightSpec, ...], *, tied: bool) -> None:
    """Raise CheckpointError unless the checkpoint holds exactly `specs`, and a tied head's copy."""
    where = checkpoint.directory
    names = {spec.name for spec in specs} | ({HEAD} if tied else set())
    missing = [spec.name for spec in specs if spec.name not in checkpoint.tensors]
    if missing:
        raise CheckpointError(
            f"{where}: {len(missing)} tensors are missing: {listing(missing)}",
            hint="config.json and the weights may belong to different models",
        )
    extra = [name for name in checkpoint.names if name not in names]
    if extra:
        raise CheckpointError(
            f"{where}: {len(extra)} tensors are not part of the model: {listing(extra)}",
            hint="config.json and the weights may belong to different models",
        )
    wrong = [
        f"{spec.name} is {list(checkpoint.shape(spec.name))}, must be {list(spec.shape)}"
        for spec in specs
        if checkpoint.shape(spec.name) != spec.shape
    ]
    if wrong:
        raise CheckpointError(
            f"{where}: {len(wrong)} tensors have the wrong shape: {listing(wrong)}",
            hint="config.json and the weights may belong to different models",
        )


def _same(checkpoint: Checkpoint, a: str, b: str) -> bool:
    shapes = {checkpoint.shape(name) if name in checkpoint.tensors else None for name in (a, b)}
    if len(shapes) > 1:
        return False
    rows, columns = checkpoint.shape(a)
    step = max(1, BLOCK // columns)
    blocks = ((i, min(i + step, rows)) for i in range(0, rows, step))
    return all(
        np.array_equal(checkpoint.read_rows(a, *block), checkpoint.read_rows(b, *block))
        for block in blocks
    )
