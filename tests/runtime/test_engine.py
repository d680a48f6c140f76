"""The engine over a model in numpy that notices every token it is given and where."""

import numpy as np
import pytest

from mlc_compile.artifact import Limits
from mlc_compile.errors import ConfigError, DamageError
from mlc_compile.runtime import engine as module
from mlc_compile.runtime.engine import Engine
from mlc_compile.runtime.sampler import GREEDY, Sampler, Sampling

VOCAB = 11
LIMITS = Limits(context=16, prefill_chunk=4)


class Recorder:
    """Logits that depend on all tokens so far; `calls` lists (function, tokens, position)."""

    chooses = False

    def __init__(self) -> None:
        self.cache = np.zeros(LIMITS.context, np.int64)
        self.calls: list[tuple[str, int, int]] = []

    def prefill(self, ids, position):
        return self._append("prefill", ids, position)[-1]

    def decode(self, token, position):
        return self._append("decode", np.array([token]), position)[-1]

    def score(self, ids, position):
        return self._append("score", ids, position)

    def _append(self, name, ids, position):
        self.calls.append((name, len(ids), position))
        self.cache[position : position + len(ids)] = ids
        ends = range(position + 1, position + len(ids) + 1)
        return np.stack([logits_after(self.cache[:end]) for end in ends])


class Choosing(Recorder):
    """Gives a token in place of the logits after it; `unlike` is what it says instead, if any."""

    chooses = True
    unlike: int | None = None

    def decode(self, token, position):
        raise AssertionError("the logits stay where they are")

    def next_token(self, token, position, sampler):
        logits = self._append("next_token", np.array([token]), position)[-1]
        return sampler.sample(logits) if self.unlike is None else self.unlike


def logits_after(tokens) -> np.ndarray:
    weights = np.arange(1, len(tokens) + 1)
    return np.sin(np.outer(np.asarray(tokens) + 1, np.arange(1, VOCAB + 1)).T @ weights)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def engine(recorder: Recorder) -> Engine:
    return Engine(recorder, LIMITS, VOCAB)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 9, 16])
def test_prefill_in_chunks_equals_the_whole(engine: Engine, recorder: Recorder, n: int) -> None:
    ids = [(7 * i) % VOCAB for i in range(n)]
    np.testing.assert_array_equal(engine.prefill(ids), logits_after(ids))
    sizes = [size for _, size, _ in recorder.calls]
    assert sum(sizes) == n == engine.length
    assert max(sizes) <= LIMITS.prefill_chunk


def test_decode_continues_where_prefill_ended(engine: Engine) -> None:
    engine.prefill([1, 2, 3])
    engine.decode(4)
    np.testing.assert_array_equal(engine.decode(5), logits_after([1, 2, 3, 4, 5]))


@pytest.mark.parametrize("model", [Recorder, Choosing])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8, 5, 0.9, seed=3)])
def test_the_next_token_is_the_samplers_whoever_chooses(model, sampling) -> None:
    engine, sampler, expected = Engine(model(), LIMITS, VOCAB), Sampler(sampling), Sampler(sampling)
    engine.prefill([1, 2, 3])
    ids = [1, 2, 3, 4]
    for _ in range(6):
        token = engine.next_token(ids[-1], sampler)
        assert token == expected.sample(logits_after(ids))
        assert engine.length == len(ids)
        ids.append(token)


@pytest.mark.parametrize("said", [-1, VOCAB])
def test_a_token_that_is_none_is_damage(said: int) -> None:
    model = Choosing()
    model.unlike = said
    engine = Engine(model, LIMITS, VOCAB)
    engine.prefill([1])
    with pytest.raises(DamageError, match="not finite"):
        engine.next_token(2, Sampler(GREEDY))


@pytest.mark.parametrize("model", [Recorder, Choosing])
def test_choosing_past_the_context_is_refused(model) -> None:
    engine = Engine(model(), LIMITS, VOCAB)
    engine.prefill([0] * 16)
    with pytest.raises(ConfigError, match="context holds 16"):
        engine.next_token(1, Sampler(GREEDY))


def test_score_gives_a_row_for_each_token(engine: Engine) -> None:
    ids = list(range(10))
    rows = np.concatenate(list(engine.score(ids)))
    np.testing.assert_array_equal(rows, np.stack([logits_after(ids[: i + 1]) for i in range(10)]))


def test_score_blocks_stay_within_their_bytes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCORE_BYTES", 4 * VOCAB * 2)
    assert [len(block) for block in engine.score([1, 2, 3, 4, 5])] == [2, 2, 1]


def test_a_prompt_that_fills_the_context_is_taken(engine: Engine) -> None:
    engine.prefill([0] * 16)
    assert engine.room == 0


@pytest.mark.parametrize(
    ("before", "ids", "said"),
    [
        pytest.param([], [0] * 17, "17 tokens, but the context holds 16", id="too long"),
        pytest.param([1] * 10, [0] * 7, "7 tokens after 10 in the cache", id="too long, later"),
        pytest.param([], [], "no tokens", id="empty"),
        pytest.param([], [3, VOCAB], f"token id {VOCAB} is outside", id="id too large"),
        pytest.param([], [-1], "token id -1 is outside", id="negative id"),
    ],
)
def test_a_bad_prompt_is_refused_and_changes_nothing(
    engine: Engine, recorder: Recorder, before: list[int], ids: list[int], said: str
) -> None:
    if before:
        engine.prefill(before)
    calls = list(recorder.calls)
    with pytest.raises(ConfigError, match=said):
        engine.prefill(ids)
    with pytest.raises(ConfigError, match=said):
        list(engine.score(ids))
    assert recorder.calls == calls
    assert engine.length == len(before)


def test_decoding_past_the_context_is_refused(engine: Engine) -> None:
    engine.prefill([0] * 16)
    with pytest.raises(ConfigError, match="context holds 16"):
        engine.decode(1)


@pytest.mark.parametrize(
    ("cached", "ids", "kept"),
    [
        pytest.param([], [1, 2], 0, id="nothing cached"),
        pytest.param([1, 2, 3], [1, 2, 3, 4], 3, id="a longer text"),
        pytest.param([1, 2, 3], [1, 9, 3, 4], 1, id="another text"),
        pytest.param([1, 2, 3], [1, 2, 3], 2, id="the same text"),
        pytest.param([1, 2, 3], [1, 2], 1, id="a shorter text"),
        pytest.param([1, 2, 3], [], 0, id="no text"),
    ],
)
def test_the_shared_prefix_is_kept_but_for_the_last_token(
    engine: Engine, cached: list[int], ids: list[int], kept: int
) -> None:
    if cached:
        engine.prefill(cached)
    assert engine.keep_prefix(ids) == kept == engine.length
    if ids:
        np.testing.assert_array_equal(engine.prefill(ids[kept:]), logits_after(ids))


def test_logits_that_are_not_finite_are_damage(
    engine: Engine, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[3] = np.nan
    monkeypatch.setattr(recorder, "decode", lambda *_: logits)
    with pytest.raises(DamageError, match="not finite"):
        engine.decode(1)
