"""One sequence in a KV cache: append tokens in chunks, get logits, rewind.

All bounds are checked here, because the compiled library checks none.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from mlc_compile.artifact import Limits
from mlc_compile.errors import ConfigError, DamageError
from mlc_compile.runtime.load import Loadable, check_artifact
from mlc_compile.runtime.sampler import Sampler
from mlc_compile.runtime.vm import CompiledModel, start_tvm

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

SCORE_BYTES: Final = 64 << 20  # logits of one score call: 152k words x 512 tokens would be 300 MB


class Model(Protocol):
    """What the engine needs of a compiled library; see `vm.CompiledModel`."""

    @property
    def chooses(self) -> bool:
        """Whether the library has functions that choose a token, for `next_token`."""

    def prefill(self, ids: Ints, position: int) -> Floats:
        """Append ids i32[n] at `position`; f32[vocab] after the last."""

    def decode(self, token: int, position: int) -> Floats:
        """Append one token at `position`; f32[vocab] after it."""

    def next_token(self, token: int, position: int, sampler: Sampler) -> int:
        """Append one token at `position`; the one to follow, below 0 if its logit isn't finite."""

    def score(self, ids: Ints, position: int) -> Floats:
        """Append ids i32[n] at `position`; f32[n, vocab], one row after each."""


class Engine:
    """A model and the tokens that its cache holds."""

    def __init__(self, model: Model, limits: Limits, vocab_size: int) -> None:
        self.limits = limits
        self.vocab_size = vocab_size
        self._model = model
        self._tokens: list[int] = []

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return len(self._tokens)

    @property
    def room(self) -> int:
        """Tokens that the context can still take."""
        return self.limits.context - self.length

    def prefill(self, ids: Sequence[int]) -> Floats:
        """Append a prompt of one or more tokens; logits f32[vocab] that follow it.

        Raises ConfigError for an empty prompt, ids outside the vocabulary and a prompt
        that the context cannot hold; the cache is then as it was.
        """
        checked = self._check(ids)
        for chunk in self._chunks(checked, self.limits.prefill_chunk):
            logits = self._model.prefill(chunk, self.length)
            self._tokens.extend(chunk.tolist())
        return _finite(logits)

    def decode(self, token: int) -> Floats:
        """Append one token; logits f32[vocab] that follow it. Errors as for `prefill`."""
        self._check((token,))
        logits = self._model.decode(token, self.length)
        self._tokens.append(token)
        return _finite(logits)

    def next_token(self, token: int, sampler: Sampler) -> int:
        """Append one token; the one that `sampler` chooses to follow it. Errors as for `prefill`.

        Where the library can choose so, the logits stay on the device, and that of the chosen
        token alone is known to be finite. That finds what goes wrong on the way, which makes
        all logits NaN; a damaged row of the head shows in the logits of every prefill.
        """
        if not self._model.chooses or sampler.sampling.host_only:
            return sampler.sample(self.decode(token))
        self._check((token,))
        chosen = self._model.next_token(token, self.length, sampler)
        self._tokens.append(token)
        if not 0 <= chosen < self.vocab_size:
            raise _not_finite()
        return chosen

    @property
    def score_rows(self) -> int:
        """Most tokens that one block of `score` covers."""
        return min(max(1, SCORE_BYTES // (4 * self.vocab_size)), self.limits.prefill_chunk)

    def score(self, ids: Sequence[int], rows: int | None = None) -> Iterator[Floats]:
        """Append `ids`; logits that follow each, as blocks f32[m, vocab] in order.

        m is `rows` (at most and by default `score_rows`), in the last block what remains.
        Errors as for `prefill`, raised at the first block.
        """
        checked = self._check(ids)
        for chunk in self._chunks(checked, min(rows or self.score_rows, self.score_rows)):
            logits = self._model.score(chunk, self.length)
            self._tokens.extend(chunk.tolist())
            yield _finite(logits)

    def keep_prefix(self, ids: Sequence[int]) -> int:
        """Forget all but what the cache shares with the start of `ids`; how many that is.

        Always fewer than all of `ids`, so that prefilling the rest gives logits.
        """
        pairs = enumerate(zip(self._tokens, ids, strict=False))
        shared = next((i for i, (ours, new) in pairs if ours != new), min(self.length, len(ids)))
        self.rewind(min(shared, max(len(ids) - 1, 0)))
        return self.length

    def rewind(self, length: int = 0) -> None:
        """Forget all tokens but the first `length`."""
        assert 0 <= length <= self.length, (length, self.length)
        del self._tokens[length:]

    def _check(self, ids: Sequence[int]) -> Ints:
        if len(ids) == 0:
            raise ConfigError("the prompt has no tokens", hint="give at least one character")
        array = np.asarray(ids, np.int64)
        outside = array[(array < 0) | (array >= self.vocab_size)]
        if outside.size:
            raise ConfigError(
                f"token id {outside[0]} is outside the model's vocabulary of {self.vocab_size}",
                hint="the tokenizer belongs to another model",
            )
        if array.size > self.room:
            raise ConfigError(self._too_long(array.size), hint=_LONGER)
        return array.astype(np.int32)

    def _too_long(self, n: int) -> str:
        before = f" after {self.length} in the cache" if self.length else ""
        return (
            f"the prompt has {n} tokens{before}, but the context holds {self.limits.context} tokens"
        )

    @staticmethod
    def _chunks(ids: Ints, size: int) -> Iterator[Ints]:
        return (ids[i : i + size] for i in range(0, ids.size, size))


def open_engine(directory: Path, threads: int | None = None) -> Engine:
    """Check and load the artifact in `directory`; see `load.check_artifact` for the errors."""
    return start_engine(check_artifact(directory), threads)


def start_engine(loadable: Loadable, threads: int | None = None) -> Engine:
    """Load a checked artifact; `threads` as in `vm.start_tvm`."""
    start_tvm(threads)
    manifest = loadable.manifest
    return Engine(CompiledModel(loadable), manifest.limits, manifest.vocab_size)


def _finite(logits: Floats) -> Floats:
    if not np.isfinite(logits.max()):  # the maximum of anything with a NaN is NaN
        raise _not_finite()
    return logits


def _not_finite() -> DamageError:
    return DamageError(
        "the library computed logits that are not finite",
        hint="run `mlc-compile verify` on the artifact",
    )


_LONGER: Final = "shorten it, or compile with a larger --context"
