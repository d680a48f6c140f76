"""The generating loop over a scripted model: what ends it, what is told, what is computed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlc_compile.artifact import Limits
from mlc_compile.errors import ConfigError
from mlc_compile.runtime.engine import Engine
from mlc_compile.runtime.generate import Generation, Request, Timings, generate
from mlc_compile.runtime.sampler import GREEDY, Sampling
from mlc_compile.runtime.tokenizer import Tokenizer

VOCAB = 4096
Generate = Callable[..., Generation]


class Script:
    """A model that, after a prompt of n tokens, says `tokens[i]` at position n + i."""

    chooses = False

    def __init__(self, tokens: list[int], prompt: int) -> None:
        self.tokens, self.prompt, self.seen = tokens, prompt, 0

    def prefill(self, ids, position):
        self.seen += len(ids)
        return self._say(position + len(ids))

    def decode(self, token, position):
        self.seen += 1
        return self._say(position + 1)

    def score(self, ids, position):
        raise AssertionError("generating needs no score")

    def _say(self, length: int) -> np.ndarray:
        logits = np.zeros(VOCAB, np.float32)
        logits[self.tokens[length - self.prompt]] = 1
        return logits


class DeviceScript(Script):
    """The same, choosing its tokens itself: no logits but a prompt's are asked for."""

    chooses = True

    def decode(self, token, position):
        raise AssertionError("the logits stay where they are")

    def next_token(self, token, position, sampler):
        return sampler.sample(super().decode(token, position))


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> Tokenizer:
    return Tokenizer(tiny_checkpoint)


def engine_saying(tokens: list[int], prompt: int, context: int = 64) -> Engine:
    return Engine(Script(tokens, prompt), Limits(context=context, prefill_chunk=8), VOCAB)


def test_a_stop_token_ends_the_text_and_is_not_part_of_it(tokenizer: Tokenizer) -> None:
    words = tokenizer.encode("well done")
    engine = engine_saying([*words, 4093, 1], prompt=3)
    request = Request([1, 2, 3], max_tokens=50, stop=frozenset({4093}))
    done = generate(engine, tokenizer, request, lambda _: None)
    assert (done.text, done.finish_reason) == ("well done", "stop")
    assert done.token_ids == tuple(words)
    assert done.prompt_token_ids == (1, 2, 3)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, top_k=1, seed=0)])
def test_the_text_is_the_same_where_the_device_chooses(
    tokenizer: Tokenizer, sampling: Sampling
) -> None:
    words = tokenizer.encode("chosen on a device")
    request = Request([1, 2, 3], 50, sampling, frozenset({4093}))
    done = [
        generate(
            Engine(script([*words, 4093], 3), Limits(context=64, prefill_chunk=8), VOCAB),
            tokenizer,
            request,
            lambda _: None,
        )
        for script in (Script, DeviceScript)
    ]
    assert {(one.text, one.finish_reason) for one in done} == {("chosen on a device", "stop")}
    assert done[0].token_ids == done[1].token_ids


def test_max_tokens_ends_it_without_one_more_step(tokenizer: Tokenizer) -> None:
    engine = engine_saying([10, 11, 12, 13], prompt=2)
    done = generate(engine, tokenizer, Request([5, 6], max_tokens=3), lambda _: None)
    assert (done.token_ids, done.finish_reason) == ((10, 11, 12), "length")
    assert engine.length == 4  # the last token was never fed back


def test_a_full_context_ends_it(tokenizer: Tokenizer) -> None:
    engine = engine_saying([10] * 20, prompt=6, context=8)
    done = generate(engine, tokenizer, Request([5] * 6, max_tokens=50), lambda _: None)
    assert (len(done.token_ids), done.finish_reason) == (3, "context")


def test_an_interrupt_ends_it_and_the_next_text_goes_on_from_there(tokenizer: Tokenizer) -> None:
    script = Script([10, 11, 12, 13, 14], prompt=2)
    engine = Engine(script, Limits(context=64, prefill_chunk=8), VOCAB)
    presses = iter([False, True])
    request = Request([5, 6], max_tokens=50, interrupted=lambda: next(presses))
    done = generate(engine, tokenizer, request, lambda _: None)
    assert (done.token_ids, done.finish_reason) == ((10, 11), "interrupt")
    assert done.told().endswith("interrupted")
    seen = script.seen
    generate(engine, tokenizer, Request([5, 6, 10, 11, 20], max_tokens=1), lambda _: None)
    assert script.seen - seen == 2  # 11, which was never fed back, and 20


def test_pieces_are_told_as_they_come_and_join_to_the_text(tokenizer: Tokenizer) -> None:
    words = tokenizer.encode("日本語 text")
    told: list[str] = []
    done = generate(
        engine_saying(words, prompt=1), tokenizer, Request([1], len(words)), told.append
    )
    assert len(told) > 1
    assert "".join(told) == done.text == "日本語 text"
    assert "" not in told


def test_a_second_text_computes_only_what_is_new(tokenizer: Tokenizer) -> None:
    script = Script([10, 11, 12, 13, 14, 15], prompt=3)
    engine = Engine(script, Limits(context=64, prefill_chunk=8), VOCAB)
    generate(engine, tokenizer, Request([1, 2, 3], max_tokens=2), lambda _: None)
    seen = script.seen
    again = Request([1, 2, 3, 10, 20, 21], max_tokens=1)
    generate(engine, tokenizer, again, lambda _: None)
    assert script.seen - seen == 2  # 1 2 3 10 were in the cache


def test_a_prompt_longer_than_the_context_is_told_with_numbers(tokenizer: Tokenizer) -> None:
    engine = engine_saying([1], prompt=9, context=8)
    with pytest.raises(ConfigError, match="prompt has 9 tokens, but the context holds 8"):
        generate(engine, tokenizer, Request([1] * 9, max_tokens=1), lambda _: None)


def test_rates_belong_to_what_was_computed(tokenizer: Tokenizer) -> None:
    one = generate(engine_saying([7], 2), tokenizer, Request([1, 2], 1), lambda _: None)
    assert one.timings.decode_tok_s is None
    assert one.timings.prefill_tok_s == pytest.approx(2 / one.timings.prefill_s)


@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        ("stop", "stopped at a stop token"),
        ("length", "stopped at --max-tokens"),
        ("context", "stopped with the context full"),
    ],
)
def test_the_closing_line_counts_and_says_why_it_ended(reason: str, ending: str) -> None:
    timings = Timings(prefill_s=1, decode_s=1, prefill_tok_s=9.04, decode_tok_s=127.0)
    done = Generation(
        prompt_token_ids=(1,) * 9,
        token_ids=(2,) * 128,
        text="",
        finish_reason=reason,
        timings=timings,
    )
    speeds = "prefill 9.0 tok/s, decode 127.0 tok/s"
    assert done.told() == f"9 prompt + 128 new tokens, {speeds}, {ending}"
