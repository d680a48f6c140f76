"""A chat over a model with a script: what is kept of it, and what a full context forgets."""

import shutil
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from mlc_compile.artifact import Limits, Manifest
from mlc_compile.errors import ConfigError
from mlc_compile.runtime.conversation import Conversation, Manner
from mlc_compile.runtime.engine import Engine
from mlc_compile.runtime.session import Session
from mlc_compile.runtime.stop_texts import StopTexts
from mlc_compile.runtime.template import Message
from mlc_compile.runtime.tokenizer import Tokenizer

VOCAB = 4096
END = 4093  # <|im_end|>
CONTEXT = 128
THINKING_FIRST = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n"


class Speaker:
    """A model that gives the next answer after each prompt."""

    chooses = False

    def __init__(self, answers: list[list[int]]) -> None:
        self.answers = iter(answers)
        self.prompts: list[int] = []

    def prefill(self, ids, position):
        self.prompts.append(len(ids))
        self._left = iter(next(self.answers))
        return self._say()

    def decode(self, token, position):
        return self._say()

    def _say(self) -> np.ndarray:
        logits = np.zeros(VOCAB, np.float32)
        logits[next(self._left)] = 100
        return logits


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> Tokenizer:
    return Tokenizer(tiny_checkpoint)


def chat(
    directory: Path,
    tokenizer: Tokenizer,
    answers: list[str],
    manner: Manner | None = None,
    system: str | None = None,
) -> Conversation:
    spoken = [[*tokenizer.encode(answer, special=False), END] for answer in answers]
    engine = Engine(Speaker(spoken), Limits(context=CONTEXT, prefill_chunk=CONTEXT), VOCAB)
    session = Session(directory, cast(Manifest, None), engine, tokenizer, 1, 0.0, "")
    return Conversation(session, manner or Manner(), system)


def contents(messages: list[Message]) -> list[str]:
    return [message.content for message in messages]


@pytest.mark.parametrize(
    ("answer", "most", "kept"),
    [
        pytest.param("<think>\nwell, well, well", 3, "", id="half a thought"),
        pytest.param("\n<think>\nwell, well, well", 3, "", id="after a line"),
        pytest.param("<think>so</think>well, well", 6, None, id="a whole thought"),
        pytest.param("a mark is <think>, well", 50, None, id="the mark, not a thought"),
    ],
)
def test_a_thought_without_an_end_is_not_kept(
    tiny_checkpoint: Path, tokenizer: Tokenizer, answer: str, most: int, kept: str | None
) -> None:
    talk = chat(tiny_checkpoint, tokenizer, [answer], Manner(most))
    done = talk.ask("Hi", lambda _: None)
    assert "<think>" in done.text  # what was generated is told all the same
    assert contents(talk.messages) == ["Hi", done.text if kept is None else kept]


@pytest.mark.parametrize(
    ("answer", "kept"), [("well, well", ""), ("so</think>done", "so</think>done")]
)
def test_a_thought_may_begin_in_the_prompt(
    tiny_checkpoint: Path, tokenizer: Tokenizer, tmp_path: Path, answer: str, kept: str
) -> None:
    for name in ("tokenizer_config.json", "generation_config.json", "config.json"):
        shutil.copy(tiny_checkpoint / name, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(THINKING_FIRST)
    talk = chat(tmp_path, tokenizer, [answer])
    talk.ask("Hi", lambda _: None)
    assert contents(talk.messages) == ["Hi", kept]


def test_an_interrupted_thought_is_not_kept(tiny_checkpoint: Path, tokenizer: Tokenizer) -> None:
    talk = chat(tiny_checkpoint, tokenizer, ["<think>well, well, well"])
    presses = iter([False, True])
    talk.ask("Hi", lambda _: None, lambda: next(presses))
    assert contents(talk.messages) == ["Hi", ""]


def test_without_a_limit_an_answer_goes_on_until_the_context_is_full(
    tiny_checkpoint: Path, tokenizer: Tokenizer
) -> None:
    talk = chat(tiny_checkpoint, tokenizer, ["well " * CONTEXT])
    done = talk.ask("Hi", lambda _: None)
    assert done.finish_reason == "context"
    assert len(done.prompt_token_ids) + len(done.token_ids) == CONTEXT + 1


def test_a_full_context_forgets_the_oldest_turns_and_tells_them_first(
    tiny_checkpoint: Path, tokenizer: Tokenizer
) -> None:
    answers = [f"{i} " + "well " * 9 for i in range(8)]
    talk = chat(tiny_checkpoint, tokenizer, answers, system="Be brief.")
    told: list[str] = []
    forgotten: list[str] = []
    for i in range(8):

        def forget(messages: list[Message], i: int = i) -> None:
            assert told.count(f"answer {i}") == 0
            forgotten.extend(contents(messages))

        talk.ask(f"question {i}", lambda _, i=i: told.append(f"answer {i}"), on_forgotten=forget)
    everything = [text for i in range(8) for text in (f"question {i}", answers[i])]
    assert forgotten == everything[: len(forgotten)]
    assert 0 < len(forgotten) < len(everything)
    assert contents(talk.messages) == ["Be brief.", *everything[len(forgotten) :]]


def test_forgetting_frees_more_than_one_question_needs(
    tiny_checkpoint: Path, tokenizer: Tokenizer
) -> None:
    """What remains is computed anew each time that something is forgotten."""
    talk = chat(tiny_checkpoint, tokenizer, ["well"] * 24)
    times: list[int] = []
    for i in range(24):
        talk.ask("Hi", lambda _: None, on_forgotten=lambda _, i=i: times.append(i))
    assert times
    assert min(np.diff([*times, 24])) > 1


def test_a_question_that_is_too_long_by_itself_changes_nothing(
    tiny_checkpoint: Path, tokenizer: Tokenizer
) -> None:
    talk = chat(tiny_checkpoint, tokenizer, ["well", "done"])
    forgotten: list[Message] = []
    talk.ask("Hi", lambda _: None, on_forgotten=forgotten.extend)
    with pytest.raises(ConfigError, match=f"the context holds {CONTEXT}"):
        talk.ask("word " * CONTEXT, lambda _: None, on_forgotten=forgotten.extend)
    assert contents(talk.messages) == ["Hi", "well"]
    talk.ask("And?", lambda _: None, on_forgotten=forgotten.extend)
    assert contents(talk.messages) == ["Hi", "well", "And?", "done"]
    assert forgotten == []


def test_cleared_it_begins_anew_with_its_instructions(
    tiny_checkpoint: Path, tokenizer: Tokenizer
) -> None:
    talk = chat(tiny_checkpoint, tokenizer, ["well", "done"], system="Be brief.")
    first = talk.ask("Hi", lambda _: None)
    talk.clear()
    assert contents(talk.messages) == ["Be brief."]
    assert talk.ask("Hi", lambda _: None).prompt_token_ids == first.prompt_token_ids


def test_a_stop_text_ends_an_answer_and_is_not_kept(
    tiny_checkpoint: Path, tokenizer: Tokenizer
) -> None:
    manner = Manner(stop_texts=StopTexts(("\nUser:",)))
    talk = chat(tiny_checkpoint, tokenizer, ["well\nUser: done"], manner)
    talk.ask("Hi", lambda _: None)
    assert contents(talk.messages) == ["Hi", "well"]
