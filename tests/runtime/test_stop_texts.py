"""Where a text stops does not depend on the pieces that it comes in."""

from itertools import pairwise, product

import pytest

from mlc_compile.errors import ConfigError
from mlc_compile.runtime.stop_texts import StoppedText, StopTexts


def fed(pieces: list[str], stops: tuple[str, ...]) -> tuple[list[str], bool]:
    stream, told = StoppedText(StopTexts(stops)), []
    for piece in pieces:
        text, stopped = stream.feed(piece)
        told.append(text)
        if stopped:
            return told, True
    return [*told, stream.flush()], False


def definition(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """Character by character: the first end of a stop text, and the longest that ends there."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)], True
    return text, False


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("xabcdyz", ("abcd", "bc")),
        ("aaab", ("aab",)),
        ("abababc", ("ababc", "bb")),
        ("日本語です", ("語で", "本語で")),
        ("no stop he", ("here", "e!")),
        ("anything", ()),
    ],
)
def test_every_way_to_cut_a_text_stops_it_where_it_is_defined(
    text: str, stops: tuple[str, ...]
) -> None:
    for cuts in product((False, True), repeat=len(text) - 1):
        at = [0, *(i for i, cut in enumerate(cuts, 1) if cut), len(text)]
        told, stopped = fed([text[i:j] for i, j in pairwise(at)], stops)
        assert ("".join(told), stopped) == definition(text, stops)


def test_only_what_may_belong_to_a_stop_text_is_held_back() -> None:
    told, stopped = fed(["one ", "<", "two <e", "nd", "> three"], ("<end>",))
    assert (told, stopped) == (["one ", "", "<two ", "", ""], True)


def test_an_empty_stop_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="must not be empty"):
        StopTexts(("a", ""))
