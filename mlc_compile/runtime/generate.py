"""The loop of generating: prefill a prompt, then sample and decode until something ends it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Literal

import msgspec

from mlc_compile.runtime.engine import Engine
from mlc_compile.runtime.sampler import GREEDY, Sampler, Sampling
from mlc_compile.runtime.stop_texts import NO_STOP_TEXTS, StoppedText, StopTexts
from mlc_compile.runtime.tokenizer import Detokenizer, Tokenizer

Finish = Literal["stop", "stop_text", "length", "context", "interrupt"]
ENDINGS: Final[dict[Finish, str]] = {
    "stop": "stopped at a stop token",
    "stop_text": "stopped at a stop text",
    "length": "stopped at --max-tokens",
    "context": "stopped with the context full",
    "interrupt": "interrupted",
}


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, and tokens a second of those computed; the first new token comes with prefill."""

    prefill_s: float
    decode_s: float
    prefill_tok_s: float
    decode_tok_s: float | None  # None: nothing was decoded


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A finished text; the token that stopped it belongs to neither `token_ids` nor `text`.

    A stop text does not belong to `text`, but its tokens do to `token_ids`.
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: Finish  # a key of ENDINGS
    timings: Timings

    def told(self) -> str:
        """Speed and ending in one line, for people."""
        t = self.timings
        counts = f"{len(self.prompt_token_ids)} prompt + {len(self.token_ids)} new tokens"
        prefill = f"prefill {t.prefill_tok_s:.1f} tok/s"
        decode = [f"decode {t.decode_tok_s:.1f} tok/s"] if t.decode_tok_s else []
        return ", ".join([counts, prefill, *decode, ENDINGS[self.finish_reason]])


def never() -> bool:
    """Nobody interrupts."""
    return False


@dataclass(frozen=True, slots=True)
class Request:
    """What to continue, how to choose, and when to end."""

    prompt: Sequence[int]
    max_tokens: int | None  # 1 or more; None: until the context is full
    sampling: Sampling = GREEDY
    stop: frozenset[int] = frozenset()  # ids that end the text
    stop_texts: StopTexts = NO_STOP_TEXTS
    interrupted: Callable[[], bool] = never  # asked before each new token: whether to end


def generate(
    engine: Engine, tokenizer: Tokenizer, request: Request, on_text: Callable[[str], None]
) -> Generation:
    """Continue the prompt, telling `on_text` each piece of text as it becomes whole.

    What the engine's cache shares with the prompt is not computed again. Raises what
    `Engine.prefill` does.
    """
    prompt = request.prompt
    sampler, stream = Sampler(request.sampling, prompt), Detokenizer(tokenizer)
    pieces = _Pieces(on_text, request.stop_texts)
    start = perf_counter()
    kept = engine.keep_prefix(prompt)
    token = sampler.sample(engine.prefill(prompt[kept:]))
    prefilled = perf_counter()
    tokens: list[int] = []
    reason: Finish | None = None
    while reason is None:
        if token in request.stop:
            reason = "stop"
            break
        tokens.append(token)
        pieces.add(stream.feed(token))
        reason = _ending(request, len(tokens), pieces, engine)
        if reason is None:
            token = engine.next_token(token, sampler)
    pieces.end(stream.flush())
    return Generation(
        prompt_token_ids=tuple(prompt),
        token_ids=tuple(tokens),
        text=pieces.text(),
        finish_reason=reason,
        timings=_timings(
            len(prompt) - kept,
            engine.length - len(prompt),
            prefilled - start,
            perf_counter() - prefilled,
        ),
    )


def _ending(request: Request, told: int, pieces: "_Pieces", engine: Engine) -> Finish | None:
    """What ends the text after its token number `told`, if anything does."""
    if pieces.stopped:
        return "stop_text"
    if told == request.max_tokens:
        return "length"
    if engine.room == 0:
        return "context"
    return "interrupt" if request.interrupted() else None


class _Pieces:
    """The text so far; each new piece is told as soon as it cannot belong to a stop text."""

    def __init__(self, on_text: Callable[[str], None], stops: StopTexts) -> None:
        self.stopped = False
        self._on_text = on_text
        self._text = StoppedText(stops)
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        told, self.stopped = self._text.feed(piece)
        self._tell(told)

    def end(self, last: str) -> None:
        """After this no piece follows; none is told after a stop text."""
        if not self.stopped:
            self.add(last)
            self._tell(self._text.flush())

    def text(self) -> str:
        return "".join(self._pieces)

    def _tell(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
            self._on_text(piece)


def _timings(prefilled: int, decoded: int, prefill_s: float, decode_s: float) -> Timings:
    return Timings(
        prefill_s=prefill_s,
        decode_s=decode_s,
        prefill_tok_s=prefilled / prefill_s,
        decode_tok_s=decoded / decode_s if decoded else None,
    )
