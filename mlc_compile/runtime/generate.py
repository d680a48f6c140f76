"""The loop of generating: prefill a prompt, then sample and decode until something ends it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Literal

import msgspec

from mlc_compile.runtime.engine import Engine
from mlc_compile.runtime.sampler import GREEDY, Sampler, Sampling
from mlc_compile.runtime.tokenizer import Detokenizer, Tokenizer

Finish = Literal["stop", "length", "context", "interrupt"]
ENDINGS: Final[dict[Finish, str]] = {
    "stop": "stopped at a stop token",
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
    """A finished text; the token that stopped it belongs to neither `token_ids` nor `text`."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: Finish  # a stop token, max_tokens reached, the context full, or whoever waits
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
    max_tokens: int
    sampling: Sampling = GREEDY
    stop: frozenset[int] = frozenset()  # ids that end the text
    interrupted: Callable[[], bool] = never  # asked before each new token: whether to end


def generate(
    engine: Engine, tokenizer: Tokenizer, request: Request, on_text: Callable[[str], None]
) -> Generation:
    """Continue the prompt, telling `on_text` each piece of text as it becomes whole.

    What the engine's cache shares with the prompt is not computed again. Raises what
    `Engine.prefill` does.
    """
    prompt = request.prompt
    sampler, stream, pieces = Sampler(request.sampling), Detokenizer(tokenizer), _Pieces(on_text)
    start = perf_counter()
    kept = engine.keep_prefix(prompt)
    token = sampler.sample(engine.prefill(prompt[kept:]))
    prefilled = perf_counter()
    tokens: list[int] = []
    reason: Finish = "length"
    while len(tokens) < request.max_tokens:
        if token in request.stop:
            reason = "stop"
            break
        tokens.append(token)
        pieces.add(stream.feed(token))
        if len(tokens) == request.max_tokens:
            break
        if engine.room == 0:
            reason = "context"
            break
        if request.interrupted():
            reason = "interrupt"
            break
        token = engine.next_token(token, sampler)
    pieces.add(stream.flush())
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


class _Pieces:
    """The text so far; each new piece is told at once."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
            self._on_text(piece)

    def text(self) -> str:
        return "".join(self._pieces)


def _timings(prefilled: int, decoded: int, prefill_s: float, decode_s: float) -> Timings:
    return Timings(
        prefill_s=prefill_s,
        decode_s=decode_s,
        prefill_tok_s=prefilled / prefill_s,
        decode_tok_s=decoded / decode_s if decoded else None,
    )
