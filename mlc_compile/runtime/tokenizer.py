"""Text to token ids and back, the latter as a stream that never breaks a character.

A token of a byte-level BPE is a string of bytes, and a character may be spread over several
tokens: the detokenizer joins bytes, not strings, and holds back an unfinished character.
"""

import codecs
from pathlib import Path
from typing import Final

import msgspec
import tokenizers
import tokenizers.decoders

from mlc_compile.errors import CheckpointError, ConfigError, DamageError

TOKENIZER: Final = "tokenizer.json"


class Tokenizer:
    """The `tokenizer.json` of a directory; it must be byte-level, as Qwen's is."""

    def __init__(self, directory: Path) -> None:
        path = directory / TOKENIZER
        if not path.is_file():
            raise CheckpointError(
                f"{directory} has no {TOKENIZER}",
                hint="add it to the model directory and build again",
            )
        content = path.read_bytes()
        try:
            # The library's own error for broken JSON is a bare Exception.
            msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, RecursionError) as e:
            raise DamageError(f"{path} is damaged: {e}", hint="rebuild the artifact") from e
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(content)
        except ValueError as e:
            raise CheckpointError(
                f"{path} is not a tokenizer that the tokenizers library reads: {e}",
                hint="use the tokenizer that belongs to the Qwen3 checkpoint",
            ) from e
        if not isinstance(self._tokenizer.decoder, tokenizers.decoders.ByteLevel):
            raise CheckpointError(
                f"{path} must have a ByteLevel decoder (got {self._tokenizer.decoder})",
                hint="use the tokenizer that belongs to the Qwen3 checkpoint",
            )
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(i for i, token in added.items() if token.special)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text`; with `special` the tokenizer may add its begin and end marks.

        Raises ConfigError if `text` holds bytes that were not UTF-8 (Python's surrogates).
        """
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise ConfigError("the text is not UTF-8", hint="convert it to UTF-8") from e
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`, special tokens left out."""
        stream = Detokenizer(self)
        return "".join(map(stream.feed, ids)) + stream.flush()

    def bytes_of(self, token: int) -> bytes:
        """The bytes that `token` stands for; none for special and unknown ids."""
        piece = None if token in self._special else self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        try:
            return bytes(_BYTE_OF[c] for c in piece)
        except KeyError:  # an added token, which is stored as it reads
            return piece.encode()


class Detokenizer:
    """Turns tokens into text as they come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """The characters that `token` completes, perhaps none."""
        return self._decoder.decode(self._tokenizer.bytes_of(token))

    def flush(self) -> str:
        """What remains at the end: U+FFFD if a character was left unfinished."""
        return self._decoder.decode(b"", final=True)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself if printable, else the next from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (b for b in range(256) if b not in printable)
    moved = {chr(0x100 + i): b for i, b in enumerate(others)}
    return {chr(b): b for b in printable} | moved


_BYTE_OF: Final = _byte_alphabet()
