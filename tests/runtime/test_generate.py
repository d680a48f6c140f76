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
from mlc_compile.runtime.stop_texts import StopTexts
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


class UnaskedScript(Script):
    """A device that would choose by other rules, and so must not be asked to."""

    chooses = True

    def next_token(self, token, position, sampler):
        raise AssertionError("it knows no penalties")


@pytest.mark.parametrize("script", [Script, UnaskedScript])
def test_penalties_hold_also_where_a_device_chooses(tokenizer: Tokenizer, script: type) -> None:
    engine = Engine(script([10] * 9, 2), Limits(context=64, prefill_chunk=8), VOCAB)
    told = generate(
        engine, tokenizer, Request([0, 1], 4, Sampling(presence_penalty=2.0)), lambda _: None
    )
    assert told.token_ids == (10, 0, 1, 2)  # a prompt's tokens are not penalized
    told = generate(
        engine, tokenizer, Request([0, 1], 3, Sampling(repetition_penalty=2.0)), lambda _: None
    )
    assert told.token_ids == (10, 10, 10)  # halved, it is still the largest


def test_the_prompt_counts_as_said_for_repetition(tokenizer: Tokenizer) -> None:
    class Close(Script):
        def _say(self, length):
            logits = super()._say(length)
            logits[7] = 0.75
            return logits

    engine = Engine(Close([10] * 9, 2), Limits(context=64, prefill_chunk=8), VOCAB)
    request = Request([10, 1], 2, Sampling(repetition_penalty=2.0))
    assert generate(engine, tokenizer, request, lambda _: None).token_ids == (7, 10)


@pytest.mark.parametrize(
    ("text", "stops", "left"),
    [
        ("日本語 text\nUser: more", ("\nUser:",), "日本語 text"),
        ("日本語 text", ("語 te",), "日本"),  # the first character of several tokens
        ("well done", ("absent", "done"), "well "),
        ("well done", ("well",), ""),
    ],
)
def test_a_text_ends_before_a_stop_text_over_tokens(
    tokenizer: Tokenizer, text: str, stops: tuple[str, ...], left: str
) -> None:
    words, told = tokenizer.encode(text), []
    script = Script([*words, 4093], prompt=1)
    engine = Engine(script, Limits(context=64, prefill_chunk=8), VOCAB)
    request = Request([1], 50, stop=frozenset({4093}), stop_texts=StopTexts(stops))
    done = generate(engine, tokenizer, request, told.append)
    assert "".join(told) == done.text == left
    assert done.finish_reason == "stop_text"
    assert done.told().endswith("stopped at a stop text")
    assert done.token_ids == tuple(words[: len(done.token_ids)])
    assert script.seen == len(done.token_ids)  # nothing is computed after the last


def test_what_may_begin_a_stop_text_is_told_at_the_end(tokenizer: Tokenizer) -> None:
    words = tokenizer.encode("well do")
    engine = engine_saying([*words, 4093], prompt=1)
    request = Request([1], None, stop=frozenset({4093}), stop_texts=StopTexts(("done",)))
    done = generate(engine, tokenizer, request, lambda _: None)
    assert (done.text, done.finish_reason) == ("well do", "stop")


def test_max_tokens_ends_it_without_one_more_step(tokenizer: Tokenizer) -> None:
    engine = engine_saying([10, 11, 12, 13], prompt=2)
    done = generate(engine, tokenizer, Request([5, 6], max_tokens=3), lambda _: None)
    assert (done.token_ids, done.finish_reason) == ((10, 11, 12), "length")
    assert engine.length == 4  # the last token was never fed back


@pytest.mark.parametrize("most", [50, None])
def test_a_full_context_ends_it(tokenizer: Tokenizer, most: int | None) -> None:
    engine = engine_saying([10] * 20, prompt=6, context=8)
    done = generate(engine, tokenizer, Request([5] * 6, max_tokens=most), lambda _: None)
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
