"""Turns of a chat: render all of them, compute only what the cache does not hold yet."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from mlc_compile.errors import ConfigError
from mlc_compile.runtime.defaults import CONFIG, model_sampling, read_fields, stop_tokens
from mlc_compile.runtime.generate import Generation, Request, generate, never
from mlc_compile.runtime.sampler import NOTHING_ASKED, Asked
from mlc_compile.runtime.session import Session
from mlc_compile.runtime.stop_texts import NO_STOP_TEXTS, StopTexts
from mlc_compile.runtime.template import Message, read_template, without_half_thought

# The context divided by these is what an answer must find free, and what forgetting then frees.
# If they were the same, each further question would forget, and compute the rest anew.
NEEDED, FREED = 4, 2
PAIR: Final = 2  # messages: a question and its answer


@dataclass(frozen=True, slots=True)
class Manner:
    """How the assistant answers; None leaves it to the model's files."""

    max_tokens: int | None = None  # None: until the context is full
    sampling: Asked = NOTHING_ASKED
    thinking: bool | None = None
    stop_texts: StopTexts = NO_STOP_TEXTS


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages, of which the last is the question, and what the model reads of them."""

    messages: list[Message]
    text: str
    ids: list[int]


class Conversation:
    """A chat with one session; `messages` grows by two with each question."""

    def __init__(self, session: Session, manner: Manner, system: str | None = None) -> None:
        self._instructions = [] if system is None else [Message("system", system)]
        self._session = session
        self._manner = manner
        self._template = read_template(session.directory)
        self._stop = stop_tokens(session.directory)
        self._sampling = manner.sampling.over(model_sampling(session.directory))
        self.clear()

    def clear(self) -> None:
        """Forget all but the instructions."""
        self.messages = [*self._instructions]

    def ask(
        self,
        question: str,
        on_text: Callable[[str], None],
        interrupted: Callable[[], bool] = never,
        on_forgotten: Callable[[list[Message]], None] | None = None,
    ) -> Generation:
        """Answer `question` in the light of all before it; what is `interrupted` counts as said.

        An answer that ended within its thought stays as an empty message.

        Where the context becomes too small, the oldest questions are forgotten with their
        answers, and told to `on_forgotten` before the answer begins; if that is None, it is a
        ConfigError. Raises what `generate` does too; `messages` are then as they were.
        """
        prompt = self._prompt([*self.messages, Message("user", question)])
        if on_forgotten is None:
            self._require_room(prompt)
        else:
            prompt = self._shortened(prompt, on_forgotten)
        request = Request(
            prompt=prompt.ids,
            max_tokens=self._manner.max_tokens,
            sampling=self._sampling,
            stop=self._stop,
            stop_texts=self._manner.stop_texts,
            interrupted=interrupted,
        )
        answer = generate(self._session.engine, self._session.tokenizer, request, on_text)
        said = without_half_thought(prompt.text, answer.text)
        self.messages = [*prompt.messages, Message("assistant", said)]
        return answer

    def _prompt(self, messages: list[Message]) -> Prompt:
        text = self._template.render(messages, thinking=self._manner.thinking)
        # Not special: the template wrote the marks.
        return Prompt(messages, text, self._session.tokenizer.encode(text, special=False))

    def _shortened(self, whole: Prompt, on_forgotten: Callable[[list[Message]], None]) -> Prompt:
        """`whole` without its oldest turns, if it leaves too little room for an answer."""
        context, first = self._session.engine.limits.context, len(self._instructions)
        needed = min(self._manner.max_tokens or context, context // NEEDED)
        if len(whole.ids) + needed <= context:
            return whole
        rest = whole
        while len(rest.ids) > context - context // FREED and len(rest.messages) > first + PAIR:
            rest = self._prompt([*self._instructions, *rest.messages[first + PAIR :]])
        forgotten = whole.messages[first : first + len(whole.messages) - len(rest.messages)]
        if forgotten and len(rest.ids) <= context:  # a question that is too long is `generate`'s
            on_forgotten(forgotten)
        return rest

    def _require_room(self, prompt: Prompt) -> None:
        """ConfigError if earlier turns leave no room; a long first question is prefill's."""
        tokens, context = len(prompt.ids), self._session.engine.limits.context
        if tokens <= context or all(message.role != "assistant" for message in prompt.messages):
            return
        reach = read_fields(self._session.directory, CONFIG, Reach).max_position_embeddings
        larger = f", or compile with a larger --context (up to {reach})" if reach > context else ""
        shorter = ", limit the answers by --max-tokens" if self._manner.max_tokens is None else ""
        raise ConfigError(
            f"the conversation has {tokens} tokens, but the context holds {context}",
            hint=f"start a new chat{shorter}{larger}",
        )


class Reach(msgspec.Struct, frozen=True):
    """Of config.json, how far the model itself goes."""

    max_position_embeddings: int = 0
