"""A line of a record file: JSON with the digest of all that stands behind it.

    {"seal":"<sha256 of the rest>","partition":"<its digest>","record":{...}}
    {"seal":"<sha256 of the rest>","about":{...}}      the partition in words

The seal is over bytes, so any changed byte shows. No text inside a JSON string looks like the
beginning of a line, so that lines whose separator was damaged can be told apart.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

import msgspec

from mlc_compile.artifact import Struct
from mlc_compile.records.partition import Partition
from mlc_compile.records.record import Record, canonical

START: Final = b'{"seal":"'
DIGEST: Final = 64  # hexadecimal digits of a sha256
BODY: Final = len(START) + DIGEST + len(b'",')


class Measured(Struct, frozen=True):
    """A line that holds a record."""

    partition: str
    record: Record


class About(Struct, frozen=True):
    """A line that says what the file's partition is."""

    about: Partition


class Damaged(ValueError):
    """A line that is not as it was written; its text is the reason."""


def encode_line(line: Measured | About) -> bytes:
    """One line with its newline."""
    body = canonical(line)[1:]
    return START + _seal(body) + b'",' + body + b"\n"


def decode_line(text: bytes) -> Measured | About:
    """What a line says, without its newline; Damaged if it is not as it was written."""
    body = text[BODY:]
    if text[:BODY] != START + _seal(body) + b'",':
        raise Damaged("it does not have its digest")
    try:
        if body.startswith(b'"about":'):
            return msgspec.json.decode(b"{" + body, type=About)
        return msgspec.json.decode(b"{" + body, type=Measured)
    except (msgspec.DecodeError, RecursionError) as e:
        raise Damaged(f"it is no record: {e}") from e


def decode_lines(data: bytes) -> Iterator[tuple[int, Measured | About | Damaged]]:
    """All that a file holds, each with the number of its line from 1."""
    for number, text in enumerate(data.split(b"\n"), 1):
        whole = _decoded(text)
        if isinstance(whole, Damaged):
            for piece in _pieces(text):
                yield number, _decoded(piece)
        else:
            yield number, whole


def _decoded(text: bytes) -> Measured | About | Damaged:
    try:
        return decode_line(text)
    except Damaged as e:
        return e


def _pieces(text: bytes) -> Iterator[bytes]:
    """What may be lines of their own where the newline between them was damaged."""
    head, *rest = text.split(START)
    if head:
        yield head
    yield from (START + one for one in rest)


def _seal(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
