"""Text to ids and back, as `tokenizers` does it, but in pieces that are always whole characters."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from mlc_compile.errors import CheckpointError, ConfigError, DamageError
from mlc_compile.runtime.tokenizer import Detokenizer, Tokenizer

TEXTS = [
    "plain words, twice  spaced\n\tand a tab",
    "naïve café – Ærøskøbing, 日本語, हिन्दी, 👩‍👩‍👧 and 🏳️‍🌈",  # noqa: RUF001
    "<think>added tokens are text</think>",
]


@pytest.fixture(scope="module")
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(request.getfixturevalue("tiny_checkpoint"))


@pytest.fixture(scope="module")
def plain(tiny_checkpoint: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_pieces_join_to_the_text(tokenizer: Tokenizer, text: str) -> None:
    stream = Detokenizer(tokenizer)
    pieces = [stream.feed(token) for token in tokenizer.encode(text)]
    assert "".join(pieces) == text
    assert stream.flush() == ""


def test_no_piece_holds_half_a_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("日本語 👩‍👩‍👧")
    stream = Detokenizer(tokenizer)
    pieces = [stream.feed(token) for token in ids]
    assert "" in pieces  # some token ended within a character
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_unfinished_character_is_told_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("日")
    stream = Detokenizer(tokenizer)
    assert len(ids) > 1
    assert [stream.feed(token) for token in ids[:-1]] == [""] * (len(ids) - 1)
    assert stream.flush() == "\ufffd"


@pytest.mark.parametrize("seed", range(20))
def test_any_ids_decode_as_tokenizers_decodes_them(
    tokenizer: Tokenizer, plain: tokenizers.Tokenizer, seed: int
) -> None:
    # The first 256 ids are single bytes: mostly broken UTF-8.
    random = np.random.default_rng(seed)
    ids = [int(i) for i in random.integers(0, 256 if seed % 2 else 4096, 200)]
    assert tokenizer.decode(ids) == plain.decode(ids, skip_special_tokens=True)


def test_special_and_unknown_ids_have_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([4092, 4093, 4091, 99_999]) == ""


def test_ids_are_those_of_tokenizers(tokenizer: Tokenizer, plain: tokenizers.Tokenizer) -> None:
    text = "<|im_start|>user\nhello<|im_end|>"
    assert tokenizer.encode(text) == plain.encode(text).ids


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        Tokenizer(tmp_path)


def test_a_truncated_tokenizer_is_damage(tmp_path: Path, tiny_checkpoint: Path) -> None:
    content = (tiny_checkpoint / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(content[: len(content) // 2])
    with pytest.raises(DamageError, match=r"tokenizer\.json is damaged"):
        Tokenizer(tmp_path)


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path, tiny_checkpoint: Path) -> None:
    shutil.copy(tiny_checkpoint / "tokenizer.json", tmp_path)
    other = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    other.decoder = tokenizers.decoders.Metaspace()
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="must have a ByteLevel decoder"):
        Tokenizer(tmp_path)


def test_text_that_is_not_utf8_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="not UTF-8"):
        tokenizer.encode(b"caf\xe9".decode(errors="surrogateescape"))


@pytest.mark.parametrize("content", ["{}", '{"version": "9"}', '{"model": null}'])
def test_what_the_library_cannot_read_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer.json is not a tokenizer"):
        Tokenizer(tmp_path)
