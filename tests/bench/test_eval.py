"""Perplexity, KL and agreement against their definitions, over models in numpy."""

from pathlib import Path

import numpy as np
import pytest

from mlc_compile.artifact import Limits
from mlc_compile.bench.eval import NO_REFERENCE, evaluate, log_softmax, read_text, windows
from mlc_compile.errors import ConfigError
from mlc_compile.runtime.engine import Engine

VOCAB = 13


class Bigram:
    """Logits that depend on the last token and its position."""

    def __init__(self, seed: int) -> None:
        self.table = np.random.default_rng(seed).standard_normal((64, VOCAB, VOCAB)) * 2

    def score(self, ids, position):
        places = np.arange(position, position + len(ids))
        return self.table[places, ids].astype(np.float32)

    def prefill(self, ids, position):
        raise AssertionError("scoring needs no prefill")

    def decode(self, token, position):
        raise AssertionError("scoring needs no decode")


def engine(seed: int, chunk: int = 5, vocab: int = VOCAB, context: int = 32) -> Engine:
    return Engine(Bigram(seed), Limits(context=context, prefill_chunk=chunk), vocab)


def log_probabilities(seed: int, piece: list[int]) -> np.ndarray:
    logits = Bigram(seed).table[np.arange(len(piece)), piece]
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


@pytest.fixture
def ids() -> list[int]:
    return [int(i) for i in np.random.default_rng(9).integers(0, VOCAB, 50)]


def test_perplexity_is_that_of_windows_from_an_empty_cache(ids: list[int]) -> None:
    losses = [
        -log_probabilities(1, ids[i : i + 16])[j, ids[i + j + 1]]
        for i in (0, 16, 32)
        for j in range(15)
    ]
    got = evaluate(engine(1), ids, window=16)
    assert got.perplexity == pytest.approx(np.exp(np.mean(losses)), rel=1e-6)
    assert (got.tokens, got.windows, got.window) == (45, 3, 16)


def test_without_a_reference_the_comparisons_are_null_and_say_why(ids: list[int]) -> None:
    got = evaluate(engine(1), ids, window=16)
    assert (got.kl, got.top1_agreement, got.note) == (None, None, NO_REFERENCE)


def test_kl_and_agreement_are_their_definitions(ids: list[int]) -> None:
    ours, theirs = (log_probabilities(seed, ids[:16])[:15] for seed in (1, 2))
    got = evaluate(engine(1), ids[:16], window=16, reference=engine(2, chunk=7))
    expected = (np.exp(theirs) * (theirs - ours)).sum(axis=1).mean()
    assert got.kl == pytest.approx(expected, rel=1e-5)
    assert got.top1_agreement == np.mean(ours.argmax(axis=1) == theirs.argmax(axis=1))
    assert got.note == ""


def test_a_model_agrees_with_itself(ids: list[int]) -> None:
    got = evaluate(engine(3), ids, window=10, reference=engine(3))
    assert got.kl == pytest.approx(0, abs=1e-7)
    assert got.top1_agreement == 1


@pytest.mark.parametrize(
    ("n", "sizes"),
    [(3, [3]), (4, [4]), (7, [4]), (8, [4, 4]), (11, [4, 4])],
)
def test_windows_do_not_overlap_and_leave_out_a_short_tail(n: int, sizes: list[int]) -> None:
    pieces = windows(range(n), 4)
    assert [len(piece) for piece in pieces] == sizes
    assert [i for piece in pieces for i in piece] == list(range(sum(sizes)))


def test_log_softmax_survives_large_logits() -> None:
    got = log_softmax(np.array([[1e4, 1e4, -1e4]], np.float32))
    np.testing.assert_allclose(got[0, :2], np.log(0.5), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"ids": [1]}, "at least 2 tokens, got 1", id="text too short"),
        pytest.param({"window": 33}, "between 2 and the context of 32", id="window too long"),
        pytest.param({"window": 1}, "between 2 and", id="window of one"),
        pytest.param({"reference": engine(2, vocab=20)}, "vocabulary of 20", id="vocabulary"),
        pytest.param({"reference": engine(2, context=8)}, "context of 8", id="reference context"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    ids: list[int], change: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        evaluate(**{"engine": engine(1), "ids": ids, "window": 16, **change})


def test_text_must_be_utf8(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_text(tmp_path / "latin.txt")
