"""How well an artifact predicts a text: perplexity, and closeness to a reference artifact.

The text is cut into windows of `window` tokens that do not overlap, each read from an empty
cache, so a window predicts window - 1 tokens. A last piece shorter than that is left out,
unless there is nothing else.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from mlc_compile.errors import ConfigError
from mlc_compile.progress import SILENT, Progress
from mlc_compile.runtime.engine import Engine

Floats = npt.NDArray[np.float32]

WINDOW: Final = 512  # tokens
NO_REFERENCE: Final = "add --reference DIR for KL and top-1"


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Means over `tokens` predicted tokens."""

    perplexity: float
    kl: float | None  # KL(reference || artifact), nats
    top1_agreement: float | None  # share of positions where both prefer the same token
    tokens: int
    windows: int
    window: int
    note: str = ""


def evaluate(
    engine: Engine,
    ids: Sequence[int],
    window: int,
    reference: Engine | None = None,
    progress: Progress = SILENT,
) -> Evaluation:
    """Score a text of token ids; `reference` must have the same vocabulary.

    Raises ConfigError for a text of fewer than two tokens, a window that the context cannot
    hold, and a reference of another vocabulary.
    """
    _check(engine, ids, window, reference)
    pieces = windows(ids, window)
    progress.step("scoring", len(pieces))
    sums = _Sums()
    for piece in pieces:
        _score(sums, engine, piece, reference)
        progress.advance()
    n = sums.tokens
    return Evaluation(
        perplexity=math.exp(sums.loss / n),
        kl=sums.kl / n if reference else None,
        top1_agreement=sums.agreed / n if reference else None,
        tokens=n,
        windows=len(pieces),
        window=window,
        note="" if reference else NO_REFERENCE,
    )


def windows(ids: Sequence[int], window: int) -> list[Sequence[int]]:
    """Whole windows, or all of a text shorter than one."""
    whole = [ids[i : i + window] for i in range(0, len(ids) - window + 1, window)]
    return whole or [ids]


def read_text(path: Path) -> str:
    """The text in a file; ConfigError unless it is UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path} is not UTF-8 text: {e.reason}", hint="convert it") from e


@dataclass(slots=True)
class _Sums:
    tokens: int = 0
    loss: float = 0.0
    kl: float = 0.0
    agreed: int = 0


def _score(sums: _Sums, engine: Engine, piece: Sequence[int], reference: Engine | None) -> None:
    targets = np.asarray(piece[1:])
    start = 0
    for ours, theirs in _blocks(engine, piece[:-1], reference):
        target = targets[start : start + len(ours)]
        start += len(ours)
        log_p = log_softmax(ours)
        sums.tokens += len(ours)
        sums.loss -= float(log_p[np.arange(len(ours)), target].sum(dtype=np.float64))
        if theirs is not None:
            log_q = log_softmax(theirs)
            sums.kl += float((np.exp(log_q) * (log_q - log_p)).sum(dtype=np.float64))
            sums.agreed += int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())


def _blocks(
    engine: Engine, ids: Sequence[int], reference: Engine | None
) -> Iterator[tuple[Floats, Floats | None]]:
    """Logits of both, as blocks of the same rows."""
    engine.rewind()
    if reference is None:
        yield from ((ours, None) for ours in engine.score(ids))
        return
    reference.rewind()
    rows = min(engine.score_rows, reference.score_rows)
    yield from zip(engine.score(ids, rows), reference.score(ids, rows), strict=True)


def log_softmax(logits: Floats) -> Floats:
    """Per row; sums in float64, since a vocabulary has 10^5 terms."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)
    result: Floats = (shifted - np.log(total)).astype(np.float32)
    return result


def _check(engine: Engine, ids: Sequence[int], window: int, reference: Engine | None) -> None:
    if len(ids) < 2:
        raise ConfigError(
            f"the text must have at least 2 tokens, got {len(ids)}", hint="give a longer text"
        )
    context = min(e.limits.context for e in (engine, reference) if e is not None)
    if not 2 <= window <= context:
        raise ConfigError(
            f"the window must be between 2 and the context of {context} tokens, got {window}",
            hint="choose another --window",
        )
    if reference is not None and reference.vocab_size != engine.vocab_size:
        raise ConfigError(
            f"the reference has a vocabulary of {reference.vocab_size}, "
            f"the artifact one of {engine.vocab_size}",
            hint="the reference must be a build of the same model",
        )
