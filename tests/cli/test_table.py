"""A table on a narrow terminal: what gives way, and what never does."""

import io

import pytest
from rich.console import Console

from mlc_compile.cli.console import plain_table

NUMBER, WORDS, LONG = "1234567.890", "several words that may be folded", "dropped/where/narrow"


def drawn(width: int, **yielding: tuple[str, ...]) -> list[str]:
    table = plain_table("name", "number", "about", "place", **yielding)
    table.add_row("x" * 20, NUMBER, WORDS, LONG)
    console = Console(file=io.StringIO(), width=width, soft_wrap=True, color_system=None)
    console.print(table)
    return console.file.getvalue().splitlines()


def test_with_room_every_column_is_on_one_line() -> None:
    lines = drawn(200, folding=("about",), dropped=("place",))
    assert len(lines) == 2
    assert lines[1].split("  ") == ["x" * 20, NUMBER, WORDS, LONG]


@pytest.mark.parametrize("width", [48, 60])
def test_what_gives_way_leaves_numbers_and_names_whole(width: int) -> None:
    lines = drawn(width, folding=("about",), dropped=("place",))
    assert max(map(len, lines)) <= width
    assert f"{'x' * 20}  {NUMBER}  several" in lines[1]
    text = " ".join(line[35:].strip() for line in lines[1:])
    assert "".join(text.split()).startswith(WORDS.replace(" ", ""))
    assert "place" not in lines[0]
    assert "…" not in "".join(lines)


def test_where_nothing_gives_way_lines_are_longer_than_the_terminal() -> None:
    lines = drawn(40)
    assert lines[1].split("  ") == ["x" * 20, NUMBER, WORDS, LONG]


def test_drawing_twice_draws_the_same() -> None:
    table = plain_table("a", "b", dropped=("b",))
    table.add_row("y" * 30, "z" * 30)
    for width, shown in ((40, False), (100, True)):
        console = Console(file=io.StringIO(), width=width, soft_wrap=True)
        console.print(table)
        assert ("z" * 30 in console.file.getvalue()) == shown
