"""Turns of a chat: render all of them, compute only what the cache does not hold yet."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from mlc_compile.errors import ConfigError
from mlc_compile.runtime.defaults import CONFIG, model_sampling, read_fields, stop_tokens
from mlc_compile.runtime.generate import Generation, Request, generate, never
from mlc_compile.runtime.sampler import Sampling
from mlc_compile.runtime.session import Session
from mlc_compile.runtime.template import Message, read_template

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Manner:
    """How the assistant answers; None leaves it to the model's files."""

    max_tokens: int
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    thinking: bool | None = None


class Conversation:
    """A chat with one session; `messages` grows by two with each question."""

    def __init__(self, session: Session, manner: Manner, system: str | None = None) -> None:
        self.messages = [] if system is None else [Message("system", system)]
        self._session = session
        self._manner = manner
        self._template = read_template(session.directory)
        self._stop = stop_tokens(session.directory)
        self._sampling = _sampling(model_sampling(session.directory), manner)

    def ask(
        self,
        question: str,
        on_text: Callable[[str], None],
        interrupted: Callable[[], bool] = never,
    ) -> Generation:
        """Answer `question` in the light of all before it; what is `interrupted` counts as said.

        Raises what `generate` does, and ConfigError where the chat has outgrown the context.
        """
        asked = [*self.messages, Message("user", question)]
        text = self._template.render(asked, thinking=self._manner.thinking)
        tokenizer = self._session.tokenizer
        prompt = tokenizer.encode(text, special=False)  # the template wrote the marks
        self._require_room(len(prompt))
        request = Request(
            prompt=prompt,
            max_tokens=self._manner.max_tokens,
            sampling=self._sampling,
            stop=self._stop,
            interrupted=interrupted,
        )
        answer = generate(self._session.engine, tokenizer, request, on_text)
        self.messages = [*asked, Message("assistant", answer.text)]
        return answer

    def _require_room(self, tokens: int) -> None:
        """ConfigError if earlier turns leave no room; a long first question is prefill's."""
        context = self._session.engine.limits.context
        if tokens <= context or all(message.role != "assistant" for message in self.messages):
            return
        reach = read_fields(self._session.directory, CONFIG, Reach).max_position_embeddings
        larger = f", or compile with a larger --context (up to {reach})" if reach > context else ""
        raise ConfigError(
            f"the conversation has {tokens} tokens, but the context holds {context}",
            hint=f"start a new chat{larger}",
        )


class Reach(msgspec.Struct, frozen=True):
    """Of config.json, how far the model itself goes."""

    max_position_embeddings: int = 0


def _sampling(advised: Sampling, manner: Manner) -> Sampling:
    return replace(
        advised,
        temperature=_or(manner.temperature, advised.temperature),
        top_k=_or(manner.top_k, advised.top_k),
        top_p=_or(manner.top_p, advised.top_p),
        seed=manner.seed,
    )


def _or(asked: T | None, advised: T) -> T:
    return advised if asked is None else asked
