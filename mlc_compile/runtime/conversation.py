"""Turns of a chat: render all of them, compute only what the cache does not hold yet."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from mlc_compile.runtime.defaults import model_sampling, stop_tokens
from mlc_compile.runtime.generate import Generation, Request, generate
from mlc_compile.runtime.sampler import Sampling
from mlc_compile.runtime.session import Session
from mlc_compile.runtime.template import Message, read_template


@dataclass(frozen=True, slots=True)
class Manner:
    """How the assistant answers; None leaves it to the model's files."""

    max_tokens: int
    temperature: float | None = None
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

    def ask(self, question: str, on_text: Callable[[str], None]) -> Generation:
        """Answer `question` in the light of all before it; raises what `generate` does."""
        asked = [*self.messages, Message("user", question)]
        text = self._template.render(asked, thinking=self._manner.thinking)
        tokenizer = self._session.tokenizer
        request = Request(
            prompt=tokenizer.encode(text, special=False),  # the template wrote the marks
            max_tokens=self._manner.max_tokens,
            sampling=self._sampling,
            stop=self._stop,
        )
        answer = generate(self._session.engine, tokenizer, request, on_text)
        self.messages = [*asked, Message("assistant", answer.text)]
        return answer


def _sampling(advised: Sampling, manner: Manner) -> Sampling:
    temperature = advised.temperature if manner.temperature is None else manner.temperature
    return replace(advised, temperature=temperature, seed=manner.seed)
